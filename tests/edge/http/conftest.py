"""Real sockets on 127.0.0.1: a gate that relays, an upstream that follows a script, a client of raw bytes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvloop

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import ServerLimits, UpstreamLimits
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.server import App, HttpServer, start_server
from kvbudget.edge.http.upstream import Relay, RelayEnd, RelayOutcome, Upstream

Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """One end of a connection, as raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def head(self) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)

    async def exactly(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), 10)

    async def until(self, mark: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(mark), 10)

    async def rest(self) -> bytes:
        """All bytes until the other side closes; a reset ends it too."""
        got = bytearray()
        with contextlib.suppress(ConnectionError):
            while data := await asyncio.wait_for(self.reader.read(65536), 10):
                got += data
        return bytes(got)

    async def closed(self, within_s: float = 5) -> None:
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(self.reader.read(65536), within_s):
                pass

    async def request(self) -> tuple[bytes, bytes]:
        """For an upstream: one request with Content-Length."""
        head = await self.head()
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return head, await self.exactly(length)

    async def answer(self) -> tuple[int, bytes, bytes]:
        """For a client: one answer with Content-Length: status, head, body."""
        head, body = await self.request()
        return int(head.split(b" ")[1]), head, body

    def abort(self) -> None:
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class Seen:
    """Watches one relay."""

    def __init__(self, passes: bool = True) -> None:
        self.passes = passes
        self.status: int | None = None
        self.headers: Headers = []
        self.events = 0
        self.stalls = 0
        self.ends: list[RelayEnd] = []
        self.gone = 0
        self.head_here = asyncio.Event()
        self.end_here = asyncio.Event()
        self.gone_here = asyncio.Event()
        self.exchange: Exchange | None = None
        self.relay: Relay | None = None

    def on_head(self, status: int, headers: Headers) -> bool:
        self.status, self.headers = status, headers
        self.head_here.set()
        return self.passes

    def on_events(self, count: int) -> None:
        assert count > 0
        self.events += count

    def on_stall(self) -> None:
        self.stalls += 1

    def on_end(self, end: RelayEnd) -> None:
        self.ends.append(end)
        self.end_here.set()
        assert self.exchange is not None
        if self.exchange.open:
            body = end.outcome.value.encode() + (b":" + end.body_tail if end.outcome is RelayOutcome.WITHHELD else b"")
            self.exchange.respond(502, [(b"x-own", b"1")], body)

    def on_gone(self) -> None:
        self.gone += 1
        self.gone_here.set()

    async def end(self, within_s: float = 10) -> RelayEnd:
        await asyncio.wait_for(self.end_here.wait(), within_s)
        assert len(self.ends) == 1
        return self.ends[0]


class Net:
    """Opens what a test needs and closes it."""

    server_limits = ServerLimits(head_s=5, body_s=5, idle_s=5, write_stall_s=5)
    upstream_limits = UpstreamLimits(connect_s=5, response_s=5, read_stall_s=5, idle_s=5)

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self.stack = stack
        self.seen: list[Seen] = []
        self.upstream_connections = 0

    async def serve(self, app: App, limits: ServerLimits | None = None, **options: Any) -> HttpServer:
        server = await start_server(app, "127.0.0.1", 0, limits or self.server_limits, **options)
        self.stack.push_async_callback(server.close, 0.0)
        return server

    async def script(self, script: Script) -> int:
        """An upstream that runs `script` for every connection; its port."""
        tasks: set[asyncio.Task[None]] = set()

        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            self.upstream_connections += 1
            try:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                    await script(Peer(reader, writer))
            finally:
                writer.transport.abort()
                tasks.discard(task)

        async def stop() -> None:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        server = await asyncio.start_server(run, "127.0.0.1", 0, limit=2**22)
        self.stack.push_async_callback(stop)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def upstream(self, port: int, limits: UpstreamLimits | None = None) -> Upstream:
        upstream = Upstream(f"http://127.0.0.1:{port}", limits or self.upstream_limits)
        self.stack.callback(upstream.close)
        return upstream

    async def gate(
        self,
        script: Script,
        limits: ServerLimits | None = None,
        upstream_limits: UpstreamLimits | None = None,
        response_headers: Headers | None = None,
        passes: bool = True,
    ) -> tuple[HttpServer, Upstream]:
        """A server whose app relays every request to an upstream that follows `script`; see `self.seen`."""
        upstream = self.upstream(await self.script(script), upstream_limits)

        def app(exchange: Exchange) -> None:
            seen = Seen(passes)
            seen.exchange = exchange
            exchange.on_gone = seen.on_gone
            self.seen.append(seen)
            seen.relay = upstream.relay(
                exchange,
                method=exchange.method,
                target=exchange.target,
                headers=exchange.headers,
                body=exchange.body,
                response_headers=response_headers or [],
                watcher=seen,
            )

        return await self.serve(app, limits), upstream

    def watcher(self, exchange: Exchange) -> Seen:
        """Follows the relay of one more exchange; see `self.seen`."""
        seen = Seen()
        seen.exchange = exchange
        exchange.on_gone = seen.on_gone
        self.seen.append(seen)
        return seen

    async def client(self, server: HttpServer, *parts: bytes) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**22)
        peer = Peer(reader, writer)
        self.stack.callback(peer.abort)
        await peer.send(*parts)
        return peer

    async def became(self, condition: Callable[[], bool], within_s: float = 5) -> None:
        """Waits until `condition` holds, turn by turn."""
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.001)

    async def empty(self, server: HttpServer) -> None:
        await self.became(lambda: server.connections == 0)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Net]:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with contextlib.AsyncExitStack() as stack:
        yield Net(stack)
    assert errors == []


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    """Runs a dialogue `async def dialogue(net)` on a loop of its own; errors that reach the loop fail the test."""

    async def main(dialogue: Callable[[Any], Awaitable[None]]) -> None:
        async with asyncio.timeout(60), opened() as net:
            await dialogue(net)

    def run_on(dialogue: Callable[[Any], Awaitable[None]]) -> None:
        if request.param == "uvloop":
            uvloop.run(main(dialogue))
        else:
            asyncio.run(main(dialogue))

    return run_on
