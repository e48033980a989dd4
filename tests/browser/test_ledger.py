"""The KV ledger in a real browser: its numbers are the API's, it works by keyboard, small and in both languages."""

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

CARD = "?model=Gemma-4-26B-A4B&gpu=h100&context=32k&concurrency=8&prompt_lengths=p50=800,p95=4000&output_lengths=300"
PRICED = "model=Qwen3-32B&gpu=h100&context=32k&price_per_hour=2.5"
STATES = [
    "",
    "?gpu_memory=24GiB&weights=16GiB&overhead=2GiB&activation=0&utilization=1&concurrency=6",
    CARD,
    f"?{PRICED}",
]


@contextmanager
def opened(
    browser: "Browser", address: str, width: int = 1280, *, dark: bool = False, fails: bool = False
) -> "Iterator[Page]":
    """A page; an error on its console, or a request to another host, fails the test. `fails`: one of its own requests
    is expected to."""
    wrong: list[str] = []
    host = address.split("/")[2]
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light")
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" and not fails else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda asked: wrong.append(asked.url) if host not in asked.url and "blob:" not in asked.url else None
    )
    page.goto(address)
    page.wait_for_selector("#figures dd")
    try:
        yield page
        assert not wrong
    finally:
        page.close()


def figure(page: "Page", name: str) -> str:
    return str(page.locator(f'dd[data-figure="{name}"]').evaluate("one => one.firstChild.textContent"))


def shows(page: "Page", name: str, text: str) -> None:
    """Wait until the planner has answered and the page has drawn it."""
    expect(page.locator(f'dd[data-figure="{name}"]')).to_contain_text(text)


@pytest.mark.parametrize("state", STATES)
def test_what_is_shown_is_what_the_planner_says(browser: "Browser", url: str, state: str) -> None:
    with urllib.request.urlopen(f"{url}/api/plan{state}", timeout=20) as answer:
        document: dict[str, Any] = json.load(answer)
    with opened(browser, f"{url}/ledger{state}") as page:
        assert figure(page, "per_token") == document["figures"]["per_token"]["text"]
        assert figure(page, "needed") == document["figures"]["held"]["text"]
        assert figure(page, "one_request") == document["figures"]["one_request_held"]["text"]
        assert page.locator("#t-changes tbody tr").count() == len(document["changes"])
        assert page.locator("#t-naive tbody tr").count() == len(document["naive"])
        assert page.locator("#t-bar tbody tr").count() == len(document["bar"])
        assert page.locator("#formula li").all_text_contents() == document["formula"]
        if document["bar"]:
            assert figure(page, "ceiling") == f"{document['figures']['ceiling']:,}"


def test_a_slider_moves_the_numbers_and_the_address(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger") as page:
        assert figure(page, "needed") == "16.00 GiB"
        page.locator('input[data-for="kv_heads"]').fill("32")
        shows(page, "needed", "64.00 GiB")
        assert page.url.endswith("/ledger?kv_heads=32")
        page.reload()
        page.wait_for_selector("#figures dd")
        assert figure(page, "per_token") == "512 KiB"


def test_it_works_by_keyboard_alone(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.dataset.for") == "layers":
                break
        page.keyboard.press("ArrowRight")
        shows(page, "per_token", "132 KiB")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("state", STATES)
def test_nothing_overlaps_or_runs_out_of_the_page(
    browser: "Browser", url: str, width: int, language: str, state: str
) -> None:
    address = f"{url}/ledger{state}{'&' if state else '?'}lang={language}"
    with opened(browser, address, width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("html").get_attribute("lang") == ("zh-Hans" if language == "zh" else "en")
        boxes = page.locator("fieldset:visible, section:visible").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect()).map(r => [r.left, r.top, r.right, r.bottom])"
        )
        for index, (left, top, right, bottom) in enumerate(boxes):
            assert 0 <= left < right <= width
            for other in boxes[index + 1 :]:
                apart = other[0] >= right - 1 or other[2] <= left + 1 or other[1] >= bottom - 1 or other[3] <= top + 1
                # the form scrolls in a column of its own, so what lies below its fold is beside nothing
                assert apart or left < other[0] or left > other[0], (boxes[index], other)


def test_only_requests_that_somebody_set_make_a_card_too_small(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger?model=Qwen3-32B&gpu=h100&context=32k&lang=en") as page:
        expect(page.locator("#verdict")).to_contain_text("FITS 1 request")
        page.fill('input[name="concurrency"]', "16")
        expect(page.locator("#verdict")).to_contain_text("DOES NOT FIT")
        page.wait_for_url("**concurrency=16**")
        page.reload()
        expect(page.locator("#verdict")).to_contain_text("DOES NOT FIT")
        page.fill('input[name="max_num_seqs"]', "256")
        page.wait_for_url("**max_num_seqs=256**")


def test_blocks_are_the_engines_own_until_somebody_chooses(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger?model=DeepSeek-V3.2&gpu=h200:8&tp=8") as page:
        block = page.locator('select[name="block"]')
        expect(block).to_have_value("64")
        assert "block=" not in page.url
        block.select_option("16")
        page.wait_for_url("**block=16**")
        page.reload()
        page.wait_for_selector("#figures dd")
        expect(block).to_have_value("16")


@pytest.mark.parametrize("width", [360, 1280])
def test_text_of_the_chart_is_large_enough_to_read(browser: "Browser", url: str, width: int) -> None:
    with opened(browser, f"{url}/ledger{CARD}", width) as page:
        scale = "one => one.getBoundingClientRect().width / one.viewBox.baseVal.width"
        assert page.locator("#frontier svg").evaluate(scale) >= 0.95
        texts = page.locator("#frontier svg text").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect()).map(r => [r.left, r.right])"
        )
        assert all(0 <= left < right <= width for left, right in texts)
        page.set_viewport_size({"width": 700, "height": 800})
        # An expectation, not a function to wait for: the page's own policy forbids to evaluate text while it is polled.
        over_500 = re.compile(r"^0 0 (50[1-9]|5[1-9]\d|[6-9]\d\d|\d{4,}) ")
        expect(page.locator("#frontier svg")).to_have_attribute("viewBox", over_500)


def test_all_of_the_form_can_be_reached_by_scrolling_the_page(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger") as page:
        inner = "one => [one.scrollHeight - one.clientHeight, getComputedStyle(one).position]"
        assert page.locator("#fields").evaluate(inner) == [0, "static"]
        page.set_viewport_size({"width": 1280, "height": 1440})
        assert page.locator("#fields").evaluate(inner) == [0, "sticky"]
        assert page.locator("#fields").evaluate("one => one.getBoundingClientRect().height") < 1440


def test_pages_alone_have_no_link_to_a_gate(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger") as page:
        page.wait_for_load_state("networkidle")
        assert page.locator('nav a[href="/live"]').is_hidden()
        assert page.locator('nav a[href="/simulate"]').is_visible()


def test_kinds_of_cache_are_said_in_chinese(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger?model=gpt-oss-20b&lang=zh") as page:
        expect(page.locator("#t-groups")).to_contain_text("滑动窗口 128")


def test_markup_in_a_config_is_shown_as_text(browser: "Browser", url: str) -> None:
    hostile = '<img src=x onerror="document.title=1">'
    config = {
        "architectures": ["Qwen3ForCausalLM", hostile], "model_type": "qwen3", "num_hidden_layers": 36,
        "_name": hostile, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960,
    }  # fmt: skip
    with opened(browser, f"{url}/ledger", fails=True) as page:
        page.locator("#paste summary").click()
        page.fill("#config", json.dumps(config))
        shows(page, "per_token", "144 KiB")
        page.fill("#config", json.dumps({**config, "architectures": [hostile], "model_type": hostile}))
        page.wait_for_selector("#problem:visible")
        assert "<img" in (page.locator("#problem").text_content() or "")
        assert page.locator("img").count() == 0
        assert page.title() == "KV ledger · kvbudget"


def test_the_other_language_says_everything_anew(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger?lang=en") as page:
        page.click("#language")
        assert page.locator("h1").text_content() == "KV 容量账本"
        assert "每 token" in (page.locator("#figures").text_content() or "")
        page.click("#language")
        assert page.locator("h1").text_content() == "KV ledger"


def test_in_chinese_the_whole_page_is_chinese(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger?gpu=h100&lang=zh&from=mail") as page:
        page.wait_for_selector("#findings li")
        assert page.title() == "KV 容量账本 · kvbudget"
        assert "放得下" in (page.locator("#verdict").text_content() or "")
        finding = page.locator("#findings li").first
        assert "只有形状，没有权重" in (finding.text_content() or "")
        finding.locator("summary").click()
        expect(finding.locator("details")).to_contain_text("a shape has no weights: 14.99 GiB are taken")
        for table in ("#t-bar", "#t-naive", "#t-retreat", "#t-changes"):
            told = page.locator(f"{table} tbody").text_content() or ""
            assert not re.findall(r"\b(?:the|of|and|is|are|with|what|every)\b", told), told
        page.click("#language")
        expect(page.locator("#verdict")).to_contain_text("FITS")
        assert page.title() == "KV ledger · kvbudget"
        assert "a shape has no weights" in (page.locator("#findings li").first.text_content() or "")
        assert "from=mail" in page.url, "what is not ours stays in the address"
        page.fill('input[name="context"]', "4k")
        expect(page.locator('dd[data-figure="needed"]')).to_contain_text("8.00 GiB")
        assert "from=mail" in page.url


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_serious(browser: "Browser", url: str, state: str, dark: bool) -> None:
    with opened(browser, f"{url}/ledger{state}", dark=dark) as page:
        page.click("#pin")
        page.wait_for_selector("#t-compare tbody tr")
        found = Axe().run(page)
        serious = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
        assert [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in serious] == []


def test_a_wrong_field_is_told_and_the_last_numbers_stay(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger", fails=True) as page:
        page.fill('input[name="layers"]', "9999")
        page.wait_for_selector("#problem:visible")
        assert "layers: '9999' is out of range" in (page.locator("#problem").text_content() or "")
        assert figure(page, "per_token") == "128 KiB"
        page.fill('input[name="layers"]', "16")
        shows(page, "per_token", "64 KiB")
        assert page.locator("#problem").is_hidden()


def test_a_pasted_config_is_planned_and_travels_in_the_address(browser: "Browser", url: str) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
        "vocab_size": 151936, "max_position_embeddings": 40960,
    }  # fmt: skip
    with opened(browser, f"{url}/ledger") as page:
        page.locator("#paste summary").click()
        page.fill("#config", json.dumps(config))
        shows(page, "per_token", "144 KiB")
        page.wait_for_url("**config=**")
        address = page.url
    with opened(browser, address) as page:
        assert figure(page, "per_token") == "144 KiB"
        assert page.locator('select[name="model"] option:checked').text_content() == "pasted config.json"
        with page.expect_download() as download:
            page.click('[data-export="plan.md"]')
        assert download.value.suggested_filename == "Qwen3ForCausalLM.plan.md"
        page.click("#pin")
        expect(page.locator("#t-compare tbody tr").first).to_contain_text("144 KiB144 KiB")
        page.click("#forget")
        shows(page, "per_token", "128 KiB")
        expect(page.locator("#t-compare tbody tr").first).to_contain_text("144 KiB128 KiB")
        assert page.locator('select[name="model"]').input_value() == ""
        page.reload()
        expect(page.locator("#t-compare tbody tr").first).to_contain_text("144 KiB128 KiB")


def test_a_state_that_was_kept_stands_beside_the_present_one(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger?context=8k") as page:
        page.click("#pin")
        page.select_option('select[name="dtype"]', "fp8")
        expect(page.locator("#t-compare tbody tr").first).to_contain_text("128 KiB64 KiB")
        assert "kept=" in page.url


@pytest.mark.parametrize("name", ["plan.md", "plan.png", "plan.json", "kvbudget.toml", "config.json"])
def test_each_export_is_a_file_to_keep(browser: "Browser", url: str, name: str) -> None:
    with opened(browser, f"{url}/ledger?model=Qwen3-8B&gpu=l40s&concurrency=4") as page:
        with page.expect_download() as download:
            page.click(f'[data-export="{name}"]')
        assert download.value.suggested_filename == name
        assert download.value.path().stat().st_size > 200


def test_every_worked_example_opens_and_says_what_to_look_at(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger?lang=en&kv_heads=4") as page:
        expect(page.locator("#example")).to_be_hidden()
        page.locator("#to-examples").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "h-examples"
        links = page.locator("#examples a")
        found = links.evaluate_all("all => all.map(one => [one.textContent, one.getAttribute('href')])")
        assert len(found) > 20
        for title, address in found:
            page.goto(f"{url}{address}")
            if address.startswith("/ledger"):
                expect(page.locator("#example")).to_contain_text(f"{title}: ")
                expect(page.locator("#problem")).to_be_hidden()
                expect(page.locator("#compare")).to_be_visible(visible="#kept" in address)
            else:
                expect(page.locator('select[name="scenario"]')).to_have_value(
                    address.split("scenario=")[1].split("&")[0]
                )


@pytest.mark.parametrize(("language", "heading"), [("en", "What tokens cost"), ("zh", "token 的成本")])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_price_shows_what_tokens_cost_in_the_planners_own_figures(
    browser: "Browser", url: str, language: str, heading: str, width: int
) -> None:
    with urllib.request.urlopen(f"{url}/api/plan?{PRICED}", timeout=20) as answer:
        cost = json.load(answer)["cost"]
    with opened(browser, f"{url}/ledger?model=Qwen3-32B&gpu=h100&context=32k&lang={language}", width) as page:
        expect(page.locator("#h-cost")).to_be_hidden()
        page.fill('input[name="price_per_hour"]', "2.5")
        expect(page.locator("#h-cost")).to_be_visible()
        expect(page.locator("#h-cost")).to_have_text(heading)
        rows = page.locator("#t-cost tbody tr").evaluate_all("all => all.map(r => [...r.cells].map(c => c.innerText))")
        assert rows == [[rate["busy_text"], rate["output_text"], rate["total_text"]] for rate in cost["rates"]]
        assert figure(page, "hour") == cost["hour_text"] == "2.50"
        assert figure(page, "speed") == cost["speed_text"]
        assert figure(page, "million") == cost["rates"][-1]["output_text"]
        expect(page.locator("#cost-assumed")).to_be_visible()
        assert "price_per_hour=2.5" in page.url
        href = page.locator('[data-export="plan.md"]').get_attribute("href")
        assert "price_per_hour=2.5" in str(href)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.goto(
            f"{url}/ledger?{PRICED}&lang={language}&prompt_lengths=p50=800,p95=4000&output_lengths=p50=200,p95=800"
        )
        expect(page.locator("#h-cost")).to_be_visible()
        expect(page.locator("#cost-assumed")).to_be_hidden()
        page.select_option('select[name="gpu"]', "")
        expect(page.locator("#cost-unknown")).to_be_visible()
        expect(page.locator("#t-cost")).to_be_hidden()


def test_what_tokens_cost_can_be_compared(browser: "Browser", url: str) -> None:
    with opened(browser, f"{url}/ledger?{PRICED}&lang=en") as page:
        before = figure(page, "million")
        page.click("#pin")
        page.select_option('select[name="dtype"]', "fp8")
        row = page.locator("#t-compare tbody tr", has_text="a million output tokens")
        expect(row).to_contain_text(before)
        expect(row.locator("td").last).not_to_have_text(before)


@pytest.mark.parametrize(("language", "pool"), [("en", "tokens in the pool"), ("zh", "池中 token 数")])
def test_two_cards_beside_one_show_why_they_more_than_triple(
    browser: "Browser", url: str, language: str, pool: str
) -> None:
    with opened(browser, f"{url}/ledger?lang={language}") as page:
        page.locator("#examples a[href*='tp=2']").click()
        expect(page.locator("#t-compare tbody tr", has_text=pool)).to_contain_text("32,496117,488")
        rows = page.locator("#t-compare tbody tr")
        expect(rows.filter(has_text="7")).not_to_have_count(0)
        expect(page.locator("#t-compare")).to_contain_text("39.12 GiB19.56 GiB")  # weights of one GPU
        expect(page.locator("#t-compare")).to_contain_text("24.21 GiB43.77 GiB")  # its cache
        shows(page, "ceiling", "28")
        page.go_back()
        shows(page, "needed", "16.00 GiB")
