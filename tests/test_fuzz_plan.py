"""The planner refuses damaged input as bad input, and never answers with a pool that cannot be."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvbudget.errors import InputError, UnsupportedError
from kvbudget.model.read import model_from_config
from kvbudget.planner.request import Plan
from kvbudget.units import GIB, Blocks, Bytes

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "fuzz_plan.py"
SEED = 20_261_129
SHARDS, SHARD_CASES = 4, 1_000  # about two seconds; `scripts/fuzz_plan.py --count 100000` is the long run


@pytest.fixture(scope="module")
def fuzz() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("fuzz_plan_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


@pytest.fixture(scope="module")
def configs(fuzz: ModuleType) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = fuzz.seeds()
    return found


def ignored(_number: int) -> None:
    """Nobody watches the progress of a test."""


@pytest.mark.parametrize("shard", range(SHARDS))
def test_damaged_configs_are_refused_or_planned_consistently(
    fuzz: ModuleType, configs: dict[str, dict[str, Any]], shard: int
) -> None:
    numbers = range(shard * SHARD_CASES, (shard + 1) * SHARD_CASES)
    found = fuzz.run(SEED, numbers, configs, ignored)
    assert not found, "\n".join(
        f"{kind}: scripts/fuzz_plan.py --seed {SEED} --case {cases[0]}" for kind, cases in found.items()
    )


def test_many_cases_reach_a_plan_and_many_are_refused(fuzz: ModuleType, configs: dict[str, dict[str, Any]]) -> None:
    planned = 0
    for number in range(300):
        with contextlib.suppress(Exception):  # which exception is the test above's matter
            fuzz.planned(fuzz.case_of(SEED, number, configs))
            planned += 1
    assert 50 < planned < 250


def test_a_case_depends_on_seed_and_number_alone(fuzz: ModuleType, configs: dict[str, dict[str, Any]]) -> None:
    before = [repr(fuzz.case_of(SEED, number, configs)) for number in (3, 4)]
    again = [repr(fuzz.case_of(SEED, number, fuzz.seeds())) for number in (4, 3)]
    assert before == again[::-1]
    assert before[0] != before[1]
    assert repr(fuzz.case_of(SEED + 1, 3, configs)) != before[0]


def whole(fuzz: ModuleType, config: dict[str, Any]) -> Any:
    """A case with nothing damaged."""
    return fuzz.Case(
        config, {"engine": "vllm@0.32", "kv_cache_memory": Bytes(400 * GIB)}, {"max_model_len": 448}, False
    )


def test_every_config_plans_as_it_is(fuzz: ModuleType, configs: dict[str, dict[str, Any]]) -> None:
    assert len(configs) >= 30
    for name, config in configs.items():
        assert fuzz.failure_of(whole(fuzz, config)) == "", name
        assert fuzz.planned(whole(fuzz, config)).fits, name


def test_an_unknown_architecture_is_never_guessed(configs: dict[str, dict[str, Any]]) -> None:
    for config in configs.values():
        with pytest.raises(UnsupportedError):
            model_from_config(config | {"model_type": "not_there_yet"}, "m")


def test_an_unknown_layer_type_is_never_guessed(configs: dict[str, dict[str, Any]]) -> None:
    for name in ("gpt-oss-20b", "lfm-2", "granite-hybrid", "gemma-3n"):
        types = ["not_there_yet", *configs[name]["layer_types"][1:]]
        with pytest.raises(InputError):
            model_from_config(configs[name] | {"layer_types": types}, "m")


def test_a_crash_and_an_impossible_pool_are_found_and_made_smaller(
    fuzz: ModuleType, configs: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = whole(fuzz, configs["llama31-8b"])
    right = fuzz.make_plan

    def one_block_too_many(request: object) -> Plan:
        plan: Plan = right(request)
        return plan._replace(pool=plan.pool._replace(num_blocks=Blocks(plan.pool.num_blocks + 1)))

    def crashing(request: object) -> Plan:
        raise ZeroDivisionError

    monkeypatch.setattr(fuzz, "make_plan", one_block_too_many)
    assert fuzz.failure_of(case) == "pool is not its blocks"
    monkeypatch.setattr(fuzz, "make_plan", crashing)
    kind = fuzz.failure_of(case)
    assert kind.startswith("ZeroDivisionError at ")
    small = fuzz.smaller(case, kind)
    assert fuzz.failure_of(small) == kind
    assert len(small.config) < len(case.config)
    assert not small.flags
