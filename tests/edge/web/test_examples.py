"""The worked examples: each can be planned, is known by its address, and comes to the numbers that are known of it."""

import re
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from kvbudget.edge.web.asked import DEFAULTS, asked_in
from kvbudget.edge.web.examples import EXAMPLES, Example, examples_told
from kvbudget.edge.web.pages import _document, _State
from kvbudget.simulate.scenarios import SCENARIOS
from kvbudget.units import GIB

BY_KEY = {one.key: one for one in EXAMPLES}
OF_THE_LEDGER = [one for one in EXAMPLES if one.page == "/ledger"]


def planned(query: str) -> Any:
    return _document(_State(asked_in(dict(parse_qsl(query)))))


def of(key: str) -> Any:
    return planned(BY_KEY[key].query)


@pytest.mark.parametrize("example", OF_THE_LEDGER, ids=lambda one: one.key)
def test_each_is_planned_and_is_written_as_the_page_itself_writes_its_state(example: Example) -> None:
    for fields in (example.fields, example.kept):
        names = list(fields)
        assert names == [name for name in DEFAULTS if name in fields], "in the order of the page's fields"
        alone = example.kept and fields is example.kept and len(fields) == 1  # a default state, which has to be named
        for name, value in fields.items():
            assert alone or name in ("concurrency", "block") or value != DEFAULTS[name], (name, value)
    assert planned(example.query)["schema"] == "kvbudget.ledger/1"
    if example.kept:
        assert planned(example.kept_query)["schema"] == "kvbudget.ledger/1"
    address = urlsplit(example.address)
    assert (address.path, address.query) == ("/ledger", example.query)
    assert dict(parse_qsl(address.fragment)) == ({"kept": example.kept_query} if example.kept else {})


def test_each_of_the_simulation_is_a_scenario() -> None:
    simulated = [one for one in EXAMPLES if one.page != "/ledger"]
    assert {one.page for one in simulated} == {"/simulate"}
    assert {one.fields["scenario"] for one in simulated} <= SCENARIOS.keys()
    assert len({one["address"] for one in examples_told()}) == len(EXAMPLES) == len(BY_KEY)


def test_titles_say_no_result_and_are_there_in_both_languages() -> None:
    words = (files("kvbudget.edge.web") / "static" / "words.js").read_text(encoding="utf-8")
    for key in BY_KEY:
        for name in (f"example.{key}", f"example.{key}.look"):
            assert words.count(f'"{name}": ') == 2
    looks = re.findall(r'"example\.\w+\.look": "(.*)"', words)
    assert len(looks) == 2 * len(EXAMPLES)
    inputs = {"0.9", "8k", "4,096"}
    for look in looks:
        assert set(re.findall(r"\d[\d.,]*\d|(?<![\w.,])\d\d+[kKm]?|8k", look)) <= inputs, look


def test_the_first_is_a_kibibyte_table_of_the_source() -> None:
    figures = of("base")["figures"]
    assert (figures["per_token"]["bytes"], figures["held"]["bytes"]) == (128 * 1024, 16 * GIB)
    assert figures["tokens_per_mib"] == 8


def test_8001_tokens_waste_15_of_8016() -> None:
    figures = of("tail")["figures"]
    assert (figures["blocks_per_request"], figures["tail_slots"], figures["tail_text"]) == (501, 15, "0.19%")


@pytest.mark.parametrize(
    ("key", "ratio"),
    [("heads", 0.25), ("layers", 4), ("head_size", 4), ("context", 2), ("requests", 2), ("precision", 0.5),
     ("same_tokens", 1), ("million", 128)],
)  # fmt: skip
def test_ratios_are_exact(key: str, ratio: float) -> None:
    example = BY_KEY[key]
    now, kept = (planned(query)["figures"]["held"]["bytes"] for query in (example.query, example.kept_query))
    assert now == ratio * kept


def test_a_card_of_24_gib_holds_49152_tokens_and_five_whole_requests() -> None:
    figures = of("card_24")["figures"]
    assert (figures["pool"]["bytes"], figures["pool_tokens"], figures["ceiling"]) == (6 * GIB, 49_152, 5)
    assert of("card_24_short")["figures"]["ceiling"] == 47
    one = of("card_24_one")
    assert one["figures"]["ceiling"] == 0
    assert "49136" in one["verdict"]["sentence"]
    assert of("card_24_documents")["figures"]["ceiling"] == 8


def test_a_card_of_80_gb_leaves_26_for_the_cache_and_seven_fit() -> None:
    document = of("card_80")
    figures, bar = document["figures"], {part["key"]: part["bytes"] for part in document["bar"]}
    assert figures["per_token"]["bytes"] == 800_000
    assert bar["kv"] == 80 * 10**9 * 9 // 10 - 42 * 10**9 - 4 * 10**9 == 26 * 10**9
    assert figures["one_request"]["bytes"] == 4096 * 800_000
    assert (figures["ceiling"], figures["limited_by"]) == (7, "pool")


def test_two_such_cards_do_not_double_but_more_than_triple() -> None:
    one, two = of("card_80"), of("card_80_tp2")
    assert {part["key"]: part["bytes"] for part in two["bar"]}["weights"] == 21 * 10**9
    assert two["figures"]["per_token"]["bytes"] == 400_000
    assert 3 < two["figures"]["pool_tokens"] / one["figures"]["pool_tokens"] < 4
    assert two["figures"]["ceiling"] == 28 > 3 * 7


def test_the_other_levers_of_that_card() -> None:
    kept = planned(BY_KEY["card_80_shorter"].kept_query)["figures"]
    assert (kept["context"], kept["ceiling"], of("card_80_shorter")["figures"]["ceiling"]) == (8192, 3, 7)
    quantised = of("card_80_quantised")["figures"]
    assert (quantised["per_token"]["bytes"], quantised["ceiling"]) == (800_000, 14)
    assert of("card_80_share")["figures"]["ceiling"] == 3
    wanted = of("card_80_wanted")
    assert (wanted["figures"]["target"], wanted["verdict"]["good"]) == (15, False)
    first = next(step for step in wanted["retreat"] if step["enough"])
    assert (first["flag"], first["cost"]) == ("--max-model-len 2048", "quality")


def test_percentiles_and_windows_show_what_they_say() -> None:
    rows = {row["name"]: row["requests"] for row in of("percentiles")["percentiles"]}
    assert rows["p50"] > 4 * rows["p95"] > 4 * rows["p99"]
    windows = of("windows")
    assert {group["kind"] for group in windows["groups"]} == {"full", "sliding"}
    assert any("window" in row["why"] or "every layer" in row["name"] for row in windows["naive"])
