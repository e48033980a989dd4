"""A real Chromium before the pages of this machine. Whatever a page asks of another host fails its test."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from kvbudget.edge.asgi import start_asgi
from kvbudget.edge.web.pages import page_routes, to_ledger
from kvbudget.edge.web.simulation import Simulator

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The pages alone, served by a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def begin() -> tuple[str, object]:
        server = await start_asgi(Starlette(routes=[Route("/", to_ledger), *page_routes(Simulator())]), "127.0.0.1", 0)
        return server.url, server

    address, server = asyncio.run_coroutine_threadsafe(begin(), loop).result(10)
    yield address
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)  # type: ignore[attr-defined]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """Chromium as the machine has it. There is none: that is an error, not a skip."""
    from playwright.sync_api import sync_playwright

    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    assert found, f"none of {', '.join(_NAMES)} is there: scripts/install_chromium.sh installs one"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: "Browser") -> "Iterator[Callable[..., Page]]":
    """`visit(address, width=1280, dark=False, fails=False)`: a page. An error on its console, or a request to another
    host, fails the test. `fails`: one of its own requests is expected to. Ask for it after what serves the page."""
    pages: list[Page] = []
    wrong: list[str] = []

    def opened(address: str, width: int = 1280, *, dark: bool = False, fails: bool = False) -> "Page":
        host = address.split("/")[2]
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light")
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" and not fails else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: None if host in asked.url else wrong.append(asked.url))
        pages.append(page)
        page.goto(address)
        return page

    yield opened
    for page in pages:
        page.close()
    assert wrong == []
