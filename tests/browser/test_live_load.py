"""The live page while requests run and wait: what each holds, why each waits; by keyboard, small, in two languages."""

import concurrent.futures
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    Visit = Callable[..., Page]

pytestmark = pytest.mark.browser

COMMAND = [
    sys.executable, "-m", "kvbudget", "serve", "--embedded-engine", "--port", "0", "--admin-port", "0", "--json",
    "--policy", "worst-case", "--max-num-seqs", "2",
]  # fmt: skip
SECONDS = re.compile(r"^\d+(\.\d)? s$")


@pytest.fixture
def gate() -> Iterator[dict[str, str]]:
    """A gate that lets two run at once."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


def ask(url: str, tenant: str, max_tokens: int) -> int:
    body = {"model": "embedded", "messages": [{"role": "user", "content": "Tell."}], "max_tokens": max_tokens}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps({**body, "stream": True, "ignore_eos": True}).encode(),
        {"content-type": "application/json", "x-kvbudget-tenant": tenant},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return len(answer.read())


@contextmanager
def load(url: str, requests: int = 4, max_tokens: int = 400) -> Iterator[None]:
    """Requests of one tenant, until all are answered."""
    with concurrent.futures.ThreadPoolExecutor(requests) as pool:
        asked = [pool.submit(ask, url, "team", max_tokens) for _ in range(requests)]
        yield
        assert all(one.result() > 0 for one in asked)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(
    ("language", "seat", "turn"),
    [("en", "a place among the sequences", "its turn: others go first"), ("zh", "同时运行的名额", "轮到它：别人在前")],
)
def test_each_holder_says_for_how_long_still_and_each_who_waits_why(
    gate: dict[str, str], visit: "Visit", width: int, language: str, seat: str, turn: str
) -> None:
    page = visit(f"{gate['admin']}/live?lang={language}", width, dark=width == 360)
    with load(gate["gate"]):
        expect(page.locator("#t-queue tbody tr")).to_have_count(2, timeout=20_000)
        expect(page.locator("#t-queue tbody tr").nth(0)).to_contain_text(seat)
        expect(page.locator("#t-queue tbody tr").nth(1)).to_contain_text(turn)
        rows = page.locator("#t-holders tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.nth(0).locator("td").nth(1)).to_have_text(SECONDS)  # ends in
        expect(page.locator("#t-queue tbody tr").nth(0).locator("td").nth(4)).to_have_text(SECONDS)  # still to wait
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        serious = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
        assert [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in serious] == []


def test_a_page_that_is_opened_now_shows_what_was_before(gate: dict[str, str], visit: "Visit") -> None:
    first = visit(f"{gate['admin']}/live?lang=en")
    with load(gate["gate"], 2, 200):
        expect(first.locator('dd[data-figure="running"]')).to_contain_text("2", timeout=20_000)
    expect(first.locator('dd[data-figure="running"]')).to_contain_text("0", timeout=20_000)
    first.close()
    second = visit(f"{gate['admin']}/live?lang=en")
    line = second.locator("#pools path").first
    expect(line).to_have_attribute("d", re.compile(r"L.*L.*L"))
    levels = {point.split()[1] for point in re.split("[ML]", line.get_attribute("d") or "")[1:]}
    assert len(levels) > 1, "what was promised rose and fell before this page was there"


def test_what_if_is_asked_by_slider_and_keyboard(gate: dict[str, str], visit: "Visit") -> None:
    for number in range(12):
        ask(gate["gate"], "a", 4 + number)
    page = visit(f"{gate['admin']}/live?lang=en")
    slider, field = page.locator('[data-for="max_num_seqs"]'), page.locator('input[name="max_num_seqs"]')
    expect(slider).to_have_attribute("aria-valuetext", "2, as now")
    expect(slider).to_have_attribute("aria-label", "at most so many at once")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(field).to_have_value("1")
    expect(slider).to_have_attribute("aria-valuetext", "1")
    expect(page.locator("#t-whatif tbody tr")).to_have_count(6, timeout=60_000)  # nobody had to press a button
    expect(page.locator("#whatif-said")).to_contain_text("12 requests of the last quarter of an hour")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "max_num_seqs"
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    expect(page.locator('input[name="max_context"]')).to_have_value("256")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("0.5k")
    page.keyboard.press("Enter")
    expect(page.locator("#whatif-said")).to_contain_text("12 requests", timeout=60_000)
    expect(page.locator("#whatif-problem")).to_be_hidden()


def test_it_works_by_keyboard_alone(gate: dict[str, str], visit: "Visit") -> None:
    page = visit(f"{gate['admin']}/live?lang=en")
    expect(page.locator('dd[data-figure="running"]')).to_contain_text("0")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    reached = []
    for _ in range(20):
        reached.append(
            page.evaluate("document.activeElement.getAttribute('aria-labelledby') || document.activeElement.id")
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached
        if reached[-1] == "ask":
            break
        page.keyboard.press("Tab")
    assert [name for name in reached if name.startswith("h-")][:5] == [
        "h-blocks",
        "h-forecast",
        "h-queue",
        "h-tenants",
        "h-instances",
    ]
    assert "ask" in reached


def test_with_several_instances_each_who_holds_or_waits_says_where(gate: dict[str, str], visit: "Visit") -> None:
    """Drawn from a look of one instance that is told twice: which columns there are is all that is asked here."""
    with urllib.request.urlopen(f"{gate['admin']}/api/live", timeout=20) as answer:
        look = json.load(answer)
    holds = {"tenant": "a", "blocks": 9, "prompt_tokens": 5, "seen_tokens": 1, "max_new_tokens": 9, "left_ms": 12_000}
    plain = {**holds, "seen_tokens": 0, "is_watched": False, "max_new_tokens": 300}  # not streamed
    waits = {"tenant": "b", "priority": 0, "blocks": 1, "why": "pool", "waited_ms": 1, "left_ms": 1, "expected_ms": 0}
    first, second = ({**look["instances"][0], "name": name, "requests": [holds if tier else plain], "tier": tier}
                     for name, tier in (("short", 0), ("long", 1)))  # fmt: skip
    look["instances"] = [first, second]
    look["queue"] = {"requests": 1, "tokens": 9, "next": [{**waits, "instance": "long", "deadline_in_ms": 1}]}
    body = f"retry: 60000\nevent: past\ndata: {{}}\n\nevent: now\ndata: {json.dumps(look)}\n\n"
    page = visit(f"{gate['admin']}/ledger")
    page.route("**/api/live/stream", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.goto(f"{gate['admin']}/live?lang=en")
    expect(page.locator("#t-instances tbody tr")).to_have_count(2)
    expect(page.locator("#t-instances tbody tr").nth(1)).to_contain_text("long")
    expect(page.locator("#t-holders tbody tr").nth(1)).to_contain_text("long")
    expect(page.locator("#t-holders tbody tr").nth(0)).to_contain_text("not seen / 300")
    expect(page.locator("#t-holders tbody tr").nth(1)).to_contain_text("1 / 9")
    expect(page.locator("#t-queue tbody tr")).to_contain_text("long")
    expect(page.locator("#t-queue tbody tr")).to_contain_text("room in the pool")
    assert page.locator("#pools h3").all_text_contents() == ["short", "long"]
