import asyncio
from typing import Any, cast

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.heads import parse_request_head
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.refused import Asked
from kvbudget.edge.http.relay import Relay, RelayEnd
from kvbudget.edge.http.transfer import Claim, Origin


class Client:
    """The connection of a client that falls behind when it is sent `slow`."""

    may_keep_alive = True
    exchange: Exchange

    def send(self, data: bytes) -> None:
        if data == b"slow":
            self.exchange.throttle(paused=True)

    def answered(self, keep_alive: bool) -> None:
        raise AssertionError

    def cut(self, reset: bool) -> None:
        raise AssertionError

    def body_released(self, size_bytes: int) -> None:
        raise AssertionError

    def error_answer(self, status: int, code: str, message: str, asked: Asked) -> tuple[Headers, bytes]:
        raise AssertionError


class Watcher:
    def on_head(self, status: int, headers: Headers) -> bool:
        return True

    def on_events(self, count: int) -> None:
        raise AssertionError

    def on_stall(self) -> None:
        """As told to the gate."""

    def on_end(self, end: RelayEnd) -> None:
        raise AssertionError


def test_what_was_on_its_way_when_a_client_fell_behind_sets_no_deadline_again() -> None:
    loop = asyncio.new_event_loop()
    try:
        client, head = Client(), parse_request_head(b"POST / HTTP/1.1\r\nHost: h\r\ncontent-length: 0")
        exchange = client.exchange = Exchange(head, b"", "127.0.0.1:1", 0, client)
        origin = Origin(UpstreamLimits(read_stall_s=5), loop)
        relay = Relay(exchange, b"POST", (), Claim.CHARGED, [], Watcher(), origin)
        exchange.take(relay)
        relay.deadline_s = loop.time()
        relay.received(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nfast")
        assert cast(Any, relay).deadline_s > loop.time() + 4
        relay.received(b"slow")
        relay.received(b"more")
        assert relay.deadline_s is None
    finally:
        loop.close()
