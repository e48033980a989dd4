"""How a relay ends: every end is the right one, exactly once, and a body cut short never looks complete."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import h11
import pytest

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.relay import WITHHELD_BYTES, RelayOutcome
from relay_scripts import GET, OLD_GET, PLAIN, SSE, chunked, closing, parsed, replying

Run = Callable[[Callable[[Any], Any]], None]


@pytest.mark.parametrize("leave", ["close", "abort", "half"])
@pytest.mark.parametrize("phase", ["connect", "wait", "head", "stream", "paced"])
def test_a_client_that_leaves_closes_the_upstream_within_a_second(run: Run, phase: str, leave: str) -> None:
    async def dialogue(net: Any) -> None:
        closed = asyncio.Event()
        ready = asyncio.Event()

        def send_late(writer: asyncio.StreamWriter) -> None:
            if not writer.is_closing():  # on a busy machine the gate may have left by then
                writer.write(chunked(b"data: 2\n\n"))

        async def script(peer: Any) -> None:
            await peer.request()
            if phase == "head":
                await peer.send(SSE)
            if phase in ("stream", "paced"):
                await peer.send(SSE + chunked(b"data: 1\n\n"))
            ready.set()
            if phase == "paced":
                asyncio.get_running_loop().call_later(0.01, send_late, peer.writer)
            await peer.closed()
            closed.set()

        limits = UpstreamLimits(connections=1, connect_s=30, response_s=None)
        server, upstream = await net.gate(script, upstream_limits=limits)
        client = await net.client(server, GET)
        await asyncio.wait_for(ready.wait(), 5)
        if phase == "connect":  # all connections are taken: this one waits for its turn
            waiting = await net.client(server, GET)
            await net.became(lambda: len(net.seen) == 2)
            client, first = waiting, client
        if phase in ("stream", "paced"):
            await client.until(b"data: 1\n\n\r\n")
        elif phase == "head":
            await client.head()
        left = asyncio.get_running_loop().time()
        if leave == "close":
            client.close()
        elif leave == "abort":
            client.abort()
        else:
            client.writer.write_eof()
        seen = net.seen[-1]
        end = await seen.end(2)
        await asyncio.wait_for(seen.gone_here.wait(), 2)
        if phase == "connect":
            assert net.seen[0].ends == []
            first.close()
        await asyncio.wait_for(closed.wait(), 2)
        assert asyncio.get_running_loop().time() - left < 1
        assert end.outcome is RelayOutcome.CLIENT_GONE
        assert end.status == (200 if phase in ("head", "stream", "paced") else None)
        await net.empty(server)
        await net.became(lambda: upstream.connections == 0)
        assert (len(seen.ends), seen.gone) == (1, 1)

    run(dialogue)


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    "parts", [[], [b"HTTP/1.1 200 O"], [b"HTTP/1.1 100 Continue\r\n\r\n"], [b"nonsense\r\n\r\n"], [b"a\n\n"]]
)
def test_an_upstream_that_dies_before_its_head_leaves_the_answer_to_the_app(
    run: Run, parts: list[bytes], then: str
) -> None:
    async def dialogue(net: Any) -> None:
        server, upstream = await net.gate(replying(*parts, then=then))
        client = await net.client(server, GET)
        status, head, body = await client.answer()
        assert (status, body) == (502, b"broken_before_head")
        assert b"x-own: 1" in head
        assert (await net.seen[0].end()).status is None
        await net.became(lambda: upstream.connections == 0)
        await client.send(GET)  # the client's connection is none the worse
        assert (await client.answer())[0] == 502
        assert net.upstream_connections == 2  # no retry: it was not reused

    run(dialogue)


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    "parts", [[PLAIN % 10 + b"12345"], [PLAIN % 10], [SSE + b"5\r\nda"], [SSE + chunked(b"data: 1\n\n") + b"5"]]
)
@pytest.mark.parametrize("request_bytes", [GET, OLD_GET])
def test_a_body_that_cannot_be_completed_never_looks_complete(
    run: Run, parts: list[bytes], then: str, request_bytes: bytes
) -> None:
    async def dialogue(net: Any) -> None:
        server, _ = await net.gate(replying(*parts, then=then))
        client = await net.client(server, request_bytes)
        if request_bytes is OLD_GET and b"chunked" in parts[0]:  # only a reset tells an HTTP/1.0 client
            await client.head()
            with pytest.raises(ConnectionResetError):
                await client.reader.read(-1)
        else:
            with pytest.raises(h11.RemoteProtocolError):
                parsed(await client.rest())
        end = await net.seen[0].end()
        assert (end.outcome, end.status) == (RelayOutcome.BROKEN_MIDWAY, 200)
        await net.empty(server)
        assert net.seen[0].gone == 0

    run(dialogue)


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("begun", [b"", b"data: 1\n\n", b"data: 1\n", b"data: 1"])
def test_a_broken_event_stream_ends_with_an_error_event(run: Run, begun: bytes, then: str) -> None:
    async def dialogue(net: Any) -> None:
        server, _ = await net.gate(replying(SSE + (chunked(begun) if begun else b""), then=then))
        client = await net.client(server, GET)
        status, _, body = parsed(await client.rest())
        assert status == 200
        assert body.startswith(begun)
        event = body.split(b"\n\n")[-2]
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert (error["type"], error["param"], error["code"]) == ("upstream_error", None, "upstream_failed")
        assert body.endswith(b"\n\n")
        end = await net.seen[0].end()
        assert end.outcome is RelayOutcome.BROKEN_MIDWAY
        assert end.body_tail == begun
        await net.empty(server)

    run(dialogue)


def test_a_malformed_chunk_is_not_passed_on(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server, upstream = await net.gate(replying(SSE + chunked(b"data: 1\n\n"), b"zz\r\nattack"))
        client = await net.client(server, GET)
        wire = await client.rest()
        assert b"attack" not in wire
        assert (await net.seen[0].end()).outcome is RelayOutcome.BROKEN_MIDWAY
        await net.became(lambda: upstream.connections == 0)

    run(dialogue)


@pytest.mark.parametrize("answer", [PLAIN % 2 + b"ok", SSE + chunked(b"ok") + b"0\r\n\r\n", b"HTTP/1.1 204 No\r\n\r\n"])
def test_bytes_behind_an_answer_reach_nobody_and_cost_the_connection(run: Run, answer: bytes) -> None:
    async def dialogue(net: Any) -> None:
        server, upstream = await net.gate(replying(answer + PLAIN % 6 + b"attack"))
        client = await net.client(server, GET + closing(GET))
        wire = await client.rest()
        assert b"attack" not in wire
        assert wire.count(b"HTTP/1.1") == 2
        assert net.upstream_connections == 2
        await net.became(lambda: upstream.connections == 0)

    run(dialogue)


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ([], RelayOutcome.TIMEOUT_BEFORE_HEAD),
        ([b"HTTP/1.1 200"], RelayOutcome.TIMEOUT_BEFORE_HEAD),
        ([SSE + chunked(b"data: 1\n\n")], RelayOutcome.TIMEOUT_MIDWAY),
        ([PLAIN % 9 + b"1"], RelayOutcome.TIMEOUT_MIDWAY),
    ],
)
def test_a_silent_upstream_is_given_up(run: Run, parts: list[bytes], outcome: RelayOutcome) -> None:
    async def dialogue(net: Any) -> None:
        limits = UpstreamLimits(response_s=0.1, read_stall_s=0.1)
        server, upstream = await net.gate(replying(*parts), upstream_limits=limits)
        client = await net.client(server, closing(GET))
        wire = await client.rest()
        assert (await net.seen[0].end()).outcome is outcome
        if outcome is RelayOutcome.TIMEOUT_BEFORE_HEAD:
            assert wire.endswith(b"timeout_before_head")
        await net.became(lambda: upstream.connections == 0)

    run(dialogue)


def test_a_withheld_answer_is_given_to_the_app_whole(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server, upstream = await net.gate(replying(SSE + chunked(b"ab", b"c") + b"0\r\n\r\n"), passes=False)
        client = await net.client(server, GET)
        assert (await client.answer())[2] == b"withheld:abc"
        end = await net.seen[0].end()
        assert (end.outcome, end.status, end.body_tail, end.body_bytes) == (RelayOutcome.WITHHELD, 200, b"abc", 3)
        assert upstream.idle == 1

    run(dialogue)


def test_a_withheld_answer_without_end_is_cut(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        body = b"x" * (WITHHELD_BYTES + 500_000)
        server, upstream = await net.gate(replying(PLAIN % (len(body) + 1) + body), passes=False)
        client = await net.client(server, GET)
        assert (await client.answer())[2] == b"withheld:" + body[:WITHHELD_BYTES]
        await net.became(lambda: upstream.connections == 0)

    run(dialogue)


def test_a_withheld_answer_that_breaks_counts_as_none(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server, _ = await net.gate(replying(PLAIN % 9 + b"abc", then="close"), passes=False)
        client = await net.client(server, GET)
        assert (await client.answer())[2] == b"broken_before_head"

    run(dialogue)


@pytest.mark.parametrize("begun", [False, True])
def test_a_relay_can_be_cancelled(run: Run, begun: bool) -> None:
    async def dialogue(net: Any) -> None:
        server, upstream = await net.gate(replying(*([SSE + chunked(b"data: 1\n\n")] if begun else [])))
        client = await net.client(server, closing(GET))
        await net.became(lambda: net.seen)
        seen = net.seen[0]
        if begun:
            await client.until(b"data: 1\n\n\r\n")
        else:
            await net.became(lambda: net.upstream_connections == 1)
        seen.relay.cancel()
        seen.relay.cancel()
        wire = await client.rest()
        assert (await seen.end()).outcome is RelayOutcome.CANCELLED
        assert wire.endswith(b'"request_cancelled"}}\n\n\r\n0\r\n\r\n' if begun else b"cancelled")
        await net.became(lambda: upstream.connections == 0)
        await net.empty(server)

    run(dialogue)


@pytest.mark.parametrize("where", ["on_head", "on_events", "on_end"])
def test_a_watcher_that_fails_leaves_no_client_waiting(run: Run, where: str) -> None:
    class Failing:
        def on_head(self, status: int, headers: object) -> bool:
            if where == "on_head":
                raise RuntimeError(where)
            return where == "on_events"

        def on_events(self, count: int) -> None:
            raise RuntimeError(where)

        def on_stall(self) -> None:
            raise AssertionError

        def on_end(self, end: object) -> None:
            raise RuntimeError(where)

    async def dialogue(net: Any) -> None:
        upstream = net.upstream(await net.script(replying(SSE + chunked(b"data: 1\n\n") + b"0\r\n\r\n")))

        def app(exchange: Exchange) -> None:
            request = {"method": exchange.method, "target": b"/", "headers": [], "body": b"", "response_headers": []}
            upstream.relay(exchange, watcher=Failing(), **request)

        server = await net.serve(app)
        client = await net.client(server, closing(GET))
        status, _, _ = parsed(await client.rest())
        assert status == (200 if where == "on_events" else 500)
        await net.empty(server)

    run(dialogue)


def test_a_header_that_cannot_be_sent_leaves_the_answer_to_the_app(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server, _ = await net.gate(replying(PLAIN % 2 + b"ok"), response_headers=[(b"x-bad", b"a\r\nb: c")])
        client = await net.client(server, GET)
        assert (await client.answer())[2] == b"broken_before_head"

    run(dialogue)
