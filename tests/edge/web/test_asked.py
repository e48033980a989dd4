"""The fields of the ledger page: defaults, limits, and what becomes of them."""

import pytest

from kvbudget.edge.web import catalogue
from kvbudget.edge.web.asked import DEFAULTS, asked_in, has_card, plan_asked
from kvbudget.errors import BadValueError, InputError


def test_an_address_without_fields_is_the_state_of_the_source_document() -> None:
    asked = asked_in({})
    plan = plan_asked(asked)
    layout = plan.stage.layout
    assert layout.bytes_per_token == 128 * 1024
    assert layout.bytes_for(asked.context) * asked.concurrency == 16 * 1024**3
    assert (plan.ceilings.ceiling, plan.tail_waste.slots) == (16, 0)
    assert not has_card(asked)


def test_a_24_gib_card_holds_49152_tokens_and_one_block_less_than_six_requests() -> None:
    fields = {"gpu_memory": "24GiB", "weights": "16GiB", "overhead": "2GiB", "activation": "0", "utilization": "1"}
    plan = plan_asked(asked_in({**fields, "concurrency": "6"}))
    assert (plan.pool.tokens, plan.pool.usable_blocks, plan.ceilings.ceiling) == (49152, 3071, 5)


def test_8001_tokens_waste_15_slots_of_8016() -> None:
    plan = plan_asked(asked_in({"context": "8001"}))
    assert plan.tail_waste.slots == 15
    assert round(plan.tail_waste.fraction, 4) == 0.0019


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", "0"), ("layers", "513"), ("layers", "-1"), ("layers", "1e3"), ("layers", "٣"), ("kv_heads", "1.5"),
        ("head_dim", "4097"), ("context", "0"), ("context", "abc"), ("context", "9999999999999999"),
        ("concurrency", "1000001"), ("block", "0"), ("tp", "65"), ("utilization", "0"), ("utilization", "1.1"),
        ("utilization", "nan"), ("dtype", "fp12"), ("model", "no-such"), ("gpu", "no-such"), ("gpu_memory", "24"),
        ("weights", "many"), ("prompt_lengths", "p51=3"), ("colour", "red"),
        ("price_per_hour", "0"), ("price_per_hour", "-1"),
        ("price_per_hour", "inf"), ("price_per_hour", "nan"), ("price_per_hour", "1e7"), ("price_per_hour", "2 EUR"),
        ("layers", "9" * 5000),
    ],
)  # fmt: skip
def test_a_field_out_of_range_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(InputError) as raised:
        plan_asked(asked_in({name: value}))
    assert name.partition("_")[0].lower() in str(raised.value).lower().replace("--", "")
    assert len(str(raised.value)) < 1500
    assert raised.value.fix


def test_fields_are_told_back_with_their_defaults() -> None:
    assert asked_in({"layers": "64", "dtype": " fp8 "}).fields == {**DEFAULTS, "layers": "64", "dtype": "fp8"}


@pytest.mark.parametrize("name", catalogue.names())
def test_every_model_of_the_catalogue_plans_on_a_large_machine(name: str) -> None:
    plan = plan_asked(asked_in({"model": name, "gpu": "h200:16", "tp": "16", "context": "32k", "concurrency": "1"}))
    assert plan.pool.num_blocks > 0, [finding.message for finding in plan.findings]


def test_the_catalogue_has_no_other_names() -> None:
    with pytest.raises(BadValueError, match="not in the catalogue"):
        catalogue.config_named("gpt-5")
