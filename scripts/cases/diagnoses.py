# ruff: noqa: D103  (the reports are told apart by their ids; what each says is in their file)
"""What people reported of engines in trouble, brought into windows figure by figure, and what should be found of it.

A gauge that decides and is not told stays unknown, so that the finding has to come from what is told. What other
sources say of the same case (a block size, the pool, n) stands beside it here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from cases.replay import Case

from kvbudget.diagnose.finding import Diagnosis
from kvbudget.diagnose.symptoms import Symptoms
from kvbudget.diagnose.verdict import HEALTHY, diagnose
from kvbudget.engines.metrics.observation import observation_of
from kvbudget.engines.readings import EnginePool
from kvbudget.engines.window import Counts, Distribution, EngineWindow, Gauges, Limits, Observation
from kvbudget.units import Blocks, Tokens

# Pairs of scrapes beside the reports, with what is wrong in each by its making.
PAIRS = {
    "pool_full": "pool_full", "seqs_full": "seqs_full", "old_preempt_now_idle": "healthy", "deferred_lora": "deferred",
    "no_shared_prefix_short_prompts": "prefix_cache_no_sharing", "old_metric_name_only": "pool_full",
}  # fmt: skip


# What a report says was right, in its own words, and the codes that say it. The first that fits anything is the verdict.
ANSWERS = (
    (r"lower concurrency first", ("pool_full",)),
    (r"SCHEDULER STUCK|^as D0?9\b", ("stuck",)),
    (r"[Hh]it rate 0 is structural|prefix cache structurally 0|cache can never hit", ("prefix_cache_below_block",)),
    (r"queueing grows without bound", ("arrivals_exceed_service",)),
    (r"counter not wired", (HEALTHY, "counter_unwired")),
    (r"use kv_cache_size_tokens", (HEALTHY,)),
    (r"^pool full", ("pool_full",)),
    (r"page-alignment footprint", ("fixed_footprint",)),
    (r"long reasoning outputs fill it", ("runaway_output",)),
    (r"BUDGET full", ("budget_full",)),
    (r"evictable", (HEALTHY,)),
    (r"oversubscription", ("pool_full",)),
    (r"time-out inflated throughput", ("client_timeouts",)),
    (r"reporting change", (HEALTHY, "reporting_change")),
    (r"n multiplies KV", ("pool_full",)),
    (r"preemption storm", ("pool_full",)),
)


def answer(case: Case) -> tuple[str, ...]:
    """The verdict that the report calls right, then other codes that it names; empty where no known cause is in it."""
    text = case.get("right_answer", "")
    return tuple(dict.fromkeys(code for words, codes in ANSWERS if re.search(words, text) for code in codes))


class Replayed(NamedTuple):
    """`also`: codes that have to be found besides those of the report. `holds`: what else has to be so, in words."""

    found: Diagnosis
    also: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    holds: tuple[tuple[str, bool], ...] = ()
    note: str = ""

    def right(self, wanted: Sequence[str]) -> bool:
        """Whether the verdict, the first of `wanted`, and all else that is wanted came out."""
        codes = [finding.code for finding in self.found.findings]
        named = self.found.verdict == wanted[0] and all(code in codes for code in (*wanted, *self.also))
        return named and not any(code in codes for code in self.unwanted) and all(fact for _, fact in self.holds)


def of(*windows: EngineWindow) -> Diagnosis:
    return diagnose(Observation(windows))


def looks(*gauges: Mapping[str, Any], apart_s: float = 30.0) -> tuple[Gauges, ...]:
    return tuple(Gauges(at_s=index * apart_s, **told) for index, told in enumerate(gauges))


def pool(tokens: int, block: int) -> EnginePool:
    blocks = Blocks(tokens // block)
    return EnginePool(Blocks(blocks + 1), blocks, Tokens(block), tokens, None, None, None, None, None)


def d05(case: Case) -> Replayed:
    seen = case["observed"]
    gauges = {"usage": seen["kv_pct"] / 100, "running": seen["run"], "waiting": seen["wait"]}
    window = EngineWindow(
        "vllm",
        looks=looks(gauges, gauges),
        counts=Counts(preemptions=seen["preemptions"]),
        limits=Limits(pool=pool(seen["kv_tokens"], 16)),
    )
    found = of(window)
    first = found.first.actions[0]
    free = ("lower concurrency comes first and is free", first.cost == "free" and first.value is not None)
    return Replayed(found, holds=(free,), note=f"lets in {first.value}")


def d09(case: Case) -> Replayed:
    seen = case["observed"]
    gauges = [{"usage": seen["kv"], "running": seen["run"], "waiting": waiting} for waiting in seen["wait"]]
    seconds = seen["duration_min"] * 60
    window = EngineWindow(
        "vllm", window_s=seconds, looks=looks(*gauges, apart_s=seconds), counts=Counts(generation_tokens=seen["tok_s"])
    )
    return Replayed(of(window), unwanted=("pool_full", "budget_full"))


def d10(case: Case) -> Replayed:
    seen = case["observed"]
    gauges = {
        "usage": seen["kv_cache_usage_perc"], "running": seen["num_requests_running"],
        "waiting": seen["num_requests_waiting"], "deferred": seen["waiting_deferred"],
    }  # fmt: skip
    limits = Limits(max_num_seqs=case["flags"]["max_num_seqs"])
    window = EngineWindow("vllm", window_s=3600.0 * seen["hours"], looks=looks(gauges, gauges), limits=limits)
    return Replayed(of(window), unwanted=("pool_full", "seqs_full"))


def d11(case: Case) -> Replayed:
    seen = case["observed"]
    rows = seen["rows"]
    asked = float(2 * sum(row["len"] for row in rows))
    window = EngineWindow(
        "vllm",
        looks=looks({"running": 1, "waiting": 0}, {"running": 1, "waiting": 0}),
        counts=Counts(prefix_queries=asked, prefix_hits=0.0, finished={"stop": 2.0 * len(rows)}, prompt_tokens=asked),
        limits=Limits(largest_block=Tokens(seen["block"])),
    )
    found = of(window)
    told = [finding for finding in found.findings if finding.code == "prefix_cache_below_block"]
    third = ("the third sighting is named as the test", bool(told) and "third" in told[0].refuted_by)
    return Replayed(found, holds=(third,), note="usage is not in the report")


def d12(case: Case) -> Replayed:
    seen = case["observed"]
    found = of(_asked(seen["len4096"], seen["block"], 4096))
    longer = of(_asked(seen["len16384"], seen["block"], 16384))
    hits = ("with 16,384 there is no such finding", "prefix_cache_below_block" not in _codes(longer))
    return Replayed(found, holds=(hits,))


def _asked(told: Mapping[str, int], block: int, length: int) -> EngineWindow:
    return EngineWindow(
        "vllm",
        looks=looks({}, {}),
        counts=Counts(prefix_queries=told["queries"], prefix_hits=told["hits"]),
        limits=Limits(largest_block=Tokens(block), max_model_len=Tokens(length)),
    )


def d15(case: Case) -> Replayed:
    seen = case["observed"]
    rate = seen["knee_rps"][-1]
    waiting = [int(ttft * rate) for ttft in seen["ttft_s"]]  # Little's law: all that arrived and got no token yet
    window = EngineWindow(
        "vllm",
        looks=looks(*({"waiting": count} for count in waiting)),
        counts=Counts(prefix_queries=seen["queries"], prefix_hits=seen["hits"]),
        limits=Limits(largest_block=Tokens(seen["block"])),
    )
    return Replayed(of(window), note="both causes are named; usage is not in the report")


def d16(case: Case) -> Replayed:
    slow, fast = case["observed"]["ttft"]
    ten = 10.0
    window = EngineWindow(
        "vllm",
        looks=looks({"usage": 0.1, "running": 1, "waiting": 0}, {"usage": 0.1, "running": 1, "waiting": 0}),
        counts=Counts(prefix_queries=80_000.0, prefix_hits=float(case["observed"]["hits_total"])),
        queue_s=Distribution((0.3, inf), (ten, 0.0), 0.1),
        ttft_s=Distribution((fast, slow, inf), (ten / 2, ten / 2, 0.0), ten / 2 * (fast + slow)),
        prompt_lengths=Distribution((10_000.0, inf), (ten, 0.0), 80_000.0),
        limits=Limits(largest_block=Tokens(128)),
    )
    unwanted = ("prefix_cache_no_sharing", "prefix_cache_below_block", "prefix_cache_too_small")
    return Replayed(of(window), unwanted=unwanted)


def d17(case: Case) -> Replayed:
    block, groups = case["observed"]["block_size_label"], case["observed"]["groups"]
    tokens = 1000 * max(groups)
    text = (
        f'vllm:cache_config_info{{block_size="{block}",num_gpu_blocks="1001",kv_cache_size_tokens="{tokens}",'
        'kv_cache_max_concurrency="2.5"} 1\n'
        "vllm:kv_cache_usage_perc 0.3\nvllm:num_requests_running 3\nvllm:num_requests_waiting 0\n"
    )
    seen = observation_of(text, text, 30.0)
    held = Symptoms(seen.engines[0]).pool_tokens
    return Replayed(diagnose(seen), holds=(("the pool is what it says in tokens", held == tokens),))


def d18(case: Case) -> Replayed:
    seen = case["observed"]
    each = seen["usage_pct"] / 100
    full = {"usage": 3 * each, "running": 3, "waiting": seen["agents"] - 3}
    mean = float(seen["prompt"])
    window = EngineWindow(
        "vllm",
        looks=looks(full, full),
        limits=Limits(pool=pool(seen["pool"], 7808), largest_block=Tokens(7808)),
        prompt_lengths=Distribution((20.0, inf), (6.0, 0.0), 6 * mean),
        output_lengths=Distribution((500.0, inf), (6.0, 0.0), 6 * 200.0),
    )
    found = of(window)
    fixed = next((finding for finding in found.findings if finding.code == "fixed_footprint"), None)
    no_length = fixed is not None and "limits on length do nothing" in fixed.actions[0].what
    return Replayed(found, unwanted=("runaway_output",), holds=(("length is no way out", no_length),))


def d19(case: Case) -> Replayed:
    seen = case["observed"]
    gauges = {"usage": seen["kv_usage_pct"] / 100, "running": seen["requests"], "waiting": 0}
    limits = Limits(pool=pool(40_000, 16), max_num_seqs=case["flags"]["max_num_seqs"])
    found = of(EngineWindow("vllm", looks=looks(gauges, gauges), limits=limits))
    ways = " ".join(action.what for action in found.first.actions)
    return Replayed(found, holds=(("KV cache or outputs", "max_tokens" in ways and "fp8" in ways),))


def d21(case: Case) -> Replayed:
    assert "0.9" in case["observed"]["rule1"]
    queue = {"usage": 0.89, "running": 20, "waiting": 12}
    found = of(EngineWindow("sglang", looks=looks(queue, queue)))
    full = {"usage": 0.97, "running": 20, "waiting": 12}
    retracting = of(EngineWindow("sglang", looks=looks(full, full), counts=Counts(preemptions=40.0)))
    says = [action.what for action in found.first.actions]
    other = [action.what for action in retracting.first.actions]
    return Replayed(
        found,
        holds=(
            ("rule 1 lowers it to 0.3", any("0.3" in what for what in says)),
            ("rule 2 is a full pool", retracting.verdict == "pool_full"),
            ("rule 2 raises it to 1.3", any("1.3" in what for what in other)),
        ),
    )


def d22(case: Case) -> Replayed:
    text = (
        "sglang:token_usage 0.97\nsglang:max_total_num_tokens 100000\nsglang:kv_available_tokens 3000\n"
        "sglang:kv_evictable_tokens 67000\nsglang:num_running_reqs 2\nsglang:num_queue_reqs 0\n"
    )
    return Replayed(diagnose(observation_of(text, text, 30.0)), note="used minus evictable: 30 %")


def d23(case: Case) -> Replayed:
    seen = case["observed"]
    window = EngineWindow(
        "llamacpp",
        looks=looks({"running": seen["n_slots"]}, {"running": seen["n_slots"]}),
        counts=Counts(failed=float(seen["http_500"])),
        limits=Limits(max_num_seqs=seen["n_slots"], max_model_len=Tokens(seen["n_ctx_slot"])),
        extra={"no_room": float(seen["kv_warnings"])},
    )
    return Replayed(of(window), also=("engine_rejecting",), unwanted=("client_timeouts",))


def d24(case: Case) -> Replayed:
    seen = case["observed"]
    given_up, seconds = float(seen["concurrency"][-1]), 300.0
    calm = {"usage": 0.6, "running": 200, "waiting": 0}
    window = EngineWindow(
        "vllm",
        window_s=seconds,
        looks=looks(calm, calm, apart_s=seconds),
        counts=Counts(
            generation_tokens=seen["timeout_300s_tok_s"][-1] * seconds,
            finished={"abort": given_up, "stop": 40.0},
            aborted=given_up,
        ),
    )
    return Replayed(of(window))


def d25(case: Case) -> Replayed:
    old, new = case["observed"]["tokens"]
    versions = case["engine_version"].split("->")
    calm = {"usage": 0.3, "running": 4, "waiting": 0}
    windows = [
        EngineWindow(
            "vllm",
            version=version,
            looks=looks(calm, calm),
            limits=Limits(pool=pool(old, 16)._replace(tokens=tokens)),
        )
        for version, tokens in zip(versions, (old, new), strict=True)
    ]
    return Replayed(of(*windows))


def d27(case: Case) -> Replayed:
    seen = case["observed"]
    gauges = [{"usage": pct / 100, "running": seen["run"], "waiting": seen["pending"]} for pct in seen["kv"]]
    window = EngineWindow("vllm", looks=looks(*gauges), extra={"n_mean": 4.0})
    found = of(window)
    ways = " ".join(action.what for action in found.first.actions)
    return Replayed(found, holds=(("n multiplies KV", "n = 4.0" in ways),))


def d30(case: Case) -> Replayed:
    seen = case["observed"]["off"]
    full = {"usage": 0.98, "running": 4, "waiting": 60}
    counts = Counts(preemptions=float(seen["preempt"]), finished={"stop": float(seen["completed"])})
    found = of(EngineWindow("vllm", looks=looks(full, full), counts=counts))
    storm = ("a storm is called one", "preemption storm" in found.first.message)
    return Replayed(found, holds=(storm,))


def _codes(found: Diagnosis) -> list[str]:
    return [finding.code for finding in found.findings]


REPLAYS: Mapping[str, Callable[[Case], Replayed]] = {
    "D05": d05, "D09": d09, "D10": d10, "D11": d11, "D12": d12, "D15": d15, "D16": d16, "D17": d17, "D18": d18,
    "D19": d19, "D21": d21, "D22": d22, "D23": d23, "D24": d24, "D25": d25, "D27": d27, "D30": d30,
}  # fmt: skip
# A start that fails once is no matter of an engine that serves: kvbudget check says how many failures make a budget
# stale, and the receipt of a cold start is told from one of a warm one.
ELSEWHERE = {"D29": "kvbudget check: one cold failure makes no budget stale"}


def table(cases: Sequence[Case], folder: Path) -> tuple[list[str], int]:
    """(lines, how many are wrong) of the reports and of the pairs of scrapes in `folder`."""
    lines, wrong = [], 0
    for case in cases:
        if case["id"] in ELSEWHERE:
            lines.append(f"{case['id']:<31} elsewhere  {ELSEWHERE[case['id']]}")
            continue
        replay = REPLAYS.get(case["id"])
        if replay is None:
            wrong += 1
            lines.append(f"{case['id']:<31} not yet    no replay is written for this report")
            continue
        wanted = answer(case)
        if not wanted:
            wrong += 1
            lines.append(f"{case['id']:<31} not yet    its right_answer names no known cause")
            continue
        done = replay(case)
        right = done.right(wanted)
        wrong += not right
        missed = "; ".join(words for words, fact in done.holds if not fact)
        why = "; ".join(filter(None, (done.note, f"not so: {missed}" if missed else "")))
        lines.append(_line(case["id"], right, done.found, (*wanted, *done.also), why))
    for name, wanted in PAIRS.items():
        older, newer = folder / f"{name}.a", folder / f"{name}.b"
        if older.exists() and newer.exists():
            found = diagnose(observation_of(older.read_text(), newer.read_text()))
            wrong += found.verdict != wanted
            lines.append(_line(name, found.verdict == wanted, found, (wanted,), ""))
    return lines, wrong


def _line(name: str, right: bool, found: Diagnosis, wanted: Sequence[str], why: str) -> str:
    told = f"{name:<31} {'right' if right else 'WRONG':<10} {', '.join(_codes(found))}"
    if not right:
        told += f"; wanted {', '.join(wanted)}"
    return told + (f"  [{why}]" if why else "")
