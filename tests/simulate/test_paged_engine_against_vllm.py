"""Golden: step by step, the engine does what vLLM 0.32's own scheduler did with the same requests.

Two records. The old one of single calls holds what no clock reproduces: aborts between the calls of a step. The other
one (scripts/record_scheduler.py) holds whole loads of every kind, and is held against vLLM in tests/engine.
"""

import json
from pathlib import Path

import pytest

from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.paged_engine import PagedEngine
from scheduler_cases import Answer, Load, first_difference, read_record
from scheduler_loads import FAMILIES, SCENARIOS

CALLS = Path(__file__).parent / "data" / "vllm_0_32_scheduler_steps.jsonl"

LOADS = read_record()


@pytest.mark.parametrize(("load", "answer"), [pytest.param(*pair, id=pair[0]["name"]) for pair in LOADS])
def test_every_step_of_a_recorded_load_is_the_one_that_vllm_did(load: Load, answer: Answer) -> None:
    assert not first_difference(load, answer["rows"], answer["served"])


def test_the_record_holds_each_scenario_and_a_load_of_each_family() -> None:
    names = [load["name"] for load, _ in LOADS]
    assert names[: len(SCENARIOS)] == [*SCENARIOS]
    assert [name.rpartition(" ")[0] for name in names[len(SCENARIOS) :]] == [*FAMILIES]


def test_a_step_that_is_not_the_recorded_one_is_told_apart() -> None:
    load, answer = LOADS[0]
    changed = json.loads(json.dumps(answer["rows"]))
    changed[3][6] -= 1
    assert first_difference(load, changed, answer["served"]).startswith("step 3: free blocks")
    assert "ours, but not recorded" in first_difference(load, answer["rows"][:-1], answer["served"])
    assert "goes on" in first_difference(load, answer["rows"][:-1], None)
    assert "recorded, but not ours" in first_difference(load, [*answer["rows"], answer["rows"][-1]], answer["served"])


def test_every_step_schedules_holds_preempts_and_finishes_as_vllm_did() -> None:
    head, *steps = map(json.loads, CALLS.read_text().splitlines())
    settings = head["settings"]
    paged = PagedEngine(uniform_layout(settings.pop("block_size")), **settings)
    for number, step in enumerate(steps):
        for request_id, prompt, max_tokens, own_end in step.get("add", []):
            paged.add(request_id, prompt, max_tokens, own_end)
        for request_id in step.get("abort", []):
            assert paged.abort(request_id)
        output = paged.schedule()
        held = {request_id: len(paged.block_ids(request_id)) for request_id in paged.running}
        assert list(output.num_scheduled_tokens.items()) == list(step["scheduled"].items()), f"step {number}"
        assert list(held.items()) == list(step["held"].items()), f"step {number}"
        assert (paged.free_blocks, paged.num_waiting) == (step["free"], step["waiting"]), f"step {number}"
        assert list(output.preempted) == step.get("preempted", []), f"step {number}"
        for request_id in step.get("abort_during", []):
            assert paged.abort(request_id)
        finished = [request_id for request_id, _ in paged.update_from_output(output).finished]
        assert finished == step.get("finished", []), f"step {number}"
    assert not paged.has_unfinished_requests
    assert paged.preemptions == sum(len(step.get("preempted", [])) for step in steps) > 0
    assert paged.aborted > 0
