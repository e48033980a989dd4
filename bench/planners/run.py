"""Compares planners: KV bytes of one request for 18 architectures, start-up time, and how many plans a second are made.

    python bench/planners/run.py             # the planners that install in seconds; Markdown on stdout
    python bench/planners/run.py --all       # also aiconfigurator (about 850 MB)
    python bench/planners/run.py --ours      # kvbudget alone: nothing is installed

Everything is offline once the planners are installed. A planner is right within 2 %; recurrent states may be counted as
bfloat16 or float32, and an indexer's keys with or without their scales. This is the logical size, not what an engine
allocates (that is compared with vLLM itself by `make test-engine`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from peers import CALL_S, CONFIGS, NOT_ASKED, PEERS, Peer, install, python_of

from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB, MIB, Bytes

KVBUDGET = Path(sys.executable).parent / "kvbudget"
ASK = Path(__file__).parent / "ask.py"
OURS = "**kvbudget**"
TOLERANCE = 0.02
PLANS = 10_000


class Case(NamedTuple):
    """One model: its config, the length of the request, and the right MiB (more than one: any of them)."""

    name: str
    right: tuple[float, ...]
    tokens: int = 8192

    @property
    def config(self) -> Path:
        return CONFIGS / f"{self.name}.json"


# Sum over layers: sliding ones capped at their window, latent ones 576 x 2 bytes, recurrent ones constant; bfloat16.
CASES = (
    Case("llama31-8b", (1024.0,)),
    Case("llama31-70b", (2560.0,)),
    Case("qwen25-7b", (448.0,)),
    Case("qwen3-30b-a3b", (768.0,)),
    Case("mistral-7b-v01", (512.0,)),
    Case("gemma2-9b", (2016.0,)),
    Case("gemma3-27b", (1056.0,)),
    Case("gpt-oss-20b", (195.0,)),
    Case("deepseek-v3", (549.0,)),
    Case("phi3-mini-4k", (767.6,), 4096),
    Case("qwen3-next-80b", (229.7, 265.7)),
    Case("jamba-v01", (136.3, 143.3)),
    Case("nemotron-h-56b", (758.3, 1190.3)),
    Case("nemotron3-nano", (71.8, 94.8)),
    Case("qwen35-27b", (586.8, 658.8)),
    Case("mimo-v2-flash", (204.4,)),
    Case("gemma4-26b", (360.0,)),
    Case("deepseek-v32", (611.9, 610.0)),
)


def main() -> int:
    """Print the tables; 1 when kvbudget is wrong on a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also the large ones")
    parser.add_argument("--ours", action="store_true", help="kvbudget alone")
    parser.add_argument("--rounds", type=int, default=9, help="start-ups of each command (default 9)")
    args = parser.parse_args()
    peers, absent = installed(args)
    answers = {OURS: [ours(case) for case in CASES]} | {peer.name: asked(peer) for peer in peers}
    print(accuracy_table(answers))
    print(remarks(peers, absent))
    print(start_table(start_times(peers, args.rounds)))
    print(loop_table())
    return 0 if all(verdict(case, a) == "ok" for case, a in zip(CASES, answers[OURS], strict=True)) else 1


def installed(args: argparse.Namespace) -> tuple[list[Peer], dict[str, str]]:
    """The planners to ask, and why others are not there."""
    peers: list[Peer] = []
    absent: dict[str, str] = {}
    for peer in () if args.ours else PEERS:
        if peer.large and not args.all:
            absent[peer.name] = "large: only with --all"
        elif reason := install(peer):
            absent[peer.name] = reason
        else:
            peers.append(peer)
    return peers, absent


def ours(case: Case) -> dict[str, object]:
    """Asked as people do: through the command, offline, from the config alone."""
    command = [KVBUDGET, "plan", case.config, f"--max-model-len={case.tokens}", "--kv-cache-memory-bytes=1000GiB"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=CALL_S, check=False)
    if not done.stdout:
        return {"refuses": done.stderr}
    return {"bytes": json.loads(done.stdout)["kv"]["bytes_per_request"]}


def asked(peer: Peer) -> list[dict[str, object]]:
    """Its answer to every case; what is missing when it ends early, or is too slow, is an error."""
    questions = json.dumps([{"config": str(case.config), "tokens": case.tokens} for case in CASES])
    command = [python_of(peer), ASK, peer.name]
    try:
        done = subprocess.run(
            command, input=questions, capture_output=True, text=True, timeout=CALL_S, check=False, env=offline()
        )
        lines = done.stdout.splitlines()
    except subprocess.TimeoutExpired as late:
        lines = (late.stdout or b"").decode().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [*found, *[{"error": "no answer"}] * (len(CASES) - len(found))]


def offline() -> dict[str, str]:
    """The environment of a planner that must not try the network."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return own | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_COLOR": "1"}


def verdict(case: Case, answer: dict[str, object]) -> str:
    """ok, by how much it is off, refuses, or error."""
    given = answer.get("bytes")
    if not isinstance(given, int | float):
        return "refuses" if "refuses" in answer else "error"
    ratios = [given / MIB / right for right in case.right]
    nearest = min(ratios, key=lambda ratio: abs(ratio - 1))
    if abs(nearest - 1) <= TOLERANCE:
        return "ok"
    return f"x{nearest:.1f}" if nearest >= 10 else f"{nearest - 1:+.0%}"


def accuracy_table(answers: dict[str, list[dict[str, object]]]) -> str:
    """Models down, planners across, totals last."""
    verdicts = {
        name: [verdict(case, answer) for case, answer in zip(CASES, given, strict=True)]
        for name, given in answers.items()
    }
    rows = [["model", "right MiB", *verdicts]]
    for number, case in enumerate(CASES):
        right = " or ".join(f"{mib:g}" for mib in case.right)
        rows.append([case.name, right, *(column[number] for column in verdicts.values())])
    rows.append(["**right / over / under / none**", "", *(totals(column) for column in verdicts.values())])
    return "## KV cache of one request (8,192 tokens; Phi-3-mini 4,096), bfloat16\n\n" + table(rows)


def totals(column: list[str]) -> str:
    """right/over/under/none."""
    over = sum(word.startswith(("+", "x")) for word in column)
    under = sum(word.startswith("-") for word in column)
    right, none = column.count("ok"), column.count("refuses") + column.count("error")
    return f"**{right}/{over}/{under}/{none}**"


def remarks(peers: list[Peer], absent: dict[str, str]) -> str:
    """How each was asked, and who is missing."""
    how = [f"- {peer.name} {peer.version}: {peer.asked}." for peer in peers]
    missing = [f"- {name}: not asked, {why}." for name, why in (absent | NOT_ASKED).items()]
    return "\n".join(["", "- kvbudget: its command, on a local config.json.", *how, *missing, ""])


def start_times(peers: list[Peer], rounds: int) -> dict[str, list[float]]:
    """Seconds of each command, round after round: all of them share the machine's mood."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text((CONFIGS / "llama31-8b.json").read_text())
        commands: dict[str, list[str | Path]] = {
            "python -c pass": [sys.executable, "-c", "pass"],
            f"{OURS} plan --json": [KVBUDGET, "plan", folder, "--gpu=h100", "--json"],
        }
        for peer in peers:
            words = [word.format(config=folder / "config.json", folder=folder) for word in peer.start]
            shown = " ".join(peer.start).replace("{config}", "config.json").replace("{folder}", ".")
            commands[shown] = [python_of(peer).parent / words[0], *words[1:]]
        times: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, capture_output=True, timeout=CALL_S, check=False, env=offline())
                if number:  # the first one warms the page cache
                    times[name].append(time.perf_counter() - start)
    return times


def start_table(times: dict[str, list[float]]) -> str:
    """Median milliseconds and how many bare interpreters that is."""
    bare = statistics.median(times["python -c pass"])
    rows = [["command", "median ms", "min ms", "x bare interpreter"]]
    for name, seconds in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        median = statistics.median(seconds)
        rows.append([name, f"{median * 1e3:.0f}", f"{min(seconds) * 1e3:.0f}", f"{median / bare:.1f}"])
    return "## Start-up (a whole plan where the command is no --help)\n\n" + table(rows)


def loop_table() -> str:
    """Seconds for many plans in one process, over all the models in turn."""
    configs = [json.loads(case.config.read_text()) for case in CASES]
    models = [model_from_config(config, "m") for config in configs]
    flags = EngineFlags(max_model_len=4096)
    start = time.perf_counter()
    for number in range(PLANS):
        request = PlanRequest(models[number % len(models)], "vllm@0.32", flags, kv_cache_memory=Bytes(200 * GIB))
        make_plan(request)
    planned = time.perf_counter() - start
    start = time.perf_counter()
    for number in range(PLANS // 10):
        model_from_config(configs[number % len(configs)], "m")
    read = (time.perf_counter() - start) * 10
    rows = [
        ["through the Python API, the 18 models in turn", f"seconds for {PLANS:,}"],
        ["make_plan", f"{planned:.2f}"],
        ["model_from_config (a tenth of them measured)", f"{read:.2f}"],
    ]
    return "## Many plans\n\n" + table(rows)


def table(rows: list[list[str]]) -> str:
    """Markdown; the first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
