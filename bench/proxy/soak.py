"""Does the gate leak? Many requests, then many streams for long; its memory is looked at all the while.

    make bench-soak                                                     # 10^6 requests, 5,000 streams for 20 minutes
    .venv/bin/python bench/proxy/soak.py --requests 50000 --minutes 2   # shorter

Exit 1 when memory grew in the second half of a part by more than `--allowed-mib`, when an answer was wrong or cut, or
when blocks are still promised at the end.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import rig
import stacks

CONNECTIONS = 64
BODY_BYTES = 2_000
SEGMENT_S = 20.0
SAMPLE_S = 2.0
ENDLESS_CHUNKS = 1_000_000


class Memory:
    """Samples of the gate's resident memory, in MiB, while something runs."""

    def __init__(self, pid: int) -> None:
        self.samples: list[float] = []
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.samples.append(rig.rss_bytes(self._pid) / 2**20)

    @property
    def growth_mib(self) -> float:
        """How much more the last quarter held than the third one: what comes with load is there by then."""
        quarter = max(1, len(self.samples) // 4)
        third, last = self.samples[-2 * quarter : -quarter], self.samples[-quarter:]
        return max(last) - max(third) if third else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=5_000)
    parser.add_argument("--minutes", type=float, default=20.0, help="of streaming, after the requests")
    parser.add_argument("--pace-ms", type=int, default=1_000, help="between two events of a stream")
    parser.add_argument("--compiled", action="store_true", help="the compiled gate")
    parser.add_argument("--allowed-mib", type=float, default=2.0)
    args = parser.parse_args()
    cores = rig.choose_cores()
    with tempfile.TemporaryDirectory(prefix="bench-soak-") as name, ExitStack() as stack:
        rig.build()
        port = stack.enter_context(rig.mock_engine(cores.load, Path(name)))
        start = stacks.compiled_gate if args.compiled else stacks.gate
        gate = stack.enter_context(start(port, cores.proxy, Path(name)))
        report = {
            "requests": _requests(gate, cores, args.requests),
            "streams": _streams(gate, cores, args.streams, args.minutes * 60, args.pace_ms),
        }
        time.sleep(2.0)
        report["promised_blocks_at_the_end"] = _promised(gate)
    print(json.dumps(report, indent=1))
    parts = (report["requests"], report["streams"])
    bad = any(part["bad"] or part["lost"] or part["growth_mib"] > args.allowed_mib for part in parts)
    return 1 if bad or report["promised_blocks_at_the_end"] else 0


def _requests(gate: rig.Stack, cores: rig.Cores, wanted: int) -> dict[str, float]:
    done = bad = lost = 0
    began, cpu_s = time.monotonic(), rig.cpu_seconds(gate.pid or 0)
    with Memory(gate.pid or 0) as memory:
        while done < wanted:
            seen = rig.offer(gate.port, cores.load, rig.Offer(CONNECTIONS, SEGMENT_S, BODY_BYTES))
            done, bad, lost = done + seen.answers, bad + seen.bad, lost + seen.lost
            print(f"{done:,} requests, {memory.samples[-1:]} MiB", file=sys.stderr, flush=True)
            if not seen.answers:
                break
    return _told(memory, done, bad, lost, time.monotonic() - began, rig.cpu_seconds(gate.pid or 0) - cpu_s)


def _streams(gate: rig.Stack, cores: rig.Cores, streams: int, seconds: float, pace_ms: int) -> dict[str, float]:
    began, cpu_s = time.monotonic(), rig.cpu_seconds(gate.pid or 0)
    before_mib = rig.rss_bytes(gate.pid or 0) / 2**20
    events = bad = lost = 0
    with Memory(gate.pid or 0) as memory:
        left_s = seconds
        while left_s > 0:  # the load generator runs for ten minutes at most
            run_s = min(left_s, 540.0)
            seen = rig.offer(gate.port, cores.load, rig.Offer(streams, run_s, BODY_BYTES, ENDLESS_CHUNKS, pace_ms))
            events, bad, lost = events + seen.events, bad + seen.bad, lost + seen.lost
            left_s -= run_s
    told = _told(memory, events, bad, lost, time.monotonic() - began, rig.cpu_seconds(gate.pid or 0) - cpu_s)
    told["kb_per_stream"] = round((max(memory.samples) - before_mib) * 1024 / streams, 1)
    return told


def _told(memory: Memory, done: int, bad: int, lost: int, seconds: float, cpu_s: float) -> dict[str, float]:
    return {
        "done": done,
        "bad": bad,
        "lost": lost,
        "seconds": round(seconds),
        "per_cpu_s": round(done / cpu_s) if cpu_s else 0,
        "rss_mib_first": round(memory.samples[0], 1),
        "rss_mib_most": round(max(memory.samples), 1),
        "rss_mib_last": round(memory.samples[-1], 1),
        "growth_mib": round(memory.growth_mib, 2),
    }


def _promised(gate: rig.Stack) -> float:
    """What the ledger still holds, by the gate's own metrics."""
    with urllib.request.urlopen(f"{gate.admin}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("kvbudget_reserved_blocks{"))


if __name__ == "__main__":
    sys.exit(main())
