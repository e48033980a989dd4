"""Reads the line that vLLM writes every ten seconds, from V0 (`Swapped`, `Pending`) to 0.32 (`Deferred`).

Wordings: 0.2 to 0.8 `engine/metrics.py`; since 0.7 `v1/metrics/loggers.py`. Throughput is of computed tokens, the hit
rate of the last thousand requests. Preemptions have stood there since 2026; V0 warned of each, or of every fiftieth.
"""

import re

from kvbudget.engines.logs.periodic.moments import moment_s
from kvbudget.engines.logs.periodic.tally import Entry, Tally
from kvbudget.engines.logs.receipt import Line
from kvbudget.engines.window import Gauges

USUAL_S = 10.0
HINTS = ("KV cache usage: ", "Running: ", "is preempted by ", "Prefix cache hit rate: ")
_N = r"([0-9]+(?:\.[0-9]+)?)"
_ENGINE = re.compile(r"\bEngine ([0-9]{1,4}): ")
_PROMPT = re.compile(r"(?:Avg )?prompt throughput: " + _N + " tokens/s", re.IGNORECASE)
_GENERATION = re.compile(r"(?:Avg )?generation throughput: " + _N + " tokens/s", re.IGNORECASE)
_COUNTS = {
    "running": re.compile(r"Running: ([0-9]{1,9}) reqs?"),
    "waiting": re.compile(r"(?:Waiting|Pending): ([0-9]{1,9}) reqs?"),
    "deferred": re.compile(r"Deferred: ([0-9]{1,9}) reqs?"),
    "swapped": re.compile(r"Swapped: ([0-9]{1,9}) reqs?"),
}
_PREEMPTIONS = re.compile(r"Preemptions: ([0-9]{1,9})")
_USAGE = re.compile(r"(?<!CPU )\b(?!CPU )\w+ KV cache usage: " + _N + "%")
_CPU_USAGE = re.compile(r"CPU KV cache usage: " + _N + "%")
_HIT_RATE = re.compile(r"(?<!External )\bPrefix cache hit rate: (?:GPU: )?" + _N + "%", re.IGNORECASE)
_CUMULATIVE = re.compile(r"is preempted by .{0,400}total(?:_num)?_cumulative_preemption(?:_cnt)?=([0-9]{1,9})")


class Reader:
    """What the lines of each engine of one log told so far."""

    engine = "vllm"
    usual_s = USUAL_S

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.rates: dict[str, float] = {}
        self._preempted = 0

    def read(self, line: Line) -> None:
        """Take one line."""
        text = line.text
        if "is preempted by " in text:
            match = _CUMULATIVE.search(text)
            so_far = int(match[1]) if match else self._preempted + 1
            self._of("").note("preemptions", max(0, so_far - self._preempted))
            self._preempted = so_far
            return
        if match := _HIT_RATE.search(text):
            self.rates["prefix_hit_rate"] = round(float(match[1]) / 100, 6)
        usage, running = _USAGE.search(text) or _CPU_USAGE.search(text), _COUNTS["running"].search(text)
        if usage is None or running is None:
            return
        engine = _ENGINE.search(text)
        told = {name: int(match[1]) for name, pattern in _COUNTS.items() if (match := pattern.search(text))}
        look = Gauges(
            at_s=moment_s(text),
            usage=min(1.0, round(float(usage[1]) / 100, 6)),
            running=told.get("running"),
            waiting=told.get("waiting"),
            deferred=told.get("deferred"),
            swapped=told.get("swapped"),
        )
        rates = {
            name: float(match[1])
            for name, pattern in (("prompt_tokens", _PROMPT), ("generation_tokens", _GENERATION))
            if (match := pattern.search(text))
        }
        preempted = _PREEMPTIONS.search(text)
        self._of(engine[1] if engine else "").add(
            Entry(look, rates, {"preemptions": float(preempted[1])} if preempted else {})
        )

    def answered(self, status: str) -> None:
        """Count it beside the line that comes next."""
        self._of("").note(f"http_{status}")

    def _of(self, engine: str) -> Tally:
        # What no engine's name stands before is of the first one.
        if not engine and self.tallies:
            return next(iter(self.tallies.values()))
        if engine and list(self.tallies) == [""] and not self.tallies[""].lines:
            self.tallies = {engine: self.tallies[""]}
        return self.tallies.setdefault(engine, Tally())
