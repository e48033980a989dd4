"""Whichever operation of the network fails, in whichever way: no block leaks, no client hangs, no byte is wrong."""

import logging

import pytest

from virtual_gate import run
from virtual_network import Fault

# All of them: python scripts/fuzz_edge.py faults (make fuzz-edge).
STEP = 37


@pytest.fixture(autouse=True)
def quiet() -> object:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_run_without_faults_answers_everybody_and_repeats_itself() -> None:
    first, again = run(5), run(5)
    assert first == again
    assert first.operations > 500
    assert (first.failures, first.wrong) == ([], [])
    assert {200, 400, 429, 502} <= set(first.answers)


def test_two_engines_and_an_operator_at_work_leave_nothing_behind() -> None:
    statuses: set[int] = set()
    for seed in range(12):
        told = run(seed, engines=2)
        assert (told.failures, told.wrong) == ([], []), f"--seed {seed} --engines 2"
        statuses |= set(told.answers)
    assert {200, 400, 502} <= statuses
    assert run(3, engines=2) == run(3, engines=2)


@pytest.mark.parametrize("kind", ["reset", "end", "stall"])
def test_every_operation_may_fail_before_two_engines_too(kind: str) -> None:
    operations = run(4, engines=2).operations
    for number in range(4, operations, 3 * STEP):
        told = run(4, Fault(number, kind), engines=2)
        assert (told.failures, told.wrong) == ([], []), f"--seed 4 --engines 2 --fault {kind}:{number}"


@pytest.mark.parametrize("kind", ["reset", "end", "stall"])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_operation_may_fail(seed: int, kind: str) -> None:
    operations = run(seed).operations
    for number in range(seed, operations, STEP):
        told = run(seed, Fault(number, kind))
        assert (told.failures, told.wrong) == ([], []), f"--seed {seed} --fault {kind}:{number}"
