"""Clients see in a simulation without a gate what vLLM's own scheduler gave them, in leaps as in single steps."""

import pytest

from kvbudget.simulate.choice import can_jump
from kvbudget.simulate.cost import StepCost
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.settings import ClientHabits, EngineSizes, GateBounds, Settings
from kvbudget.units import Tokens
from scheduler_cases import COST, Answer, Load, layout_of, read_record
from simulated import run


def simulated(load: Load) -> tuple[list[TraceRequest], Settings]:
    given = load["settings"]
    engine = EngineSizes(
        layout_of(given),
        given["num_blocks"],
        given["max_model_len"],
        given["max_num_seqs"],
        given["max_num_batched_tokens"],
        given["prefix_caching"],
        given["prefix_id_tokens"],
        given["scheduling_policy"] == "priority",
        given["async_scheduling"],
        StepCost(*(given["step_cost"][name] for name in COST)),
    )
    requests = [
        TraceRequest(
            one["arrival_ns"],
            Tokens(one["prompt_tokens"]),
            Tokens(one["max_tokens"]),
            Tokens(min(one["output_tokens"], one["max_tokens"])),
            hash_ids=tuple(one.get("prefix_ids", ())),
            priority=one.get("priority", 0),
        )
        for one in sorted(load["trace"], key=lambda one: one["arrival_ns"])
    ]
    return requests, Settings(engine, GateBounds(), ClientHabits(patience_ns=None))


def lawful(load: Load) -> bool:
    """Whether a simulation has all of its settings: it does not turn these on, nor aborts at a told time, and who comes
    first of requests of one priority and arrival hangs on ids, which it gives itself."""
    given = load["settings"]
    options = (given["prefix_retention_interval"], given["reserve_full_isl"], given["long_prefill_token_threshold"])
    aborts = any(one.get("abort_ns") is not None for one in load["trace"])
    fit = all(one["prompt_tokens"] < given["max_model_len"] for one in load["trace"])
    orders = {(one.get("priority", 0), one["arrival_ns"]) for one in load["trace"]}
    told_apart = given["scheduling_policy"] == "fcfs" or len(orders) == len(load["trace"])
    return options == (0, True, 0) and not aborts and fit and told_apart


RECORDED = [pair for pair in read_record() if lawful(pair[0])]


@pytest.mark.parametrize("every_step", [False, True])
@pytest.mark.parametrize(("load", "answer"), RECORDED)
def test_answers_come_when_vllm_gave_them(load: Load, answer: Answer, every_step: bool) -> None:
    requests, given = simulated(load)
    seen = run(requests, given, f"watermark={load['settings']['watermark']}", every_step=every_step)
    names = [one["id"] for one in sorted(load["trace"], key=lambda one: one["arrival_ns"])]
    assert {names[number]: [first, end, tokens] for number, end, tokens, first, _ in seen.answers} == {
        name: served[:3] for name, served in answer["served"].items() if served[1] is not None
    }
    assert seen.document["preemptions"] == sum(served[3] for served in answer["served"].values())


def test_enough_was_recorded_for_leaps() -> None:
    assert sum(can_jump(simulated(load)[1]) for load, _ in RECORDED) >= 8
