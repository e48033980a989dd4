"""Whose share of the connections a request takes."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.relay import RelayOutcome
from kvbudget.edge.http.upstream import UpstreamError

Run = Callable[[Callable[[Any], Any]], None]
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
FREE = GET.replace(b"/ ", b"/free ")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Lanes:
    """A gate whose requests to /free are not charged, over an engine that holds every request until told."""

    def __init__(self, net: Any) -> None:
        self.net = net
        self.go = asyncio.Event()
        self.at_work = 0

    async def script(self, peer: Any) -> None:
        while True:
            head, _ = await peer.request()
            if b" /probe " not in head:
                self.at_work += 1
                await self.go.wait()
                self.at_work -= 1
            await peer.send(OK)

    async def open(self, limits: UpstreamLimits) -> tuple[Any, Any]:
        upstream = self.net.upstream(await self.net.script(self.script), limits)

        def app(exchange: Exchange) -> None:
            seen = self.net.watcher(exchange)
            seen.relay = upstream.relay(
                exchange,
                method=exchange.method,
                target=exchange.target,
                headers=exchange.headers,
                body=exchange.body,
                response_headers=[],
                watcher=seen,
                charged=exchange.target != b"/free",
            )
            if exchange.target == b"/stop":
                seen.relay.cancel()

        return await self.net.serve(app), upstream


def test_requests_that_nobody_is_charged_for_leave_most_connections_to_the_others(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        lanes = Lanes(net)
        server, upstream = await lanes.open(UpstreamLimits(connections=8, uncharged_waiting=3))
        assert upstream._origin.limits.uncharged_connections == 2
        free = [await net.client(server, FREE) for _ in range(6)]
        await net.became(lambda: len(net.seen) == 6 and any(seen.ends for seen in net.seen))
        ended = [seen for seen in net.seen if seen.ends]
        assert [seen.ends[0].outcome for seen in ended] == [RelayOutcome.NO_CONNECTION]  # two at work, three wait
        assert (await free[net.seen.index(ended[0])].answer())[2] == b"no_connection"
        charged = [await net.client(server, GET) for _ in range(6)]
        await net.became(lambda: lanes.at_work == 8)
        for _ in range(3):
            assert (await upstream.request(b"GET", b"/probe", [], b"", 5)).status == 200
        lanes.go.set()
        for client in charged:
            assert (await client.answer())[2] == b"ok"
        for client in free:
            if client is not free[net.seen.index(ended[0])]:
                assert (await client.answer())[2] == b"ok"
        assert upstream.connections == upstream.idle <= 8 + upstream._origin.limits.own_connections
        assert (upstream._pool._uncharged, upstream._pool._own) == (0, 0)

    run(dialogue)


def test_charged_requests_that_take_every_connection_leave_some_for_the_gate_itself(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        lanes = Lanes(net)
        limits = UpstreamLimits(connections=2, own_connections=2, connect_s=0.2, response_s=None)
        server, upstream = await lanes.open(limits)
        clients = [await net.client(server, GET) for _ in range(2)]
        await net.became(lambda: lanes.at_work == 2)
        assert (await upstream.request(b"GET", b"/probe", [], b"", 5)).status == 200
        late = await net.client(server, GET)  # the idle connection is the gate's own, and not for a third relay
        assert (await late.answer())[2] == b"no_connection"
        calls = [asyncio.ensure_future(upstream.request(b"GET", b"/own", [], b"", 30)) for _ in range(3)]
        with pytest.raises(UpstreamError) as refused:
            await calls[2]
        assert refused.value.kind == "no_connection"
        with pytest.raises(UpstreamError) as refused:
            await upstream.request(b"GET", b"/own", [], b"", 0.01)
        assert refused.value.kind == "no_connection"
        assert lanes.at_work == 4
        for call in calls[:2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        clients[0].close()
        await net.became(lambda: upstream.connections == 1)
        assert (upstream._pool._own, upstream._pool.waiting) == (0, 0)

    run(dialogue)


@pytest.mark.parametrize("end", ["unreachable", "client_gone", "cancelled", "broken"])
def test_the_share_of_uncharged_requests_is_whole_again_however_they_end(run: Run, end: str) -> None:
    async def dialogue(net: Any) -> None:
        lanes = Lanes(net)
        server, upstream = await lanes.open(UpstreamLimits(connections=4))
        if end == "unreachable":
            with contextlib.closing(socket.socket()) as taken:
                taken.bind(("127.0.0.1", 0))
                upstream._pool._address = upstream._pool._address._replace(port=taken.getsockname()[1])
        clients = [await net.client(server, FREE) for _ in range(3)]
        await net.became(lambda: len(net.seen) == 3)
        if end != "unreachable":
            await net.became(lambda: lanes.at_work == 1)
        for number, client in enumerate(clients):
            if end == "client_gone":
                client.close()
            elif end == "cancelled":
                net.seen[number].relay.cancel()
            elif end == "broken":
                await net.became(lambda: any(connection.transfer for connection in upstream._pool._open))
                for connection in list(upstream._pool._open):
                    connection.transport.abort()
                await net.became(lambda number=number: sum(len(seen.ends) for seen in net.seen) > number)
        for seen in net.seen:
            await seen.end()
        await net.became(lambda: upstream.connections == upstream.idle)
        assert (upstream._pool._uncharged, upstream._pool.waiting) == (0, 0)

    run(dialogue)


def test_a_relay_that_is_cancelled_before_it_began_to_connect_leaves_nothing_behind(run: Run) -> None:
    """As when a client's request and its leaving come in one turn of the loop."""

    async def dialogue(net: Any) -> None:
        lanes = Lanes(net)
        server, upstream = await lanes.open(UpstreamLimits(connections=1))
        client = await net.client(server, FREE.replace(b"/free", b"/stop"))
        assert (await client.answer())[2] == b"cancelled"
        await net.became(lambda: upstream.connections == 0)
        lanes.go.set()
        await client.send(FREE)
        assert (await client.answer())[2] == b"ok"

    run(dialogue)
