"""Decides the plan: asks the engine's rule, shares out the memory, and counts how many requests fit."""

from kvbudget.engines.flags import Settings
from kvbudget.engines.registry import engine_named
from kvbudget.engines.rule import Engine, Pool, Refusal, Taken
from kvbudget.errors import BadValueError
from kvbudget.planner.curve import whole_requests
from kvbudget.planner.findings import findings_on, headroom_findings, machine_findings
from kvbudget.planner.memory import graphs_beside, memory_of
from kvbudget.planner.request import Amount, Ceilings, Finding, Memory, Plan, PlanRequest, TailWaste
from kvbudget.pool.groups import Layout
from kvbudget.units import GIB, Blocks, Tokens


def make_plan(request: PlanRequest) -> Plan:
    """The pool and its ceilings. Where the engine would refuse to start, `fits` is false and all numbers are there.

    Raises InputError for what cannot be planned: unknown engine, contradicting flags, weights that nothing tells.
    """
    _check(request)
    engine = engine_named(request.engine)
    memory_bytes = request.gpu_memory or (request.gpu.memory_bytes if request.gpu else 0)
    settings = engine.settle(request.model, request.flags, memory_bytes, request.gpu.name if request.gpu else "")
    stages = engine.stages(request.model, settings)
    memories = memory_of(request, engine, settings, stages)
    pool = engine.pool(request.model, settings, stages, [memory.kv.bytes for memory in memories])
    memory, layout = memories[pool.stage], stages[pool.stage].layout
    if not engine.needs_memory and request.kv_cache_memory is None:
        memory = memory._replace(kv=_asked_for(memory, pool))
    ceilings, warnings = _ceilings(request, settings, layout, pool)
    refusals = engine.refusals(request.model, settings, stages, pool)
    if memory.usable.bytes:
        taken = Taken(
            memory.weights.bytes, memory.activation.bytes, memory.cuda_graphs.bytes, memory.non_torch.bytes
        )  # fmt: skip
        refusals = [*refusals, *engine.overruns(settings, memory.total.bytes, taken, pool)]
    findings = [_refusal(r, request, engine) for r in refusals]
    if not request.trial and any(finding.code == "no_kv_memory" for finding in findings):
        fix = _room(request, engine, settings, memory, pool)
        findings = [f._replace(fix=fix) if fix and f.code == "no_kv_memory" else f for f in findings]
    low = None
    if memory.kv.low is not None and engine.needs_memory:
        from kvbudget.planner.low_end import low_end_findings, low_end_of, safe_at_both_ends

        low = low_end_of(request, engine, settings, stages, memories, pool)
    if low is not None:
        findings = [safe_at_both_ends(finding, low) for finding in findings]
        if not any(finding.severity == "error" for finding in findings):
            warnings += low_end_findings(request, engine, settings, memory, stages[pool.stage], pool, low, ceilings)
    later = graphs_beside(request, engine, settings, stages[pool.stage], memory) if engine.name == "vllm" else None
    if later is not None:
        findings += headroom_findings(memory, later)
    findings += machine_findings(request.model, stages)
    findings += findings_on(request, engine.name, settings, memory, layout, pool, ceilings)
    findings += warnings
    return Plan(
        request=request,
        engine_name=engine.name,
        engine_version=engine.version,
        settings=settings,
        stage=stages[pool.stage],
        memory=memory,
        pool=pool,
        ceilings=ceilings,
        findings=tuple(findings),
        tail_waste=_tail_waste(request, layout, ceilings, pool.max_model_len),
        low_end=low,
    )


def _asked_for(memory: Memory, pool: Pool) -> Amount:
    """Of an engine whose flags size the cache: what it takes, not what the card would leave for it. Where that is too
    little, what is left, so that people see how little."""
    if not memory.total.bytes:
        return memory.kv._replace(bytes=pool.bytes)
    if pool.bytes > memory.kv.bytes:
        return memory.kv
    left = memory.kv.bytes - pool.bytes
    return Amount(pool.bytes, "computed", f"sized by the engine's flags; {left / GIB:.2f} GiB of the card stay free")


def _refusal(refusal: Refusal, request: PlanRequest, engine: Engine) -> Finding:
    """VLLM_ALLOW_LONG_MAX_MODEL_LEN makes a warning of one refusal (vLLM 0.32 config/model.py)."""
    beyond = refusal.code == "max_model_len_beyond_model"
    if beyond and engine.name == "vllm" and request.flags.allow_long_max_model_len:
        fix = "allowed by VLLM_ALLOW_LONG_MAX_MODEL_LEN: with RoPE positions beyond it may give nan, without it crash"
        return Finding(refusal.code, "warning", refusal.message, fix)
    return Finding(refusal.code, "error", refusal.message, refusal.fix)


def _room(request: PlanRequest, engine: Engine, settings: Settings, memory: Memory, pool: Pool) -> str:
    """What would make room, where the engine's own words are not enough."""
    from kvbudget.planner.room import layers_that_fit, split_that_fits

    if engine.name == "llamacpp":
        return layers_that_fit(request, engine, settings, pool)
    return split_that_fits(request, engine, memory) if _beyond_the_card(memory) else ""


def _beyond_the_card(memory: Memory) -> bool:
    """Whether nothing would be left for the cache even if the engine took the whole card."""
    taken = memory.weights.bytes + memory.activation.bytes + memory.cuda_graphs.bytes + memory.non_torch.bytes
    return memory.usable.bytes > 0 and memory.total.bytes <= taken


def _check(request: PlanRequest) -> None:
    flags = request.flags
    for flag, value in (
        ("--tensor-parallel-size", flags.tensor_parallel_size),
        ("--pipeline-parallel-size", flags.pipeline_parallel_size),
        ("--decode-context-parallel-size", flags.decode_context_parallel_size),
        ("--data-parallel-size", flags.data_parallel_size),
        ("--block-size", flags.block_size),
        ("--max-num-seqs", flags.max_num_seqs),
        ("--max-num-batched-tokens", flags.max_num_batched_tokens),
        ("--num-gpu-blocks-override", flags.num_gpu_blocks_override),
        ("--micro-batch", flags.micro_batch),
        ("--gpus", request.gpus),
        ("--target-concurrency", request.target_concurrency),
    ):
        if value is not None and not 1 <= value <= 10**12:
            raise BadValueError(f"{flag}: {value} is out of range", fix=f"{flag} is a whole number of at least 1")
    utilization = flags.gpu_memory_utilization
    if utilization is not None and not 0 < utilization <= 1:
        raise BadValueError(f"--gpu-memory-utilization: {utilization} is out of range", fix="more than 0, at most 1")
    length = flags.max_model_len
    if length is not None and length != -1 and not 1 <= length <= 10**12:
        raise BadValueError(f"--max-model-len: {length} is out of range", fix="at least 1, or auto")
    if (request.prompt_lengths is None) != (request.output_lengths is None):
        raise BadValueError(
            "--prompt-lengths and --output-lengths belong together", fix="a request holds prompt and output at its end"
        )


def _ceilings(request: PlanRequest, settings: Settings, layout: Layout, pool: Pool) -> tuple[Ceilings, list[Finding]]:
    """Whole requests at once, with the margin kept back."""
    longest = pool.max_model_len
    warnings = _left_out(request, longest)
    lengths = []
    for name, length in zip(("p50", "p95", "p99"), _percentiles(request, longest), strict=True):
        if length > longest:
            warnings.append(
                Finding(
                    "length_beyond_max_model_len",
                    "warning",
                    f"{name} requests of {length} tokens are longer than max_model_len {longest}: "
                    "they would be refused or cut",
                    "raise --max-model-len or shorten the requests",
                )
            )
        lengths.append(Tokens(min(length, longest)))
    kept = request.margin.of(pool.usable_blocks) if request.margin else Blocks(0)
    full, p50, p95, p99 = (
        whole_requests(layout, max(0, pool.usable_blocks - kept), settings.max_num_seqs, length, pool.most_requests)
        for length in (longest, *lengths)
    )
    if kept and not full.requests and layout.blocks_for(longest) <= pool.usable_blocks:
        warnings.append(_margin_finding(layout, pool, kept))
    ceilings = Ceilings(
        ceiling=full.requests,
        limited_by=full.limited_by,
        p50=p50.requests,
        p95=p95.requests,
        p99=p99.requests,
        lengths=(lengths[0], lengths[1], lengths[2]),
        margin_blocks=kept,
    )
    return ceilings, warnings


def _margin_finding(layout: Layout, pool: Pool, kept: int) -> Finding:
    length = layout.largest_length(pool.usable_blocks - kept, pool.max_model_len)
    return Finding(
        "margin_leaves_nothing",
        "error",
        f"--margin keeps {kept:,} of {pool.usable_blocks:,} blocks back, and a request of {pool.max_model_len:,} "
        f"tokens needs {pool.blocks_per_request:,}: none may run",
        f"use --max-model-len {length}, or a smaller --margin" if length else "use a smaller --margin",
    )


def _percentiles(request: PlanRequest, longest: int) -> tuple[int, int, int]:
    """Tokens of a whole request at p50, p95, p99: of the real ones as the engine serves them; else of the percentiles,
    prompt and output added as if long prompts had long outputs; else the longest."""
    if request.requests:
        from kvbudget.planner.workload.lengths import SHARES, at_share

        served = sorted(min(prompt + output, longest) for prompt, output in request.requests if prompt < longest)
        p50, p95, p99 = (at_share(served, share) or longest for share in SHARES.values())
        return p50, p95, p99
    if request.prompt_lengths is None or request.output_lengths is None:
        return longest, longest, longest
    from kvbudget.planner.workload.percentiles import totals_of

    return totals_of(request.prompt_lengths, request.output_lengths)


def _left_out(request: PlanRequest, longest: int) -> list[Finding]:
    """Real requests that the engine refuses, or ends before their time; no ceiling counts those that it refuses."""
    refused = sum(prompt >= longest for prompt, _ in request.requests)
    ended = sum(prompt < longest < prompt + output for prompt, output in request.requests)
    if not refused and not ended:
        return []
    said = [f"refused: {refused:,}, whose prompts alone are that long"] if refused else []
    said += [f"cut at it: {ended:,}"] if ended else []
    return [
        Finding(
            "length_beyond_max_model_len",
            "warning",
            f"{refused + ended:,} of {len(request.requests):,} requests are longer than max_model_len {longest:,}; "
            f"{'; '.join(said)}; every number here is of what the engine serves",
            "raise --max-model-len or shorten the requests",
        )
    ]


def _tail_waste(request: PlanRequest, layout: Layout, ceilings: Ceilings, longest: int) -> TailWaste:
    """Of the real requests as the engine serves them (too long prompts refused, outputs ended), or of the median."""
    totals: dict[int, int] = {}
    for prompt, output in request.requests:
        if prompt < longest:
            total = min(prompt + output, longest)
            totals[total] = totals.get(total, 0) + 1
    totals = totals or {ceilings.lengths[0]: 1}
    count = sum(totals.values())
    empty = sum(layout.tail_waste(total) * often for total, often in totals.items())
    filled = len(layout.growing) * sum(total * often for total, often in totals.items())
    return TailWaste((2 * empty + count) // (2 * count), empty / (empty + filled) if empty else 0.0)
