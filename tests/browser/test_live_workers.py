"""The live page of a gate of two worker processes: whole, of one of them at a time, and left by signing out."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    Visit = Callable[..., Page]

pytestmark = pytest.mark.browser

COMMAND = [
    sys.executable, "-m", "kvbudget", "serve", "--embedded-engine", "--port", "0", "--admin-port", "0", "--json",
    "--workers", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def gate() -> Iterator[dict[str, str]]:
    """The ready line of a gate with two workers and a token."""
    told = {**os.environ, "KVBUDGET_ADMIN_TOKEN": "s3cret"}
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=told) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()  # so that the workers end as well
            process.wait(60)


def _ask(url: str) -> None:
    body = json.dumps({"model": "embedded", "prompt": "hi", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def test_every_part_is_drawn_the_other_worker_is_a_click_away_and_signing_out_is_offered(
    visit: "Visit", gate: dict[str, str]
) -> None:
    for _ in range(12):  # both get some
        _ask(gate["gate"])
    page = visit(f"{gate['admin']}/live?lang=en")
    page.fill('input[name="token"]', "s3cret")
    page.keyboard.press("Enter")
    for other in (1, 0):
        expect(page.locator("#worker")).to_contain_text(f"Worker {1 - other} of 2")
        forecast = page.locator("#t-forecast tbody tr")
        expect(forecast).to_have_count(1, timeout=20_000)
        expect(forecast.locator("td").last).to_have_text("512", timeout=25_000)  # nobody holds any; asked every 10 s
        expect(page.locator("#t-tenants thead")).to_contain_text("tenant")
        expect(page.locator("#t-instances tbody tr")).to_have_count(1)
        expect(page.locator("#t-ends tbody")).to_contain_text("finished")
        page.click("#worker a")
    expect(page.locator("#worker")).to_contain_text("Worker 0 of 2")  # a page under way would end the next one
    page.goto(f"{gate['admin']}/live?worker=1&lang=en#h-ends")
    page.click("#language")
    expect(page.locator("h1")).to_have_text("实时准入")
    assert page.url == f"{gate['admin']}/live?worker=1&lang=zh#h-ends", "it is the same page"
    page.click("#logout")
    expect(page.locator('input[name="token"]')).to_be_visible()


def test_what_the_gate_does_not_foretell_is_a_dash_and_no_end_of_the_page(visit: "Visit", gate: dict[str, str]) -> None:
    page = visit(f"{gate['admin']}/login?lang=en")
    page.fill('input[name="token"]', "s3cret")
    page.keyboard.press("Enter")
    expect(page.locator('input[name="token"]')).to_have_count(0)  # signed in: a page under way would end the next one
    forecast = {"name": "a", "demand_tokens": 1, "capacity_tokens": 2, "forecast": None, "drain": None}
    page.route("**/v1/forecast", lambda route: route.fulfill(json={"instances": [forecast]}))
    page.goto(f"{gate['admin']}/live?lang=en")
    expect(page.locator("#t-forecast tbody td").last).to_have_text("–")
    expect(page.locator("#t-instances tbody tr")).to_have_count(1)


def test_a_question_that_is_not_answered_leaves_what_was_told_before(visit: "Visit", gate: dict[str, str]) -> None:
    page = visit(f"{gate['admin']}/login?lang=en", fails=True)
    page.fill('input[name="token"]', "s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Live gate")
    page.route(
        "**/v1/findings", lambda route: route.fulfill(status=503, json={"error": {"message": "no worker serves"}})
    )
    page.goto(f"{gate['admin']}/live?lang=en")
    expect(page.locator("#t-instances tbody tr")).to_have_count(1)
    expect(page.locator("#t-ends thead")).to_contain_text("outcome")
