"""Decides which diagnosing tools are compared, how each is installed and asked, and how its answer becomes a verdict.

vllm-doctor reads one scrape from a URL, so it gets the newer one; its rules count since the engine's start there (those
on percentiles want a Prometheus server). inferpilot reads both files. Neither has our codes, so each of their answers
is put beside the label:

- right: what it puts first says the same;
- half: it says so further down, or it sees what follows from it (a queue, a hit rate) and not the cause;
- wrong: anything else, also an alarm where nothing is wrong, or silence where something is.
"""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench-diagnosis"
INSTALL_S = 600
CALL_S = 60
PREFIX = ("prefix_cache_below_block", "prefix_cache_too_small", "prefix_cache_no_sharing")
QUEUED = ("pool_full", "budget_full", "seqs_full", "compute_bound", "deferred", "stuck")

# What a finding of vllm-doctor says of the cause. Its advice on the hit rate is to switch the cache on.
DOCTOR_SAYS: Mapping[str, tuple[str, ...]] = {
    "kv_cache_pressure": ("pool_full",),
    "preemption_pressure": ("pool_full",),
    "prefix_cache_efficiency": ("prefix_cache_off",),
    "replica_imbalance": ("rank_imbalance",),
    "error_rate": ("client_timeouts",),
    "low_throughput": ("over_provisioned",),
}
# What it sees of the consequence alone.
DOCTOR_SEES: Mapping[str, tuple[str, ...]] = {
    "queue_pressure": QUEUED,
    "queue_latency": QUEUED,
    "ttft_bottleneck": QUEUED,
    "tpot_bottleneck": ("compute_bound",),
    "kv_cache_pressure": ("runaway_output", "rank_imbalance", "sub_pool_full"),
    "preemption_pressure": ("rank_imbalance", "runaway_output"),
    "prefix_cache_efficiency": PREFIX,
    "error_rate": ("engine_rejecting",),
}
SEVERITIES = ("critical", "high", "warning", "medium", "low", "info")

# inferpilot gives one verdict.
PILOT_SAYS: Mapping[str, tuple[str, ...]] = {
    "kv_capacity_bound_preempting": ("pool_full",),
    "not_kv_bound": ("compute_bound",),  # "compute or something other than KV"
    "healthy_or_underutilized": ("healthy",),
    "insufficient_metrics": ("insufficient_data",),
    "need_second_snapshot": ("insufficient_data",),
}
PILOT_SEES: Mapping[str, tuple[str, ...]] = {
    "kv_capacity_bound_preempting": ("rank_imbalance", "runaway_output"),
    "near_capacity": ("pool_full", "runaway_output"),
    "need_second_snapshot": ("pool_full",),
    "not_kv_bound": ("seqs_full", "budget_full", "deferred", "stuck"),
    "healthy_or_underutilized": ("over_provisioned",),
}


class Peer(NamedTuple):
    """A tool on PyPI."""

    name: str
    version: str


DOCTOR, PILOT = Peer("vllm-doctor", "0.6.0"), Peer("inferpilot", "0.1.0")
PEERS = (DOCTOR, PILOT)


class Said(NamedTuple):
    """An answer: what it was in the tool's own words, the codes that are put first, and those that are half of it."""

    words: str
    first: tuple[str, ...]
    half: tuple[str, ...]


def install(peer: Peer) -> str:
    """Make the tool's own environment; the reason when that failed, else nothing."""
    ready = CACHE / peer.name / f".ready-{peer.version}"
    if ready.exists():
        return ""
    CACHE.mkdir(parents=True, exist_ok=True)
    python = CACHE / peer.name / "bin" / "python"
    for step in (
        [sys.executable, "-m", "venv", CACHE / peer.name],
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{peer.name}=={peer.version}"],
    ):
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            return f"did not install within {INSTALL_S} s"
        if done.returncode:
            return f"did not install: {done.stderr.strip().splitlines()[-1][:120]}"
    ready.touch()
    return ""


def ask_doctor(url: str, text: str) -> Said:
    """`vllm-doctor diagnose URL`, under which `text` is served; findings in its own order of severity."""
    command = [CACHE / "vllm-doctor" / "bin" / "vllm-doctor", "diagnose", url, "--output", "json"]
    told = _remembered(DOCTOR, text, command)
    if told is None:
        return Said("no answer", ("insufficient_data",), ())
    return doctor_said(told)


def doctor_said(told: Mapping[str, Any]) -> Said:
    """The first finding, by severity, is what it puts first; no finding at all is its word for healthy."""
    found = [(check["id"], str(check["finding"]["severity"])) for check in told["checks"] if check.get("finding")]
    found.sort(key=lambda one: SEVERITIES.index(one[1]) if one[1] in SEVERITIES else len(SEVERITIES))
    if not found:
        return Said("no finding", ("healthy",), ())
    half = [code for name, _ in found for code in (*DOCTOR_SAYS.get(name, ()), *DOCTOR_SEES.get(name, ()))]
    words = ", ".join(f"{name} ({severity})" for name, severity in found)
    return Said(words, DOCTOR_SAYS.get(found[0][0], ()), tuple(half))


def ask_pilot(older: Path | None, newer: Path) -> Said:
    """`inferpilot doctor OLDER NEWER`."""
    files = [path for path in (older, newer) if path]
    command = [CACHE / "inferpilot" / "bin" / "inferpilot", "doctor", *files, "--json"]
    told = _remembered(PILOT, "".join(path.read_text() for path in files), command)
    if told is None:
        return Said("no answer", ("insufficient_data",), ())
    verdict = str(told["verdict"])
    return Said(verdict, PILOT_SAYS.get(verdict, ()), PILOT_SEES.get(verdict, ()))


@contextmanager
def served(texts: Mapping[str, str]) -> Iterator[str]:
    """The texts under /NAME/metrics of 127.0.0.1; gives the URL before the name."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, _, rest = self.path.strip("/").partition("/")
            found = texts.get(name, "").encode() if rest == "metrics" else b""
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _remembered(peer: Peer, text: str, command: list[Any]) -> Any:
    """Its answer as JSON, None for none. The same text has the same answer: one of them takes seconds."""
    kept = CACHE / "answers" / f"{peer.name}-{peer.version}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        words = [str(word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=CALL_S, check=False, cwd=CACHE)
        kept.write_text(done.stdout)
    try:
        return json.loads(kept.read_text())
    except ValueError:
        return None
