"""How many reserve+release pairs a second several gates get out of one shared ledger, and how long one takes.

`make bench-ledger`. Rows are run in turn, round by round; figures are medians. After each run at full load comes one at
a given rate, for latencies. Server and processes share the machine's cores.

    python bench/ledger/run.py [--server PATH] [--processes 4] [--seconds 3] [--rounds 3] [--rows gate,...] [--json]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

WORKER = Path(__file__).with_name("worker.py")


class Row(NamedTuple):
    """What is measured. `options`: of the worker. `calls`: of the server for each pair, unless the worker tells."""

    name: str
    way: str
    options: tuple[str, ...] = ()
    calls: int = 0


ROWS = (
    Row("gate, slices, room for all", "gate"),
    Row("gate, slices, pool of a quarter of what would be held", "gate", ("--pool-blocks", str(32 * 64))),
    Row("plain redis-py: a script to reserve, one to release", "redis-py-plain", (), 2),
    Row("calls of the bank, our store", "store", (), 1),
    Row("calls of the bank, redis-py", "redis-py-store", (), 1),
)


class Measured(NamedTuple):
    """One run of one row over all processes."""

    pairs_per_s: float
    cpu_us: float  # of the processes, a pair
    server_cpu_us: float
    p50_us: float
    p99_us: float
    calls_per_pair: float


def measure(row: Row, url: str, server: subprocess.Popen[bytes], given: argparse.Namespace, rate: float) -> Measured:
    """Start all, let them go at once, and add up."""
    command = [sys.executable, str(WORKER), row.way, "--url", url, "--seconds", str(given.seconds), *row.options]
    command += ["--rate", str(rate / given.processes)] if rate else []
    workers = [
        subprocess.Popen([*command, "--number", str(at)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for at in range(given.processes)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            if worker.stdout.readline() != "ready\n":
                raise SystemExit(f"{row.name}: a process did not get ready")
        cpu = _cpu_s(server.pid)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        told: list[dict[str, Any]] = [json.loads(worker.stdout.readline()) for worker in workers if worker.stdout]
        cpu = _cpu_s(server.pid) - cpu
        for worker in workers:
            worker.wait(20)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
    pairs = sum(one["pairs"] for one in told)
    return Measured(
        sum(one["pairs"] / one["seconds"] for one in told),
        sum(one["cpu_s"] for one in told) / pairs * 1e6,
        cpu / pairs * 1e6,
        statistics.median(one["p50_us"] for one in told),
        max(one["p99_us"] for one in told),
        sum(one.get("calls", row.calls * one["pairs"]) for one in told) / pairs,
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _median(runs: list[Measured]) -> Measured:
    return Measured(*[statistics.median(figures) for figures in zip(*runs, strict=True)])


def main(arguments: list[str] | None = None) -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default=shutil.which("redis-server") or shutil.which("valkey-server") or "")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--rate", type=float, default=15_000.0, help="pairs a second for latencies (or half of the most)"
    )
    parser.add_argument("--rows", help="ways of the worker, with commas")
    parser.add_argument("--nice", type=int, help="of all processes; below 0 (root) where others use the machine too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if not given.server:
        parser.error("no redis-server; give --server PATH of one, or of a valkey-server")
    if given.nice is not None:
        os.setpriority(os.PRIO_PROCESS, 0, given.nice)
    rows = [row for row in ROWS if not given.rows or row.way in given.rows.split(",")]
    full: dict[str, list[Measured]] = {row.name: [] for row in rows}
    paced: dict[str, list[Measured]] = {row.name: [] for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        url = f"unix://{folder}/s"
        options = ["--port", "0", "--unixsocket", f"{folder}/s", "--save", "", "--dir", folder]
        server = subprocess.Popen([given.server, *options], stdout=subprocess.DEVNULL)
        try:
            while not Path(folder, "s").exists():
                time.sleep(0.05)
            for _ in range(given.rounds):
                for row in rows:
                    fast = measure(row, url, server, given, 0.0)
                    full[row.name].append(fast)
                    paced[row.name].append(measure(row, url, server, given, min(given.rate, fast.pairs_per_s / 2)))
        finally:
            server.terminate()
            server.wait(10)
    if given.json:
        told = {name: {"full": _median(full[name])._asdict(), "paced": _median(paced[name])._asdict()} for name in full}
        print(json.dumps(told))
        return 0
    print("| way | pairs/s | CPU us a pair: gates, server | calls a pair | p50, p99 us | paced |")
    print("|---|---|---|---|---|---|")
    for name, runs in full.items():
        fast, slow = _median(runs), _median(paced[name])
        print(
            f"| {name} | {fast.pairs_per_s:,.0f} | {fast.cpu_us:.1f}, {fast.server_cpu_us:.1f} |"
            f" {fast.calls_per_pair:.3f} | {fast.p50_us:,.0f}, {fast.p99_us:,.0f} |"
            f" {slow.p50_us:,.0f}, {slow.p99_us:,.0f} at {slow.pairs_per_s:,.0f}/s |"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
