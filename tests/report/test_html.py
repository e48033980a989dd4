"""One HTML file: well-formed, loads nothing, runs nothing, and shows names as they are."""

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from kvbudget.planner.request import Plan
from kvbudget.report.section import Section

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from kvbudget.report.charts import COLOURS
from kvbudget.report.html import html_report

MakePlan = Callable[..., Plan]
_VOID = {"meta"}


class _Tree(HTMLParser):
    """Collects elements and fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(document: str) -> _Tree:
    tree = _Tree()
    tree.feed(document)
    tree.close()
    assert tree.open == []
    return tree


@pytest.mark.parametrize("kind", ["fits", "given", "windows", "over"])
def test_the_page_is_whole_loads_nothing_and_runs_nothing(plan_named: MakePlan, kind: str) -> None:
    document = html_report(plan_named(kind))
    tree = read(document)
    tags = [tag for tag, _ in tree.seen]
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base", "image", "use"} & set(tags)
    style = document[document.index("<style>") : document.index("</style>")]
    markup = re.sub(r">[^<]*<", "><", document) + style  # an engine's own words may name a page, as text
    assert not re.search(r"https?:|//[a-z]|@import|url\(|data:", markup)
    assert not any(
        name in ("src", "href", "xlink:href", "style") or name.startswith("on") for _, a in tree.seen for name in a
    )
    assert tags.count("svg") == 2
    assert all(attrs.get("aria-label") for tag, attrs in tree.seen if tag == "svg")
    for figure in re.finditer("</figure>", document):  # the numbers of each picture stand below it
        assert document.find("<table", figure.end()) < document.find("</section>", figure.end())
    assert document == html_report(plan_named(kind))


def test_names_and_parts_of_others_cannot_become_markup(plan_named: MakePlan) -> None:
    hostile = '"><script>alert(1)</script><img src=x onerror=y>&amp;'
    section = Section(hostile, (hostile,), (hostile, "n"), ((hostile, "1"),), (hostile,))
    tree = read(html_report(plan_named("given", name=hostile), [section]))
    assert not {"script", "img"} & {tag for tag, _ in tree.seen}
    assert tree.text.count(hostile) >= 6


def test_dark_pages_restyle_every_colour_of_the_charts(plan_named: MakePlan) -> None:
    document = html_report(plan_named("fits"))
    drawn = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"', document))
    assert drawn <= set(COLOURS.values())
    assert "prefers-color-scheme:dark" in document
    for role in COLOURS:
        assert document.count(f"--{role.replace('_', '-')}:") == 2  # light and dark


def test_numbers_are_set_flush_right(plan_named: MakePlan) -> None:
    document = html_report(plan_named("given"))
    assert '<th scope="col" class=n>at once</th>' in document
    assert "<td class=n>5</td>" in document
