"""A collector that is away, slow, full or wrong costs spans that are counted, and nobody's time."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

import pytest

from kvbudget.edge.tracing import exporter as exporting
from kvbudget.edge.tracing.exporter import Exporter
from kvbudget.edge.tracing.otlp import Kind, resource, scope, span
from kvbudget.edge.tracing.settings import TracingSettings
from otlp_receiver import Receiver

Scene = Callable[[Exporter, Receiver], Awaitable[None]]
ONE = span(b"t" * 16, b"s" * 8, b"", "n", Kind.SERVER, 1, 2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "EVERY_S", 0.01)
    monkeypatch.setattr(exporting, "FIRST_PAUSE_S", 0.001)


def run(scene: Scene, receiver: Receiver | None = None, *, url: str = "", path: str = "/v1/traces") -> Exporter:
    async def all_of_it() -> Exporter:
        collector = receiver or Receiver()
        address = await collector.start()
        made = Exporter(TracingSettings((url or address) + path), resource({"service.name": "k"}), scope("s", "1"))
        made.open()
        try:
            async with asyncio.timeout(20):
                await scene(made, collector)
        finally:
            await made.close()
            await made.close()
            await collector.stop()
        return made

    return asyncio.run(all_of_it())


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.002)


def test_spans_are_sent_together() -> None:
    async def scene(made: Exporter, receiver: Receiver) -> None:
        for _ in range(100):
            made.put(ONE * 2, 2)
        await receiver.until(200)
        assert receiver.requests == 1

    made = run(scene)
    assert (made.exported, made.lost) == (200, 0)


def test_an_address_without_a_path_is_asked_at_its_root() -> None:
    async def scene(made: Exporter, receiver: Receiver) -> None:
        made.put(ONE, 1)
        await receiver.until(1)
        assert receiver.paths == ["/"]

    run(scene, path="")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_may_pass_is_tried_again_and_nothing_is_lost(status: int) -> None:
    async def scene(made: Exporter, receiver: Receiver) -> None:
        made.put(ONE, 1)
        await receiver.until(1)
        assert receiver.requests == 3

    made = run(scene, Receiver(deque([status, status])))
    assert (made.exported, made.lost) == (1, 0)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500])
def test_what_will_not_pass_is_not_tried_again(status: int) -> None:
    async def scene(made: Exporter, receiver: Receiver) -> None:
        made.put(ONE, 1)
        await until(lambda: made.lost == 1)
        made.put(ONE, 1)
        await receiver.until(1)
        assert receiver.requests == 2

    made = run(scene, Receiver(deque([status])))
    assert (made.exported, made.lost) == (1, 1)


def test_it_gives_up_after_some_tries_and_goes_on_with_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(made: Exporter, receiver: Receiver) -> None:
        made.put(ONE, 1)
        await until(lambda: made.lost == 1)
        assert receiver.requests == exporting.MOST_TRIES
        made.put(ONE, 1)
        await receiver.until(1)

    caplog.set_level(logging.INFO)
    made = run(scene, Receiver(deque([503] * exporting.MOST_TRIES)))
    assert (made.exported, made.lost) == (1, 1)
    told = [record.levelname for record in caplog.records if record.name == "kvbudget.tracing"]
    assert told == ["WARNING", "INFO"]  # once each, not for every try


def test_the_collectors_own_word_of_when_to_come_back_is_heeded() -> None:
    async def scene(made: Exporter, receiver: Receiver) -> None:
        made.put(ONE, 1)
        await until(lambda: receiver.requests == 1)
        began = time.monotonic()
        await receiver.until(1)
        assert time.monotonic() - began >= 0.95

    run(scene, Receiver(deque([503]), retry_after="1"))


def test_spans_that_were_taken_in_part_are_counted_in_part() -> None:
    async def scene(made: Exporter, receiver: Receiver) -> None:
        made.put(ONE * 5, 5)
        await receiver.until(5)
        await until(lambda: made.exported == 3)

    made = run(scene, Receiver(rejects=2))
    assert (made.exported, made.lost) == (3, 2)


def test_a_collector_that_is_away_is_no_fault_and_one_that_comes_back_gets_what_waited() -> None:
    async def scene(made: Exporter, receiver: Receiver) -> None:
        port = int(made._url.split(":")[2].split("/")[0])
        await receiver.stop()
        made.put(ONE, 1)
        await until(lambda: made._failing)
        await receiver.start(port)
        await until(lambda: made.exported + made.lost == 1)
        made.put(ONE, 1)
        await receiver.until(1)

    run(scene)


def test_what_waits_is_bounded_and_putting_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "MOST_WAITING_BYTES", 10 * len(ONE))

    async def scene(made: Exporter, receiver: Receiver) -> None:
        made.put(ONE, 1)
        await until(lambda: receiver.requests == 1)  # and it hangs there
        for _ in range(50):
            made.put(ONE, 1)
        assert made.lost == 40

    made = run(scene, Receiver(hold=True))
    assert made.exported + made.lost == 51


def test_a_slow_collector_holds_up_an_end_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "FLUSH_S", 0.1)

    async def scene(made: Exporter, receiver: Receiver) -> None:
        made.put(ONE, 1)
        await until(lambda: receiver.requests == 1)
        made.put(ONE, 1)
        began = time.monotonic()
        await made.close()
        assert time.monotonic() - began < 5  # and not TIMEOUT_S
        made.put(ONE, 1)

    made = run(scene, Receiver(hold=True))
    assert (made.exported, made.lost) == (0, 3)


def test_a_collector_that_is_away_at_the_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "FIRST_PAUSE_S", 1000.0)

    async def scene(made: Exporter, receiver: Receiver) -> None:
        await receiver.stop()
        made.put(ONE, 1)
        await until(lambda: made._failing)
        made.put(ONE, 1)

    made = run(scene)
    assert (made.exported, made.lost) == (0, 2)


def test_large_numbers_are_cut_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(made: Exporter, receiver: Receiver) -> None:
        many = 2 * exporting.BATCH_BYTES // len(ONE) + 10
        for _ in range(many):
            made.put(ONE, 1)
        await receiver.until(many)
        assert receiver.requests == 3

    assert run(scene).lost == 0
