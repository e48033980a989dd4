"""How many bytes of request bodies the server holds over all connections: bounded, and 0 when it is idle."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.http.connection import ACCOUNTED_BYTES
from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import ServerLimits
from kvbudget.edge.http.relay import RelayOutcome

Run = Callable[[Callable[[Any], Any]], None]
SIZE = 4 * ACCOUNTED_BYTES
BODY = b"x" * SIZE
LIMITS = ServerLimits(buffered_bytes=2 * SIZE, body_bytes=SIZE)
CHUNKED = b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def post(body: bytes, length: int | None = None) -> bytes:
    return b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body) if length is None else length,
        body,
    )


async def refused(client: Any) -> None:
    status, head, body = await client.answer()
    assert status == 503
    assert b"retry-after: 1\r\n" in head
    assert b"connection: close\r\n" in head
    assert json.loads(body)["error"]["code"] == "server_is_overloaded"


@pytest.mark.parametrize("more", [post(b"", SIZE), CHUNKED + b"%x\r\n" % SIZE + BODY])
def test_a_body_beyond_what_is_left_is_answered_503_until_others_are_released(run: Run, more: bytes) -> None:
    async def dialogue(net: Any) -> None:
        held: list[Exchange] = []
        server = await net.serve(held.append, LIMITS)
        clients = [await net.client(server, post(BODY)) for _ in range(2)]
        await net.became(lambda: len(held) == 2)
        assert server.buffered_bytes == 2 * SIZE
        late = await net.client(server, more)
        await refused(late)
        small = await net.client(server, post(b"hi"))  # what costs next to nothing is served
        await net.became(lambda: len(held) == 3)
        held[2].respond(200, [], b"")
        assert (await small.answer())[0] == 200
        assert server.buffered_bytes == 2 * SIZE
        held[0].respond(200, [], b"")
        assert server.buffered_bytes == SIZE
        assert held[0].body == b""
        await clients[0].answer()
        await clients[0].send(post(BODY))
        await net.became(lambda: len(held) == 4)
        held[1].fail(500, "internal_error", "m")
        held[3].respond(200, [], b"")
        assert server.buffered_bytes == 0

    run(dialogue)


@pytest.mark.parametrize("begin", [post(b"", SIZE), CHUNKED + b"%x\r\n" % SIZE])
def test_bodies_that_grow_together_beyond_the_bound_are_cut_off(run: Run, begin: bytes) -> None:
    """What is announced and does not come costs nothing and shuts nobody out."""

    async def dialogue(net: Any) -> None:
        called: list[Exchange] = []
        server = await net.serve(called.append, LIMITS)
        clients = [await net.client(server, begin) for _ in range(3)]
        await net.became(lambda: server.connections == 3)
        assert server.buffered_bytes == 0
        for client in clients:
            await client.send(BODY[:-1])
        await refused(clients[2])
        assert server.buffered_bytes == 2 * (SIZE - 1)
        clients[0].abort()
        await net.became(lambda: server.buffered_bytes == SIZE - 1)
        clients[1].close()
        clients[2].close()
        await net.empty(server)
        assert server.buffered_bytes == 0
        assert called == []

    run(dialogue)


def test_a_small_body_is_not_accounted(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        held: list[Exchange] = []
        server = await net.serve(held.append)
        await net.client(server, post(b"x" * (ACCOUNTED_BYTES - 1)))
        await net.client(server, post(b"x" * ACCOUNTED_BYTES))
        await net.became(lambda: len(held) == 2)
        assert server.buffered_bytes == ACCOUNTED_BYTES

    run(dialogue)


@pytest.mark.parametrize("end", ["timeout", "bad_chunk", "leaves_waiting", "drained", "app_fails"])
def test_nothing_is_held_after_any_end(run: Run, end: str) -> None:
    async def dialogue(net: Any) -> None:
        held: list[Exchange] = []

        def app(exchange: Exchange) -> None:
            held.append(exchange)
            if end == "app_fails":
                raise RuntimeError("broken app")

        server = await net.serve(app, ServerLimits(body_s=0.1 if end == "timeout" else 5))
        if end in ("timeout", "bad_chunk"):
            client = await net.client(server, CHUNKED + b"%x\r\n" % SIZE + BODY)
            await net.became(lambda: server.buffered_bytes == SIZE)
            if end == "bad_chunk":
                await client.send(b"no")
            assert (await client.answer())[0] == 400
            assert server.buffered_bytes == 0
            return
        client = await net.client(server, post(BODY))
        await net.became(lambda: held)
        if end == "app_fails":
            assert (await client.answer())[0] == 500
        else:
            assert server.buffered_bytes == SIZE
            if end == "leaves_waiting":
                client.close()
                await net.empty(server)
            else:
                await server.close(0.05)
        assert server.buffered_bytes == 0

    run(dialogue)


@pytest.mark.parametrize("end", ["head", "broken", "cancelled", "leaves", "withheld"])
def test_a_relayed_body_is_held_until_the_answer_begins_or_nobody_needs_it(run: Run, end: str) -> None:
    async def dialogue(net: Any) -> None:
        go, more = asyncio.Event(), asyncio.Event()

        async def script(peer: Any) -> None:
            await peer.request()
            await go.wait()
            if end == "broken":
                peer.close()
            else:
                await peer.send(OK[:-2])
                await more.wait()
                await peer.send(b"ok")
            await peer.closed()

        server, _ = await net.gate(script, passes=end != "withheld")
        client = await net.client(server, post(BODY))
        await net.became(lambda: net.seen)
        assert server.buffered_bytes == SIZE
        if end == "leaves":
            client.close()
            await net.seen[0].end()  # before the engine says anything: its answer would race with the leaving
        elif end == "cancelled":
            net.seen[0].relay.cancel()
        go.set()
        if end in ("head", "withheld"):
            await net.seen[0].head_here.wait()
            assert server.buffered_bytes == 0
        more.set()
        outcome = (await net.seen[0].end()).outcome
        assert (outcome is RelayOutcome.DONE) is (end == "head")
        assert server.buffered_bytes == 0

    run(dialogue)
