"""The live page in a real browser, before a gate of its own under load."""

import concurrent.futures
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

SERVE = ["serve", "--embedded-engine", "--port", "0", "--admin-port", "0", "--json"]
TEXT = (files("kvbudget.edge.web") / "static" / "chinese.js").read_text(encoding="utf-8")
CHINESE = json.loads(TEXT[TEXT.index("{") : TEXT.index("\n};") + 2])
COMMAND = [sys.executable, "-m", "kvbudget", *SERVE]


@pytest.fixture
def gate() -> Iterator[dict[str, str]]:
    """`kvbudget serve` before its embedded engine, in a process of its own: the ready line as JSON."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


def _ask(url: str, tenant: str, max_tokens: int) -> int:
    body = {"model": "embedded", "messages": [{"role": "user", "content": "Tell."}], "max_tokens": max_tokens}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps({**body, "stream": True, "ignore_eos": True}).encode(),
        {"content-type": "application/json", "x-kvbudget-tenant": tenant},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return len(answer.read())


@pytest.mark.parametrize("width", [360, 1280])
def test_load_shows_while_it_runs_and_is_gone_when_it_has_run(
    browser: "Browser", gate: dict[str, str], width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if gate["admin"] in asked.url else wrong.append(asked.url))
    page.goto(f"{gate['admin']}/live?lang=en")
    running = page.locator('dd[data-figure="running"]')
    expect(running).to_contain_text("0")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(_ask, gate["gate"], f"team-{number % 2}", 600) for number in range(6)]
        expect(running).to_contain_text("6", timeout=20_000)
        expect(page.locator("#t-tenants tbody tr")).to_have_count(2)
        assert page.locator("#requests .groups i").count() == 7, "six requests and what is free"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert all(one.result() > 0 for one in asked)
    expect(running).to_contain_text("0", timeout=20_000)
    expect(page.locator("#t-ends")).to_contain_text("finished")
    serious = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    assert [one["id"] for one in serious] == []
    page.click("#language")
    expect(page.locator("h1")).to_have_text("实时准入")
    assert not wrong
    page.close()


def test_markup_in_a_name_is_shown_as_text(browser: "Browser", gate: dict[str, str]) -> None:
    """The gate takes no such names in a header; a page must not lean on that."""
    hostile = "<img src=x onerror=document.title=1>"
    with urllib.request.urlopen(f"{gate['admin']}/api/live", timeout=20) as answer:
        look = json.load(answer)
    request = {"tenant": hostile, "blocks": 9, "seen_tokens": 1, "max_new_tokens": 9, "left_ms": 9, "age_ms": 1}
    waits = {"tenant": hostile, "priority": 0, "blocks": 1, "waited_ms": 1, "expected_ms": 1, "deadline_in_ms": 1}
    waits |= {"instance": hostile, "why": hostile, "left_ms": 1}
    look["instances"][0] |= {"name": hostile, "tier": hostile, "requests": [request], "up": False, "problem": hostile}
    look["queue"] |= {"next": [waits]}
    look |= {
        "tenants": [{"tenant": hostile, "promised_blocks": 9, "waiting": 1}],
        "policy": hostile, "outcomes": {hostile: 1}, "refusals": {hostile: 1}, "problem": hostile,
    }  # fmt: skip
    page = browser.new_page()
    body = f"retry: 60000\nevent: past\ndata: {{}}\n\nevent: now\ndata: {json.dumps(look)}\n\n"
    page.route("**/api/live/stream", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.goto(f"{gate['admin']}/live?lang=en")
    for place in ("#t-tenants", "#t-queue", "#t-holders", "#t-instances", "#t-ends", "#pools h3", "#state"):
        expect(page.locator(place)).to_contain_text(hostile)
    expect(page.locator("#requests .groups i").first).to_have_attribute("title", re.compile("<img"))
    assert page.locator("img").count() == 0
    assert page.title() == "Live gate · kvbudget"
    page.close()


def test_pages_beside_a_gate_lead_to_it_and_its_chart_can_be_read_on_a_phone(
    browser: "Browser", gate: dict[str, str]
) -> None:
    _ask(gate["gate"], "a", 4)
    page = browser.new_page(viewport={"width": 360, "height": 800})
    for other in ("ledger", "simulate"):
        page.goto(f"{gate['admin']}/{other}?lang=zh")
        page.click('nav a[href="/live"]')
        expect(page.locator("#pools h3")).to_have_count(1)
    chart = "document.querySelector('#pools svg')"  # in one go: it is drawn anew each second
    assert page.evaluate(f"{chart}.getBoundingClientRect().width / {chart}.viewBox.baseVal.width") >= 0.95
    page.goto(f"{gate['admin']}/live?lang=zh")
    expect(page.locator("#t-ends")).to_contain_text("完成")
    page.close()


def test_a_gate_that_goes_away_is_told(browser: "Browser") -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            page = browser.new_page()
            page.goto(f"{ready['admin']}/live?lang=en")
            expect(page.locator('dd[data-figure="running"]')).to_contain_text("0")
        finally:
            process.kill()
        expect(page.locator("#problem")).to_contain_text("The gate does not answer", timeout=20_000)
        page.close()


def test_what_if_needs_traffic_and_says_so(browser: "Browser", gate: dict[str, str]) -> None:
    page = browser.new_page()
    page.goto(f"{gate['admin']}/live?lang=en")
    expect(page.locator('dd[data-figure="running"]')).to_contain_text("0")
    page.fill('input[name="max_num_seqs"]', "2")
    page.click("#ask")
    expect(page.locator("#whatif-problem")).to_contain_text("ask again when there was traffic")
    for number in range(12):
        _ask(gate["gate"], "a", 4 + number)
    page.click("#ask")
    expect(page.locator("#t-whatif tbody tr")).to_have_count(6, timeout=60_000)
    expect(page.locator("#whatif-problem")).to_be_hidden()
    page.close()


def test_findings_and_the_next_half_hour_are_shown(browser: "Browser", gate: dict[str, str]) -> None:
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.goto(f"{gate['admin']}/live?lang=en")
    expect(page.locator("#findings li code").first).to_be_visible(timeout=20_000)
    with urllib.request.urlopen(f"{gate['admin']}/v1/findings", timeout=20) as answer:
        codes = [one["code"] for found in json.load(answer)["instances"] for one in found["findings"]]
    assert page.locator("#findings li code").all_text_contents() == codes
    english = page.locator("#findings li").first.text_content()
    page.click("#language")
    first = page.locator("#findings li").first
    expect(first).to_contain_text(CHINESE["verdicts"][codes[0]][0])
    expect(first.locator("em").first).to_have_text(CHINESE["verdicts"][codes[0]][1])
    first.locator("summary").click()  # the gate's own words, with its figures
    assert english is not None
    for own in re.findall(r"\d[\d.,]*\d", english.partition(codes[0])[2]):
        expect(first.locator("details")).to_contain_text(own)
    page.click("#language")
    expect(page.locator("#findings li").first).to_have_text(english)
    expect(page.locator("#t-forecast tbody tr")).to_have_count(1)
    expect(page.locator("#t-forecast tbody tr")).to_contain_text("8,192")
    expect(page.locator("#t-forecast tbody tr")).to_contain_text("too little seen yet")  # a gate of a minute or two
    expect(page.locator("#t-forecast tbody tr")).to_contain_text("/ 15 min")
    assert said == []
    page.close()
