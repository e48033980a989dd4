"""The relay: bytes pass unchanged, back-pressure holds, and every end is the right one, exactly once."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.http.limits import ServerLimits
from kvbudget.edge.http.relay import STREAM_TAIL_BYTES, TAIL_BYTES, RelayOutcome
from relay_scripts import GET, OLD_GET, PLAIN, SSE, chunked, closing, parsed, replying

Run = Callable[[Callable[[Any], Any]], None]
EOF_FRAMED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


@pytest.mark.parametrize("request_bytes", [closing(GET), OLD_GET])
@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
def test_random_bodies_reach_the_client_byte_by_byte_however_they_are_cut(
    run: Run, request_bytes: bytes, framing: str
) -> None:
    chance = random.Random(f"{framing}{request_bytes!r}")

    def answer() -> tuple[bytes, list[bytes]]:
        body = chance.randbytes(chance.choice([0, 1, 30, 5000, 300_000]))
        if framing == "length":
            wire = PLAIN % len(body) + body
        elif framing == "eof":
            wire = EOF_FRAMED + body
        else:
            pieces, start = [], 0
            while start < len(body):
                size = chance.choice([1, 7, 1000, 100_000])
                pieces.append(body[start : start + size])
                start += size
            wire = SSE + chunked(*pieces[:200], *([b"".join(pieces[200:])] if pieces[200:] else []))
            wire += b"0\r\n" + chance.choice([b"", b"X-Trailer: 1\r\n"]) + b"\r\n"
        cuts = sorted(chance.randrange(len(wire) + 1) for _ in range(chance.randrange(12)))
        return body, [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True) if b > a]

    async def dialogue(net: Any) -> None:
        answers = [answer() for _ in range(12)]
        turn = iter(answers)

        async def script(peer: Any) -> None:
            while True:
                await peer.request()
                await peer.send(*next(turn)[1])
                if framing == "eof":
                    peer.close()
                    return

        server, _ = await net.gate(script)
        for body, _ in answers:
            net.seen.clear()
            client = await net.client(server, request_bytes)
            status, _, got = parsed(await client.rest())
            client.close()
            assert status == 200
            assert got == body
            end = await net.seen[0].end()
            tail = body[-(STREAM_TAIL_BYTES if framing == "chunked" else TAIL_BYTES) :]
            assert (end.outcome, end.body_bytes, end.body_tail) == (RelayOutcome.DONE, len(body), tail)
        await net.empty(server)

    run(dialogue)


def test_a_hundred_thousand_tiny_chunks_arrive_as_they_were_sent(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        events = [b"data: %d\n\n" % number for number in range(100_000)]
        wire = chunked(*events) + b"0\r\n\r\n"
        server, upstream = await net.gate(replying(SSE + wire))
        client = await net.client(server, GET)
        await client.head()
        assert await client.exactly(len(wire)) == wire  # not even the chunks were cut anew
        end = await net.seen[0].end()
        assert end.outcome is RelayOutcome.DONE
        assert end.events == net.seen[0].events == 100_000
        assert end.body_tail == b"".join(events)[-STREAM_TAIL_BYTES:]
        assert upstream.idle == 1

    run(dialogue)


def test_the_head_loses_hop_by_hop_headers_and_gains_ours(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        heads: list[bytes] = []

        async def script(peer: Any) -> None:
            heads.append((await peer.request())[0])
            await peer.send(
                b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
                b"HTTP/1.1 201 Made\r\nContent-Length: 2\r\nX-Keep: 1\r\nX-Mine: old\r\n"
                b"Connection: keep-alive, X-Drop\r\nX-Drop: 1\r\nKeep-Alive: timeout=5\r\n\r\nok"
            )
            await peer.closed()

        server, _ = await net.gate(script, response_headers=[(b"x-mine", b"new")])
        head = (
            b"GET /a?b HTTP/1.1\r\nHost: client\r\nConnection: x-gone\r\nX-Gone: 1\r\nX-Stay: 1\r\nTE: trailers\r\n\r\n"
        )
        client = await net.client(server, head)
        status, answer, body = await client.answer()
        assert (status, body) == (201, b"ok")
        lines = answer.lower().split(b"\r\n")
        assert b"x-mine: new" in lines
        assert b"x-keep: 1" in lines
        assert not [line for line in lines if line.startswith((b"x-drop", b"keep-alive", b"connection", b"link"))]
        assert b"x-mine: old" not in lines
        sent = heads[0].lower().split(b"\r\n")
        assert sent[0] == b"get /a?b http/1.1"
        assert b"x-stay: 1" in sent
        assert not [line for line in sent if line.startswith((b"x-gone", b"te:", b"connection", b"host: client"))]

    run(dialogue)


@pytest.mark.parametrize(
    ("method", "answer", "status"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200),
        (b"HEAD", b"HTTP/1.1 200 OK\r\n\r\n", 200),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204),
        (b"GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304),
        (b"GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
        (b"DELETE", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", 404),
    ],
)
def test_answers_without_a_body_end_with_their_head_and_both_connections_live_on(
    run: Run, method: bytes, answer: bytes, status: int
) -> None:
    async def dialogue(net: Any) -> None:
        server, upstream = await net.gate(replying(answer))
        client = await net.client(server)
        for _ in range(2):
            await client.send(GET.replace(b"GET", method))
            got, _, body = parsed(await client.head(), method.decode())
            assert (got, body) == (status, b"")
        assert [end.outcome for seen in net.seen for end in seen.ends] == [RelayOutcome.DONE] * 2
        assert net.upstream_connections == upstream.idle == 1

    run(dialogue)


def test_a_flooding_upstream_and_a_client_that_never_reads_cost_bounded_memory(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        sent = [0]

        async def script(peer: Any) -> None:
            await peer.request()
            await peer.send(SSE)
            block = chunked(b"data: " + b"x" * 65536 + b"\n\n")
            while sent[0] < 400_000_000:
                await peer.send(block)
                sent[0] += len(block)

        server, _ = await net.gate(script, ServerLimits(write_stall_s=1))
        client = await net.client(server)
        client.writer.transport.pause_reading()
        await client.send(GET)
        await net.became(lambda: net.seen and net.seen[0].relay.lane is not None and net.seen[0].relay.lane._paused)
        (connection,) = server._open
        most = 0
        for _ in range(200):
            most = max(most, connection._transport.get_write_buffer_size())
            await asyncio.sleep(0.001)
        assert most < 65536 + 2 * 262144
        assert sent[0] < 50_000_000  # the kernel's buffers, not ours
        assert net.seen[0].relay.deadline_s is None  # a slow client is not the upstream's stall
        assert (await net.seen[0].end()).outcome is RelayOutcome.CLIENT_GONE  # write_stall_s
        await net.empty(server)

    run(dialogue)


def test_a_slow_client_gets_everything_once_it_reads(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        body = random.Random(1).randbytes(8_000_000)
        server, upstream = await net.gate(replying(PLAIN % len(body) + body))
        client = await net.client(server)
        client.writer.transport.pause_reading()
        await client.send(GET)
        await net.became(lambda: net.seen and net.seen[0].relay.lane is not None and net.seen[0].relay.lane._paused)
        client.writer.transport.resume_reading()
        await client.head()
        assert await client.exactly(len(body)) == body
        assert (await net.seen[0].end()).body_bytes == len(body)
        await net.became(lambda: upstream.idle == 1)

    run(dialogue)


def test_a_stall_of_the_client_is_told_once_and_harms_nobody(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        body = random.Random(2).randbytes(6_000_000)
        server, _ = await net.gate(replying(PLAIN % len(body) + body))
        client = await net.client(server)
        client.writer.transport.pause_reading()
        await client.send(GET)
        await net.became(lambda: net.seen and net.seen[0].stalls)
        seen = net.seen[0]

        def fail() -> None:
            seen.stalls += 1
            raise RuntimeError("on_stall")

        seen.on_stall = fail  # from here every further one fails
        await asyncio.sleep(0.05)
        assert seen.stalls == 1  # still the same pause
        client.writer.transport.resume_reading()
        await client.head()
        assert await client.exactly(len(body)) == body
        assert (await seen.end()).outcome is RelayOutcome.DONE

    run(dialogue)


def test_a_watcher_may_cancel_when_it_hears_of_a_stall(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            await peer.send(SSE)
            with contextlib.suppress(ConnectionError):
                while True:
                    await peer.send(chunked(b"data: " + b"x" * 65536 + b"\n\n"))

        server, upstream = await net.gate(script)
        client = await net.client(server)
        client.writer.transport.pause_reading()
        await client.send(closing(GET))
        await net.became(lambda: net.seen)
        seen = net.seen[0]
        events_at_end: list[int] = []

        def cancel() -> None:
            seen.relay.cancel()
            events_at_end.append(seen.events)

        seen.on_stall = cancel
        end = await seen.end()
        assert end.outcome is RelayOutcome.CANCELLED
        assert events_at_end == [seen.events]  # no event is told behind the end
        client.writer.transport.resume_reading()
        wire = await client.rest()
        assert wire.endswith(b"0\r\n\r\n") is (b"request_cancelled" in wire)
        await net.became(lambda: upstream.connections == 0)
        await net.empty(server)

    run(dialogue)


def test_a_client_that_keeps_up_never_stalls(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        server, _ = await net.gate(replying(SSE + chunked(*[b"data: 1\n\n"] * 9) + b"0\r\n\r\n"))
        client = await net.client(server, GET)
        await client.until(b"\r\n0\r\n\r\n")
        assert (await net.seen[0].end()).events == 9
        assert net.seen[0].stalls == 0

    run(dialogue)


def test_the_request_is_not_kept_once_its_answer_has_begun(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        answer = asyncio.Event()

        async def script(peer: Any) -> None:
            await peer.request()
            await answer.wait()
            await peer.send(SSE + chunked(b"data: 1\n\n"))
            await peer.closed()

        server, _ = await net.gate(script)
        client = await net.client(server, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
        await net.became(lambda: net.seen)
        relay, exchange = net.seen[0].relay, net.seen[0].exchange
        assert exchange.body == b"hello"
        answer.set()
        await client.until(b"data: 1\n\n\r\n")
        assert exchange.body == b""
        assert relay._request == ()

    run(dialogue)
