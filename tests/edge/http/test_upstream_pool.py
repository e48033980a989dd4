"""Which connection a request takes."""

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.relay import RelayOutcome
from kvbudget.edge.http.upstream import UpstreamError

Run = Callable[[Callable[[Any], Any]], None]
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
RACE = UpstreamLimits(reuse_race_s=5)  # a slow machine must not turn the race into a failure


@pytest.mark.parametrize("how", ["close", "abort", "answerless"])
def test_a_pooled_connection_that_dies_is_replaced_once_and_nobody_notices(run: Run, how: str) -> None:
    """The origin closes in the moment of reuse: by itself, or on seeing the second request."""

    async def dialogue(net: Any) -> None:
        die, dead = asyncio.Event(), asyncio.Event()

        async def script(peer: Any) -> None:
            first = net.upstream_connections == 1
            await peer.request()
            await peer.send(OK)
            if first and how == "answerless":
                await peer.request()
                peer.abort()
            elif first:
                await die.wait()
                getattr(peer, how)()
                dead.set()
            await peer.closed()

        server, upstream = await net.gate(script, upstream_limits=RACE)
        client = await net.client(server, GET)
        assert (await client.answer())[2] == b"ok"
        (connection,) = upstream._pool._open
        if how != "answerless":  # nothing is read: the close is found out by the request, not before
            connection.transport.pause_reading()
            die.set()
            await dead.wait()
        await client.send(GET)
        await net.became(lambda: len(net.seen) == 2)
        if how != "answerless" and not connection.transport.is_closing():
            connection.transport.resume_reading()
        assert (await client.answer())[2] == b"ok"
        assert [end.outcome for seen in net.seen for end in seen.ends] == [RelayOutcome.DONE] * 2
        assert net.upstream_connections == 2

    run(dialogue)


def test_a_second_death_is_reported_and_not_tried_again(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            first = net.upstream_connections == 1
            await peer.request()
            if first:
                await peer.send(OK)
                await peer.request()
            peer.abort()

        server, _ = await net.gate(script, upstream_limits=RACE)
        client = await net.client(server, GET)
        assert (await client.answer())[2] == b"ok"
        await client.send(GET)
        assert (await client.answer())[2] == b"broken_before_head"
        assert net.upstream_connections == 2

    run(dialogue)


def test_a_request_that_a_reused_connection_worked_on_is_never_sent_again(run: Run) -> None:
    """Nothing came back, yet it may have been generated for, and a second generation has no reservation."""

    async def dialogue(net: Any) -> None:
        requests: list[bytes] = []

        async def script(peer: Any) -> None:
            requests.append((await peer.request())[1])
            await peer.send(OK)
            requests.append((await peer.request())[1])
            await asyncio.sleep(0.2)  # the work
            peer.close()

        server, _ = await net.gate(script, upstream_limits=UpstreamLimits(reuse_race_s=0.05))
        client = await net.client(server, GET)
        assert (await client.answer())[2] == b"ok"
        await client.send(GET.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\nhi"))
        assert (await client.answer())[2] == b"broken_before_head"
        assert requests == [b"", b"hi"]
        assert net.upstream_connections == 1

    run(dialogue)


def test_a_reused_connection_that_dies_within_its_answer_is_not_tried_again(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            await peer.send(OK)
            await peer.request()
            await peer.send(b"HTTP/1.1 2")
            peer.close()

        server, _ = await net.gate(script)
        client = await net.client(server, GET)
        assert (await client.answer())[2] == b"ok"
        await client.send(GET)
        assert (await client.answer())[2] == b"broken_before_head"
        assert net.upstream_connections == 1

    run(dialogue)


def test_requests_beyond_the_bound_wait_for_their_turn(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        at_once: list[int] = [0, 0]

        async def script(peer: Any) -> None:
            while True:
                await peer.request()
                at_once[0] += 1
                at_once[1] = max(at_once)
                await asyncio.sleep(0.005)
                at_once[0] -= 1
                await peer.send(OK)

        server, upstream = await net.gate(script, upstream_limits=UpstreamLimits(connections=2))
        clients = [await net.client(server, GET) for _ in range(10)]
        for client in clients:
            assert (await client.answer())[2] == b"ok"
        assert at_once[1] <= 2
        assert net.upstream_connections == upstream.connections == 2

    run(dialogue)


def test_waiting_for_a_connection_has_an_end(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            await peer.closed()

        limits = UpstreamLimits(connections=1, connect_s=0.1, response_s=None)
        server, upstream = await net.gate(script, upstream_limits=limits)
        first = await net.client(server, GET)
        await net.became(lambda: net.upstream_connections == 1)
        second = await net.client(server, GET)
        assert (await second.answer())[2] == b"no_connection"
        assert upstream._pool.waiting == 0
        first.close()
        second.close()
        await net.empty(server)

    run(dialogue)


def test_a_waiting_request_goes_on_when_the_connection_before_it_broke(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            await peer.send(OK.replace(b"Content", b"Connection: close\r\nContent"))
            peer.close()

        server, _ = await net.gate(script, upstream_limits=UpstreamLimits(connections=1))
        clients = [await net.client(server, GET) for _ in range(5)]
        for client in clients:
            assert (await client.answer())[2] == b"ok"
        assert net.upstream_connections == 5

    run(dialogue)


def test_idle_connections_are_closed_in_time_and_unasked_bytes_close_them(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            await peer.send(OK)
            if net.upstream_connections == 2:
                await asyncio.sleep(0.02)
                await peer.send(OK)
            await peer.closed()

        server, upstream = await net.gate(script, upstream_limits=UpstreamLimits(idle_s=0.1))
        client = await net.client(server, GET)
        await client.answer()
        assert upstream.idle == 1
        await net.became(lambda: upstream.connections == 0)
        await client.send(GET)
        await client.answer()
        await net.became(lambda: upstream.connections == 0)
        assert upstream._pool._sweeper is None or not upstream._pool._sweeper.cancelled()

    run(dialogue)


def test_an_answer_before_the_request_was_taken_costs_the_connection(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.head()
            peer.writer.transport.pause_reading()
            await peer.send(OK)
            await asyncio.sleep(5)

        server, upstream = await net.gate(script)
        client = await net.client(server, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 16000000\r\n\r\n")
        await client.send(b"x" * 16_000_000)
        assert (await client.answer())[2] == b"ok"
        await net.became(lambda: upstream.connections == 0)

    run(dialogue)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_connection_that_is_never_established_is_given_up(run: Run, leaves: bool) -> None:
    async def dialogue(net: Any) -> None:
        deaf = socket.socket()
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = [socket.socket() for _ in range(4)]  # with its queue full, Linux drops every further SYN
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(deaf.getsockname())
            server, upstream = await net.gate(None, upstream_limits=UpstreamLimits(connect_s=30 if leaves else 0.1))
            upstream._pool._address = upstream._pool._address._replace(port=deaf.getsockname()[1])
            client = await net.client(server, GET)
            await net.became(lambda: upstream.connections == 1)
            if leaves:
                client.close()
                assert (await net.seen[0].end(1)).outcome is RelayOutcome.CLIENT_GONE
            else:
                assert (await client.answer())[2] == b"unreachable"
            await net.became(lambda: upstream.connections == 0)
        finally:
            for filler in (deaf, *fillers):
                filler.close()

    run(dialogue)


def test_an_answer_whose_last_bytes_stall_the_client_leaves_a_connection_that_reads_on(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            while True:
                await peer.request()
                await peer.send(OK)

        server, upstream = await net.gate(script)
        client = await net.client(server, GET)
        assert (await client.answer())[2] == b"ok"
        (connection,) = upstream._pool._idle
        upstream._pool._idle.clear()
        connection.throttle(paused=True)  # what a relay does whose last write filled the client's buffer
        connection.release(reusable=True)
        assert upstream.idle == 1
        await client.send(GET)
        assert (await client.answer())[2] == b"ok"
        assert net.upstream_connections == 1

    run(dialogue)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_running_out_of_descriptors_does_not_make_an_engine_unreachable(run: Run, host: str) -> None:
    async def dialogue(net: Any) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            await peer.send(OK)
            await peer.closed()

        server, upstream = await net.gate(script)
        upstream._pool._address = upstream._pool._address._replace(host=host)
        host.encode("idna")  # the codec is loaded
        client = await net.client(server)
        await net.became(lambda: server.connections == 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(UpstreamError) as refused:
                await upstream.request(b"GET", b"/", [], b"", 5)
            await client.send(GET)
            answer = await client.answer()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert refused.value.kind == "no_connection"
        assert answer[2] == b"no_connection"
        await client.send(GET)
        assert (await client.answer())[2] == b"ok"

    run(dialogue)
