"""The simulation page in a real browser: what it draws is what the simulator said."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    Visit = Callable[..., Page]

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [360, 1280])
def test_policies_are_run_and_compared(browser: "Browser", url: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if url in asked.url else wrong.append(asked.url))
    page.goto(f"{url}/simulate?lang=en")
    expect(page.locator("#about")).to_contain_text("1.3 times")
    assert page.locator("#results section:visible").count() == 0, "nothing was run, so no box is empty"
    page.fill('input[name="requests"]', "60")
    page.fill('input[name="rates"]', "1, 2")
    page.check('input[value="worst-case"]')
    page.click("#run")
    expect(page.locator("#t-runs tbody tr")).to_have_count(6, timeout=60_000)
    assert page.locator("#curve path").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator("#command")).to_contain_text("kvbudget simulate --scenario overload-1.3")
    assert page.locator("#results section:visible").count() == 2
    lines = page.locator("#command span").evaluate_all("all => all.map(one => one.getClientRects().length)")
    assert lines
    assert set(lines) == {1}, "no flag is cut in two"
    page.click("#language")
    expect(page.locator("#about")).to_contain_text("1.3 倍")
    expect(page.locator("h1")).to_have_text("模拟")
    serious = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    assert [one["id"] for one in serious] == []
    assert not wrong
    page.close()


def test_what_cannot_be_simulated_is_told(browser: "Browser", url: str) -> None:
    page = browser.new_page()
    page.goto(f"{url}/simulate?lang=en")
    expect(page.locator("#about")).to_contain_text("1.3 times")
    page.fill('input[name="rates"]', "0")
    page.click("#run")
    expect(page.locator("#problem")).to_contain_text("rates: give 1 to 8 numbers")
    page.close()


def test_a_trace_of_ones_own_is_simulated(browser: "Browser", url: str) -> None:
    rows = "".join(f'{{"timestamp": {100 * n}, "input_length": 64, "output_length": 8}}\n' for n in range(20))
    page = browser.new_page()
    page.goto(f"{url}/simulate?lang=en")
    expect(page.locator("#about")).to_contain_text("1.3 times")
    page.set_input_files(
        'input[name="trace"]', {"name": "mine.jsonl", "mimeType": "text/plain", "buffer": rows.encode()}
    )
    page.fill('input[name="rates"]', "1")
    page.fill('input[name="num_blocks"]', "300")
    page.click("#run")
    expect(page.locator("#t-runs tbody tr")).to_have_count(2, timeout=60_000)
    expect(page.locator("#t-runs")).to_contain_text("20")
    page.close()


def test_a_simulation_is_run_by_keyboard_alone(visit: "Visit", url: str) -> None:
    page = visit(f"{url}/simulate?lang=en&scenario=steady")
    expect(page.locator("#about")).to_contain_text("8 requests a second")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    focused = "document.activeElement.name || document.activeElement.id"
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(focused))
        if reached[-1] == "requests":
            page.keyboard.type("40")
        if reached[-1] == "rates":
            page.keyboard.press("Control+A")
            page.keyboard.type("1")
        if reached[-1] == "run":
            break
    assert {"scenario", "requests", "rates", "policy"} - set(reached) <= {"policy"}, reached
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("#t-runs tbody tr")).to_have_count(2, timeout=60_000)
    for _ in range(6):  # a table that is wider than the page is moved by arrows
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "scroll":
            break
    assert page.evaluate("document.activeElement.className") == "scroll"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(("language", "title", "figure"), [("en", "Simulation", "finished"), ("zh", "模拟", "完成")])
def test_it_is_whole_in_both_languages_and_widths(
    visit: "Visit", url: str, width: int, language: str, title: str, figure: str, dark: bool
) -> None:
    page = visit(f"{url}/simulate?lang={language}", width, dark=dark)
    expect(page.locator("h1")).to_have_text(title)
    page.fill('input[name="requests"]', "30")
    page.fill('input[name="rates"]', "1")
    page.click("#run")
    expect(page.locator("#t-runs thead")).to_contain_text(figure, timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    serious = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in serious] == []


def test_the_other_language_keeps_the_rest_of_the_address(visit: "Visit", url: str) -> None:
    page = visit(f"{url}/simulate?scenario=steady&lang=en#h-runs")
    expect(page.locator('select[name="scenario"]')).to_have_value("steady")
    page.click("#language")
    expect(page.locator("h1")).to_have_text("模拟")
    assert page.url == f"{url}/simulate?scenario=steady&lang=zh#h-runs"
