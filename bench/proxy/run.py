"""Compares the gate with nothing, nginx and (on wish) an aiohttp twin before one mock engine: medians and ratios.

All traffic stays on 127.0.0.1 and every run is bounded in time. The proxy has a core for itself; mock engine and load
share another. Stacks take turns in interleaved rounds. Speed is given per CPU second of the proxy's process tree,
because wall-clock figures of a shared machine say little.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import peers
import rig
import stacks

Figures = dict[str, float | None]
Round = dict[str, Figures]

LABELS = {
    "requests_per_cpu_s_2kb": "req/CPU s, 2 kB",
    "requests_per_cpu_s_100kb": "req/CPU s, 100 kB",
    "chunks_per_cpu_s_paced": "chunks/CPU s, paced",
    "chunks_per_cpu_s_flooding": "chunks/CPU s, flooding",
    "latency_p50_us": "p50 µs, alone",
    "latency_p99_us": "p99 µs, alone",
    "added_p50_us": "added p50 µs",
    "added_p99_us": "added p99 µs",
    "rss_idle_mib": "RSS MiB, idle",
    "rss_streams_mib": "RSS MiB, 200 streams",
    "rss_many_mib": "RSS MiB, 5,000 streams",
    "kb_per_stream": "kB a stream, 200 to 5,000",
}
CONNECTIONS = 64
STREAMS = 200
MANY_STREAMS = 5_000
MANY_PACE_MS = 2_000
PACE_MS = 50
FLOODING_STREAMS = 50
FLOODING_CHUNKS = 2000
ENDLESS_CHUNKS = 100_000  # more than a paced run can last; the load hangs up at its end, as clients do
SMALL_BODY, LARGE_BODY = 2_000, 100_000


@dataclass(frozen=True, slots=True)
class Plan:
    """How long one stack is measured in one round, seconds a figure, and how many rounds there are."""

    rounds: int
    requests_s: float
    paced_s: float
    flooding_s: float
    latency_s: float
    many_s: float  # 5,000 streams, in the last round only


FULL = Plan(rounds=5, requests_s=2.5, paced_s=4.0, flooding_s=2.5, latency_s=1.5, many_s=12.0)
QUICK = Plan(rounds=2, requests_s=1.0, paced_s=2.0, flooding_s=1.0, latency_s=0.7, many_s=8.0)


def main() -> int:
    """0 with at least one round measured, 1 with none, 2 when the rig itself cannot run."""
    args = _arguments()
    if args.awake:
        os.environ["BENCH_AWAKE"] = "1"  # read by mock_engine.c and load.c
    plan = QUICK if args.quick else FULL
    others = [*peers.PEERS, "aiohttp"] if args.peers else []
    names = args.stacks or ["direct", "nginx", "gate", "compiled", "bare", *others]
    cores = rig.choose_cores()
    missing: dict[str, str] = {}
    rounds: list[Round] = []
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-proxy-") as name, ExitStack() as stack:
            rig.build()
            engine_port = stack.enter_context(rig.mock_engine(cores.load, Path(name)))
            running = _start(names, engine_port, cores, Path(name), stack, missing)
            for number in range(args.rounds or plan.rounds):
                turn = number % max(len(running), 1)  # nobody is always the first
                rounds.append(_one_round(running[turn:] + running[:turn], plan, cores, missing))
                if number + 1 == (args.rounds or plan.rounds) and not args.no_many:
                    _many_streams(running, plan, cores, rounds[-1])
                if number:  # what a stack keeps after its first load is not idle memory
                    for own in rounds[-1].values():
                        own["rss_idle_mib"] = None
                running = [one for one in running if one.name not in missing]
                _say(f"round {number + 1} of {args.rounds or plan.rounds} done")
    except KeyboardInterrupt:
        _say("interrupted: the whole rounds so far follow")
    except rig.RigError as error:
        _say(str(error))
        return 2
    report = _report(rounds, missing, cores, time.monotonic() - began)
    print(json.dumps(report, indent=1) if args.json else _table(report))
    return 0 if rounds and any(rounds) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about 40 s instead of 4 minutes: a rough check")
    parser.add_argument("--rounds", type=int, choices=range(1, 21), metavar="1-20", help="default 5, quick 2")
    parser.add_argument("--peers", action="store_true", help="also Envoy, routers, LiteLLM and an aiohttp twin")
    parser.add_argument("--stacks", nargs="+", choices=list(stacks.STACKS), help="only these")
    parser.add_argument(
        "--awake", action="store_true", help="mock engine and load never sleep: nobody pays to wake them"
    )
    parser.add_argument("--no-many", action="store_true", help="without the memory of 5,000 streams")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args()


def _start(
    names: list[str], engine_port: int, cores: rig.Cores, folder: Path, stack: ExitStack, missing: dict[str, str]
) -> list[rig.Stack]:
    """All stacks at once (an idle one costs next to nothing); one that cannot start is reported and left out."""
    running = []
    for name in names:
        try:
            running.append(stack.enter_context(stacks.STACKS[name](engine_port, cores.proxy, folder)))
        except rig.RigError as error:
            missing[name] = str(error)
            _say(f"left out: {name}: {error}")
    return running


def _one_round(order: list[rig.Stack], plan: Plan, cores: rig.Cores, missing: dict[str, str]) -> Round:
    """Every stack once; one that answers wrongly is left out from here on. Adds latencies over direct."""
    figures: Round = {}
    for stack in order:
        try:
            figures[stack.name] = _measure(stack, plan, cores)
        except rig.RigError as error:
            missing[stack.name] = str(error)
            _say(f"left out: {error}")
    base = figures.get("direct", {})
    for name, own in figures.items():
        for quantile in ("p50", "p99"):
            mine, theirs = own[f"latency_{quantile}_us"], base.get(f"latency_{quantile}_us")
            own[f"added_{quantile}_us"] = mine - theirs if mine and theirs and name != "direct" else None
    return figures


def _measure(stack: rig.Stack, plan: Plan, cores: rig.Cores) -> Figures:
    """All figures of one stack, once. CPU is counted from before the load starts until after it ended."""
    figures: Figures = {"rss_idle_mib": _rss_mib(stack)}
    alone = rig.offer(stack.port, cores.load, rig.Offer(1, plan.latency_s, SMALL_BODY))
    figures["latency_p50_us"], figures["latency_p99_us"] = alone.p50_us, alone.p99_us
    for name, body_bytes in (("2kb", SMALL_BODY), ("100kb", LARGE_BODY)):
        cpu_s, seen, _ = _under_load(stack, cores, rig.Offer(CONNECTIONS, plan.requests_s, body_bytes))
        figures[f"requests_per_cpu_s_{name}"] = _rate(seen.answers, cpu_s)
        figures[f"requests_per_s_{name}"] = seen.answers / seen.seconds
    paced = rig.Offer(STREAMS, plan.paced_s, SMALL_BODY, ENDLESS_CHUNKS, PACE_MS)
    cpu_s, seen, figures["rss_streams_mib"] = _under_load(stack, cores, paced)
    figures["chunks_per_cpu_s_paced"] = _rate(seen.events, cpu_s)
    figures["chunks_per_s_paced"] = seen.events / seen.seconds
    flooding = rig.Offer(FLOODING_STREAMS, plan.flooding_s, SMALL_BODY, FLOODING_CHUNKS)
    cpu_s, seen, _ = _under_load(stack, cores, flooding)
    figures["chunks_per_cpu_s_flooding"] = _rate(seen.events, cpu_s)
    figures["chunks_per_s_flooding"] = seen.events / seen.seconds
    return figures


def _many_streams(order: list[rig.Stack], plan: Plan, cores: rig.Cores, figures: Round) -> None:
    """Memory with 5,000 streams; what cannot carry them has no figure."""
    asked = rig.Offer(MANY_STREAMS, plan.many_s, SMALL_BODY, ENDLESS_CHUNKS, MANY_PACE_MS)
    for stack in order:
        own = figures.get(stack.name)
        if own is None or stack.pid is None:
            continue
        try:
            own["rss_many_mib"] = _under_load(stack, cores, asked)[2]
        except (rig.RigError, subprocess.TimeoutExpired) as error:
            _say(f"no figure for 5,000 streams: {error}")
            continue
        few, many = own["rss_streams_mib"], own["rss_many_mib"]
        if few and many:
            own["kb_per_stream"] = (many - few) * 1024 / (MANY_STREAMS - STREAMS)


def _under_load(stack: rig.Stack, cores: rig.Cores, asked: rig.Offer) -> tuple[float | None, rig.Load, float | None]:
    """CPU seconds of the proxy, what the load saw, the proxy's memory in mid-run (MiB); None without a proxy."""
    memory: list[float | None] = []
    sampler = threading.Timer(asked.seconds * 0.7, lambda: memory.append(_rss_mib(stack)))
    before_s = rig.cpu_seconds(stack.pid) if stack.pid else 0.0
    sampler.start()
    try:
        seen = rig.offer(stack.port, cores.load, asked)
    finally:
        sampler.cancel()
        sampler.join()
    if seen.bad or seen.lost:  # none at all in the time is no figure, and not wrong
        raise rig.RigError(
            f"{stack.name}: of {seen.answers} answers {seen.bad} were not 200 and {seen.lost} were cut:"
            " its figures would mean nothing"
        )
    return (rig.cpu_seconds(stack.pid) - before_s if stack.pid else None), seen, (memory[0] if memory else None)


def _rate(count: int, cpu_s: float | None) -> float | None:
    return count / cpu_s if cpu_s else None


def _rss_mib(stack: rig.Stack) -> float | None:
    return rig.rss_bytes(stack.pid) / 2**20 if stack.pid else None


def _report(rounds: list[Round], missing: dict[str, str], cores: rig.Cores, seconds: float) -> dict[str, object]:
    """Medians over rounds; a ratio to nginx is the median of each round's own ratio."""
    names = [name for name in stacks.ORDER if any(name in one for one in rounds)]
    return {
        "schema": "kvbudget.bench-proxy/1",
        "machine": {
            "cpu": _cpu_name(),
            "python": platform.python_version(),
            "proxy_core": cores.proxy,
            "load_core": cores.load,
        },
        "awake": "BENCH_AWAKE" in os.environ,
        "rounds": len(rounds),
        "seconds": round(seconds, 1),
        "medians": {name: _medians(rounds, name, lambda own, _: own) for name in names},
        "ratios_to_nginx": {name: _medians(rounds, name, _ratio) for name in names if "nginx" in names},
        "missing": missing,
        "each_round": rounds,
    }


def _medians(
    rounds: list[Round], name: str, figure: Callable[[float | None, float | None], float | None]
) -> dict[str, float | None]:
    """Median over rounds of `figure(own, nginx's)` for every key; None where no round has it."""
    with_it = [one for one in rounds if name in one]
    result: dict[str, float | None] = {}
    for key in with_it[-1][name]:
        values = [figure(one[name].get(key), one.get("nginx", {}).get(key)) for one in with_it]
        known = [value for value in values if value is not None]
        result[key] = statistics.median(known) if known else None
    return result


def _ratio(own: float | None, nginx: float | None) -> float | None:
    return own / nginx if own is not None and nginx else None


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _table(report: Mapping[str, object]) -> str:
    medians, ratios, missing = report["medians"], report["ratios_to_nginx"], report["missing"]
    assert isinstance(medians, dict)
    assert isinstance(ratios, dict)
    assert isinstance(missing, dict)
    lines = [
        f"{report['rounds']} interleaved rounds in {report['seconds']} s, {report['machine']}",
        "medians; in brackets the ratio to nginx",
        f"{'':24}" + "".join(f"{name:>20}" for name in medians),
    ]
    for key, label in LABELS.items():
        cells = []
        for name, own in medians.items():
            value, ratio = own.get(key), ratios.get(name, {}).get(key)
            text = "-" if value is None else f"{value:,.0f}" + (f" ({ratio:.2f})" if ratio is not None else "")
            cells.append(f"{text:>20}")
        lines.append(f"{label:24}" + "".join(cells))
    lines.extend(f"left out: {name}: {why}" for name, why in missing.items())
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
