"""Loads for an engine's scheduler: put to our engine or to vLLM's own, and where the answers differ.

A load is plain JSON, so that it can be kept, and given to a real scheduler in another interpreter:
settings (vLLM's names; `groups`: [kind, window, block size] with kind full, swa, chunked, mamba, or mamba2: a state
that can be put aside) and a trace (`prefix_ids`: each stands for `prefix_id_tokens` prompt tokens, what follows is the
request's own). Which loads there are: scheduler_loads.py.
"""

import json
import lzma
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvbudget.errors import BadValueError
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.simulate.cost import StepCost
from kvbudget.simulate.paged_engine import PagedEngine, SchedulingPolicy
from kvbudget.simulate.prefix_keys import PrefixKeys
from kvbudget.simulate.steps import Replay, StepRecord, TimedRequest
from kvbudget.units import Blocks, Bytes, Tokens

Load = dict[str, Any]
Answer = dict[str, Any]

RECORD = Path(__file__).parents[1] / "simulate" / "data" / "vllm_0_32_scheduler_loads.jsonl.xz"
DRIVER = Path(__file__).parents[1] / "engine" / "scheduler_driver.py"
STATES = {"mamba": 2, "mamba2": 3}  # blocks of a request where there is a prefix cache
COST = ("base", "prefill", "decode", "ctx")


def layout_of(settings: dict[str, Any]) -> Layout:
    """The groups as vLLM 0.32 sizes them: windows and chunks with what is in flight, states with one block to spare."""
    in_flight = settings["max_num_batched_tokens"] * (2 if settings["async_scheduling"] else 1)
    caching = settings["prefix_caching"]
    return Layout(tuple(_group(kind, window, size, in_flight, caching) for kind, window, size in settings["groups"]))


def _group(kind: str, window: int, block_size: int, in_flight: int, caching: bool) -> Group:
    size, page = Tokens(block_size), Bytes(1)
    if kind == "swa":
        most = Tokens(window - 1 + in_flight)
        return Group(LayerKind.SLIDING, 1, size, page, Bytes(0), most, Blocks(1), window=Tokens(window))
    if kind == "chunked":
        return Group(LayerKind.CHUNKED, 1, size, page, Bytes(0), Tokens(window + in_flight), window=Tokens(window))
    if kind in STATES:
        return Group(LayerKind.MAMBA, 1, size, page, fixed_blocks=Blocks(STATES[kind] if caching else 1))
    return Group(LayerKind.FULL, 1, size, page)


def engine_of(settings: dict[str, Any]) -> PagedEngine:
    """Our engine with these settings."""
    return PagedEngine(
        layout_of(settings),
        settings["num_blocks"],
        settings["max_num_seqs"],
        settings["max_num_batched_tokens"],
        settings["max_model_len"],
        prefix_caching=settings["prefix_caching"],
        prefix_retention_interval=settings["prefix_retention_interval"],
        scheduling_policy=SchedulingPolicy(settings["scheduling_policy"]),
        watermark=settings["watermark"],
        reserve_full_isl=settings["reserve_full_isl"],
        async_scheduling=settings["async_scheduling"],
        long_prefill_token_threshold=settings["long_prefill_token_threshold"],
    )


def replay_of(load: Load) -> Replay:
    """Our engine, and the load on its way into it."""
    settings = load["settings"]
    engine = engine_of(settings)
    keys = PrefixKeys(settings["prefix_id_tokens"], engine.key_tokens)
    trace = [
        TimedRequest(
            request["id"],
            request["arrival_ns"],
            request["prompt_tokens"],
            request["output_tokens"],
            request["max_tokens"],
            request.get("priority", 0),
            request.get("abort_ns"),
            keys.keys(request.get("prefix_ids", ()), request["prompt_tokens"]),
        )
        for request in load["trace"]
    ]
    return Replay(trace, engine, StepCost(*(settings["step_cost"][name] for name in COST)))


def row_of(step: StepRecord) -> list[Any]:
    """A step as JSON has it, and as `steps` of a recorded load."""
    return [
        step.now_ns,
        step.start_ns,
        step.end_ns,
        [[request_id, *span] for request_id, span in step.scheduled.items()],
        list(step.running),
        step.waiting,
        step.free_blocks,
        [list(held) for held in step.held.values()],
        list(step.preempted),
        list(step.finished),
    ]


ROW = ("now", "start", "end", "scheduled", "running", "waiting", "free blocks", "held", "preempted", "finished")


def served_of(replay: Replay) -> dict[str, list[Any]]:
    """Each request's first token, end, tokens, preemptions, cached tokens and reason, as JSON has it."""
    return {
        request_id: [
            served.first_token_ns,
            served.finish_ns,
            served.output_tokens,
            served.preemptions,
            served.cached_tokens,
            served.finish_reason,
        ]
        for request_id, served in replay.served.items()
    }


def first_difference(load: Load, rows: list[list[Any]], served: dict[str, list[Any]] | None) -> str:
    """Where our engine first does something else than was recorded; "" if nowhere. `served` None: the record ends
    before the load does, because it would never end, or waits for ever."""
    replay = replay_of(load)
    steps = iter(replay)
    for number, row in enumerate(rows):
        step = next(steps, None)
        if step is None:
            return f"step {number}: recorded, but not ours"
        ours = row_of(step)
        if ours != row:
            parts = [
                f"{name} {mine} instead of {theirs}"
                for name, mine, theirs in zip(ROW, ours, row, strict=True)
                if mine != theirs
            ]
            return f"step {number}: " + "; ".join(parts)
    if served is None:
        return "" if len(rows) == load["most_steps"] or _is_stuck(steps) else f"step {len(rows)}: ours goes on"
    if next(steps, None) is not None:
        return f"step {len(rows)}: ours, but not recorded"
    ours_served = served_of(replay)
    return "; ".join(
        f"{one}: {ours_served[one]} instead of {theirs}" for one, theirs in served.items() if ours_served[one] != theirs
    )


def _is_stuck(steps: Iterator[StepRecord]) -> bool:
    try:
        next(steps, None)
    except BadValueError:
        return True
    return False


def ask_vllm(venv: Path, loads: Sequence[Load], within_s: float = 600) -> list[Answer]:
    """What vLLM 0.32's own scheduler does with each load: one start of it, in its own virtual environment."""
    done = subprocess.run(
        [venv / "bin" / "python", DRIVER],
        input="".join(json.dumps(load) + "\n" for load in loads),
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def read_record() -> list[tuple[Load, Answer]]:
    """Loads, and what vLLM 0.32's scheduler did with each: its rows, and what was served."""
    return [tuple(json.loads(line)) for line in lzma.decompress(RECORD.read_bytes()).splitlines()]


def write_record(recorded: Sequence[tuple[Load, Answer]]) -> None:
    """Keep these instead."""
    lines = "".join(json.dumps(pair, separators=(",", ":")) + "\n" for pair in recorded)
    RECORD.write_bytes(lzma.compress(lines.encode(), preset=9))
