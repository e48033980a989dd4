"""Decides what would make an engine start whose weights or cache are more than a card holds; every word of it is tried.

Engines that split matrices get more ranks. llama.cpp splits none: it keeps layers in the machine's memory, or on more
cards.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvbudget.engines.flags import Settings
from kvbudget.engines.registry import engine_named
from kvbudget.engines.rule import Engine, Pool
from kvbudget.errors import InputError
from kvbudget.planner.memory import memory_of
from kvbudget.planner.request import Memory, PlanRequest

MOST_CARDS = 64
MOST_SLOTS = 256  # src/llama-cparams.h: LLAMA_MAX_SEQ
CELLS = 256  # src/llama-context.cpp: a slot's context comes in multiples of it
_EIGHT_BIT = {"kv_cache_dtype": "q8_0", "value_cache_dtype": "q8_0"}
_LARGER_SLICE = "take a larger slice or a whole card (slices are not joined to one engine), or quantise the weights"


class Tried(NamedTuple):
    """What other flags bring. `longest`: the longest requests with which it would start, 0: with none.
    `layers`: those on cards."""

    starts: bool
    longest: int
    layers: int = 0


def split_that_fits(request: PlanRequest, engine: Engine, memory: Memory) -> str:
    """The smallest power of two of tensor-parallel ranks with which the engine would start, as advice; and the longest
    requests that it would start with on the cards that are there."""
    if request.gpu is not None and request.gpu.mig_profile:
        return _LARGER_SLICE
    now = request.flags.tensor_parallel_size
    enough = now * memory.weights.bytes // memory.usable.bytes  # more ranks than these: weights split evenly at best
    there = ""
    ranks = 1
    while ranks <= request.model.attention_heads:
        if ranks > max(now, enough):
            tried = tried_with(request, engine, tensor_parallel_size=ranks)
            if tried.starts:
                return (
                    f"{there}use --tensor-parallel-size {ranks}, the smallest power of two that fits, or quantise the "
                    "weights; a larger share of the card would not be enough"
                )
            if tried.longest and not there and ranks <= (request.gpus or 0):
                there = (
                    f"use --tensor-parallel-size {ranks} with --max-model-len {tried.longest} on the cards there are; "
                    "or "
                )
        ranks *= 2
    return f"{there}quantise the weights, take a larger card or more pipeline stages: no number of ranks is enough"


def layers_that_fit(request: PlanRequest, engine: Engine, settings: Settings, pool: Pool) -> str:
    """llama.cpp: a shorter context, a narrower cache, fewer layers on the cards, more cards: those that are enough."""
    found = []
    if pool.checked_blocks > 0 and tried_with(request, engine, max_model_len=int(pool.checked_blocks)).starts:
        found.append(f"--ctx-size {pool.checked_blocks}")
    if tried_with(request, engine, **_EIGHT_BIT).starts and not settings.kv_cache_dtype.startswith(("q", "iq")):
        found.append("--cache-type-k q8_0 --cache-type-v q8_0")
    layers = layers_on_cards(request, engine, settings)
    if layers is not None:
        rest = len(request.model.layers) - tried_with(request, engine, gpu_layers=layers).layers
        others = f"{rest} layers and their cache" if rest != 1 else "1 layer and its cache"
        found.append(f"--n-gpu-layers {layers} ({others} in the machine's memory)")
    mig = request.gpu is not None and bool(request.gpu.mig_profile)
    cards = None if mig or request.flags.pp_layer_partition else more_cards(request, engine, settings)
    if cards is not None:
        found.append(_said_of(request, cards))
    given = request.kv_cache_memory is not None  # for each card, whatever its weights
    if not found and given:
        return "raise --kv-cache-memory-bytes: no number of layers or cards is enough"
    if not found:
        return "quantise the weights, or take larger cards: no number of layers or cards is enough"
    quantised = "" if given or request.model.quantization is not None else ", or quantise the weights"
    return f"use {', or '.join(found)}{quantised}"


def _said_of(request: PlanRequest, cards: int) -> str:
    """llama.cpp uses the cards that it sees, without a flag; a plan has flags."""
    whole = " without --tensor-split" if request.flags.tensor_split else ""
    return f"{cards} cards{whole} (kvbudget plan --gpus {cards} --pipeline-parallel-size {cards})"


def layers_on_cards(request: PlanRequest, engine: Engine, settings: Settings) -> int | None:
    """The most of --n-gpu-layers, fewer than now, with which the same context starts; None where none do."""
    every = len(request.model.layers) + 1
    now = every if settings.gpu_layers is None else min(settings.gpu_layers, every)
    if request.flags.pp_layer_partition is not None:
        return None
    return _largest(now - 1, lambda count: tried_with(request, engine, gpu_layers=count).starts)


def more_cards(request: PlanRequest, engine: Engine, settings: Settings) -> int | None:
    """The fewest cards, alike and more than now, over which the layers fit."""
    request = request._replace(flags=request.flags._replace(tensor_split=None))
    for cards in range(settings.pipeline_parallel_size + 1, min(MOST_CARDS, len(request.model.layers) + 1) + 1):
        if tried_with(request, engine, pipeline_parallel_size=cards).starts:
            return cards
    return None


def _largest(high: int, good: Callable[[int], bool]) -> int | None:
    """The largest of 0..high that is good, where all below a good one are; None where 0 is not."""
    low = 0
    if high < 0 or not good(0):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low


def tried_with(request: PlanRequest, engine: Engine, **changes: object) -> Tried:
    """The same request with other flags; one that the engine does not take starts with nothing."""
    request = request._replace(flags=request.flags._replace(**changes))  # type: ignore[arg-type]
    card = request.gpu
    device = request.gpu_memory or (card.memory_bytes if card else 0)
    try:
        settings = engine.settle(request.model, request.flags, device, card.name if card else "")
        stages = engine.stages(request.model, settings)
        available = [memory.kv.bytes for memory in memory_of(request, engine, settings, stages)]
        pool = engine.pool(request.model, settings, stages, available)
        codes = {refusal.code for refusal in engine.refusals(request.model, settings, stages, pool)}
    except InputError:
        return Tried(starts=False, longest=0)
    longest = int(pool.largest_max_model_len) if codes <= {"max_model_len_too_large"} else 0
    return Tried(
        not codes, longest, sum(stage.held.end - stage.held.first for stage in stages if stage.held is not None)
    )


def more_slots(request: PlanRequest, settings: Settings, wanted: int, length: int) -> str:
    """llama.cpp shares the context out over the slots, so that one goes up with the other: `wanted` slots of `length`
    tokens each, or as long ones as memory holds."""
    engine = engine_named(request.engine)
    if wanted > MOST_SLOTS:
        return f"use more servers: one has at most {MOST_SLOTS} slots (--parallel)"

    def asked(cells: int) -> dict[str, object]:
        shared: dict[str, object] = {"kv_unified": False} if request.flags.kv_unified else {}
        return shared | {"max_num_seqs": wanted, "max_model_len": cells * CELLS * wanted}

    def starts(cells: int, **changes: object) -> bool:
        return tried_with(request, engine, **asked(cells), **changes).starts

    def said(cells: int) -> str:
        own = "--no-kv-unified " if request.flags.kv_unified else ""
        return f"{own}--parallel {wanted} --ctx-size {cells * CELLS * wanted}"

    cells = -(-length // CELLS)
    if starts(cells):
        return f"use {said(cells)} ({cells * CELLS:,} cells for each slot)"
    more = []
    if not settings.kv_cache_dtype.startswith(("q", "iq")) and starts(cells, **_EIGHT_BIT):
        more.append(f"{said(cells)} with --cache-type-k q8_0 --cache-type-v q8_0")
    held = _largest(cells - 1, lambda fewer: starts(fewer) if fewer else True)
    if held:
        eight = _largest(cells - 1, lambda fewer: starts(fewer, **_EIGHT_BIT) if fewer else True) or 0
        wider = f", {eight * CELLS:,} cells with --cache-type-k q8_0 --cache-type-v q8_0" if eight > held else ""
        more.append(f"{said(held)}, {held * CELLS:,} cells for each slot, where that is long enough{wider}")
    wide = request._replace(flags=request.flags._replace(**asked(cells)))  # type: ignore[arg-type]
    cards = None if request.gpu is not None and request.gpu.mig_profile else more_cards(wide, engine, settings)
    if cards is not None:
        more.append(f"{said(cells)} on {_said_of(request, cards)}")
    return f"use {'; or '.join(more)}" if more else "quantise the weights, or take larger cards"
