"""Simulations for the pages: our own command, in a process of its own, one at a time, bounded."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvbudget.edge.web.simulation import BusyError, Simulator, flags_of
from kvbudget.errors import BadValueError

Play = Callable[..., None]
SMALL = {"scenario": "steady", "requests": 30, "policies": ["none", "learned"], "rates": [1, 2]}


def test_what_is_asked_for_is_what_the_command_does() -> None:
    document = asyncio.run(Simulator().asked(SMALL))
    assert [(run["policy"], run["rate"], run["requests"]) for run in document["runs"]] == [
        ("none", 1.0, 30), ("learned", 1.0, 30), ("none", 2.0, 30), ("learned", 2.0, 30),
    ]  # fmt: skip
    assert document["command"].startswith("kvbudget simulate --scenario steady")
    assert all(0 < run["slo_fraction"] <= 1 for run in document["runs"])


def test_a_trace_is_a_load_as_well_and_its_place_on_this_machine_is_not_told() -> None:
    rows = [{"timestamp": 100 * number, "input_length": 64, "output_length": 8} for number in range(20)]
    text = "\n".join(json.dumps(row) for row in rows)
    document = asyncio.run(Simulator().asked({"trace": text, "policies": ["learned"], "num_blocks": 300}))
    assert document["runs"][0]["finished"] == 20
    assert "--trace trace.jsonl" in document["command"]


def test_a_trace_that_is_none_is_refused_in_the_words_of_the_command() -> None:
    with pytest.raises(BadValueError) as raised:
        asyncio.run(Simulator().asked({"trace": "nothing of the kind\n", "num_blocks": 300}))
    assert "trace" in str(raised.value)


def test_one_runs_at_a_time_and_after_it_the_next_may() -> None:
    async def two() -> None:
        simulator = Simulator()
        first = asyncio.create_task(simulator.asked(SMALL))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await simulator.asked(SMALL)
        await first
        assert (await simulator.asked({**SMALL, "rates": [1]}))["runs"]

    asyncio.run(two())


def test_whoever_leaves_ends_the_process_and_the_next_may_run() -> None:
    async def leave() -> None:
        simulator = Simulator()
        task = asyncio.create_task(simulator.asked({**SMALL, "requests": 5000, "rates": [1, 2, 3]}))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await simulator.asked({**SMALL, "rates": [1]}))["runs"]

    asyncio.run(leave())


@pytest.mark.parametrize(
    "wanted",
    [
        {}, {"scenario": "no-such"}, {"scenario": 3}, {"scenario": "steady", "trace": "x"}, {"trace": ""},
        {**SMALL, "policies": []}, {**SMALL, "policies": ["none", "none"]}, {**SMALL, "policies": ["none --config /x"]},
        {**SMALL, "policies": "none"}, {**SMALL, "rates": []}, {**SMALL, "rates": ["1"]}, {**SMALL, "rates": [0]},
        {**SMALL, "rates": [float("nan")]}, {**SMALL, "rates": [True]}, {**SMALL, "rates": [1] * 9},
        {**SMALL, "requests": 10**6}, {**SMALL, "requests": "3"}, {**SMALL, "num_blocks": -1}, {**SMALL, "seed": 1.5},
        {**SMALL, "config": "/x"}, {**SMALL, "max_num_seqs": True},
    ],
)  # fmt: skip
def test_what_is_no_simulation_is_refused_before_anything_runs(wanted: dict[str, Any]) -> None:
    with pytest.raises(BadValueError) as raised:
        flags_of(wanted)
    assert raised.value.fix


def test_what_if_is_answered_with_the_requests_that_came(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url, timeout=60) as admin:
            empty = await admin.post("/api/whatif", json={"max_num_seqs": 2})
            assert (empty.status_code, "0 requests ended" in empty.json()["error"]["message"]) == (400, True)
            for _ in range(12):  # nobody watches
                assert (await stand.chat()).status_code == 200
            answer = await admin.post("/api/whatif", json={"max_num_seqs": "1", "max_context": "0.25k"})
            none: tuple[object, ...] = (
                {"max_num_seqs": 0},
                {"max_num_seqs": True},
                {"max_context": "4kk"},
                {"x": 1},
                {},
                [],
            )
            for wrong in none:
                assert (await admin.post("/api/whatif", json=wrong)).status_code == 400
            told = answer.json()
            assert (answer.status_code, told["requests"]) == (200, 12)
            assert told["now"]["finished"] == told["then"]["finished"] == 12

    play(scene)


def test_watching_leaves_the_access_log_whole(play: Play, tmp_path: Any) -> None:
    path = tmp_path / "access.log"

    async def scene(stand: Any) -> None:
        async with (
            httpx.AsyncClient(base_url=stand.service.admin_url, timeout=60) as admin,
            admin.stream("GET", "/api/live/stream") as watching,
        ):
            async for _ in watching.aiter_lines():
                break
            await stand.chat()
            await stand.chat(messages=[{"role": "user", "content": "x" * 10_000}])

    play(scene, serve={"access_log": str(path)})
    assert [json.loads(line)["outcome"] for line in path.read_text().splitlines()] == ["finished", "refused"]
