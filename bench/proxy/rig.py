"""Builds the two C programs of the proxy benchmark, pins processes, reads CPU and memory of a process tree."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
BUILD_FOLDER = REPOSITORY / ".cache" / "bench-proxy"
NUM_GPU_BLOCKS = 10_000_000_000  # so many that 5,000 endless streams never fill them
BLOCK_SIZE = 16
MAX_MODEL_LEN = 1_000_000
START_SECONDS = 30.0
STOP_SECONDS = 5.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RigError(Exception):
    """Something that the benchmark needs is missing or broke; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The proxy's own core, and the one that mock engine and load share; equal on a machine with one core."""

    proxy: int
    load: int


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of the load generator saw. Latencies in microseconds; events are server-sent events."""

    answers: int
    events: int
    bad: int
    lost: int
    reconnects: int
    seconds: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack: the port that the load is offered to, and the process whose CPU is counted (None: no proxy).

    `admin`: where the gate tells of itself."""

    name: str
    port: int
    pid: int | None
    admin: str = ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def choose_cores() -> Cores:
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(proxy=allowed[-1], load=allowed[0])


def build() -> None:
    """Compiles mock_engine and load into .cache/ when their sources are newer. Raises RigError without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RigError("no C compiler: apt-get install --yes gcc libc6-dev")
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("mock_engine", "load"):
        source, program = HERE / f"{name}.c", BUILD_FOLDER / name
        if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
            continue
        command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(program), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RigError(f"{source.name} does not compile:\n{done.stderr}")


@contextmanager
def running(
    command: Sequence[str],
    core: int | Sequence[int],
    *,
    log: Path,
    pipe: bool = False,
    environment: dict[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A process pinned to one core, or to those, in a session of its own; it and its children are ended by pid on the
    way out."""
    cores = {core} if isinstance(core, int) else set(core)
    with log.open("w") as sink:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else sink,
            stderr=sink,
            text=True,
            env=os.environ | (environment or {}),
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    children = tree(process.pid)
    try:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in children[1:]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def mock_engine(core: int, folder: Path) -> Iterator[int]:
    """The mock engine on `core`; yields its port on 127.0.0.1."""
    command = [str(BUILD_FOLDER / "mock_engine"), str(NUM_GPU_BLOCKS), str(MAX_MODEL_LEN)]
    with running(command, core, log=folder / "mock.log", pipe=True) as process:
        yield int(first_line(process.stdout, process, "mock_engine"))


def first_line(stdout: IO[str] | None, process: subprocess.Popen[str], name: str) -> str:
    assert stdout is not None
    line = stdout.readline()
    if not line:
        raise RigError(f"{name} ended at its start with code {process.wait()}")
    return line


@dataclass(frozen=True, slots=True)
class Offer:
    """One bounded run of the load: plain requests when `chunks` is 0, else streams of that many events.

    `text`: a file of which the prompts are pieces; else they are one word again and again.
    """

    connections: int
    seconds: float
    body_bytes: int
    chunks: int = 0
    pace_ms: int = 0
    text: Path | None = None


def offer(port: int, core: int | Sequence[int], asked: Offer) -> Load:
    """Runs the load generator on `core` (or those) against 127.0.0.1:`port`."""
    run_ms, pace_us = int(asked.seconds * 1000), asked.pace_ms * 1000
    command = [BUILD_FOLDER / "load", port, asked.connections, run_ms, asked.body_bytes, asked.chunks, pace_us]
    if asked.text is not None:
        command.append(asked.text)
    cores = {core} if isinstance(core, int) else set(core)
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=asked.seconds + START_SECONDS,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise RigError(f"load generator: {done.stderr.strip()}")
    return Load(**json.loads(done.stdout))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants so far: what else runs on the machine hardly matters."""
    ticks = 0
    for member in tree(pid):
        fields = _stat_fields(member)
        ticks += int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / _TICKS_PER_SECOND


def rss_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants (shared pages count once in each)."""
    total = 0
    for member in tree(pid):
        try:
            total += int(Path(f"/proc/{member}/statm").read_text().split()[1]) * _PAGE_BYTES
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants, parents first."""
    found = [pid]
    for member in found:
        try:
            for task in Path(f"/proc/{member}/task").iterdir():
                found.extend(int(child) for child in (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command name: index 11 is utime, 12 is stime (proc_pid_stat(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def wait_until_answering(
    port: int, process: subprocess.Popen[str], name: str, log: Path, seconds: float = START_SECONDS
) -> None:
    """Returns when one request through `port` came back; raises RigError with the log's end otherwise."""
    deadline = time.monotonic() + seconds
    load_core = choose_cores().load
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            seen = offer(port, load_core, Offer(connections=1, seconds=0.05, body_bytes=256))
        except RigError:
            seen = None
        if seen and seen.answers > seen.bad:
            return
        time.sleep(0.1)
    raise RigError(f"{name} does not answer; the end of its log:\n{log.read_text()[-2000:]}")
