"""Times at best: the arithmetic of a roofline, and nothing where a card is not known."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.planner.advice.roofline import (
    _seen,
    active_parameters,
    attention_flops,
    card_of,
    decode_step_s,
    prefill_s,
)
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import Gpu
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]


def fast_card(bandwidth: int = 2 * 10**12, flops: int = 10**15) -> Gpu:
    """Round figures."""
    return Gpu("made up", Bytes(80 * GIB), "given", Bytes(80 * GIB), Bytes(80 * GIB), bandwidth, flops)


def on_a_card(request_of: MakeRequest, card: Gpu | None = None, **more: Any) -> Any:
    return make_plan(request_of(gpu=card or fast_card(), **({"max_model_len": 8192} | more)))


@given(st.integers(0, 40), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 30)))
def test_the_tokens_that_are_looked_at_are_counted_one_by_one(start: int, tokens: int, window: int | None) -> None:
    slow = sum(min(at + 1, window or 10**9) for at in range(start, start + tokens))
    assert _seen(start, tokens, window) == slow


def test_attention_grows_with_the_square_and_chunks_add_up(request_of: MakeRequest) -> None:
    plan = on_a_card(request_of)
    whole = attention_flops(plan, 8192)
    assert whole == 32 * 2 * 32 * (128 + 128) * (8192 * 8193 // 2)
    assert attention_flops(plan, 4096) + attention_flops(plan, 4096, 4096) == whole
    assert attention_flops(plan, 16384) / whole == pytest.approx(4, rel=0.001)


def test_a_prefill_is_two_operations_for_each_weight_and_token_and_attention(request_of: MakeRequest) -> None:
    plan = on_a_card(request_of)
    active, _ = active_parameters(plan)
    assert active == pytest.approx(8.03e9, rel=0.07)
    found = prefill_s(plan, 8192)
    assert found is not None
    work = 2 * active * 8192 + attention_flops(plan, 8192)
    assert found.low == pytest.approx(work / 1e15 / 0.65)
    assert found.high == pytest.approx(work / 1e15 / 0.35)


def test_a_decode_step_reads_weights_and_caches_once(request_of: MakeRequest) -> None:
    plan = on_a_card(request_of)
    found = decode_step_s(plan, 16, 4096)
    assert found is not None
    moved = plan.memory.weights.bytes + 16 * 4096 * 131072
    assert found.high == pytest.approx(moved / 2e12 / 0.5)
    assert found.low < found.high
    two = decode_step_s(on_a_card(request_of, tensor_parallel_size=2), 16, 4096)
    assert two is not None
    assert two.high == pytest.approx(found.high / 2, rel=0.01)


def test_an_unknown_card_has_no_times(request_of: MakeRequest) -> None:
    for plan in (
        make_plan(request_of(kv_cache_memory=Bytes(GIB), max_model_len=1024)),
        on_a_card(request_of, fast_card(0, 0)),
    ):
        assert not card_of(plan).known
        assert prefill_s(plan, 100) is None
        assert decode_step_s(plan, 1, 100) is None
