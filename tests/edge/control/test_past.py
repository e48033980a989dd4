"""What a gate remembers of its last quarter of an hour: bounded, whoever looks, and never why the gate fails."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.control.past import MOST_POINTS, Past, Point
from kvbudget.edge.control.recent import KEPT_NS

Play = Callable[..., None]
SECOND = 10**9


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000 * SECOND

    def __call__(self) -> int:
        return self.now_ns


def test_looks_are_a_second_apart_however_many_watch_and_old_ones_are_forgotten(play: Play) -> None:
    async def scene(stand: Any) -> None:
        clock = Clock()
        past = Past(stand.service.gateway, clock)
        for _ in range(5):
            past.look()
        (name,) = past.points()
        assert len(past.points()[name]) == 1
        for _ in range(10):
            clock.now_ns += SECOND
            past.look()
        assert len(past.points()[name]) == 11
        clock.now_ns += KEPT_NS - 5 * SECOND
        past.look()
        assert len(past.points()[name]) == 7
        clock.now_ns += KEPT_NS + SECOND
        past.look()
        assert [point[0] for point in past.points()[name]] == [clock.now_ns // 1_000_000]
        for _ in range(MOST_POINTS + 5):
            clock.now_ns += SECOND * 9 // 10
            past.look()
        assert len(past.points()[name]) == MOST_POINTS
        stand.service.fleet.members.clear()
        clock.now_ns += 2 * KEPT_NS
        past.look()
        assert past.points() == {}
        await past.close()

    play(scene)


def test_a_point_is_what_the_ledger_says(play: Play) -> None:
    async def scene(stand: Any) -> None:
        _, writer = await stand.open_chat(stream=True)
        await stand.until(lambda: stand.promised() > 0)
        gate, past = stand.service.gate, stand.service.past
        point: Point = past.point(stand.service.fleet.members[0], 5 * SECOND)
        assert tuple(point) == (5000, 32, stand.promised(), 16, 0, gate.free_blocks(), 0)
        assert point.promised_blocks + point.free_blocks == point.usable_blocks
        writer.close()
        await stand.until(lambda: stand.promised() == 0)

    play(scene, engine={"hold": True})


def test_it_goes_on_after_a_look_that_failed(play: Play, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    async def scene(stand: Any) -> None:
        tried: list[int] = []

        def fails(_: Past) -> None:
            tried.append(1)
            raise RuntimeError("a bug")

        monkeypatch.setattr(Past, "look", fails)
        past = Past(stand.service.gateway, Clock(), every_s=0.001)
        past.start()
        await stand.until(lambda: len(tried) > 2)
        await past.close()
        await past.close()
        assert "could not be looked at" in caplog.text

    play(scene)


def test_requests_are_rows_of_an_access_log_and_are_forgotten_as_well(play: Play) -> None:
    async def scene(stand: Any) -> None:
        assert (await stand.chat(headers={"x-kvbudget-tenant": "acme"})).status_code == 200
        assert (await stand.chat(messages=[{"role": "user", "content": "x" * 10_000}])).status_code == 400
        assert (await stand.chat(messages="no")).status_code == 400
        recent = stand.service.past.recent
        now_ns = stand.service.gateway.now_ns()
        served, refused = recent.rows(now_ns)
        assert (served["tenant"], served["outcome"], served["max_tokens"]) == ("acme", "finished", 16)
        assert (served["output_tokens"], served["reserved_new_tokens"]) == (16, 16)
        assert (refused["outcome"], refused["reserved_new_tokens"]) == ("refused", None)
        assert str(served["time"]).endswith("Z")
        assert list(recent.rows(now_ns + KEPT_NS + SECOND)) == []

    play(scene)
