"""Golden: step by step, the engine does what vLLM 0.32's own scheduler did with the same requests.

The record holds preemptions, chunked prefill, a full sequence limit, and aborts before and during steps.
"""

import json
from pathlib import Path

from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.paged_engine import PagedEngine

RECORD = Path(__file__).parent / "data" / "vllm_0_32_scheduler_steps.jsonl"


def test_every_step_schedules_holds_preempts_and_finishes_as_vllm_did() -> None:
    head, *steps = map(json.loads, RECORD.read_text().splitlines())
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
