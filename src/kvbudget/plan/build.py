"""Decides the plan: asks the engine's rule, shares out the memory, and counts how many requests fit."""

from kvbudget.engines.flags import Settings
from kvbudget.engines.registry import engine_named
from kvbudget.engines.vllm import Pool
from kvbudget.errors import BadValueError
from kvbudget.plan.memory import memory_of
from kvbudget.plan.request import Ceilings, Finding, Memory, Plan, PlanRequest
from kvbudget.pool.groups import Layout
from kvbudget.units import GIB, Tokens, format_size


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
    ceilings, warnings = _ceilings(request, settings, layout, pool)
    refusals = engine.refusals(request.model, settings, stages, pool)
    findings = [Finding(r.code, "error", r.message, r.fix) for r in refusals]
    findings += _hardware_findings(request, settings, memory) + _target_findings(request, ceilings) + warnings
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
    )


def _check(request: PlanRequest) -> None:
    flags = request.flags
    for flag, value in (
        ("--tensor-parallel-size", flags.tensor_parallel_size),
        ("--pipeline-parallel-size", flags.pipeline_parallel_size),
        ("--block-size", flags.block_size),
        ("--max-num-seqs", flags.max_num_seqs),
        ("--max-num-batched-tokens", flags.max_num_batched_tokens),
        ("--num-gpu-blocks-override", flags.num_gpu_blocks_override),
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
    """Whole requests at once. Percentiles of prompt and output are added as if long prompts had long outputs."""
    longest = pool.max_model_len
    warnings: list[Finding] = []
    lengths = []
    for name in ("p50", "p95", "p99"):
        prompt = request.prompt_lengths.at(name) if request.prompt_lengths else None
        output = request.output_lengths.at(name) if request.output_lengths else None
        length = longest if prompt is None or output is None else Tokens(max(1, prompt + output))
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
            length = longest
        lengths.append(length)
    by_pool = pool.usable_blocks // pool.blocks_per_request
    counts = [min(pool.usable_blocks // layout.blocks_for(length), settings.max_num_seqs) for length in lengths]
    ceilings = Ceilings(
        ceiling=min(by_pool, settings.max_num_seqs),
        limited_by="pool" if by_pool <= settings.max_num_seqs else "max_num_seqs",
        p50=counts[0],
        p95=counts[1],
        p99=counts[2],
        lengths=(lengths[0], lengths[1], lengths[2]),
    )
    return ceilings, warnings


def _hardware_findings(request: PlanRequest, settings: Settings, memory: Memory) -> list[Finding]:
    found = []
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    if request.gpus is not None and ranks > request.gpus:
        found.append(
            Finding(
                "too_few_gpus",
                "error",
                f"World size ({ranks}) is larger than the number of available GPUs ({request.gpus}).",
                "lower --tensor-parallel-size x --pipeline-parallel-size, or add GPUs",
            )
        )
    elif request.gpus is not None and ranks < request.gpus:
        found.append(
            Finding(
                "gpus_idle",
                "warning",
                f"one engine uses {ranks} of {request.gpus} GPUs",
                "raise --tensor-parallel-size, or run one engine on each and add their ceilings",
            )
        )
    given = request.kv_cache_memory
    if given is not None and memory.total.bytes and given + memory.weights.bytes > memory.total.bytes:
        found.append(
            Finding(
                "pool_beyond_memory",
                "error",
                f"KV cache {format_size(given)} and weights {format_size(memory.weights.bytes)} exceed the card's "
                f"{memory.total.bytes / GIB:.2f} GiB",
                "lower --kv-cache-memory-bytes",
            )
        )
    return found


def _target_findings(request: PlanRequest, ceilings: Ceilings) -> list[Finding]:
    target = request.target_concurrency
    if target is None or target <= ceilings.ceiling:
        return []
    return [
        Finding(
            "below_target_concurrency",
            "error",
            f"{ceilings.ceiling} requests of full length fit at once, {target} are wanted (limited by "
            f"{ceilings.limited_by})",
            "shorten --max-model-len, use an fp8 KV cache, or add GPUs",
        )
    ]
