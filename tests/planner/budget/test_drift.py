"""Each way in which a reviewed budget stops being true, and that it is told."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.budget.drift import drift
from kvbudget.planner.budget.record import budget_of, request_inputs
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB

MakeRequest = Callable[..., PlanRequest]


@pytest.fixture
def reviewed(request_of: MakeRequest) -> dict[str, Any]:
    plan = make_plan(request_of(kv_cache_memory=24 * GIB, weights=16 * GIB, max_model_len=8192))
    return budget_of(
        plan, request_inputs("./m", {}), written="2026-11-29", config_sha256="aa", workload={"prompt_p50": 800}
    )


def codes(reviewed: dict[str, Any], present: dict[str, Any], today: str = "") -> list[str]:
    return [reason.code for reason in drift(reviewed, present, today=today)]


def receipt(**changed: Any) -> dict[str, Any]:
    told = {"engine": "vllm", "version": "0.32.0", "max_model_len": 8192, "kv_bytes": 24 * GIB, "num_blocks": 12288,
            "block_size": 16, "tokens": 196608, "concurrency": 24.0}  # fmt: skip
    return told | changed


@pytest.mark.parametrize("part", ["kv", "engine", "precision", "pool"])
def test_a_part_that_is_not_in_the_file_was_not_reviewed(reviewed: dict[str, Any], part: str) -> None:
    present = copy.deepcopy(reviewed)
    del reviewed[part]
    (reason,) = [one for one in drift(reviewed, present) if "nothing was reviewed" in one.message]
    assert reason.what.startswith(part)


@pytest.mark.parametrize("name", ["usable_blocks", "tokens"])
def test_a_figure_of_the_pool_that_does_not_belong_to_its_blocks_is_told(reviewed: dict[str, Any], name: str) -> None:
    present = copy.deepcopy(reviewed)
    reviewed["pool"][name] *= 2
    assert [(one.code, one.what) for one in drift(reviewed, present)] == [("pool_changed", f"pool.{name}")]


@pytest.mark.parametrize(("name", "value"), [("block_size", 32), ("max_context", "16k")])
def test_a_gate_that_would_count_less_than_the_engine_takes_is_told(
    reviewed: dict[str, Any], name: str, value: object
) -> None:
    present = copy.deepcopy(reviewed)
    reviewed["gate"][name] = value
    assert [(one.code, one.what) for one in drift(reviewed, present)] == [("gate_beyond_plan", f"gate.{name}")]
    reviewed["gate"][name] = "odd" if name == "max_context" else present["gate"][name]
    assert drift(reviewed, present) == []


def test_nothing_moved_is_no_reason(reviewed: dict[str, Any]) -> None:
    assert codes(reviewed, copy.deepcopy(reviewed)) == []


@pytest.mark.parametrize(
    ("path", "value", "code", "what"),
    [
        (("schema",), "kvbudget.budget/0", "schema_changed", "schema"),
        (("model", "layers"), 33, "model_changed", "model.layers"),
        (("model", "caches", 0, "kv_heads"), 4, "model_changed", "model.caches[0].kv_heads"),
        (("model", "config_sha256"), "bb", "config_changed", "model.config_sha256"),
        (("precision", "kv_cache_dtype"), "fp8", "precision_changed", "precision.kv_cache_dtype"),
        (("engine", "version"), "0.31", "engine_changed", "engine.version"),
        (("engine", "max_num_seqs"), 7, "flags_changed", "engine.max_num_seqs"),
        (("capacity", "max_model_len"), 4096, "flags_changed", "capacity.max_model_len"),
        (("hardware", "gpu"), "L4", "hardware_changed", "hardware.gpu"),
        (("kv", "bytes_per_token"), 1, "cache_changed", "kv.bytes_per_token"),
        (("pool", "num_blocks"), 11000, "pool_changed", "pool.num_blocks"),
        (("workload", "prompt_p50"), 500, "workload_moved", "workload.prompt_p50"),
    ],
)
def test_what_moved_is_named_with_both_values(
    reviewed: dict[str, Any], path: tuple[Any, ...], value: object, code: str, what: str
) -> None:
    present = copy.deepcopy(reviewed)
    place: Any = reviewed
    for step in path[:-1]:
        place = place[step]
    now = place.get(path[-1]) if isinstance(place, dict) else None
    place[path[-1]] = value
    found = [reason for reason in drift(reviewed, present) if reason.what == what]
    assert [(reason.code, reason.reviewed) for reason in found] == [(code, value)]
    assert found[0].present == (now if code != "schema_changed" else "kvbudget.budget/1")
    assert found[0].fix


def test_what_a_later_version_tells_besides_is_no_reason(reviewed: dict[str, Any]) -> None:
    present = copy.deepcopy(reviewed)
    present["engine"]["new_setting"] = 1
    present["kv"]["new_figure"] = 2
    assert codes(reviewed, present) == []


def test_a_cache_that_got_a_window_is_a_reason(reviewed: dict[str, Any]) -> None:
    present = copy.deepcopy(reviewed)
    present["model"]["caches"][0]["window"] = 4096
    assert codes(reviewed, present) == ["model_changed"]


def test_within_the_tolerance_a_pool_may_move(reviewed: dict[str, Any]) -> None:
    present = copy.deepcopy(reviewed)
    present["pool"]["num_blocks"] -= 100
    assert codes(reviewed, present) == []
    reviewed["tolerance"]["pool"] = 0
    assert codes(reviewed, present) == ["pool_changed"]


def test_a_target_is_for_all_engines_together(reviewed: dict[str, Any]) -> None:
    reviewed["targets"] = {"concurrency": 30}
    reviewed["capacity"]["engines"] = 2
    assert drift(reviewed, copy.deepcopy(reviewed)) == []
    reviewed["targets"]["concurrency"] = 47
    (reason,) = drift(reviewed, copy.deepcopy(reviewed))
    assert "46 requests of full length at once on 2 engines" in reason.message


def test_a_target_is_judged_by_the_p95_length_where_lengths_are_known(reviewed: dict[str, Any]) -> None:
    present = copy.deepcopy(reviewed)
    present["capacity"]["p95"] = 60
    reviewed["targets"]["concurrency"] = 60
    reviewed["inputs"]["flags"]["prompt-lengths"] = "p50=800,p95=2k"
    assert codes(reviewed, present) == []
    reviewed["targets"]["concurrency"] = 61
    (reason,) = [one for one in drift(reviewed, present) if one.code == "below_target_concurrency"]
    assert reason.message.startswith("60 requests of p95 length at once")


def test_a_missed_target_says_what_to_give_up_first(reviewed: dict[str, Any]) -> None:
    reviewed["targets"] = {"concurrency": 30, "retreat": ["shorten the context cap"]}
    (reason,) = drift(reviewed, copy.deepcopy(reviewed))
    assert (reason.code, reason.reviewed, reason.present) == ("below_target_concurrency", 30, 23)
    assert "shorten the context cap" in reason.fix


def test_what_would_not_start_any_more_is_told_in_the_engines_words(
    reviewed: dict[str, Any], request_of: MakeRequest
) -> None:
    plan = make_plan(request_of(kv_cache_memory=GIB // 2, weights=16 * GIB, max_model_len=8192))
    present = budget_of(
        plan, request_inputs("./m", {}), written="2026-11-29", config_sha256="aa", workload={"prompt_p50": 800}
    )
    reasons = {reason.code: reason for reason in drift(reviewed, present)}
    assert {"pool_changed", "no_longer_fits", "gate_beyond_plan"} <= reasons.keys()
    assert "KV cache" in reasons["no_longer_fits"].message


@pytest.mark.parametrize(("name", "value"), [("pool_blocks", 20000), ("max_context", 9000), ("max_num_seqs", 10**6)])
def test_a_gate_that_promises_more_than_the_plan_is_a_reason(reviewed: dict[str, Any], name: str, value: int) -> None:
    reviewed["gate"][name] = value
    (reason,) = drift(reviewed, copy.deepcopy(reviewed))
    assert (reason.code, reason.what) == ("gate_beyond_plan", f"gate.{name}")


def test_a_receipt_as_planned_is_no_reason_and_one_apart_is(reviewed: dict[str, Any]) -> None:
    reviewed["receipts"] = [receipt()]
    assert codes(reviewed, copy.deepcopy(reviewed)) == []
    reviewed["receipts"] = [receipt(kv_bytes=20 * GIB, num_blocks=10240, tokens=163840, concurrency=20.0)]
    found = drift(reviewed, copy.deepcopy(reviewed))
    assert {reason.code for reason in found} == {"receipt_differs"}
    assert ("num_blocks", 12288, 10240) in [(reason.what, reason.reviewed, reason.present) for reason in found]


def test_only_the_newest_receipt_counts(reviewed: dict[str, Any]) -> None:
    reviewed["receipts"] = [receipt(num_blocks=1), receipt()]
    assert codes(reviewed, copy.deepcopy(reviewed)) == []


def test_a_receipt_of_another_version_or_start_is_said(reviewed: dict[str, Any]) -> None:
    reviewed["receipts"] = [receipt(version="0.29.1")]
    assert codes(reviewed, copy.deepcopy(reviewed)) == ["receipt_of_other_engine"]
    reviewed["receipts"] = [receipt(max_model_len=4096, concurrency=48.0)]
    assert codes(reviewed, copy.deepcopy(reviewed)) == ["receipt_of_other_flags"]


def test_an_engine_that_refused_to_start_is_a_reason(reviewed: dict[str, Any]) -> None:
    reviewed["receipts"] = [
        {"engine": "vllm", "version": "0.32.0", "refusal": "No available memory for the cache blocks."}
    ]
    assert codes(reviewed, copy.deepcopy(reviewed)) == ["engine_refused"]


def test_a_review_that_is_due_is_a_reason_from_the_day_after(reviewed: dict[str, Any]) -> None:
    reviewed["targets"]["review_by"] = "2027-01-01"
    assert codes(reviewed, copy.deepcopy(reviewed), today="2027-01-01") == []
    assert codes(reviewed, copy.deepcopy(reviewed), today="2027-01-02") == ["review_due"]


def test_a_tolerance_that_is_none_is_an_error(reviewed: dict[str, Any]) -> None:
    for value in ("some", "-1%", "nan", 11):
        reviewed["tolerance"]["pool"] = value
        with pytest.raises(BadValueError, match=r"tolerance\.pool"):
            drift(reviewed, reviewed)


def test_a_budget_with_parts_of_the_wrong_type_raises_nothing(reviewed: dict[str, Any]) -> None:
    for name in list(reviewed):
        odd: tuple[Any, ...] = (1, "x", [], {}, [1, {"a": 2}])
        for value in odd:
            drift({**reviewed, name: value}, reviewed)
            drift(reviewed, {**reviewed, name: value})
