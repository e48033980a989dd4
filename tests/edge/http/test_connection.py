"""One client connection: reading requests, refusing them, noticing that the client left."""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import ServerLimits

Run = Callable[[Callable[[Any], Any]], None]
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def echo(exchange: Exchange) -> None:
    exchange.respond(200, [], exchange.target + b" " + exchange.body)


def post(body: bytes, path: bytes = b"/p", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (path, size, body)


@pytest.mark.parametrize("step", [1, 2, 7, 64, 100_000])
def test_requests_are_read_alike_however_the_bytes_arrive(run: Run, step: int) -> None:
    wire = (
        b"\r\n"
        + post(b"hello")
        + GET
        + CHUNKED
        + b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"
        + b"GET http://b/abs HTTP/1.1\r\nHost: a\r\n\r\n"
    )

    async def dialogue(net: Any) -> None:
        client = await net.client(await net.serve(echo))
        for start in range(0, len(wire), step):
            client.writer.write(wire[start : start + step])
            await asyncio.sleep(0)
        answers = [(await client.answer())[2] for _ in range(4)]
        assert answers == [b"/p hello", b"/ ", b"/c abcde", b"/abs "]

    run(dialogue)


def test_pipelined_requests_are_answered_one_by_one_in_their_order(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        waiting: list[Exchange] = []
        server = await net.serve(waiting.append)
        client = await net.client(server, b"".join(post(b"x" * 9000, b"/%d" % number) for number in range(60)))
        for number in range(60):
            await net.became(lambda: waiting)
            assert len(waiting) == 1
            exchange = waiting.pop()
            assert exchange.target == b"/%d" % number
            exchange.respond(200, [], exchange.target)
            assert (await client.answer())[2] == b"/%d" % number

    run(dialogue)


def test_a_flood_of_pipelined_requests_stays_in_the_kernel(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        waiting: list[Exchange] = []
        server = await net.serve(waiting.append)
        client = await net.client(server)
        flood = asyncio.ensure_future(client.send(*[GET * 1000] * 500))
        await net.became(lambda: waiting)
        (connection,) = server._open
        await net.became(lambda: connection._reading_paused)
        assert len(connection._buffer) < 65536 + 262144
        flood.cancel()

    run(dialogue)


def test_a_client_that_leaves_while_nothing_is_read_from_it_is_noticed_too(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        waiting: list[Exchange] = []
        server = await net.serve(waiting.append, ServerLimits(idle_s=0.1))
        client = await net.client(server, GET * 3500)
        await net.became(lambda: waiting)
        (connection,) = server._open
        await net.became(lambda: connection._reading_paused)
        client.close()
        await net.empty(server)
        assert waiting[0].gone

    run(dialogue)


def test_synchronous_answers_to_ten_thousand_pipelined_requests_do_not_recurse(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        client = await net.client(await net.serve(echo))
        sending = asyncio.ensure_future(client.send(GET * 10_000 + GET.replace(b"/ ", b"/end ")))
        await client.until(b"\r\n\r\n/end ")
        await sending

    run(dialogue)


def test_a_client_that_waits_for_100_continue_gets_it(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        client = await net.client(
            await net.serve(echo), post(b"", length=2).replace(b"Host", b"Expect: 100-continue\r\nHost")
        )
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hi")
        assert (await client.answer())[2] == b"/p hi"

    run(dialogue)


@pytest.mark.parametrize(
    ("status", "code", "parts"),
    [
        (413, "body_too_large", [post(b"", length=101)]),
        (413, "body_too_large", [post(b"", length=101).replace(b"Host", b"Expect: 100-continue\r\nHost")]),
        (413, "body_too_large", [CHUNKED, b"65\r\n"]),
        (413, "body_too_large", [CHUNKED, *[b"10\r\n0123456789abcdef\r\n"] * 7]),
        (413, "body_too_large", [post(b"x" * 5_000_000)]),
        (431, "header_too_large", [b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200]),
        (431, "header_too_large", [b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"b" * 1000 + b"\r\n\r\n"]),
        (431, "header_too_large", [b"GET /" + b"a" * 2000]),
        (400, "bad_chunk", [CHUNKED + b"zz\r\n"]),
        (400, "bad_chunk", [CHUNKED + b"1\r\nabc\r\n0\r\n\r\n"]),
        (400, "bad_chunk", [CHUNKED + b"1;\nx\r\na\r\n0\r\n\r\n"]),
        (400, "bad_framing", [post(b"").replace(b"Host", b"Transfer-Encoding: chunked\r\nHost")]),
        (400, "bad_request", [b"GET / HTTP/1.1\nHost: a\n\n"]),
        (400, "bad_request", [b"\r\n" * 9]),
        (400, "bad_request", [b"\r", *[b"\n\r"] * 9]),
        (400, "bad_request", [b"\r\n\n"]),
        (400, "bad_request", [b"\r\n\rG"]),
        (400, "bad_request", [b"\x16\x03\x01\x02\x00\x01\x00\x01"]),
        (400, "host_required", [b"GET / HTTP/1.1\r\n\r\n"]),
        (400, "upgrade_refused", [GET.replace(b"Host", b"Upgrade: websocket\r\nConnection: upgrade\r\nHost")]),
        (501, "method_not_implemented", [b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"]),
    ],
)
def test_a_bad_request_is_refused_with_json_and_the_connection_closed(
    run: Run, status: int, code: str, parts: list[bytes]
) -> None:
    async def dialogue(net: Any) -> None:
        called: list[Exchange] = []
        server = await net.serve(called.append, ServerLimits(body_bytes=100, header_bytes=1000))
        client = await net.client(server, *parts, GET)
        got, head, body = await client.answer()
        assert got == status
        assert b"connection: close" in head
        error = json.loads(body)["error"]
        assert error["code"] == code
        assert error["message"]
        assert set(error) == {"message", "type", "param", "code"}
        assert await client.rest() == b""
        client.close()
        await net.empty(server)
        assert called == []

    run(dialogue)


def test_a_good_request_before_a_bad_one_is_still_answered(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        client = await net.client(await net.serve(echo), GET + b"nonsense\r\n\r\n")
        assert (await client.answer())[0] == 200
        assert (await client.answer())[0] in (400, 501, 505)
        assert await client.rest() == b""

    run(dialogue)


@pytest.mark.parametrize("leave", ["close", "abort", "half"])
def test_a_client_that_leaves_while_its_answer_is_awaited_is_noticed_at_once(run: Run, leave: str) -> None:
    async def dialogue(net: Any) -> None:
        waiting: list[Exchange] = []
        gone: list[float] = []
        loop = asyncio.get_running_loop()

        def app(exchange: Exchange) -> None:
            exchange.on_gone = lambda: gone.append(loop.time())
            waiting.append(exchange)

        server = await net.serve(app)
        client = await net.client(server, GET)
        await net.became(lambda: waiting)
        left = loop.time()
        if leave == "close":
            client.close()
        elif leave == "abort":
            client.abort()
        else:
            client.writer.write_eof()
        await net.empty(server)
        assert len(gone) == 1
        assert gone[0] - left < 1
        assert waiting[0].gone
        waiting[0].respond(200, [], b"nobody hears this")
        assert len(gone) == 1

    run(dialogue)


def test_a_client_that_leaves_after_its_answer_is_not_reported(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        gone: list[int] = []

        def app(exchange: Exchange) -> None:
            exchange.on_gone = lambda: gone.append(1)
            echo(exchange)

        server = await net.serve(app)
        client = await net.client(server, GET)
        client.writer.write_eof()
        assert (await client.answer())[0] == 200
        await net.empty(server)
        assert gone == []

    run(dialogue)


def test_mutated_requests_never_raise_and_never_leak_a_connection(run: Run) -> None:
    good = [
        GET,
        post(b"hello world"),
        CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"HEAD http://a/b HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
    ]
    pieces = [
        b"\r\n",
        b"\n",
        b"\0",
        b":",
        b" ",
        b"\xff",
        b"chunked",
        b"Content-Length: 3\r\n",
        b"0\r\n\r\n",
        b"HTTP/1.0",
        b";",
    ]

    def mutated(chance: random.Random) -> bytes:
        wire = bytearray(b"".join(chance.choices(good, k=chance.randint(1, 3))))
        for _ in range(chance.randint(0, 4)):
            at = chance.randrange(len(wire) + 1)
            kind = chance.randrange(4)
            if kind == 0:
                wire[at:at] = chance.choice(pieces)
            elif kind == 1:
                del wire[at : at + chance.randint(1, 12)]
            elif kind == 2 and at < len(wire):
                wire[at] = chance.randrange(256)
            else:
                wire[at:at] = wire[at : at + chance.randint(1, 40)]
        return bytes(wire)

    async def dialogue(net: Any) -> None:
        seed = 20261129
        chance = random.Random(seed)
        crashed: list[str] = []

        def app(exchange: Exchange) -> None:
            try:
                if exchange.target.isascii() and b"\n" not in exchange.target and exchange.body is not None:
                    echo(exchange)
            except Exception as error:
                crashed.append(repr(error))
                raise

        server = await net.serve(app, ServerLimits(head_s=30, body_s=30))
        for _ in range(60):
            await asyncio.gather(*(one(net, server, mutated(chance), chance.random()) for _ in range(25)))
        await net.empty(server)
        assert crashed == [], f"seed {seed}"

    async def one(net: Any, server: Any, wire: bytes, cut: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.suppress(ConnectionError):
            at = int(cut * len(wire))
            writer.write(wire[:at])
            await asyncio.sleep(0)
            writer.write(wire[at:])
            writer.write_eof()
            while await reader.read(65536):
                pass
        writer.transport.abort()

    run(dialogue)


def test_a_few_empty_lines_before_each_request_are_skipped(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        client = await net.client(await net.serve(echo))
        for _ in range(3):
            await client.send(b"\r\n" * 5 + b"\r", b"\n" + b"\r\n" * 2 + GET)
            assert (await client.answer())[2] == b"/ "

    run(dialogue)
