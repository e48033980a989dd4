"""The reviewed budget: what it holds, what survives a re-write, what the gate reads of it."""

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadConfigError, BadValueError
from kvbudget.model.read import model_from_config
from kvbudget.planner.budget.record import (
    arguments_of,
    budget_of,
    budget_text,
    carried_over,
    derived_gate,
    gate_settings,
    gate_tables,
    layout_of,
    request_inputs,
    section,
    tables,
    with_receipt,
)
from kvbudget.planner.budget.schema import checked
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import PlanRequest
from kvbudget.pool.groups import Layout
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]


@pytest.fixture
def budget(request_of: MakeRequest) -> Callable[..., dict[str, Any]]:
    """A budget of an 8B Llama in 24 GiB; keywords are the engine's flags, `margin`, `written`."""

    def make(**given: Any) -> dict[str, Any]:
        own = {name: given.pop(name) for name in list(given) if name in ("margin", "written", "retreat", "workload")}
        plan = make_plan(request_of(kv_cache_memory=24 * GIB, weights=16 * GIB, max_model_len=8192) if not given
                         else request_of(kv_cache_memory=24 * GIB, weights=16 * GIB, **given))  # fmt: skip
        return budget_of(plan, request_inputs("./m", {"max_model_len": "8k"}), **({"written": "2026-11-29"} | own))

    return make


Budget = Callable[..., dict[str, Any]]


def test_the_file_reads_back_exactly_and_is_written_the_same_again(budget: Budget) -> None:
    document = budget(margin="5%", retreat=("shorten", "refuse"), workload={"trace_sha256": "ab", "requests": 7})
    text = budget_text(document)
    assert tomllib.loads(text) == document
    assert budget_text(tomllib.loads(text)) == text


def test_it_holds_structure_pool_and_cost_of_a_token(budget: Budget) -> None:
    document = budget()
    assert document["model"]["caches"] == [
        {"layers": 32, "kind": "full", "kv_heads": 8, "key_size": 128, "value_size": 128}
    ]
    assert document["kv"]["bytes_per_token"] == 131072
    assert document["pool"]["num_blocks"] == 12288
    assert document["capacity"]["max_model_len"] == 8192
    assert document["fits"] is True


def test_a_reviewer_sees_sizes_and_what_each_part_is(budget: Budget) -> None:
    text = budget_text(budget())
    assert "bytes_per_token = 131072  # 128 KiB" in text
    assert "# Read by `kvbudget serve --config`" in text


def test_inputs_leave_out_output_flags_and_what_was_not_given() -> None:
    given = {"gpu": "h100", "max_num_seqs": None, "json": True, "write": "x", "later_command": "y",
             "enforce_eager": True,
             "run": print, "target_concurrency": 4, "command_line": "serve.sh"}  # fmt: skip
    assert request_inputs("m", given).flags == {"gpu": "h100", "enforce-eager": True, "command": "serve.sh"}


def test_the_command_line_of_the_plan_can_be_made_again(budget: Budget) -> None:
    document = budget()
    document["inputs"]["flags"] |= {"async-scheduling": False, "enforce-eager": True, "block-size": 16}
    document["targets"]["concurrency"] = 3
    assert arguments_of(document) == [
        "./m", "--max-model-len=8k", "--no-async-scheduling", "--enforce-eager", "--block-size=16",
        "--target-concurrency=3",
    ]  # fmt: skip


def test_what_people_wrote_survives_a_rewrite_and_what_is_computed_does_not(budget: Budget) -> None:
    old = budget(written="2026-01-01", max_model_len=8192)
    old["targets"] |= {"concurrency": 5, "review_by": "2027-01-01"}
    old["tolerance"]["pool"] = "4%"
    old["gate"] |= {"margin": "7%", "max_context": 4096, "queue_seconds": 3}
    old["notes"] = ["reviewed with the platform team"]
    old["receipts"] = [{"engine": "vllm", "tokens": 1}]
    old["owner"] = {"team": "platform"}
    new: dict[str, Any] = carried_over(budget(max_model_len=16384), old)
    assert new["targets"] == {"concurrency": 5, "review_by": "2027-01-01"}
    assert new["tolerance"]["pool"] == "4%"
    assert new["gate"]["margin"] == "7%"
    assert new["gate"]["max_context"] == 4096  # edited: not what the old plan gave
    assert new["gate"]["pool_blocks"] == new["pool"]["usable_blocks"]
    assert new["gate"]["queue_seconds"] == 3
    assert (new["created"], new["written"], new["notes"]) == ("2026-01-01", "2026-11-29", old["notes"])
    assert (new["receipts"], new["owner"]) == (old["receipts"], old["owner"])
    assert new["capacity"]["max_model_len"] == 16384


def test_an_unedited_gate_follows_the_new_plan(budget: Budget) -> None:
    new: dict[str, Any] = carried_over(budget(max_model_len=16384), budget(max_model_len=8192))
    assert new["gate"]["max_context"] == 16384


def test_a_line_that_was_taken_out_of_gate_stays_out(budget: Budget) -> None:
    old = budget()
    del old["gate"]["pool_blocks"]
    assert "pool_blocks" not in section(carried_over(budget(), old), "gate")


def test_a_margin_given_anew_wins_over_the_old_one(budget: Budget) -> None:
    old = budget(margin="5%")
    anew, kept = (section(carried_over(given, old), "gate") for given in (budget(margin="2%"), budget()))
    assert (anew["margin"], kept["margin"]) == ("2%", "5%")


def test_the_gate_gets_its_margin_in_blocks_of_its_pool(budget: Budget) -> None:
    settings = gate_settings(budget(margin="5%"))
    assert settings["margin_blocks"] == 615  # 5 % of 12,287, rounded up
    assert "margin" not in settings
    with pytest.raises(BadValueError, match="margin"):
        gate_settings({"gate": {"margin": "much"}})


def test_margin_blocks_written_by_hand_win(budget: Budget) -> None:
    document = budget(margin="5%")
    document["gate"]["margin-blocks"] = 7
    assert gate_settings({"gate": {"margin": "5%", "margin_blocks": 7}})["margin_blocks"] == 7


def test_several_groups_give_no_block_size_but_their_whole_layout() -> None:
    groups = [
        {"kind": "full", "layers": 10, "block_size": 16, "page_size_bytes": 65536},
        {
            "kind": "sliding",
            "layers": 10,
            "block_size": 16,
            "page_size_bytes": 65536,
            "most_tokens": 3071,
            "extra_blocks": 1,
        },
    ]
    document: dict[str, Any] = {"pool": {"usable_blocks": 100}, "kv": {"groups": groups}}
    assert derived_gate(document) == {"pool_blocks": 100}
    layout = layout_of(document)
    assert layout is not None
    assert [int(group.most_tokens) for group in layout.groups] == [0, 3071]
    assert layout.blocks_for(16000) == 1000 + 192 + 1


@pytest.mark.parametrize(
    "groups",
    [
        [{"kind": "full", "layers": 1}],
        [{"kind": "odd", "layers": 1, "block_size": 16, "page_size_bytes": 1}],
        [{"kind": "full", "layers": 1, "block_size": 16, "page_size_bytes": 1, "fixed_block": 2}],
        [{"kind": "full", "layers": 1, "block_size": 16, "page_size_bytes": 1, "fixed_blocks": 2.0}],
        [{"kind": "full", "layers": 1, "block_size": 0, "page_size_bytes": 1}],
        [{"kind": "full", "layers": 1, "block_size": 16, "page_size_bytes": 1}, 5],
        [],
        5,
    ],
)
def test_a_layout_that_is_damaged_is_refused_not_left_out(groups: object) -> None:
    with pytest.raises(BadConfigError, match=r"kv\.groups is damaged"):
        layout_of({"kv": {"groups": groups}})
    assert layout_of({}) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda kv: kv["groups"].pop(0), lambda kv: kv["groups"][0].update(kind="full", most_tokens=0, extra_blocks=0),
        lambda kv: kv["groups"][0].update(most_tokens=16), lambda kv: kv["groups"][0].update(page_size_bytes=2**40),
    ],
)  # fmt: skip
def test_groups_that_do_not_come_to_what_stands_beside_them_are_refused(damage: Callable[[Any], object]) -> None:
    """One group that is lost would be a request's blocks that nobody counts."""
    config = {"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 1024, "sliding_window_pattern": 6}
    plan = make_plan(
        PlanRequest(model_from_config(config), "vllm", EngineFlags(max_model_len=8192), kv_cache_memory=Bytes(GIB))
    )
    document = budget_of(plan, request_inputs("./m", {}), written="2026-11-29")
    assert layout_of(document) == Layout(plan.stage.layout.groups)
    damage(document["kv"])
    with pytest.raises(BadConfigError, match=r"a group is lost or was altered"):
        layout_of(document)


def test_the_same_receipt_is_kept_once_and_only_so_many_are() -> None:
    document: dict[str, Any] = {}
    for number in range(30):
        document = with_receipt(document, {"engine": "vllm", "tokens": number, "added": "2026-11-29"})
    document = with_receipt(document, {"engine": "vllm", "tokens": 29, "added": "2026-11-30"})
    kept = tables(document, "receipts")
    assert len(kept) == 20
    assert kept[-1]["added"] == "2026-11-30"
    assert kept[-2]["tokens"] == 28


def test_tenants_and_classes_are_no_flags_and_survive_a_re_write(budget: Callable[..., dict[str, Any]]) -> None:
    old = budget()
    tenants = {"acme": {"weight": 2.5, "max_blocks": 50}, "*": {"tokens_per_minute": 1000}}
    section(old, "gate").update(tenants=tenants, classes={"-5": {"reserved_blocks": 20}})
    new: dict[str, Any] = tomllib.loads(budget_text(carried_over(budget(max_model_len=16384), old)))
    assert gate_tables(new, "tenants") == tenants
    assert gate_tables(new, "classes") == {"-5": {"reserved_blocks": 20}}
    assert not {"tenants", "classes"} & gate_settings(new).keys()
    checked(new)
