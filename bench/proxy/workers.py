"""Do two workers give twice of one? The gate alone, with `--workers 2` and with `--workers 4`, before one mock engine.

Two questions, in interleaved rounds. *Per CPU second*: gate and all its processes on one core, mock engine and load on
another; what sharing a pool costs is what is lost here, and nothing lost means that N workers are N cores' worth.
*By the clock*: everything on all cores. Mock engine and load need a part of these, which is told: with C cores, more
than C / (1 + that part) of one worker's speed cannot be seen on this machine.

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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import rig
import stacks

CONNECTIONS = 64
BODY_BYTES = 2_000
SETTLE_S = 0.3


@dataclass
class Series:
    """Of one number of workers: a figure a round."""

    per_cpu_s: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    others_share: list[float] = field(default_factory=list)  # of the CPU: mock engine and load
    idle_share: list[float] = field(default_factory=list)  # of the gate's cores; negative: others ran there
    calls: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--plain", action="store_true", help="the uncompiled gate, even where there is a compiled one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    compiled = (stacks.COMPILED / ".ready").exists() and not args.plain
    series = {count: Series() for count in args.workers}
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as name, ExitStack() as stack:
        try:
            rig.build()
            _measure(series, args, compiled, Path(name), stack)
        except rig.RigError as error:
            print(error, file=sys.stderr)
            return 2
    found = {str(count): _medians(one) for count, one in series.items()}
    ratios = _ratios(series)
    if args.json:
        print(json.dumps({"compiled": compiled, "rounds": args.rounds, "workers": found, "ratios": ratios}))
    else:
        _tell(found, ratios, compiled=compiled)
    return 0


def _measure(
    series: dict[int, Series], args: argparse.Namespace, compiled: bool, folder: Path, stack: ExitStack
) -> None:
    cores, every = rig.choose_cores(), sorted(os.sched_getaffinity(0))
    mock = stack.enter_context(rig.running(
        [str(rig.BUILD_FOLDER / "mock_engine"), str(rig.NUM_GPU_BLOCKS), str(rig.MAX_MODEL_LEN)],
        every, log=folder / "mock.log", pipe=True,
    ))  # fmt: skip
    engine_port = int(rig.first_line(mock.stdout, mock, "mock_engine"))
    gates = {count: stack.enter_context(_gate(count, compiled, engine_port, every, folder)) for count in args.workers}
    for _ in range(args.rounds):
        for count, gate in gates.items():
            one = series[count]
            assert gate.pid is not None
            _pin(gate.pid, [cores.proxy])
            _pin(mock.pid, [cores.load])
            answers, gate_s, _, _, calls, _ = _offer(gate, mock.pid, [cores.load], args.seconds)
            one.per_cpu_s.append(answers / gate_s)
            one.calls.append(calls / answers)
            _pin(gate.pid, every)
            _pin(mock.pid, every)
            answers, gate_s, mock_s, wall_s, _, p99_us = _offer(gate, mock.pid, every, args.seconds)
            one.per_s.append(answers / wall_s)
            one.p99_us.append(p99_us)
            one.others_share.append(mock_s / (gate_s + mock_s))
            one.idle_share.append(1 - (gate_s + mock_s) / (wall_s * len(every)))


def _offer(
    gate: rig.Stack, mock: int, cores: Sequence[int], seconds: float
) -> tuple[int, float, float, float, float, float]:
    """Answers; CPU s of the gate, of mock and load; seconds; calls of the ledger; p99 in us."""
    assert gate.pid is not None
    rig.offer(gate.port, cores, rig.Offer(CONNECTIONS, SETTLE_S, BODY_BYTES))
    gate_s, mock_s, calls = rig.cpu_seconds(gate.pid), rig.cpu_seconds(mock), _ledger_calls(gate.admin)
    own = os.times()
    began = time.monotonic()
    seen = rig.offer(gate.port, cores, rig.Offer(CONNECTIONS, seconds, BODY_BYTES))
    wall_s = time.monotonic() - began
    if seen.bad or seen.lost or not seen.answers:
        raise rig.RigError(f"{gate.name}: {seen.bad} of {seen.answers} answers were bad, {seen.lost} lost")
    after = os.times()
    load_s = after.children_user + after.children_system - own.children_user - own.children_system
    gate_s = rig.cpu_seconds(gate.pid) - gate_s
    mock_s = rig.cpu_seconds(mock) - mock_s + load_s
    return seen.answers, gate_s, mock_s, wall_s, _ledger_calls(gate.admin) - calls, seen.p99_us


@contextmanager
def _gate(count: int, compiled: bool, engine_port: int, cores: Sequence[int], folder: Path) -> Iterator[rig.Stack]:
    environment = {"PYTHONPATH": str(stacks.COMPILED)} if compiled else {}
    with stacks.gate_of(f"{count} workers", environment, engine_port, cores, folder, "--workers", str(count)) as gate:
        yield gate


def _pin(pid: int, cores: Sequence[int]) -> None:
    for member in rig.tree(pid):
        for task in Path(f"/proc/{member}/task").iterdir():
            try:
                os.sched_setaffinity(int(task.name), set(cores))
            except ProcessLookupError:
                continue


def _ledger_calls(admin: str) -> float:
    with urllib.request.urlopen(f"{admin}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("kvbudget_ledger_calls_total "))


def _medians(one: Series) -> dict[str, float]:
    return {
        "requests_per_cpu_s": statistics.median(one.per_cpu_s),
        "requests_per_s": statistics.median(one.per_s),
        "mock_and_load_share": statistics.median(one.others_share),
        "rest_of_machine_share": statistics.median(one.idle_share),
        "ledger_calls_per_request": statistics.median(one.calls),
        "p99_us": statistics.median(one.p99_us),
    }


def _ratios(series: dict[int, Series]) -> dict[str, dict[str, float]]:
    """Each round beside the same round of one process, then the median: what else runs hits both."""
    first = series.get(1) or next(iter(series.values()))
    return {
        str(count): {
            "per_cpu_s": statistics.median(_beside(one.per_cpu_s, first.per_cpu_s)),
            "per_s": statistics.median(_beside(one.per_s, first.per_s)),
        }
        for count, one in series.items()
    }


def _beside(figures: list[float], base: list[float]) -> list[float]:
    return [figure / other for figure, other in zip(figures, base, strict=True)]


def _tell(found: dict[str, dict[str, float]], ratios: dict[str, dict[str, float]], *, compiled: bool) -> None:
    print(f"the gate, {'compiled' if compiled else 'plain Python'}; medians; ratios beside 1 worker, round by round")
    print(
        "| workers | req/CPU s | ratio | req/s | ratio | p99 ms | mock+load of CPU | rest of machine | calls/request |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for count, one in found.items():
        print(
            f"| {count} | {one['requests_per_cpu_s']:,.0f} | {ratios[count]['per_cpu_s']:.2f} "
            f"| {one['requests_per_s']:,.0f} | {ratios[count]['per_s']:.2f} | {one['p99_us'] / 1000:.1f} "
            f"| {one['mock_and_load_share']:.0%} | {one['rest_of_machine_share']:.0%} "
            f"| {one['ledger_calls_per_request']:.4f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
