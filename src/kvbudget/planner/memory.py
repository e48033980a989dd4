"""Decides how a GPU's memory is shared out: weights, activation, CUDA graphs, non-torch, and the rest for the cache."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Engine, Held, Stage, Taken
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.layers import State
from kvbudget.model.rank_weights import even_share, experts_spread, share_of_checkpoint, weights_on_rank
from kvbudget.planner.request import Amount, Memory, PlanRequest
from kvbudget.units import GIB, Bytes

if TYPE_CHECKING:
    from kvbudget.planner.hardware.estimates import Constants, Interval, Run, Shape

_NOT_USED = "not used: the pool was given"
_UNBOUNDED = Bytes(2**62)
# vLLM 0.32 config/vllm.py: _set_cudagraph_sizes; data-centre Blackwell captures twice as large batches
_LARGEST_GRAPH = 512
_LARGEST_GRAPH_BLACKWELL = 1024
_BLACKWELL = ("B200", "GB200", "B300", "GB300", "B100")


def memory_of(
    request: PlanRequest, engine: Engine, settings: Settings, stages: tuple[Stage, ...]
) -> tuple[Memory, ...]:
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
    if total is None and not engine.needs_memory:
        return tuple(_sized_by_flags(request, settings, stage) for stage in stages)
    if total is None:
        raise BadValueError(
            "how much memory there is is not known",
            fix="give --gpu NAME, --gpu-memory SIZE or --kv-cache-memory-bytes SIZE",
        )
    usable = Amount(
        engine.usable_memory(total.bytes, settings),
        "computed" if total.source == "given" else total.source,
        "",
    )
    usable = usable._replace(note=_share_noted(usable.bytes, total.bytes, settings.gpu_memory_utilization))
    return tuple(_profiled(request, engine, settings, stage, total, usable) for stage in stages)


def _share_noted(usable: int, total: int, asked: float) -> str:
    """`0.92 of the total`; the true share where the engine plans with another one than it was asked for."""
    share = asked if abs(usable - total * asked) <= 1 else usable / max(total, 1)
    return f"{share:.4g} of the total"


def _profiled(
    request: PlanRequest, engine: Engine, settings: Settings, stage: Stage, total: Amount, usable: Amount
) -> Memory:
    """What is left when weights, activation and overhead are taken off, as the engine does it."""
    weights = _weights(request, settings, stage)
    if weights is None:
        raise UnsupportedError(
            f"the weights of {request.model.name[:80]} are needed: {request.model.weights_unknown}",
            fix="give --weights SIZE, keep the safetensors files beside config.json, or size the pool with "
            "--kv-cache-memory-bytes",
        )
    activation, graphs, other = _overheads(request, engine, settings, stage, usable.bytes)
    parts = (weights, activation, graphs, other)
    taken = Taken(*(part.bytes for part in parts))
    sources = {part.source for part in parts} | {total.source}
    kv = Amount(
        Bytes(engine.cache_memory(total.bytes, taken, settings)),
        "estimated" if "estimated" in sources else "computed",
        "what is left",
    )
    return Memory(total, usable, weights, activation, graphs, other, _with_interval(kv, parts))


def _with_interval(kv: Amount, parts: tuple[Amount, ...]) -> Amount:
    """What is left errs as the parts do together: they err independently, so their spreads add in squares."""
    if all(part.low is None or part.high is None for part in parts):
        return kv
    more = sum((part.bytes - part.low) ** 2 for part in parts if part.low is not None) ** 0.5
    less = sum((part.high - part.bytes) ** 2 for part in parts if part.high is not None) ** 0.5
    return kv._replace(low=Bytes(kv.bytes - int(less)), high=Bytes(kv.bytes + int(more)))


def _sized_by_flags(request: PlanRequest, settings: Settings, stage: Stage) -> Memory:
    """Nothing is known of a card, and the engine's flags alone say how large its cache is; the pool is filled in."""
    memory = _pool_given(request, settings, stage, _UNBOUNDED, "computed")
    return memory._replace(kv=memory.kv._replace(note="sized by the engine's flags; no card was given to hold it"))


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
    """This rank's share: the stage's part of the checkpoint, split over the tensor-parallel ranks, and a draft's."""
    model, ranks = request.model, settings.tensor_parallel_size
    given, count = request.weights, len(model.layers)
    known, element = model.parameters, settings.element_bytes
    if given is None:
        if known is None:
            return None
        parameters = experts_spread(known, request.flags.data_parallel_size)
        size = _of_stage(
            lambda first, end: weights_on_rank(parameters, model.quantization, first, end, ranks, element), stage, count
        )
        source = "estimated" if known.estimated else "computed"
        amount = Amount(size, source, f"{known.total:,} parameters from config.json")
    elif given.source == "given" or known is None:
        size = _of_stage(
            lambda first, end: even_share(known, count, given.bytes, first, end, ranks), stage, count
        )  # fmt: skip
        amount = Amount(size, given.source, given.note)
    else:
        size = _of_stage(
            lambda first, end: share_of_checkpoint(
                known, model.quantization, given.bytes, first, end, ranks, element, request.flags.data_parallel_size
            ),
            stage,
            count,
        )
        amount = Amount(size, given.source, given.note)
    if settings.speculation is None or stage.end != len(model.layers):
        return amount
    from kvbudget.planner.draft import draft_weights

    draft = draft_weights(request, settings.speculation, settings)
    return amount if draft is None else _together(amount, draft)


def _of_stage(size_of: Callable[[int, int], Bytes], stage: Stage, layers: int) -> Bytes:
    """Bytes of the stage's own layers, or of what it says that it holds. `size_of` first..end counts the embedding with
    the first layer and the output layer with the last of `layers`."""
    if stage.held is None:
        return size_of(stage.first, stage.end)
    return Bytes(_of_held(size_of, stage.held, layers))


def _of_held(size_of: Callable[[int, int], Bytes], held: Held, layers: int) -> int:
    first, end, output = held
    top = size_of(layers, layers)
    if first == end:
        return top if output else 0
    if first == 0 and end == layers > 1:  # a tied embedding is counted once over all, and is there twice
        return _of_held(size_of, Held(0, 1, output=False), layers) + _of_held(size_of, Held(1, end, output), layers)
    size = size_of(first, end) - (size_of(0, 0) if first == 0 else 0)
    return size + (top if output and end < layers else 0) - (top if end == layers and not output else 0)


def _together(weights: Amount, draft: Amount) -> Amount:
    """As certain as the less certain of the two."""
    source = max(weights.source, draft.source, key=("given", "measured", "computed", "estimated").index)
    return Amount(
        Bytes(weights.bytes + draft.bytes),
        source,
        f"{weights.note}, and {draft.bytes / GIB:.2f} GiB of {draft.note}".removeprefix(", and "),
    )


def _overheads(
    request: PlanRequest, engine: Engine, settings: Settings, stage: Stage, usable: int
) -> tuple[Amount, Amount, Amount]:
    """(activation, CUDA graphs, non-torch memory). `--overhead` is the last two together."""
    given = request.activation, request.overhead
    if given[0] is not None and given[1] is not None:
        return (
            Amount(given[0], "given", "--activation"),
            Amount(Bytes(0), "given", "inside --overhead"),
            Amount(given[1], "given", "--overhead"),
        )
    from kvbudget.planner.hardware.estimates import overheads  # only a plan from the card's memory needs it

    shape, run = _shape(request), _run(request, engine, settings, stage)
    found = overheads(shape, run, _constants(request, shape, run, usable))
    fitted = "; moved by your receipts" if request.receipts else ""
    activation = _estimated(found.activation, f"peak of one full batch or of sampling; give --activation{fitted}")
    graphs = _estimated(found.cuda_graphs, f"CUDA graphs; give --overhead{fitted}")
    other = _estimated(found.non_torch, f"CUDA context and communication; give --overhead{fitted}")
    if given[0] is not None:
        activation = Amount(given[0], "given", "--activation")
    if given[1] is not None:
        graphs = Amount(Bytes(0), "given", "inside --overhead")
        other = Amount(given[1], "given", "--overhead")
    return activation, graphs, other


def graphs_beside(
    request: PlanRequest, engine: Engine, settings: Settings, stage: Stage, memory: Memory
) -> "Interval | None":
    """CUDA graphs of a release that captures them when the pool has been sized: beside the engine's share of the card.

    None where they are part of the share, or nothing is known of the card.
    """
    inside = memory.cuda_graphs.bytes > 0 or memory.cuda_graphs.source != "estimated"
    if inside or settings.enforce_eager or not memory.total.bytes:
        return None
    from kvbudget.planner.hardware.estimates import overheads

    shape, run = _shape(request), _run(request, engine, settings, stage)
    return overheads(shape, run, _constants(request, shape, run, memory.usable.bytes)).graphs_later


def _constants(request: PlanRequest, shape: "Shape", run: "Run", usable: int) -> "Constants":
    """The public fit, moved by what the user's own engine told: only starts of the same release count."""
    from kvbudget.planner.hardware.estimates import CONSTANTS

    if not request.receipts:
        return CONSTANTS
    from kvbudget.planner.hardware.refit import Receipt, refit

    length = request.flags.max_model_len or request.model.max_model_len
    receipts = []
    for told in request.receipts:
        if told.version != run.version:
            continue
        total = usable - told.rest if told.rest is not None and told.max_model_len == length else None
        parts = (told.activation, told.cuda_graphs, told.non_torch, total if total is None or total > 0 else None)
        receipts.append(Receipt(shape, run, *(None if part is None else Bytes(part) for part in parts)))
    return refit(receipts)


def _estimated(interval: "Interval", note: str) -> Amount:
    return Amount(interval.best, "estimated", note, interval.low, interval.high)


def _shape(request: PlanRequest) -> "Shape":
    from kvbudget.planner.hardware.estimates import Shape

    model = request.model
    packed = model.quantization is not None and model.quantization.method == "mxfp4"  # kernels without a workspace
    return Shape(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        experts_per_token=0 if packed else model.experts_per_token,
        expert_intermediate_size=model.expert_intermediate_size,
        multimodal=model.multimodal,
        recurrent=any(isinstance(cache, State) for layer in model.layers for cache in layer.caches),
    )


def _run(request: PlanRequest, engine: Engine, settings: Settings, stage: Stage) -> "Run":
    from kvbudget.planner.hardware.estimates import Run

    card = request.gpu
    return Run(
        version=engine.memory_version,
        max_num_seqs=settings.profiled_seqs or settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        element_bytes=settings.element_bytes,
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        samples=stage.end == len(request.model.layers),
        enforce_eager=settings.enforce_eager,
        nvlink=card is None or card.link == "nvlink",
        largest_graph=_LARGEST_GRAPH_BLACKWELL if card is not None and card.name in _BLACKWELL else _LARGEST_GRAPH,
    )
