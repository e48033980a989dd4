"""Whole dialogues in which both sides say again what they said before: nothing of one gets into another."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.heads import parse_request_head, parse_response_head
from kvbudget.edge.http.messages import ClientHeaders, OwnLines

Run = Callable[[Callable[[Any], Any]], None]
WITHOUT = frozenset({b"x-private"})


def own(name: bytes, number: int) -> OwnLines:
    return OwnLines(frozenset({name}), b"%b: %d\r\n" % (name, number))


def asked(body: bytes, *lines: bytes) -> bytes:
    head = [b"POST /v1/x HTTP/1.1", b"Host: a", *lines, b"Content-Length: %d" % len(body), b"Accept: */*"]
    return b"\r\n".join([*head, b"", body])


async def gate(net: Any, script: Any) -> Any:
    upstream = net.upstream(await net.script(script))
    numbers = itertools.count(1)

    def app(exchange: Exchange) -> None:
        number = next(numbers)
        seen = net.watcher(exchange)
        seen.relay = upstream.relay(
            exchange,
            method=b"POST",
            target=exchange.target,
            headers=ClientHeaders(WITHOUT, own(b"x-id", number)),
            body=exchange.body,
            response_headers=own(b"x-said", number),
            watcher=seen,
        )

    return await net.serve(app)


def test_requests_that_are_alike_reach_the_engine_each_with_its_own_body_and_headers(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        heads: list[bytes] = []

        async def script(peer: Any) -> None:
            while True:
                head, body = await peer.request()
                heads.append(head)
                await peer.send(b"HTTP/1.1 200 OK\r\nX-Said: no\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        server = await gate(net, script)
        hidden = (b"X-Private: 1", b"Connection: keep-alive, x-hop", b"X-Hop: 1", b"Authorization: Bearer one")
        other = (b"Authorization: Bearer two",)
        for connection in range(2):  # the second one begins with what the first one said
            client = await net.client(server)
            for number, lines in enumerate((hidden, hidden, other, hidden, other, other)):
                body = b"x" * (9 ** (number % 4)) + b"%d" % connection
                await client.send(asked(body, *lines))
                status, head, answer = await client.answer()
                assert (status, answer) == (200, body)
                said = dict(parse_response_head(head.removesuffix(b"\r\n\r\n"), b"POST").headers)
                assert said == {b"content-length": b"%d" % len(body), b"x-said": b"%d" % len(heads)}
                got = dict(parse_request_head(heads[-1].removesuffix(b"\r\n\r\n")).headers)
                assert got.pop(b"host").startswith(b"127.0.0.1:")
                assert got == {
                    b"authorization": b"Bearer one" if lines is hidden else b"Bearer two",
                    b"accept": b"*/*",
                    b"x-id": b"%d" % len(heads),
                    b"content-length": b"%d" % len(body),
                }
            client.close()

    run(dialogue)


def test_pipelined_requests_that_are_alike_are_answered_in_order(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            while True:
                _, body = await peer.request()
                await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        server = await gate(net, script)
        bodies = [b"%d" % number * number for number in range(1, 40)]
        client = await net.client(server, b"".join(asked(body) for body in bodies))
        assert [(await client.answer())[2] for _ in bodies] == bodies

    run(dialogue)


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_answers_that_are_alike_but_framed_otherwise_are_told_apart(run: Run, version: bytes) -> None:
    """Plain, empty, chunked and plain again, in one head after another; also to a client that takes no chunks."""

    async def dialogue(net: Any) -> None:
        turns = [
            b"HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: 3\r\n\r\nabc",
            b"HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: 5\r\n\r\nabcde",
            b"HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: 12\r\n\r\nabcdefghijkl",
        ]
        expected = [b"abc", b"abcde", b"", b"hi", b"abcdefghijkl"]
        answers = iter([*turns, *turns])

        async def script(peer: Any) -> None:
            while True:
                await peer.request()
                await peer.send(next(answers))

        server = await gate(net, script)
        for body in [*expected, *expected]:
            request = asked(b"q").replace(b"HTTP/1.1", b"HTTP/" + version)
            request = request.replace(b"Accept: */*", b"Connection: close")
            client = await net.client(server, request)
            head, _, got = (await client.rest()).partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            if b"transfer-encoding: chunked" in lines:
                assert version == b"1.1"
                assert got == b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            else:
                assert got == body
                assert b"content-length: %d" % len(body) in lines or (version == b"1.0" and body == b"hi")
            assert b"connection: close" in lines

    run(dialogue)


def test_a_line_break_in_what_we_add_stops_the_request_before_anything_is_sent(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            raise AssertionError("nothing was to come")

        upstream = net.upstream(await net.script(script))

        def app(exchange: Exchange) -> None:
            bad = OwnLines(frozenset({b"x-id"}), b"x-id: 1\r\nx-evil: 2\r\n")
            with pytest.raises(ValueError, match="CR, LF or NUL"):
                upstream.relay(
                    exchange,
                    method=b"POST",
                    target=exchange.target,
                    headers=ClientHeaders(WITHOUT, bad),
                    body=exchange.body,
                    response_headers=[],
                    watcher=net.watcher(exchange),
                )
            exchange.respond(500, [], b"")

        server = await net.serve(app)
        client = await net.client(server)
        for _ in range(2):
            await client.send(asked(b"q"))
            assert (await client.answer())[0] == 500

    run(dialogue)
