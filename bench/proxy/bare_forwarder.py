"""The floor of this machine: a forwarder of uvloop protocols and httptools parsers that judges and counts nothing.

What it takes per request is what any Python proxy pays before it does a thing of its own. With `--blind` it does not
even look for where a message ends: each client has an engine connection of its own, and bytes are copied.
"""

import asyncio
import sys

import httptools
import uvloop


class Upstream(asyncio.Protocol):
    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.client: Client | None = None
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.client is not None:
            self.client.transport.write(data)
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        client, self.client = self.client, None
        self.pool.idle.append(self)
        if client is not None:
            client.upstream = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.pool.idle:
            self.pool.idle.remove(self)
        if self.client is not None:
            self.client.transport.abort()


class Client(asyncio.Protocol):
    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.upstream: Upstream | None = None
        self.parser = httptools.HttpRequestParser(self)
        self.parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parts.append(data)
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        request = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts.clear()
        self.pool.send(self, request)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.upstream is not None:
            self.upstream.transport.abort()


class Pool:
    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[Upstream] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def send(self, client: Client, request: bytes) -> None:
        if self.idle:
            self.start(self.idle.pop(), client, request)
        else:
            task = asyncio.create_task(self.connect(client, request))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def connect(self, client: Client, request: bytes) -> None:
        _, upstream = await asyncio.get_running_loop().create_connection(lambda: Upstream(self), "127.0.0.1", self.port)
        self.start(upstream, client, request)

    def start(self, upstream: Upstream, client: Client, request: bytes) -> None:
        upstream.client = client
        client.upstream = upstream
        upstream.transport.write(request)


class Blind(asyncio.Protocol):
    """One side of a pair; bytes of the one go to the other."""

    def __init__(self, port: int, other: "Blind | None" = None) -> None:
        self.port = port
        self.other = other
        self.early = b""
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.other is None:
            self.task = asyncio.create_task(self.pair())
        else:
            self.other.other = self
            transport.write(self.other.early)

    async def pair(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: Blind(self.port, self), "127.0.0.1", self.port)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.abort()


async def main(engine_port: int, blind: bool) -> None:
    loop = asyncio.get_running_loop()
    pool = Pool(engine_port)
    server = await loop.create_server(
        (lambda: Blind(engine_port)) if blind else (lambda: Client(pool)), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), "--blind" in sys.argv))
