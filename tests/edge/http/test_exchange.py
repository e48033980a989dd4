"""One request and its one answer."""

from collections.abc import Callable
from typing import Any

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.relay import RelayEnd, RelayOutcome

Run = Callable[[Callable[[Any], Any]], None]


def test_a_request_is_handed_over_whole(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        seen: list[Exchange] = []

        def app(exchange: Exchange) -> None:
            seen.append(exchange)
            exchange.respond(200, [], b"")

        request = b"PUT /a?b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 2\r\n\r\nhi"
        client = await net.client(await net.serve(app), request)
        await client.answer()
        exchange = seen[0]
        assert (exchange.method, exchange.target, exchange.body) == (b"PUT", b"/a?b", b"hi")
        assert (exchange.header(b"x-a"), exchange.header(b"none")) == (b"1", None)
        assert exchange.peer == "{}:{}".format(*client.writer.get_extra_info("sockname"))
        assert exchange.received_ns > 0
        assert not exchange.gone
        assert not exchange.open

    run(dialogue)


def test_a_client_that_left_in_the_queue_never_reaches_the_upstream(run: Run) -> None:
    class Watcher:
        def __init__(self) -> None:
            self.ends: list[RelayEnd] = []

        def on_head(self, status: int, headers: object) -> bool:
            raise AssertionError

        def on_events(self, count: int) -> None:
            raise AssertionError

        def on_stall(self) -> None:
            raise AssertionError

        def on_end(self, end: RelayEnd) -> None:
            self.ends.append(end)

    async def dialogue(net: Any) -> None:
        queued: list[Exchange] = []
        watcher = Watcher()
        upstream = net.upstream(1)
        server = await net.serve(queued.append)
        client = await net.client(server, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await net.became(lambda: queued)
        client.close()
        await net.became(lambda: queued[0].gone)
        request = {"method": b"GET", "target": b"/", "headers": [], "body": b"", "response_headers": []}
        upstream.relay(queued[0], watcher=watcher, **request)
        assert watcher.ends == []  # not from within the call
        await net.became(lambda: watcher.ends)
        assert [end.outcome for end in watcher.ends] == [RelayOutcome.CLIENT_GONE]
        assert upstream.connections == 0

    run(dialogue)


def test_an_error_in_on_gone_is_logged_and_harms_nobody(run: Run) -> None:
    async def dialogue(net: Any) -> None:
        def app(exchange: Exchange) -> None:
            def fail() -> None:
                raise RuntimeError("on_gone")

            exchange.on_gone = fail

        server = await net.serve(app)
        client = await net.client(server, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await net.became(lambda: server.connections == 1)
        client.abort()
        await net.empty(server)

    run(dialogue)
