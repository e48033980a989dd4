"""How many requests a second simulators take, kvbudget's beside the peers that install, on one core.

    python bench/simulation/run.py                                   # made loads of the traces' sizes
    python bench/simulation/run.py --azure conv.csv --mooncake conversation.jsonl
    python bench/simulation/run.py --ours                            # kvbudget alone: nothing is installed

The traces are those of Azure/AzurePublicDataset (2023, conversation) and of Mooncake (FAST'25, conversation); where
no path is given, loads of the same number, rate and lengths are made. Every run has everything on: gate, ledger,
metrics and, on the Mooncake load, the prefix cache. Rounds are interleaved, figures are medians per CPU second. Peers
do less or other things (see "how"), so read the order of magnitude. Exit 1 if one of our runs does not end all its
requests.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvbudget.edge.traces.read import TraceOptions, load_trace
from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate import run as engine
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.policies import contender
from kvbudget.simulate.settings import EngineSizes, Settings, Slo
from kvbudget.units import Tokens

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "simulation"
INSTALL_S = 300
PEER_S = 180
POLICIES = ("none", "worst-case", "trajectory", "learned", "oracle")
AZURE_REQUESTS, MOONCAKE_REQUESTS = 19_366, 12_031
GOALS = {"azure": 50_000, "mooncake": 30_000}


class Peer(NamedTuple):
    """A simulator, the script that asks it in its own interpreter, and how it works."""

    name: str
    package: str
    script: str
    how: str
    loads: tuple[str, ...] = ("azure", "mooncake")


PEERS = (
    Peer("Vidur", "vidur", "ask_vidur.py", "iterations; needs execution profiles from a model hub", ("azure",)),
    Peer(
        "vllm-sr-sim", "vllm-sr-sim", "ask_sr_sim.py", "requests as service times in slots; no iterations, no prefixes"
    ),
)


def main() -> int:
    """Print a Markdown table; 1 when a run of ours lost requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--azure", type=Path, help="CSV of the Azure public LLM traces")
    parser.add_argument("--mooncake", type=Path, help="JSON lines of a Mooncake trace")
    parser.add_argument("--ours", action="store_true", help="kvbudget alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, help="only the first N")
    parser.add_argument("--policies", default=",".join(POLICIES))
    args = parser.parse_args()
    policies = args.policies.split(",")
    loads = {"azure": azure_load(args.azure), "mooncake": mooncake_load(args.mooncake)}
    loads = {name: load[: args.requests] for name, load in loads.items()}
    speeds: dict[tuple[str, str], list[float]] = {}
    whole = True
    for _ in range(args.rounds):
        for name, load in loads.items():
            for policy in policies:
                speed, ended = measured(load, policy, mooncake=name == "mooncake")
                speeds.setdefault((policy, name), []).append(speed)
                whole &= ended == len(load)
    print(table(loads, policies, speeds, {} if args.ours else asked(loads)))
    return 0 if whole else 1


def measured(load: list[TraceRequest], policy: str, *, mooncake: bool) -> tuple[float, int]:
    """(requests per CPU second, requests that ended)"""
    sizes = EngineSizes(uniform_layout(16), 27_001, prefix_caching=True)
    settings = Settings(sizes, slo=Slo(ttft_ns=30 * 10**9 if mooncake else 5 * 10**9))
    begun = time.process_time()
    result = engine.simulate(load, settings, contender(policy), random.Random(0))
    document = result.document()
    spent = time.process_time() - begun
    return len(load) / spent, document["finished"] + document["refused"] + document["timed_out"]


def table(
    loads: dict[str, list[TraceRequest]],
    policies: list[str],
    speeds: dict[tuple[str, str], list[float]],
    peers: dict[str, dict[str, str]],
) -> str:
    """Requests a second by simulator and load."""
    heads = [f"{name}, {len(load):,} requests" for name, load in loads.items()]
    lines = [
        f"Simulated requests per CPU second, {'compiled' if compiled() else 'plain Python'} {sys.version.split()[0]}; "
        f"the goals are {' and '.join(f'{GOALS[name]:,} ({name})' for name in loads)}.",
        "",
        f"| simulator | {' | '.join(heads)} | how |",
        f"|---|{'---:|' * len(heads)}---|",
    ]
    for policy in policies:
        cells = " | ".join(f"{statistics.median(speeds[policy, name]):,.0f}" for name in loads)
        lines.append(
            f"| **kvbudget** `{policy}` | {cells} | every step of vLLM's scheduler, real blocks, the real gate |"
        )
    for peer in PEERS:
        if peer.name in peers:
            cells = " | ".join(peers[peer.name].get(name, "-") for name in loads)
            lines.append(f"| {peer.name} | {cells} | {peer.how} |")
    return "\n".join(lines)


def compiled() -> bool:
    """Whether the hot path was compiled by mypyc."""
    return not str(engine.__file__).endswith(".py")


def asked(loads: dict[str, list[TraceRequest]]) -> dict[str, dict[str, str]]:
    """What each peer took, or why it did not."""
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, load in loads.items():
            rows = "".join(f"{one.arrival_ns / 1e9},{one.prompt_tokens},{one.output_tokens}\n" for one in load)
            (Path(folder) / f"{name}.csv").write_text(rows)
        for peer in PEERS:
            python, reason = installed(peer)
            found[peer.name] = {
                name: reason or ask(peer, python, Path(folder) / f"{name}.csv", len(loads[name])) for name in peer.loads
            }
    return found


def installed(peer: Peer) -> tuple[Path, str]:
    """(its interpreter, why it is not there or nothing)"""
    home = CACHE / peer.package
    python = home / "bin" / "python"
    ready = home / "ready"
    if ready.exists():
        return python, ""
    try:
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, capture_output=True, timeout=INSTALL_S)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--pre", peer.package],
            check=True, capture_output=True, timeout=INSTALL_S,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        return python, f"not installed ({type(error).__name__})"
    ready.touch()
    return python, ""


def ask(peer: Peer, python: Path, load: Path, requests: int) -> str:
    """Its speed, bounded in time and offline; or what went wrong, in a few words."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    try:
        done = subprocess.run(
            [str(python), str(HERE / peer.script), str(load)],
            capture_output=True, text=True, timeout=PEER_S, cwd=load.parent, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done in {PEER_S} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"does not run ({last[:60].replace('|', '/')})"
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return f"{told['requests'] / told['seconds']:,.0f}" + ("" if told["requests"] == requests else f" of {requests:,}")


# Loads


def azure_load(path: Path | None) -> list[TraceRequest]:
    """The trace, or 5.5 chats a second of its lengths; clients declare 1,024 tokens."""
    options = TraceOptions(max_tokens=1024)
    if path is not None:
        return load_trace(path, "azure", options)
    return list(_made(random.Random(1), AZURE_REQUESTS, 5.53, 1020, 0.55, 129, 1.0, 1024))


def mooncake_load(path: Path | None) -> list[TraceRequest]:
    """The trace at 0.3 of its rate (what one engine serves), its bins spread; or conversations of its lengths."""
    options = TraceOptions(max_tokens=2048, rate_scale=0.3, spread_s=3.0)
    if path is not None:
        return load_trace(path, "mooncake", options)
    chance = random.Random(2)
    talks: list[tuple[int, ...]] = [(0,)]
    made, fresh = [], 1
    for one in _made(chance, MOONCAKE_REQUESTS, 1.02, 6909, 1.0, 350, 0.6, 2048):
        blocks = -(-one.prompt_tokens // 512)
        talk = chance.choice(talks)[:blocks] if chance.random() < 0.4 else (0,)
        talk += tuple(range(fresh, fresh + blocks - len(talk)))
        fresh += blocks
        talks = [*talks[-300:], talk]
        made.append(
            TraceRequest(one.arrival_ns, one.prompt_tokens, one.max_new_tokens, one.output_tokens, "default", talk)
        )
    return made


def _made(
    chance: random.Random, requests: int, rate_per_s: float, prompt: float, prompt_spread: float, output: float,
    output_spread: float, most: int,
) -> Iterator[TraceRequest]:  # fmt: skip
    at_ns = 0
    for _ in range(requests):
        at_ns += round(chance.expovariate(rate_per_s) * 1e9)
        prompt_tokens = min(120_000, 1 + round(chance.lognormvariate(math.log(prompt), prompt_spread)))
        output_tokens = min(most, 1 + round(chance.lognormvariate(math.log(output), output_spread)))
        yield TraceRequest(at_ns, Tokens(prompt_tokens), Tokens(most), Tokens(output_tokens))


if __name__ == "__main__":
    sys.exit(main())
