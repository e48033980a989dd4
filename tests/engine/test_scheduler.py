"""Step by step our engine does what vLLM's own scheduler does: who runs, what is computed, held, preempted, ended."""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from scheduler_cases import Answer, Load, ask_vllm, first_difference, read_record
from scheduler_loads import drawn_loads, named_loads

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

NAMED = named_loads()
# Four of them take a second. A failure names its load, and with it the seed.
DRAWN = drawn_loads(int(os.environ.get("KVBUDGET_SCHEDULER_LOADS", "64")))
RECORDED = read_record()


@cache
def answers(venv: Path) -> dict[str, Answer]:
    """All of vLLM's, by load, from one start of it: importing it takes longer than most loads."""
    loads = {json.dumps(load): load for load in (*NAMED, *DRAWN, *(load for load, _ in RECORDED))}
    return dict(zip(loads, ask_vllm(venv, [*loads.values()]), strict=True))


@pytest.mark.parametrize("load", [pytest.param(load, id=load["name"]) for load in (*NAMED, *DRAWN)])
def test_every_step_is_that_of_vllm(engine_venv: Path, load: Load) -> None:
    answer = answers(engine_venv)[json.dumps(load)]
    assert "broken" not in answer, answer["broken"]
    assert not first_difference(load, answer["rows"], answer["served"])


def test_what_is_recorded_for_the_tests_without_an_engine_is_what_vllm_answers(engine_venv: Path) -> None:
    for load, recorded in RECORDED:
        assert answers(engine_venv)[json.dumps(load)] == recorded, f"{load['name']}: run scripts/record_scheduler.py"
