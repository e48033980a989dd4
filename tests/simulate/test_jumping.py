"""Leaps give what single steps give: the same document, the same answers at the same times, the same decisions."""

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.simulate.choice import can_jump
from kvbudget.simulate.cost import StepCost
from kvbudget.units import Blocks, Bytes, Tokens
from simulated import MS, SECOND, random_case, request, run, settings


@pytest.mark.parametrize("seed", range(60))
def test_a_random_load_ends_the_same_in_leaps_and_in_single_steps(seed: int) -> None:
    load, given_settings, policy = random_case(seed)
    assert can_jump(given_settings)
    slow = run(load, given_settings, policy, every_step=True)
    fast = run(load, given_settings, policy)
    assert fast.document == slow.document
    assert fast.answers == slow.answers
    assert fast.decisions == slow.decisions


@effort(deadline=None, max_examples=25, derandomize=True)
@given(st.integers(1000, 10**9))
def test_any_other_random_load_too(seed: int) -> None:
    load, given_settings, policy = random_case(seed)
    assert run(load, given_settings, policy)[:3] == run(load, given_settings, policy, every_step=True)[:3]


def test_the_random_loads_preempt_share_prefixes_refuse_and_lose_clients() -> None:
    """Else the comparison above would say little."""
    documents = [run(*random_case(seed)).document for seed in range(60)]
    for name in ("preemptions", "recomputed_tokens", "cached_tokens", "wasted_tokens", "timed_out", "refused"):
        assert sum(document[name] for document in documents) > 0, name


@pytest.mark.parametrize("policy", ["none", "worst-case", "trajectory", "learned", "oracle"])
def test_a_client_that_leaves_in_the_middle_of_a_leap_frees_its_place_in_the_queue(policy: str) -> None:
    given_settings = settings(40, patience_ns=300 * MS, max_num_seqs=2)
    load = [request(0, 100, 200), request(1, 100, 200), request(5 * MS, 30, 3), request(250 * MS, 30, 3)]
    slow = run(load, given_settings, policy, every_step=True)
    assert run(load, given_settings, policy)[:3] == slow[:3]
    assert slow.document["timed_out"] + slow.document["refused"] == 2


def test_steps_that_cost_nothing_last_a_nanosecond_each() -> None:
    given_settings = settings(40, cost=StepCost(0, 0, 0, 1))
    load = [request(0, 1, 30), request(3, 1, 30)]
    assert run(load, given_settings)[:2] == run(load, given_settings, every_step=True)[:2]


def test_an_answer_of_a_million_tokens_is_no_more_work_than_a_short_one() -> None:
    seen = run([request(0, 10, 10**6)], settings(70_000))
    assert seen.document["steps"] == 10**6
    assert seen.answers[0][1:3] == (10**6 * 10 * MS, 10**6)


def test_a_late_gap_inside_a_leap_is_one() -> None:
    """Each step is 1 us longer than the one before; the 500th gap is the first that is over the limit."""
    given_settings = settings(70, cost=StepCost(10 * MS, 0, 0, 1000), gap_ns=10 * MS + 520_000)
    for output, late in ((500, False), (530, True)):
        (answer,) = run([request(0, 10, output)], given_settings).answers
        assert answer[4] is late
        assert run([request(0, 10, output)], given_settings, every_step=True).answers == [answer]


def test_only_engines_with_one_unbounded_group_and_a_token_for_everybody_can_jump() -> None:
    full = Group(LayerKind.FULL, 1, Tokens(16), Bytes(1))
    window = Group(LayerKind.SLIDING, 1, Tokens(16), Bytes(1), Bytes(0), Tokens(200), Blocks(1), window=Tokens(64))
    state = Group(LayerKind.MAMBA, 1, Tokens(16), Bytes(1), fixed_blocks=Blocks(2))
    assert can_jump(settings())
    assert can_jump(settings(layout=Layout((Group(LayerKind.MLA, 1, Tokens(64), Bytes(1)),))))
    for change in (
        {"layout": Layout((window,))},
        {"layout": Layout((full, window))},
        {"layout": Layout((full, state))},
        {"async_scheduling": True},
        {"max_num_batched_tokens": 255},
        {"layout": uniform_layout(48)},  # an id of 512 tokens ends inside a block
    ):
        assert not can_jump(settings(**change)), change
    assert can_jump(settings(layout=uniform_layout(48), prefix_caching=False))


def test_what_cannot_jump_runs_step_by_step() -> None:
    full = Group(LayerKind.FULL, 1, Tokens(16), Bytes(1))
    window = Group(LayerKind.SLIDING, 1, Tokens(16), Bytes(1), Bytes(0), Tokens(8300), Blocks(1), window=Tokens(64))
    for change in ({"layout": Layout((full, window))}, {"async_scheduling": True}):
        seen = run([request(k * SECOND // 10, 100, 20) for k in range(20)], settings(200, **change, max_model_len=1000))
        assert seen.endings == (20, 0, 0)
