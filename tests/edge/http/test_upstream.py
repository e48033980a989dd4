"""Calls of the gate itself, and what goes to the upstream."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.upstream import CALL_BYTES, Response, Upstream, UpstreamError
from kvbudget.errors import InputError

Run = Callable[[Callable[[Any], Any]], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:80",
        "ftp://a",
        "http://",
        "http://u@a",
        "http://a?x",
        "http://a#x",
        "http://a:x",
        "http://[::1",
        "http://a b",
    ],
)
def test_an_address_that_cannot_be_used_says_so(run: Run, url: str) -> None:
    async def dialogue(net: Any) -> None:
        with pytest.raises(InputError) as refused:
            Upstream(url, UpstreamLimits())
        assert refused.value.fix

    run(dialogue)


def test_a_call_sends_the_request_and_gives_the_answer(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        requests: list[tuple[bytes, bytes]] = []

        async def script(peer: Any) -> None:
            while True:
                requests.append(await peer.request())
                await peer.send(b"HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")

        port = await net.script(script)
        upstream = Upstream(f"http://127.0.0.1:{port}/prefix/", UpstreamLimits())
        try:
            response = await upstream.request(b"POST", b"/x", [(b"x-a", b"1")], b"hi", 5)
            assert response == Response(200, [(b"a", b"b"), (b"transfer-encoding", b"chunked")], b"ok")
            await upstream.request(b"GET", b"/y", [], b"", 5)
        finally:
            upstream.close()
        host = b"host: 127.0.0.1:%d\r\n" % port
        assert requests == [
            (b"POST /prefix/x HTTP/1.1\r\n" + host + b"x-a: 1\r\ncontent-length: 2\r\n\r\n", b"hi"),
            (b"GET /prefix/y HTTP/1.1\r\n" + host + b"\r\n", b""),
        ]
        assert net.upstream_connections == 1

    run(dialogue)


def test_an_ipv6_origin_can_be_named(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(OK if b"host: [::1]:" in head else b"")
            writer.close()

        try:
            server = await asyncio.start_server(serve, "::1", 0)
        except OSError:
            pytest.skip("no IPv6 here")
        upstream = Upstream(f"http://[::1]:{server.sockets[0].getsockname()[1]}", UpstreamLimits())
        try:
            assert (await upstream.request(b"GET", b"/", [], b"", 5)).body == b"ok"
        finally:
            upstream.close()
            server.close()

    run(dialogue)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([], "broken"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"], "broken"),
        ([b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (CALL_BYTES + 1)], "broken"),
        (None, "timeout"),
    ],
)
def test_a_call_that_fails_says_how(run: Run, parts: list[bytes] | None, kind: str) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            if parts is None:
                await peer.closed()
            else:
                await peer.send(*parts)
                peer.close()

        upstream = net.upstream(await net.script(script))
        with pytest.raises(UpstreamError) as failed:
            await upstream.request(b"GET", b"/", [], b"", 0.2 if parts is None else 5)
        assert failed.value.kind == kind
        await net.became(lambda: upstream.connections == 0)

    run(dialogue)


def test_nobody_listening_is_unreachable_for_calls_and_relays(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server, upstream = await net.gate(None)
        dead = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = dead.sockets[0].getsockname()[1]
        dead.close()
        await dead.wait_closed()
        upstream._pool._address = upstream._pool._address._replace(port=port)
        with pytest.raises(UpstreamError) as failed:
            await upstream.request(b"GET", b"/", [], b"", 5)
        assert failed.value.kind == "unreachable"
        client = await net.client(server, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer())[2] == b"unreachable"
        assert upstream.connections == 0

    run(dialogue)


def test_a_relay_is_refused_where_it_could_not_be_answered(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        upstream = net.upstream(1)
        errors: list[type[BaseException]] = []

        def app(exchange: Exchange) -> None:
            def relay(method: bytes = b"GET", target: bytes = b"/", value: bytes = b"") -> None:
                watcher: Any = None
                upstream.relay(
                    exchange,
                    method=method,
                    target=target,
                    headers=[(b"a", value)],
                    body=b"",
                    response_headers=[],
                    watcher=watcher,
                )

            for bad in ({"method": b"HEAD"}, {"target": b"/ x"}, {"value": b"a\r\nb: c"}):
                with pytest.raises(ValueError, match=r"HEAD|request line|CR") as error:
                    relay(**bad)
                errors.append(error.type)
            exchange.respond(200, [], b"done")
            with pytest.raises(RuntimeError):
                relay()

        client = await net.client(await net.serve(app), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer())[2] == b"done"
        assert len(errors) == 3

    run(dialogue)


def test_closing_ends_relays_and_calls_under_way(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            await peer.closed()

        server, upstream = await net.gate(script)
        client = await net.client(server, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        call = asyncio.ensure_future(upstream.request(b"GET", b"/", [], b"", 5))
        await net.became(lambda: net.upstream_connections == 2)
        upstream.close()
        assert (await client.answer())[2] == b"cancelled"
        with pytest.raises(UpstreamError):
            await call
        await net.became(lambda: upstream.connections == 0)
        with pytest.raises(UpstreamError):
            await upstream.request(b"GET", b"/", [], b"", 5)

    run(dialogue)


def test_a_stream_is_handed_on_as_it_comes_and_an_error_is_read_whole(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        heard: list[bytes] = []
        first = asyncio.Event()

        async def script(peer: Any) -> None:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
            await first.wait()
            await peer.send(b"3\r\ntwo\r\n0\r\n\r\n")
            await peer.request()
            await peer.send(b"HTTP/1.1 410 Gone\r\nContent-Length: 3\r\n\r\nold")

        def hear(piece: bytes) -> None:
            heard.append(piece)
            first.set()

        upstream = Upstream(f"http://127.0.0.1:{await net.script(script)}", UpstreamLimits())
        try:
            answer = await upstream.stream(b"GET", b"/", [], hear)
            assert (answer.status, answer.body, b"".join(heard)) == (200, b"", b"onetwo")
            answer = await upstream.stream(b"GET", b"/", [], hear)
            assert (answer.status, answer.body, b"".join(heard)) == (410, b"old", b"onetwo")
        finally:
            upstream.close()

    run(dialogue)


def test_whoever_hears_a_stream_no_more_closes_its_connection(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        heard, gone = asyncio.Event(), asyncio.Event()

        async def script(peer: Any) -> None:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
            assert await peer.reader.read() == b""
            gone.set()

        upstream = Upstream(f"http://127.0.0.1:{await net.script(script)}", UpstreamLimits())
        try:
            streaming = asyncio.create_task(upstream.stream(b"GET", b"/", [], lambda piece: heard.set()))
            await heard.wait()
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)
            await gone.wait()
            assert upstream.connections == 0
        finally:
            upstream.close()

    run(dialogue)


def test_a_failed_call_has_its_own_code() -> None:
    assert UpstreamError("timeout", "x").code == "upstream_failed"
