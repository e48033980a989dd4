"""Markdown: whole, deterministic, every table rectangular, nobody's markup but ours."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvbudget.planner.request import Plan
from kvbudget.report.html import html_report
from kvbudget.report.markdown import markdown_report
from kvbudget.report.section import Section

MakePlan = Callable[..., Plan]
GOLDEN = Path(__file__).parent / "data" / "given.md"
HEADINGS = [
    "## Memory of one GPU", "## Requests at once, by their length", "## What is cached", "## Findings",
    "## What simple formulas would say", "## What a change would do", "## How the numbers come about",
    "## Assumptions and sources",
]  # fmt: skip


def test_the_report_of_a_given_pool_is_as_it_was_reviewed(plan_named: MakePlan) -> None:
    text = markdown_report(plan_named("given"))
    before, after = (part.split("## How the numbers come about") for part in (GOLDEN.read_text(), text))
    assert after[0] == before[0]  # the arithmetic behind it is tested where it is written


@pytest.mark.parametrize("kind", ["fits", "given", "windows", "over"])
def test_every_part_is_there_in_order_and_every_table_is_rectangular(plan_named: MakePlan, kind: str) -> None:
    text = markdown_report(plan_named(kind))
    assert [line for line in text.splitlines() if line.startswith("## ")] == HEADINGS
    assert text == markdown_report(plan_named(kind))
    columns = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = 0
            continue
        now = line.replace("\\|", "").count("|")
        assert columns in (0, now), line
        columns = now


def test_markup_of_others_is_shown_as_it_is(plan_named: MakePlan) -> None:
    hostile = "a|b <script>alert(1)</script> [x](y) *z* `q` _w_ max_model_len\n# heading"
    section = Section("Mine", (hostile,), ("k", "v"), ((hostile, "1"),), (hostile,))
    text = markdown_report(plan_named("given", name=hostile), [section])
    shown = "a\\|b \\<script\\>alert(1)\\</script\\> \\[x\\](y) \\*z\\* \\`q\\` \\_w\\_ max_model_len # heading"
    assert text.startswith(f"# KV cache plan: {shown}\n")
    assert text.count(shown) == 4
    assert "<script" not in text.replace("\\<script", "")


def test_parts_of_others_stand_between_the_findings_and_the_formulas(plan_named: MakePlan) -> None:
    section = Section("Workload", ("Said.",), ("length", "share"), (("8k", "50%"),))
    text = markdown_report(plan_named("given"), [section])
    assert text.index("## Findings") < text.index("## Workload") < text.index("## What simple formulas would say")
    assert "| length | share |\n|---|---:|\n| 8k | 50% |" in text


def test_what_does_not_fit_says_so_and_what_to_do_first(plan_named: MakePlan) -> None:
    top = markdown_report(plan_named("over")).split("## ")[0]
    assert "**DOES NOT FIT**" in top
    assert "no\\_kv_memory" in top or "no_kv_memory" in top
    assert "--tensor-parallel-size 2" in top


def test_lines_with_numbers_of_their_own_are_not_numbered_twice(plan_named: MakePlan) -> None:
    section = Section("Advice", lines=("now: 1 request", "1. first of all"), numbered=False)
    text = markdown_report(plan_named("given"), [section])
    assert "- now: 1 request\n- 1\\. first of all\n" in text
    assert "| 1,024 | 47 | pool |" in text  # a plain number is none


def test_lines_with_numbers_of_their_own_are_not_numbered_twice_on_a_page(plan_named: MakePlan) -> None:
    pytest.importorskip("vl_convert")
    section = Section("Advice", lines=("now: 1 request", "1. first of all"), numbered=False)
    page = html_report(plan_named("given"), [section])
    assert "<ul><li>now: 1 request</li><li>1. first of all</li></ul>" in page
