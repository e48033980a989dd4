"""Decides the plan: asks the engine's rule, shares out the memory, and counts how many requests fit."""

from kvbudget.engines.flags import Settings
from kvbudget.engines.registry import engine_named
from kvbudget.engines.vllm import Pool, Vllm
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
    if _beyond_the_card(memory):
        fix = _split_that_fits(request, engine)
        findings = [finding._replace(fix=fix) if finding.code == "no_kv_memory" else finding for finding in findings]
    findings += _hardware_findings(request, settings, memory) + _target_findings(request, ceilings)
    findings += _name_findings(request, memory) + warnings
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


def _beyond_the_card(memory: Memory) -> bool:
    """Whether nothing would be left for the cache even if the engine took the whole card."""
    taken = memory.weights.bytes + memory.activation.bytes + memory.cuda_graphs.bytes + memory.non_torch.bytes
    return memory.usable.bytes > 0 and memory.total.bytes <= taken


def _split_that_fits(request: PlanRequest, engine: Vllm) -> str:
    """The smallest power of two of tensor-parallel ranks with which the engine would start, as advice."""
    ranks = 1
    while ranks <= request.model.attention_heads:
        if ranks > request.flags.tensor_parallel_size and _starts_with(request, engine, ranks):
            return (
                f"use --tensor-parallel-size {ranks}, the smallest power of two that fits, or quantise the weights; "
                "a larger share of the card would not be enough"
            )
        ranks *= 2
    return "quantise the weights, take a larger card or more pipeline stages: no number of ranks is enough"


def _starts_with(request: PlanRequest, engine: Vllm, ranks: int) -> bool:
    request = request._replace(flags=request.flags._replace(tensor_parallel_size=ranks))
    card = request.gpu
    device = request.gpu_memory or (card.memory_bytes if card else 0)
    settings = engine.settle(request.model, request.flags, device, card.name if card else "")
    stages = engine.stages(request.model, settings)
    available = [memory.kv.bytes for memory in memory_of(request, engine, settings, stages)]
    return not engine.refusals(request.model, settings, stages, engine.pool(request.model, settings, stages, available))


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


def _name_findings(request: PlanRequest, memory: Memory) -> list[Finding]:
    """A checkpoint that calls itself quantised, with a config.json that does not say so, is several times smaller."""
    word = request.model.named_quantisation
    if not word or memory.weights.source != "computed":
        return []
    return [
        Finding(
            "quantisation_only_in_name",
            "warning",
            f"the name says {word}, config.json names no quantisation: the weights are computed unquantised "
            f"({format_size(memory.weights.bytes)}), and the KV cache by --kv-cache-dtype alone",
            "put the checkpoint's hf_quant_config.json (or its whole config.json) into the folder, or give --weights "
            "SIZE; and --kv-cache-dtype where the checkpoint prescribes one",
        )
    ]


def _target_findings(request: PlanRequest, ceilings: Ceilings) -> list[Finding]:
    target = request.target_concurrency
    if target is None or target <= ceilings.ceiling:
        return []
    return [
        Finding(
            "below_target_concurrency",
            "error",
            f"{ceilings.ceiling} {'request' if ceilings.ceiling == 1 else 'requests'} of full length at once, wanted: "
            f"{target} (limited by {ceilings.limited_by})",
            "shorten --max-model-len, use an fp8 KV cache, or add GPUs",
        )
    ]
