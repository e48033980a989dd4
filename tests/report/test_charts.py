"""Pictures: valid, the same twice, of the promised size, and a clear error where the packages are missing."""

import struct
import sys
from collections.abc import Callable
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from kvbudget.errors import UnsupportedError
from kvbudget.planner.request import Plan
from kvbudget.report.charts import curve_spec, memory_spec, svg_of
from kvbudget.report.html import html_report
from kvbudget.report.markdown import markdown_report
from kvbudget.report.png import HEIGHT, WIDTH, _poster, png_report

MakePlan = Callable[..., Plan]


@pytest.mark.parametrize("kind", ["fits", "given", "windows", "over"])
def test_each_chart_is_valid_xml_of_the_size_that_was_asked_and_repeats(plan_named: MakePlan, kind: str) -> None:
    pytest.importorskip("vl_convert")
    for spec_of in (memory_spec, curve_spec):
        svg = svg_of(spec_of(plan_named(kind), width=640, height=320))
        root = ElementTree.fromstring(svg)
        assert (root.get("width"), root.get("height")) == ("640", "320")
        assert svg == svg_of(spec_of(plan_named(kind), width=640, height=320))


def test_the_memory_chart_stacks_the_parts_to_the_card(plan_named: MakePlan) -> None:
    pytest.importorskip("altair")
    plan = plan_named("fits")
    spec = memory_spec(plan, width=640, height=320)
    rows = (
        next(rows for rows in spec["datasets"].values() if rows[0].get("key"))
        if "datasets" in spec
        else (spec["layer"][0]["data"]["values"])
    )
    assert [row["key"] for row in rows] == ["weights", "activation", "cuda_graphs", "non_torch", "kv", "reserve"]
    for before, after in pairwise(rows):
        assert after["from"] == pytest.approx(before["to"], abs=1e-6)
    assert rows[-1]["to"] == pytest.approx(plan.memory.total.bytes / 2**30)


def test_a_pool_without_room_says_so_instead_of_an_empty_curve(plan_named: MakePlan) -> None:
    pytest.importorskip("vl_convert")
    assert "Not one request" in svg_of(curve_spec(plan_named("over"), width=640, height=320))
    assert "longest that fits" in svg_of(curve_spec(plan_named("windows"), width=640, height=320))


@pytest.mark.parametrize("kind", ["fits", "over"])
def test_the_png_has_its_signature_and_size_and_repeats(plan_named: MakePlan, kind: str) -> None:
    pytest.importorskip("vl_convert")
    png = png_report(plan_named(kind, name='a "very" <long> & hostile name ' * 9))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == (WIDTH, HEIGHT) == (1600, 900)
    assert png == png_report(plan_named(kind, name='a "very" <long> & hostile name ' * 9))


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_without_the_packages_the_error_says_what_to_install_and_markdown_still_works(
    plan_named: MakePlan, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for report in (html_report, png_report):
        with pytest.raises(UnsupportedError, match="pip install") as caught:
            report(plan_named("given"))
        assert package.replace("_", "-") in caught.value.message or package == "vl_convert"
    assert markdown_report(plan_named("given"))


def test_no_label_of_the_memory_chart_crosses_the_lines_of_card_and_share(plan_named: MakePlan) -> None:
    pytest.importorskip("altair")
    spec = memory_spec(plan_named("fits"), width=640, height=320)
    rows = next(rows for rows in spec["datasets"].values() if rows[0].get("key")) if "datasets" in spec else (
        spec["layer"][0]["data"]["values"])  # fmt: skip
    sides = {row["key"]: row["left"] for row in rows}
    assert (sides["weights"], sides["kv"], sides["reserve"]) == (False, False, True)
    assert "the engine takes 0.92 of the total" in rows[-1]["said"]


def test_a_long_verdict_is_in_two_lines_and_what_to_do_stands_where_no_curve_is(plan_named: MakePlan) -> None:
    pytest.importorskip("vl_convert")
    plan = plan_named("over")
    drawn = _poster(plan)
    assert "error: no_kv_memory" in drawn
    assert "Not one request of any length fits" in drawn
    fix = next(finding.fix for finding in plan.findings if finding.severity == "error")
    assert fix.split()[-1] in drawn
    assert "…" not in drawn
