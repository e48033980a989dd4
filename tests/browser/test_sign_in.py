"""Signing in with the admin token in a real browser, and the pages behind it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    Visit = Callable[..., Page]

pytestmark = pytest.mark.browser

COMMAND = [sys.executable, "-m", "kvbudget", "serve", "--embedded-engine", "--port", "0", "--admin-port", "0", "--json"]


@pytest.fixture(scope="module")
def admin() -> Iterator[str]:
    """The admin port of a gate that has a token."""
    asked = {"KVBUDGET_ADMIN_TOKEN": "s3cret"}
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **asked}
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["admin"]
        finally:
            process.kill()


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(("language", "title", "live"), [("en", "Sign in", "Live gate"), ("zh", "登录", "实时准入")])
def test_the_token_is_typed_once_and_leads_to_the_page_that_was_asked_for(
    visit: "Visit", admin: str, width: int, language: str, title: str, live: str
) -> None:
    page = visit(f"{admin}/live?lang={language}", width)
    expect(page.locator("h1")).to_have_text(title)
    assert page.evaluate("document.activeElement.name") == "token", "nobody has to look for the field"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    serious = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    assert [one["id"] for one in serious] == []
    page.keyboard.type("s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(live)
    expect(page.locator('dd[data-figure="running"]')).to_contain_text("0")
    assert page.url == f"{admin}/live?lang={language}"
    assert page.evaluate("document.cookie") == "", "no script sees the session"
    page.goto(f"{admin}/ledger?lang={language}&kv_heads=4")  # the other pages need no second time
    expect(page.locator('dd[data-figure="per_token"]')).to_contain_text("64 KiB")
    page.click("#logout")
    expect(page.locator('input[name="token"]')).to_be_visible()
    page.goto(f"{admin}/simulate?lang={language}")
    expect(page.locator("h1")).to_have_text(title)


def test_whoever_signs_out_in_one_window_is_led_to_the_token_in_the_others(visit: "Visit", admin: str) -> None:
    page = visit(f"{admin}/live?lang=en", fails=True)
    page.keyboard.type("s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Live gate")
    as_json = "{method: 'POST', headers: {'content-type': 'application/json'}, body: '{}'}"
    page.evaluate(f"fetch('/logout', {as_json}).then(() => null)")  # as the button of another window does
    page.wait_for_url("**/login?next=%2Flive**", timeout=20_000)


def test_a_wrong_token_is_told_and_a_page_of_somebody_else_is_not_gone_to(visit: "Visit", admin: str) -> None:
    page = visit(f"{admin}/login?next=https%3A%2F%2Fevil.example%2F&lang=en", fails=True)
    page.fill('input[name="token"]', "s3cre")
    page.keyboard.press("Enter")
    expect(page.locator("#problem")).to_have_text("This is not the token of this gate.")
    page.fill('input[name="token"]', "s3cret")
    page.click("#ask")
    expect(page.locator("h1")).to_have_text("Live gate")
    assert page.url == f"{admin}/live"
    page.goto(f"{admin}/login?next=%2F%2Fevil.example%2F&lang=en")
    page.wait_for_url("**/live")


def test_a_state_behind_the_hash_survives_and_a_session_that_is_over_leads_to_the_token(
    visit: "Visit", admin: str
) -> None:
    page = visit(f"{admin}/ledger?lang=en&kv_heads=4#kept=kv_heads%3D32", fails=True)
    page.fill('input[name="token"]', "s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("#t-compare tbody tr").first).to_contain_text("512 KiB64 KiB")
    page.context.clear_cookies()
    page.fill('input[name="kv_heads"]', "8")
    page.wait_for_url("**/login?next=**kv_heads**")
