"""A real Chromium before the pages of this machine. Whatever a page asks of another host fails its test."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from kvbudget.edge.asgi import start_asgi
from kvbudget.edge.web.pages import page_routes, to_ledger
from kvbudget.edge.web.simulation import Simulator

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
