"""Takes the pictures of the pages in docs/images with the Chromium of this machine: `python scripts/make_screenshots.py`.

Needs `pip install '.[dev]'` and scripts/install_chromium.sh. The live page is shown after a minute of made load.
"""

import json
import random
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect, sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
LEDGER = "/ledger?lang=en&model=Gemma-4-26B-A4B&gpu=h100&context=32k&concurrency=4"
UI = ["ui", "--port", "0", "--json"]
SERVE = [
    "serve",
    "--embedded-engine",
    "--policy",
    "worst-case",
    "--max-num-seqs",
    "6",
    "--port",
    "0",
    "--admin-port",
    "0",
]
LOAD_S = 50.0


@contextmanager
def running(*words: str) -> Iterator[dict[str, Any]]:
    """A command of ours, once it says that it is ready."""
    with subprocess.Popen([sys.executable, "-m", "kvbudget", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def ledger(browser: Browser) -> None:
    """With a model and a card."""
    with running(*UI) as ready:
        page = browser.new_page(viewport={"width": 1180, "height": 1000})
        page.goto(ready["url"].removesuffix("/ledger") + LEDGER)
        expect(page.locator("#t-bar tbody tr")).to_have_count(6)
        page.screenshot(path=IMAGES / "ledger.png")


def live(browser: Browser) -> None:
    """While some run and some wait."""
    with running(*SERVE, "--json") as ready:
        page = browser.new_page(viewport={"width": 1180, "height": 1000})
        page.goto(f"{ready['admin']}/live?lang=en")
        threads = [threading.Thread(target=_load, args=(ready["gate"], number)) for number in range(9)]
        for thread in threads:
            thread.start()
        page.wait_for_timeout(LOAD_S * 1000)
        expect(page.locator("#t-queue tbody tr").first).to_be_visible()
        page.locator("#findings").evaluate("one => one.closest('section').remove()")  # to show who waits as well
        page.locator("#t-forecast").evaluate("one => one.closest('section').remove()")
        page.set_viewport_size({"width": 1180, "height": 1390})
        page.screenshot(path=IMAGES / "live.png")
        for thread in threads:
            thread.join()


def _load(url: str, number: int) -> None:
    """One client of three teams, which asks again and again."""
    rng = random.Random(number)
    until = time.monotonic() + LOAD_S + 3
    time.sleep(number * 2)
    while time.monotonic() < until:
        body = {
            "model": "embedded", "messages": [{"role": "user", "content": "Tell. " * rng.randrange(10, 400)}],
            "max_tokens": rng.randrange(100, 900), "stream": True, "ignore_eos": True,
        }  # fmt: skip
        headers = {"content-type": "application/json", "x-kvbudget-tenant": f"team-{'abc'[number % 3]}"}
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()


def main() -> None:
    """Both pictures."""
    found = next(path for name in ("chromium", "google-chrome") if (path := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        ledger(browser)
        live(browser)
        browser.close()


if __name__ == "__main__":
    main()
