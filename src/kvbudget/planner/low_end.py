"""Decides what of a plan would not hold at the low end of its estimated memory, and what would hold at both ends."""

from collections.abc import Callable, Sequence
from math import ceil

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Engine, Pool, Stage
from kvbudget.planner.curve import whole_requests
from kvbudget.planner.request import Ceilings, Finding, Memory, PlanRequest
from kvbudget.pool.groups import LayerKind
from kvbudget.units import GIB

_MOST_UTILIZATION = 0.98  # more leaves nothing for what an engine allocates late
# Findings whose fix is one number, and what of the pool at the low end that number may be.
_SAFE_VALUES: dict[str, Callable[[Pool], tuple[str, int]]] = {
    "max_model_len_too_large": lambda low: ("use --max-model-len ", low.largest_max_model_len),
    "max_num_seqs_beyond_states": lambda low: ("use --max-num-seqs ", low.num_blocks),
}
_MEASURE = "give --activation and --overhead of a start-up log, which end the estimate"


def low_end_of(
    request: PlanRequest,
    engine: Engine,
    settings: Settings,
    stages: Sequence[Stage],
    memories: Sequence[Memory],
    pool: Pool,
) -> Pool | None:
    """The pool, for the same max_model_len, where every stage has the least that is likely. None: nothing estimated."""
    lows = [memory.kv.low for memory in memories if memory.kv.low is not None]
    if len(lows) < len(memories):
        return None
    fixed = settings._replace(auto_length=False, max_model_len=pool.max_model_len)
    return engine.pool(request.model, fixed, stages, lows)


def low_end_findings(
    request: PlanRequest,
    engine: Engine,
    settings: Settings,
    memory: Memory,
    stage: Stage,
    pool: Pool,
    low: Pool,
    ceilings: Ceilings,
) -> list[Finding]:
    """Warnings of a plan that fits: a length, or a target, that only the best estimate of the memory carries."""
    if low.blocks_per_request > low.checked_blocks and low.largest_max_model_len < pool.max_model_len:
        return [_length_finding(request, engine, settings, memory, stage, pool, low)]
    if _lacks_states(request, engine, settings, stage, low):
        return [_states_finding(memory, settings, low)]
    target, engines = request.target_concurrency, request.flags.data_parallel_size
    kept = request.margin.of(low.usable_blocks) if request.margin else 0
    held = (
        engines
        * whole_requests(
            stage.layout,
            max(0, low.usable_blocks - kept),
            settings.max_num_seqs,
            min(ceilings.lengths[1], pool.max_model_len),
            low.most_requests,
        ).requests
    )
    if target is None or not held < target <= ceilings.p95 * engines:
        return []
    return [
        Finding(
            "fits_only_at_best_estimate",
            "warning",
            f"{_at_low_end(memory)} only {held:,} of the {target:,} wanted requests run at once",
            f"leave room: a shorter --max-model-len; or {_MEASURE}",
        )
    ]


def _lacks_states(request: PlanRequest, engine: Engine, settings: Settings, stage: Stage, low: Pool) -> bool:
    if not any(group.kind is LayerKind.MAMBA for group in stage.layout.groups):
        return False
    alone = low._replace(stage=0, stage_blocks=(low.num_blocks,))
    refusals = engine.refusals(request.model, settings, [stage], alone)
    return any(refusal.code == "max_num_seqs_beyond_states" for refusal in refusals)


def _states_finding(memory: Memory, settings: Settings, low: Pool) -> Finding:
    return Finding(
        "fits_only_at_best_estimate",
        "warning",
        f"{_at_low_end(memory)} there are {low.num_blocks:,} blocks for {settings.max_num_seqs:,} sequences, each of "
        "which needs one for its recurrent state: it would not start",
        f"--max-num-seqs {low.num_blocks} holds at both ends; {_MEASURE}",
    )


def safe_at_both_ends(finding: Finding, low: Pool) -> Finding:
    """The advice to shorten max_model_len, or to run fewer sequences, that is also enough where less memory is left."""
    if finding.code not in _SAFE_VALUES:
        return finding
    flag, safe = _SAFE_VALUES[finding.code](low)
    if not finding.fix.startswith(flag):
        return finding
    best = finding.fix.removeprefix(flag)
    if not best.isdigit() or not 0 < safe < int(best):
        return finding
    said = f"{flag}{safe}, which also holds at the low end of the estimated memory (best estimate: {best})"
    return finding._replace(fix=said)


def _length_finding(
    request: PlanRequest, engine: Engine, settings: Settings, memory: Memory, stage: Stage, pool: Pool, low: Pool
) -> Finding:
    length, safe = pool.max_model_len, low.largest_max_model_len
    asked = f"auto is {length:,} tokens" if settings.auto_length else f"a request of {length:,} tokens fits"
    if settings.auto_length:
        then = f"{_at_low_end(memory)} it is {safe:,}"
    else:
        then = (
            f"{_at_low_end(memory)} the pool has {low.usable_blocks:,} blocks, and such a request needs "
            f"{pool.blocks_per_request:,}"
        )
    fixes = [f"--max-model-len {safe} holds at both ends"] if safe else ["no length holds at the low end"]
    share = _safe_share(request, engine, settings, memory, stage, pool)
    if share is not None and not settings.auto_length:
        fixes.append(f"--gpu-memory-utilization {share:g} as well")
    fixes.append(_MEASURE)
    return Finding(
        "fits_only_at_best_estimate", "warning", f"{asked} at the best estimate of the memory; {then}", "; ".join(fixes)
    )


def _at_low_end(memory: Memory) -> str:
    low = memory.kv.low or 0
    return f"at its low end ({low / GIB:.2f} GiB for the cache, best estimate {memory.kv.bytes / GIB:.2f} GiB)"


def _safe_share(
    request: PlanRequest, engine: Engine, settings: Settings, memory: Memory, stage: Stage, pool: Pool
) -> float | None:
    """The share of the card with which one such request fits at the low end, in hundredths; None where none does.

    Only vLLM's is a share of the total, so that more of it is more for the cache, byte for byte.
    """
    if engine.name != "vllm" or memory.kv.low is None or not memory.total.bytes:
        return None
    null_blocks = pool.num_blocks - pool.usable_blocks
    needed = (pool.blocks_per_request + null_blocks) * stage.layout.bytes_per_block
    share = ceil((memory.usable.bytes + needed - memory.kv.low) / memory.total.bytes * 100) / 100
    return share if share <= _MOST_UTILIZATION else None
