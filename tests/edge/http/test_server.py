"""Which connections are open: bounds, draining, time limits."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import h11

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import ServerLimits
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.refused import Asked

Run = Callable[[Callable[[Any], Any]], None]
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def echo(exchange: Exchange) -> None:
    exchange.respond(200, [(b"content-type", b"text/plain")], exchange.target + b" " + exchange.body)


def test_one_connection_more_than_allowed_is_told_so(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server = await net.serve(echo, ServerLimits(connections=2))
        first, second = await net.client(server, GET), await net.client(server, GET)
        assert (await first.answer())[0] == (await second.answer())[0] == 200
        third = await net.client(server)
        status, head, body = await third.answer()
        assert status == 503
        assert b"retry-after: 1\r\n" in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        await third.closed()
        assert server.connections == 2
        first.close()
        await net.became(lambda: server.connections == 1)
        assert (await (await net.client(server, GET)).answer())[0] == 200

    run(dialogue)


def test_draining_closes_idle_connections_and_lets_busy_ones_finish(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        held: list[Exchange] = []

        def app(exchange: Exchange) -> None:
            if exchange.target == b"/hold":
                held.append(exchange)
            else:
                echo(exchange)

        server = await net.serve(app)
        idle = await net.client(server, GET)
        await idle.answer()
        busy = await net.client(server, GET.replace(b"/ ", b"/hold ") + GET)
        await net.became(lambda: held)
        closing = asyncio.ensure_future(server.close(5))
        await idle.closed()
        assert not closing.done()
        held[0].respond(200, [], b"late")
        status, head, body = await busy.answer()
        assert (status, body) == (200, b"late")
        assert b"connection: close" in head
        assert await busy.rest() == b""  # the pipelined request is not begun any more
        busy.close()
        await closing
        assert server.connections == 0

    run(dialogue)


def test_what_outlives_the_grace_is_cut_and_its_app_told(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        gone: list[int] = []
        held: list[Exchange] = []

        def app(exchange: Exchange) -> None:
            exchange.on_gone = lambda: gone.append(1)
            held.append(exchange)

        server = await net.serve(app)
        client = await net.client(server, GET)
        await net.became(lambda: held)
        await server.close(0.05)
        await client.closed()
        assert server.connections == 0
        assert gone == [1]

    run(dialogue)


def test_accepting_stops_while_open_connections_live_on(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server = await net.serve(echo)
        client = await net.client(server, GET)
        await client.answer()
        server.stop_accepting()
        refused = False
        for _ in range(50):
            try:
                late = await net.client(server)
            except ConnectionRefusedError:
                refused = True
                break
            late.abort()
        assert refused
        await client.send(GET)
        assert (await client.answer())[0] == 200

    run(dialogue)


def test_an_idle_connection_is_closed_without_a_word(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server = await net.serve(echo, ServerLimits(idle_s=0.1))
        client = await net.client(server, GET)
        await client.answer()
        assert await client.rest() == b""
        await net.empty(server)

    run(dialogue)


def test_a_head_or_body_that_trickles_in_is_refused_in_time_and_not_with_408(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server = await net.serve(echo, ServerLimits(head_s=0.15, body_s=0.15))
        for begun in (b"GET / HTTP/1.1\r\nHost:", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"):
            client = await net.client(server, begun)
            trickle = asyncio.ensure_future(drip(client))
            status, head, body = await client.answer()
            assert status == 400
            assert b"connection: close" in head
            assert json.loads(body)["error"]["code"] == "request_timeout"
            trickle.cancel()
            client.close()
        silent = await net.client(server)
        assert await silent.rest() == b""
        await net.empty(server)

    async def drip(client: Any) -> None:
        for _ in range(6):
            await client.send(b"a")
            await asyncio.sleep(0.03)

    run(dialogue)


def test_a_client_that_accepts_no_byte_is_closed(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        body = b"x" * 30_000_000
        server = await net.serve(lambda exchange: exchange.respond(200, [], body), ServerLimits(write_stall_s=0.2))
        client = await net.client(server, GET)
        await client.head()
        client.writer.transport.pause_reading()
        await net.empty(server)

    run(dialogue)


def test_an_app_that_fails_gives_500_and_the_connection_lives(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        def app(exchange: Exchange) -> None:
            if exchange.target == b"/bad-header":
                exchange.respond(200, [(b"x", b"a\r\nb: c")], b"")
            if exchange.target == b"/late":
                exchange.respond(200, [], b"ok")
            raise RuntimeError("broken app")

        def error_answer(status: int, code: str, message: str, asked: Asked) -> tuple[Headers, bytes]:
            return [], f"{status} {code}".encode()

        server = await net.serve(app, error_answer=error_answer)
        client = await net.client(server)
        for path, expected in (
            (b"/", b"500 internal_error"),
            (b"/bad-header", b"500 internal_error"),
            (b"/late", b"ok"),
        ):
            await client.send(GET.replace(b"/ ", path + b" "))
            status, head, body = await client.answer()
            assert body == expected
            assert status == (200 if path == b"/late" else 500)
            assert b"b: c" not in head

    run(dialogue)


def test_an_exchange_is_answered_once(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        errors: list[str] = []

        def app(exchange: Exchange) -> None:
            exchange.respond(200, [], b"first")
            try:
                exchange.respond(200, [], b"second")
            except RuntimeError as error:
                errors.append(str(error))

        client = await net.client(await net.serve(app), GET + GET)
        assert (await client.answer())[2] == b"first"
        assert (await client.answer())[2] == b"first"
        assert len(errors) == 2

    run(dialogue)


def test_an_independent_parser_understands_every_kind_of_answer(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        def app(exchange: Exchange) -> None:
            exchange.respond(int(exchange.target[1:]), [(b"content-length", b"9"), (b"x-a", b"b")], b"hello")

        server = await net.serve(app)
        client = await net.client(server)
        ours = h11.Connection(h11.CLIENT)
        for method, status in (
            ("GET", 200),
            ("HEAD", 200),
            ("POST", 404),
            ("GET", 204),
            ("GET", 304),
            ("OPTIONS", 599),
        ):
            request = h11.Request(method=method, target=f"/{status}", headers=[("Host", "a"), ("Content-Length", "0")])
            await client.send((ours.send(request) or b"") + (ours.send(h11.EndOfMessage()) or b""))
            body = b""
            while True:
                event = ours.next_event()
                if event is h11.NEED_DATA:
                    ours.receive_data(await client.reader.read(65536))
                elif isinstance(event, h11.Response):
                    assert event.status_code == status
                    assert (b"x-a", b"b") in list(event.headers)
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
            assert body == (b"" if method == "HEAD" or status in (204, 304) else b"hello")
            ours.start_next_cycle()

    run(dialogue)


def test_old_clients_get_what_they_understand(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server = await net.serve(echo)
        plain = await net.client(server, b"GET /a HTTP/1.0\r\n\r\n")
        answer = await plain.rest()
        assert answer.endswith(b"\r\n\r\n/a ")
        assert b"connection: close" in answer
        kept = await net.client(server)
        for _ in range(2):
            await kept.send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            status, head, body = await kept.answer()
            assert (status, body) == (200, b"/a ")
            assert b"connection: keep-alive" in head

    run(dialogue)
