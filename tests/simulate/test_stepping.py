"""An instance without a gate sees what the plain replay of the paged engine sees, whatever the engine."""

import random

import pytest

from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.simulate.cost import StepCost
from kvbudget.simulate.paged_engine import PagedEngine, SchedulingPolicy
from kvbudget.simulate.prefix_keys import PrefixKeys
from kvbudget.simulate.steps import Replay, TimedRequest
from kvbudget.units import Blocks, Bytes, Tokens
from simulated import FLAT, run, settings
from simulated import request as make

WINDOW = 640
FULL = Group(LayerKind.FULL, 1, Tokens(16), Bytes(1))


def sliding(in_flight: int) -> Group:
    return Group(
        LayerKind.SLIDING, 1, Tokens(16), Bytes(1), Bytes(0), Tokens(63 + in_flight), Blocks(1), window=Tokens(64)
    )


LAYOUTS = {
    "full": uniform_layout(16),
    "sliding": Layout((FULL, sliding(256))),
    "all sliding": Layout((sliding(256),)),
    "state": Layout((FULL, Group(LayerKind.MAMBA, 1, Tokens(16), Bytes(1), fixed_blocks=Blocks(2)))),
}


@pytest.mark.parametrize("by_priority", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_answer_comes_when_the_plain_replay_says(layout: str, asynchronous: bool, by_priority: bool) -> None:
    chance = random.Random(f"{layout} {asynchronous} {by_priority}")
    load = []
    for number in range(60):
        ids = [1, *[chance.randint(1, 2) for _ in range(chance.randint(0, 6))]]
        prompt, output = chance.randint(1, 300), chance.randint(1, 120)
        at_ns = number * 60_000_000
        load.append(make(at_ns, prompt, output, most=output + 9, ids=ids, priority=chance.randint(0, 2)))
    cost = StepCost(5_000_000, 40_000, 20_000, 40)
    given = settings(
        110, layout=LAYOUTS[layout], max_model_len=WINDOW, max_num_seqs=24, max_num_batched_tokens=128, cost=cost,
        prefix_id_tokens=64, async_scheduling=asynchronous, by_priority=by_priority, patience_ns=None,
    )  # fmt: skip
    engine = PagedEngine(
        LAYOUTS[layout], 111, 24, 128, WINDOW, prefix_caching=True, async_scheduling=asynchronous,
        scheduling_policy=SchedulingPolicy.PRIORITY if by_priority else SchedulingPolicy.FCFS,
    )  # fmt: skip
    keys = PrefixKeys(64, engine.key_tokens)
    replay = Replay(
        [
            TimedRequest(
                str(number), one.arrival_ns, one.prompt_tokens, one.output_tokens, one.max_new_tokens, one.priority,
                block_keys=keys.keys(one.hash_ids, one.prompt_tokens),
            )
            for number, one in enumerate(load)
        ],
        engine,
        cost,
    )  # fmt: skip
    steps = sum(1 for _ in replay)
    seen = run(load, given, every_step=True)
    assert {str(number): (first, end, tokens) for number, end, tokens, first, _ in seen.answers} == {
        name: (served.first_token_ns, served.finish_ns, served.output_tokens) for name, served in replay.served.items()
    }
    assert seen.document["steps"] == steps
    assert seen.document["preemptions"] == engine.preemptions


def test_an_answer_that_ends_by_itself_costs_one_step_more_under_asynchronous_scheduling() -> None:
    """vLLM 0.32 has scheduled the next step when it learns of the end; where max_tokens ends it, it knew before."""
    for most, wasted in ((50, 1), (5, 0)):
        seen = run([make(0, 10, 5, most=most)], settings(async_scheduling=True, cost=FLAT))
        assert seen.document["wasted_tokens"] == wasted
