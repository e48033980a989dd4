"""Decides how a GPU's memory is shared out: weights, activation, CUDA graphs, non-torch, and the rest for the cache."""

from kvbudget.engines.flags import Settings
from kvbudget.engines.vllm import Stage, Vllm
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import Model
from kvbudget.plan.request import Amount, Memory, PlanRequest
from kvbudget.units import GIB, Bytes

_NOT_USED = "not used: the pool was given"
# Peak of one forward of max_num_batched_tokens and of sampling for max_num_seqs, fitted by eye on public start-up logs
# of vLLM 0.19 on H100: 1.89 GiB (vocabulary 128,256), 2.21 (152,064), 2.23 (151,936), 3.99 (262,208), all with 1,024
# sequences: 3.8 to 4.0 times the float32 logits. It does not shrink with tensor parallelism.
_LOGIT_COPIES = 4
_LOGIT_BYTES = 4
_HIDDEN_COPIES = 6
_INNER_COPIES = 3
# Same logs: graphs 0.5 to 1.05 GiB on one card; non-torch 0.25 GiB on one card, 2.07 with tensor parallelism.
_GRAPHS = Bytes(GIB)
_NON_TORCH = Bytes(GIB // 4)
_NON_TORCH_PARALLEL = Bytes(207 * GIB // 100)


def memory_of(request: PlanRequest, engine: Vllm, settings: Settings, stages: tuple[Stage, ...]) -> tuple[Memory, ...]:
    """The split on one rank of each stage. Raises when neither memory nor pool was given, or weights are unknown."""
    override = settings.num_gpu_blocks_override
    if override is not None:
        return tuple(
            _pool_given(request, settings, stage, Bytes(override * stage.layout.bytes_per_block), "computed")
            for stage in stages
        )
    if request.kv_cache_memory is not None:
        given = request.kv_cache_memory
        return tuple(_pool_given(request, settings, stage, given, "given") for stage in stages)
    total = _total(request)
    if total is None:
        raise BadValueError(
            "how much memory there is is not known",
            fix="give --gpu NAME, --gpu-memory SIZE or --kv-cache-memory-bytes SIZE",
        )
    usable = Amount(
        engine.usable_memory(total.bytes, settings),
        "computed" if total.source == "given" else total.source,
        f"{settings.gpu_memory_utilization:g} of the total",
    )
    return tuple(_profiled(request, settings, stage, total, usable) for stage in stages)


def _profiled(request: PlanRequest, settings: Settings, stage: Stage, total: Amount, usable: Amount) -> Memory:
    """vLLM 0.32 v1 worker gpu_worker.py: determine_available_memory."""
    weights = _weights(request, settings, stage)
    if weights is None:
        raise UnsupportedError(
            f"the weights of {request.model.name[:80]} are needed: {request.model.weights_unknown}",
            fix="give --weights SIZE, keep the safetensors files beside config.json, or size the pool with "
            "--kv-cache-memory-bytes",
        )
    activation = _activation(request, settings)
    graphs, other = _overhead(request, settings)
    taken = weights.bytes + activation.bytes + graphs.bytes + other.bytes
    sources = {weights.source, activation.source, graphs.source, other.source, total.source}
    kv = Amount(Bytes(usable.bytes - taken), "estimated" if "estimated" in sources else "computed", "what is left")
    return Memory(total, usable, weights, activation, graphs, other, kv)


def _pool_given(request: PlanRequest, settings: Settings, stage: Stage, kv: Bytes, source: str) -> Memory:
    nothing = Amount(Bytes(0), "given", _NOT_USED)
    weights = _weights(request, settings, stage) or Amount(
        Bytes(0), "given", f"unknown: {request.model.weights_unknown}"
    )
    total = _total(request) or Amount(Bytes(0), "given", _NOT_USED)
    note = "--kv-cache-memory-bytes" if source == "given" else "--num-gpu-blocks-override"
    return Memory(total, nothing, weights, nothing, nothing, nothing, Amount(kv, source, note))


def _total(request: PlanRequest) -> Amount | None:
    if request.gpu_memory is not None:
        return Amount(request.gpu_memory, "given", "--gpu-memory")
    if request.gpu is not None:
        return Amount(request.gpu.memory_bytes, request.gpu.source, f"{request.gpu.name}, as its driver reports it")
    return None


def _weights(request: PlanRequest, settings: Settings, stage: Stage) -> Amount | None:
    """This rank's share: the stage's part of the checkpoint, split over the tensor-parallel ranks."""
    model, ranks = request.model, settings.tensor_parallel_size
    if request.weights is None:
        if model.parameters is None:
            return None
        block = model.quantization.fp8_block if model.quantization else None
        size = model.parameters.stage_bytes(stage.first, stage.end, ranks, settings.element_bytes, block)
        return Amount(size, "computed", f"{model.parameters.total:,} parameters from config.json")
    part, whole = _stage_share(model, stage)
    size = Bytes(-(-request.weights.bytes * part // (whole * ranks)))
    return Amount(size, request.weights.source, request.weights.note)


def _stage_share(model: Model, stage: Stage) -> tuple[int, int]:
    """A stage's share of the weights as (part, whole), by parameters where they are known, else by layers."""
    if stage.first == 0 and stage.end == len(model.layers):
        return 1, 1
    if model.parameters is None:
        return stage.end - stage.first, len(model.layers)
    part = model.parameters.stage_bytes(stage.first, stage.end, 1, 1, None)
    return part, model.parameters.total


def _activation(request: PlanRequest, settings: Settings) -> Amount:
    if request.activation is not None:
        return Amount(request.activation, "given", "--activation")
    model, element = request.model, settings.element_bytes
    sampling = _LOGIT_COPIES * settings.max_num_seqs * model.vocab_size * _LOGIT_BYTES
    inner = -(-model.intermediate_size // settings.tensor_parallel_size)
    width = _HIDDEN_COPIES * model.hidden_size + _INNER_COPIES * inner
    forward = settings.max_num_batched_tokens * width * element
    return Amount(
        Bytes(max(sampling, forward)), "estimated", "peak of one full batch or of sampling; give --activation"
    )


def _overhead(request: PlanRequest, settings: Settings) -> tuple[Amount, Amount]:
    """(CUDA graphs, non-torch memory). `--overhead` is both together."""
    if request.overhead is not None:
        return Amount(Bytes(0), "given", "inside --overhead"), Amount(request.overhead, "given", "--overhead")
    other = _NON_TORCH if settings.tensor_parallel_size == 1 else _NON_TORCH_PARALLEL
    return (
        Amount(_GRAPHS, "estimated", "CUDA graphs; give --overhead"),
        Amount(other, "estimated", "CUDA context and communication; give --overhead"),
    )
