"""A live diagnosis in a real terminal of 80x24: the advice is on the screen, and the verdicts stay after Ctrl-C."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from snapshots import vllm

FULL = {"usage": 0.99, "running": 40, "waiting": 25, "preemptions": 100}
MOST_S = 40.0
NORMAL_SCREEN = "\x1b[?1049l"


@pytest.fixture
def engine() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            if self.path == "/metrics":
                self.wfile.write(vllm(FULL).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Terminal:
    """A child at a pseudo-terminal of 80x24, and all that it wrote there."""

    def __init__(self, *words: str) -> None:
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "PYTHONUNBUFFERED": "1"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.child = subprocess.Popen(
            [sys.executable, "-m", "kvbudget", *words], stdin=side, stdout=side, stderr=side, env=environment
        )
        os.close(side)
        self.text = ""

    def read_until(self, pattern: str) -> str:
        """All so far, once it has `pattern`; or once the child has ended."""
        ends = time.monotonic() + MOST_S
        while not re.search(pattern, self.text, re.S):
            if not select.select([self._main], [], [], max(0.0, ends - time.monotonic()))[0]:
                break
            try:
                got = os.read(self._main, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not got:
                break
            self.text += got.decode(errors="replace").replace("\r\n", "\n")
        return self.text

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.child.kill()
        self.child.wait()
        os.close(self._main)


@pytest.fixture
def at() -> Iterator[list[Terminal]]:
    open_ones: list[Terminal] = []
    yield open_ones
    for terminal in open_ones:
        terminal.close()


def test_advice_is_on_the_screen_and_the_verdicts_stay_after_ctrl_c(engine: str, at: list[Terminal]) -> None:
    at.append(Terminal("diagnose", engine, "--watch", "--every", "0.2"))
    text = at[0].read_until(r"pool_full.*verdicts so far")
    assert f"looking for 0.2 s at {engine}" in text
    last = text[text.rindex("kvbudget diagnose --watch") :]
    assert "what to do, cheapest first" in last
    assert "-> " in last
    assert last.count("\n") <= 24
    at[0].child.send_signal(signal.SIGINT)
    after = at[0].read_until("nothing that is ever written").rpartition(NORMAL_SCREEN)[2]
    assert re.search(r"\d\d:\d\d:\d\d  pool_full\n", after)
    assert "Traceback" not in after
    assert at[0].child.wait(timeout=20) == 1


def test_a_single_look_says_that_it_waits(engine: str, at: list[Terminal]) -> None:
    at.append(Terminal("diagnose", engine, "--window", "0.3"))
    text = at[0].read_until("nothing that is ever written")
    assert text.startswith(f"looking for 0.3 s at {engine} ...\n")
    assert "pool_full" in text
    assert at[0].child.wait(timeout=20) == 1


def test_a_watch_into_a_pipe_is_heard_while_it_runs_and_ends_with_its_reader(engine: str) -> None:
    command = [sys.executable, "-m", "kvbudget", "diagnose", engine, "--watch", "--every", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            assert re.fullmatch(r"\d\d:\d\d:\d\d  pool_full\n", child.stdout.readline())
            child.stdout.close()
            child.wait(timeout=20)
            assert "Traceback" not in child.stderr.read()
        finally:
            child.kill()
