"""Do two workers give twice of one? The gate alone, with `--workers 2` and with `--workers 4`, before one mock engine.

Two questions, in interleaved rounds. *Per CPU second*: gate and all its processes on one core, mock engine and load on
another; what N processes lose here beside one they lose on N cores. Two gates that share nothing (`2 apart`) tell how
much of it is two processes taking turns on one core, which on cores of their own is none.
*By the clock*: everything on all cores. Mock engine and load need a part of these, whatever else runs on the machine
another: both are told.

    make bench-workers                                 # or: python bench/proxy/workers.py --rounds 5 --seconds 3
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import rig
import stacks

CONNECTIONS = 64
BODY_BYTES = 2_000
SETTLE_S = 0.3
APART = "2 apart"


class Run(NamedTuple):
    """`gate_s`, `mock_s`: CPU time of the gates, of mock engine and load. `calls`: of the ledger."""

    answers: int
    gate_s: float
    mock_s: float
    wall_s: float
    calls: float
    p99_us: float


@dataclass
class Series:
    """Of one way to serve: the gates that the load is spread over, and two runs a round."""

    gates: list[rig.Stack]
    pinned: list[Run] = field(default_factory=list)
    free: list[Run] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--plain", action="store_true", help="the uncompiled gate, even where there is a compiled one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    compiled = (stacks.COMPILED / ".ready").exists() and not args.plain
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as name, ExitStack() as stack:
        try:
            rig.build()
            series = _measured(args, {"PYTHONPATH": str(stacks.COMPILED)} if compiled else {}, Path(name), stack)
        except rig.RigError as error:
            print(error, file=sys.stderr)
            return 2
    every = len(os.sched_getaffinity(0))
    found = {name: _figures(one, series.get("1", one), every) for name, one in series.items()}
    if args.json:
        print(json.dumps({"compiled": compiled, "rounds": args.rounds, "cores": every, "ways": found}))
    else:
        _tell(found, compiled=compiled)
    return 0


def _measured(
    args: argparse.Namespace, environment: dict[str, str], folder: Path, stack: ExitStack
) -> dict[str, Series]:
    cores, every = rig.choose_cores(), sorted(os.sched_getaffinity(0))
    mock = stack.enter_context(rig.running(
        [str(rig.BUILD_FOLDER / "mock_engine"), str(rig.NUM_GPU_BLOCKS), str(rig.MAX_MODEL_LEN)],
        every, log=folder / "mock.log", pipe=True,
    ))  # fmt: skip
    port = int(rig.first_line(mock.stdout, mock, "mock_engine"))

    def gate(name: str, *flags: str) -> rig.Stack:
        return stack.enter_context(stacks.gate_of(name, environment, port, every, folder, *flags))

    series = {str(count): Series([gate(f"{count} workers", "--workers", str(count))]) for count in args.workers}
    series[APART] = Series([gate("apart a"), gate("apart b")])
    for _ in range(args.rounds):
        for one in series.values():
            _pin(one.gates, mock.pid, [cores.proxy], [cores.load])
            one.pinned.append(_run(one.gates, mock.pid, [cores.load], args.seconds))
            _pin(one.gates, mock.pid, every, every)
            one.free.append(_run(one.gates, mock.pid, every, args.seconds))
    return series


def _run(gates: Sequence[rig.Stack], mock: int, cores: Sequence[int], seconds: float) -> Run:
    share = CONNECTIONS // len(gates)

    def offered(seconds: float) -> list[rig.Load]:
        asked = rig.Offer(share, seconds, BODY_BYTES)
        with ThreadPoolExecutor(len(gates)) as threads:
            return list(threads.map(lambda gate: rig.offer(gate.port, cores, asked), gates))

    offered(SETTLE_S)
    gate_s, mock_s, calls, own = _cpu_s(gates), rig.cpu_seconds(mock), _ledger_calls(gates), os.times()
    began = time.monotonic()
    seen = offered(seconds)
    wall_s = time.monotonic() - began
    after = os.times()
    load_s = after.children_user + after.children_system - own.children_user - own.children_system
    answers = sum(one.answers for one in seen)
    if not answers or any(one.bad or one.lost for one in seen):
        raise rig.RigError(f"{gates[0].name}: answers were bad or lost: {seen}")
    return Run(
        answers,
        _cpu_s(gates) - gate_s,
        rig.cpu_seconds(mock) - mock_s + load_s,
        wall_s,
        _ledger_calls(gates) - calls,
        max(one.p99_us for one in seen),
    )


def _cpu_s(gates: Sequence[rig.Stack]) -> float:
    return sum(rig.cpu_seconds(gate.pid) for gate in gates if gate.pid is not None)


def _pin(gates: Sequence[rig.Stack], mock: int, cores: Sequence[int], mock_cores: Sequence[int]) -> None:
    for pid, where in [*[(gate.pid, cores) for gate in gates], (mock, mock_cores)]:
        for member in rig.tree(pid or 0):
            for task in Path(f"/proc/{member}/task").iterdir():
                try:
                    os.sched_setaffinity(int(task.name), set(where))
                except ProcessLookupError:
                    continue


def _ledger_calls(gates: Sequence[rig.Stack]) -> float:
    lines: list[str] = []
    for gate in gates:
        with urllib.request.urlopen(f"{gate.admin}/metrics", timeout=10) as answer:
            lines += answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("kvbudget_ledger_calls_total "))


def _figures(one: Series, first: Series, cores: int) -> dict[str, float]:
    """Medians. Ratios: each round beside the same round of one process, then the median: what else runs hits both."""
    per_cpu_s = [run.answers / run.gate_s for run in one.pinned]
    per_s = [run.answers / run.wall_s for run in one.free]
    first_per_cpu_s = [run.answers / run.gate_s for run in first.pinned]
    first_per_s = [run.answers / run.wall_s for run in first.free]
    return {
        "requests_per_cpu_s": statistics.median(per_cpu_s),
        "per_cpu_s_ratio": _ratio(per_cpu_s, first_per_cpu_s),
        "requests_per_s": statistics.median(per_s),
        "per_s_ratio": _ratio(per_s, first_per_s),
        "p99_us": statistics.median(run.p99_us for run in one.free),
        "mock_and_load_share": statistics.median(run.mock_s / (run.gate_s + run.mock_s) for run in one.free),
        "rest_share": statistics.median(1 - (run.gate_s + run.mock_s) / (run.wall_s * cores) for run in one.free),
        "ledger_calls_per_request": statistics.median(run.calls / run.answers for run in one.free),
        "ledger_calls_per_s": statistics.median(run.calls / run.wall_s for run in one.free),
    }


def _ratio(figures: list[float], base: list[float]) -> float:
    return statistics.median(figure / other for figure, other in zip(figures, base, strict=True))


def _tell(found: dict[str, dict[str, float]], *, compiled: bool) -> None:
    print(f"the gate, {'compiled' if compiled else 'plain Python'}; medians; ratios beside 1 worker, round by round")
    print("| workers | req/CPU s | ratio | req/s | ratio | p99 ms | mock+load | others | calls/request | calls/s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, one in found.items():
        print(
            f"| {name} | {one['requests_per_cpu_s']:,.0f} | {one['per_cpu_s_ratio']:.2f} "
            f"| {one['requests_per_s']:,.0f} | {one['per_s_ratio']:.2f} | {one['p99_us'] / 1000:.1f} "
            f"| {one['mock_and_load_share']:.0%} | {one['rest_share']:.0%} "
            f"| {one['ledger_calls_per_request']:.4f} | {one['ledger_calls_per_s']:.0f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
