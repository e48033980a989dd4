"""Decides how tests get a server of metrics on this machine, and a clock that only moves when somebody sleeps."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

Page = str | Callable[[dict[str, str]], Any]


def _missing(_: dict[str, str]) -> int:
    return 404


class Pages:
    """Answers by path: text, or what a function of the query gives (a document as JSON, a number as a status)."""

    def __init__(self) -> None:
        self.answers: dict[str, Page] = {}
        self.asked: list[tuple[str, str]] = []
        self.cut = 0  # bytes that an answer promises and does not bring
        self.url = ""

    def paths(self) -> list[str]:
        """The paths that were asked for, in order."""
        return [path for path, _ in self.asked]


@pytest.fixture
def pages() -> Iterator[Pages]:
    fake = Pages()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            fake.asked.append((parts.path, self.headers.get("Authorization", "")))
            page: Page = fake.answers.get(parts.path, _missing)
            given = page if isinstance(page, str) else page({k: v[0] for k, v in parse_qs(parts.query).items()})
            status = given if isinstance(given, int) else 200
            text = given if isinstance(given, str) else json.dumps(None if isinstance(given, int) else given)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{fake.url}/elsewhere")
            self.send_header("Content-Length", str(len(text.encode()) + fake.cut))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


class Clock:
    """Seconds that pass only in `sleep`."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Time goes on by so much."""
        self.slept.append(seconds)
        self.now_s += max(0.0, seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()
