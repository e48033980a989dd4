"""Reads what SGLang writes of its batches: `Prefill batch`, `Decode batch` (every 40 steps) and retractions.

Wordings of 2024 (`Decode batch. #running-req`) to 2026 (`Decode batch, #full token`), `managers/scheduler.py` and
`managers/scheduler_metrics_mixin.py`. The ranks of one replica write the same, or only the first writes.
"""

import re

from kvbudget.engines.logs.periodic.moments import moment_s
from kvbudget.engines.logs.periodic.tally import Entry, Tally
from kvbudget.engines.logs.receipt import Line
from kvbudget.engines.window import Gauges

HINTS = ("Decode batch", "Prefill batch", "#retracted_reqs", "#retracted_req", "Decode out of memory")
_N = r"([0-9]+(?:\.[0-9]+)?)"
_RUNNING = re.compile(r"#running-req: ([0-9]{1,9})")
_QUEUE = re.compile(r"#queue-req: ([0-9]{1,9})")
_DEFERRED = re.compile(r"#(?:prealloc|transfer|bootstrap|inflight|grammar-queue)-req: ([0-9]{1,9})")
_USAGE = re.compile(r"(?<!full )(?<!swa )\btoken usage: " + _N)
_KINDS = {
    "full": re.compile(r"\bfull token usage: " + _N),
    "sliding": re.compile(r"\bswa token usage: " + _N),
    "mamba": re.compile(r"\bmamba usage: " + _N),
}
_GENERATED = re.compile(r"gen throughput \(token/s\): " + _N)
_NEW = re.compile(r"#new-token: ([0-9]{1,12})")
_CACHED = re.compile(r"#cached-token: ([0-9]{1,12})")
_RETRACTED = re.compile(r"#retracted_reqs?: ([0-9]{1,9})")
_RATIO = re.compile(r"#new_token_ratio: [0-9.]{1,12} -> " + _N)
_REPLICA = re.compile(r"\bDP([0-9]{1,4})\b")
_OTHER_RANK = re.compile(r"\b(?:ATTN_TP|TP|PP|EP)(?!0\b)[0-9]{1,4}\b")


class Reader:
    """What the lines of each data-parallel replica told so far."""

    engine = "sglang"
    usual_s = 1.0

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.rates: dict[str, float] = {}

    def read(self, line: Line) -> None:
        """Take one line. Prefill batches count tokens; looks are of both kinds of batch."""
        text = line.text
        if _OTHER_RANK.search(line.rank):
            return
        replica = _REPLICA.search(line.rank)
        tally = self.tallies.setdefault(replica[1] if replica else "", Tally())
        if match := _RETRACTED.search(text):
            tally.note("preemptions", float(match[1]))
            if ratio := _RATIO.search(text):
                self.rates["new_token_ratio"] = float(ratio[1])
            return
        if "Decode batch" not in text and "Prefill batch" not in text:
            return
        running, queue = _RUNNING.search(text), _QUEUE.search(text)
        if running is None or queue is None:
            return
        kinds = {kind: float(match[1]) for kind, pattern in _KINDS.items() if (match := pattern.search(text))}
        told = _USAGE.search(text)
        usage = float(told[1]) if told else max(kinds.values(), default=None)
        deferred = [int(count) for count in _DEFERRED.findall(text)]
        look = Gauges(
            at_s=moment_s(text),
            usage=usage if usage is not None and usage <= 1 else None,
            usage_by_kind=kinds if len(kinds) > 1 else {},
            running=int(running[1]),
            waiting=int(queue[1]) + sum(deferred),
            deferred=sum(deferred) if deferred else None,
        )
        generated, new, cached = _GENERATED.search(text), _NEW.search(text), _CACHED.search(text)
        counts = {}
        if new and cached:
            counts = {
                "prompt_tokens": float(new[1]) + float(cached[1]),
                "prefix_queries": float(new[1]) + float(cached[1]),
                "prefix_hits": float(cached[1]),
            }
        tally.add(Entry(look, {"generation_tokens": float(generated[1])} if generated else {}, counts))

    def answered(self, status: str) -> None:
        """Count it beside the line that comes next, of the first replica."""
        tally = next(iter(self.tallies.values())) if self.tallies else self.tallies.setdefault("", Tally())
        tally.note(f"http_{status}")
