"""What a budget file may hold: every damage is refused by the name of the key."""

import copy
import datetime
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.errors import BadConfigError
from kvbudget.gate.policies import Policy
from kvbudget.planner.budget.record import budget_of, budget_text, request_inputs
from kvbudget.planner.budget.schema import POLICIES, checked, unknown_tables
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB

MakeRequest = Callable[..., PlanRequest]
DELETED = object()


@pytest.fixture
def budget(request_of: MakeRequest) -> dict[str, Any]:
    plan = make_plan(request_of(kv_cache_memory=24 * GIB, weights=16 * GIB, max_model_len=8192))
    asked = request_inputs("./m", {"kv_cache_memory_bytes": "24GiB", "advise": True, "command_line": "serve.sh"})
    document: dict[str, Any] = budget_of(
        plan,
        asked,
        written="2026-11-29",
        config_sha256="aa",
        margin="5%",
        retreat=("refuse",),
        workload={"requests": 7},
    )
    document["receipts"] = [{"engine": "vllm", "added": "2026-11-29", "tokens": 5, "flags": {"a": "b"}, "told": ["x"]}]
    return document


def changed(budget: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    document = copy.deepcopy(budget)
    below: Any = document
    for part in path[:-1]:
        below = below[part]
    if value is DELETED:
        del below[path[-1]]
    else:
        below[path[-1]] = value
    return document


def test_what_a_plan_writes_is_a_budget_also_after_it_was_written(budget: dict[str, Any]) -> None:
    checked(budget)
    checked(tomllib.loads(budget_text(budget)))
    checked({"schema": budget["schema"], "gate": {"pool_blocks": 5}})  # by hand, for the gate alone


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("kv", "groups", 0, "kind"), "mambo", "kv.groups[0].kind is 'mambo', not one of full"),
        (("kv", "groups", 0, "layers"), "10", "kv.groups[0].layers is '10', not a whole number"),
        (("kv", "groups", 0, "fixed_blocks"), 2.0, "kv.groups[0].fixed_blocks is 2.0"),
        (("kv", "groups", 0, "fixed_block"), 2, "did you mean fixed_blocks"),
        (("kv", "groups", 0, "block_size"), True, "kv.groups[0].block_size is true"),
        (("kv", "groups", 0, "block_size"), 0, "kv.groups[0].block_size is 0"),
        (("kv", "groups", 0, "page_size_bytes"), DELETED, "kv.groups[0].page_size_bytes is missing"),
        (("kv", "group"), [{}], "kv.group is not known there; did you mean groups"),
        (("kv", "groups"), DELETED, "kv.groups is missing"),
        (("kv", "groups"), [], "kv.groups must be 1 to"),
        (("kv", "groups"), {}, "kv.groups is a table"),
        (("kv",), DELETED, "kv.groups is missing"),
        (("kv",), [1], "kv must be one table"),
        (("gate",), [{"margin": "5%"}], "gate must be one table; write [gate], in single brackets"),
        (
            ("gate", "classes"),
            {"interactive": {"reserved_blocks": 1}},
            "gate.classes.interactive is no priority from -100 to 100; write the number of its x-kvbudget-priority: "
            "[gate.classes.-10]; smaller is more urgent",
        ),
        (("gate", "classes"), {"9" * 5000: {}}, "is no priority from -100 to 100"),
        (("gate", "classes"), {"-0": {}}, "gate.classes.-0 is no priority"),
        (("gate", "queue_second"), 3, "did you mean queue_seconds"),
        (("gate", "pool-blocks"), 3, "says one flag twice"),
        (("gate", "pool_blocks"), "100", "gate.pool_blocks is '100'"),
        (("gate", "pool_blocks"), 0, "gate.pool_blocks is 0"),
        (("gate", "max_context"), "many", "gate.max_context is 'many'"),
        (("gate", "max_context"), 4096.0, "gate.max_context"),
        (("gate", "max_body"), "big", "gate.max_body"),
        (("gate", "margin"), "nan", "gate.margin is 'nan'"),
        (("gate", "policy"), "magic", "gate.policy"),
        (("gate", "host"), ["a"], "gate.host is a list"),
        (("gate", "backend"), [1], "gate.backend"),
        (("gate", "port"), 70000, "gate.port"),
        (("gate", "embedded_engine"), 1, "gate.embedded_engine"),
        (("pool", "num_blocks"), float("nan"), "pool.num_blocks is nan"),
        (("pool", "tokens"), float("inf"), "pool.tokens is inf"),
        (("pool", "num_blocks"), "12288", "pool.num_blocks is '12288'"),
        (("pool", "num_blocks"), -5, "pool.num_blocks is -5"),
        (("pool", "usable_blocks"), 2**63, "pool.usable_blocks is beyond 9,223,372,036,854,775,807"),
        (("pool", "blocks"), 5, "pool.blocks is not known"),
        (("memory", "weights", "bytes"), -1, "memory.weights.bytes is -1"),
        (("memory", "weights"), 5, "memory.weights is 5"),
        (("memory", "fun"), {}, "memory.fun"),
        (("inputs", "flags", "help"), True, "inputs.flags.help is no input of a plan"),
        (("inputs", "flags", "version"), True, "inputs.flags.version is no input"),
        (("inputs", "flags", "json"), True, "inputs.flags.json is no input"),
        (("inputs", "flags", "explain"), True, "inputs.flags.explain is no input"),
        (("inputs", "flags", "html"), "x", "inputs.flags.html is no input"),
        (("inputs", "flags", "write"), "x", "inputs.flags.write is no input"),
        (("inputs", "flags", "target-concurrency"), 3, "[targets] concurrency"),
        (("inputs", "flags", "a b"), "x", "is no input"),
        (("inputs", "flags", ""), "x", 'inputs.flags."" is no input'),
        (("inputs", "flags", "gpu"), ["x"], "inputs.flags.gpu is a list"),
        (("inputs", "flags", "gpu"), "--", "inputs.flags.gpu"),
        (("inputs", "model"), 5, "inputs.model is 5"),
        (("inputs", "modell"), "m", "did you mean model"),
        (("targets", "concurency"), 4, "did you mean concurrency"),
        (("targets", "concurrency"), 0, "targets.concurrency is 0"),
        (("targets", "review_by"), "soon", "targets.review_by is 'soon'"),
        (("tolerance", "pool"), "x", "tolerance.pool is 'x'"),
        (("tolerance", "pool"), True, "tolerance.pool is true"),
        (("engine", "version"), 5, "engine.version is 5"),
        (("capacity", "ceiling"), "a", "capacity.ceiling is 'a'"),
        (("workload", "mean"), [1], "workload.mean is a list"),
        (("workload",), 5, "workload must be one table"),
        (("receipts",), 5, "receipts must be a list of tables"),
        (("receipts", 0, "tokens"), "x", "receipts[0].tokens is 'x'"),
        (("receipts", 0, "token"), 5, "did you mean tokens"),
        (("written",), datetime.date(2026, 11, 29), "written is a date; dates and times stand there as text"),
        (("notes",), [datetime.time(1, 2)], "notes[0] is a time"),
        (("mine",), {"when": datetime.datetime(2026, 1, 1)}, "mine.when is a datetime"),
        (("mine",), {"size": 2**70}, "mine.size is beyond"),
        (("gates",), {}, "gates is not known; did you mean gate"),
        (("fits",), "x", "fits is 'x'"),
        (("findings",), [[1]], "findings is a list, not a list of texts"),
    ],
)
def test_what_cannot_stand_there_is_refused_by_its_name(
    budget: dict[str, Any], path: tuple[Any, ...], value: object, told: str
) -> None:
    with pytest.raises(BadConfigError) as caught:
        checked(changed(budget, path, value))
    assert told in str(caught.value)
    assert caught.value.fix


def test_a_block_size_beside_groups_that_it_does_not_tell_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(BadConfigError, match=r"gate\.block_size cannot stand beside"):
        checked(changed(budget, ("kv", "groups", 0, "fixed_blocks"), 2))


def test_people_s_own_tables_stay_and_are_named(budget: dict[str, Any]) -> None:
    document = changed(budget, ("owner",), {"team": "platform", "since": "2026-01-01"})
    checked(document)
    assert unknown_tables(document) == ["owner"]


def test_depth_and_number_of_values_are_bounded() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(BadConfigError, match="nested deeper") as caught:
        checked({"notes": deep})
    assert len(str(caught.value)) < 600
    with pytest.raises(BadConfigError, match="more than 200,000 values"):
        checked({"notes": [0] * 200_001})


def test_signs_that_steer_a_terminal_do_not_come_back_in_an_error() -> None:
    with pytest.raises(BadConfigError) as caught:
        checked({"gate": {"\x1b[31m" + "x" * 5000: 1}})
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_the_gate_s_policies_are_those_that_the_file_may_name() -> None:
    assert list(POLICIES) == [policy.value for policy in Policy]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates() | st.times(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=6,
)


@given(
    table=st.sampled_from(["kv", "gate", "pool", "inputs", "memory", "receipts", "notes", "model", "x"]), value=ANYTHING
)
def test_whatever_stands_there_is_a_budget_that_can_be_written_or_an_error(table: str, value: Any) -> None:
    document = {"schema": "kvbudget.budget/1", table: value}
    try:
        checked(document)
    except BadConfigError:
        return
    assert tomllib.loads(budget_text(document)) == document
