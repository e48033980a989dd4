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


@pytest.mark.parametrize("kind", ["reset", "end", "stall"])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_operation_may_fail(seed: int, kind: str) -> None:
    operations = run(seed).operations
    for number in range(seed, operations, STEP):
        told = run(seed, Fault(number, kind))
        assert (told.failures, told.wrong) == ([], []), f"--seed {seed} --fault {kind}:{number}"
