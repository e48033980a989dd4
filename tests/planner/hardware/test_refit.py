"""How far a user's own receipts move the public estimates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.planner.hardware.estimates import CONSTANTS, Run, Shape, activation_peak, overheads, version_of
from kvbudget.planner.hardware.refit import Receipt, refit
from kvbudget.units import GIB, Bytes

LLAMA_8B = Shape(128256, 4096, 14336)


def run(version: str) -> Run:
    return Run(version_of(version), 1024, 8192)


SIZES = st.none() | st.integers(-(2**40), 2**42).map(Bytes)
NUMBERS = st.integers(0, 10**6)
SHAPES = st.builds(Shape, NUMBERS, NUMBERS, NUMBERS, experts_per_token=NUMBERS, multimodal=st.booleans())
RUNS = st.builds(
    Run,
    version=st.tuples(st.integers(0, 1), st.integers(0, 40)),
    max_num_seqs=st.integers(1, 4096),
    max_num_batched_tokens=st.integers(1, 10**6),
    element_bytes=st.sampled_from([1, 2, 4]),
    tensor_parallel_size=st.integers(1, 64),
    pipeline_parallel_size=st.integers(1, 16),
    largest_graph=st.just(512),
)
RECEIPTS = st.builds(Receipt, SHAPES, RUNS, SIZES, SIZES, SIZES, SIZES)


def test_without_receipts_nothing_changes() -> None:
    assert refit([]) == CONSTANTS


def test_a_users_receipts_move_the_estimate_towards_what_they_say_and_not_all_the_way() -> None:
    how = run("0.32")
    public = overheads(LLAMA_8B, how)
    seen = Receipt(LLAMA_8B, how, activation=Bytes(2 * public.activation.best))
    once, often = refit([seen]), refit([seen] * 9)
    assert once.activation_factor == pytest.approx(1.5)
    assert often.activation_factor == pytest.approx(1.9)
    assert activation_peak(LLAMA_8B, how, often).best == pytest.approx(1.9 * public.activation.best, rel=0.001)


def test_a_receipt_that_tells_only_the_sum_moves_what_is_outside_of_torch() -> None:
    how = run("0.32")
    public = overheads(LLAMA_8B, how)
    seen = Receipt(LLAMA_8B, how, total=Bytes(public.total.best + GIB))
    own = refit([seen] * 4)
    assert own.non_torch_gib == pytest.approx(0.8)
    assert overheads(LLAMA_8B, how, own).total.best == pytest.approx(public.total.best + 0.8 * GIB, rel=0.001)


def test_receipts_that_agree_narrow_the_interval_and_those_far_off_do_not() -> None:
    how = run("0.32")
    public = overheads(LLAMA_8B, how)
    near = refit([Receipt(LLAMA_8B, how, total=public.total.best)] * 5)
    far = refit([Receipt(LLAMA_8B, how, total=Bytes(public.total.best + 8 * GIB))] * 5)
    assert near.spread_factor == pytest.approx(0.5)
    assert far.spread_factor == 1.0


@given(st.lists(RECEIPTS, max_size=4))
def test_no_receipt_breaks_the_intervals(receipts: list[Receipt]) -> None:
    own = refit(receipts)
    told = overheads(LLAMA_8B, run("0.32"), own)
    for part in (told.activation, told.cuda_graphs, told.non_torch, told.total):
        assert 0 <= part.low <= part.best <= part.high
