"""Decides what the well-known shortcuts would have said of this very plan, and why each of them is wrong here.

Only those whose answer differs are returned: a plain GQA model on a given pool has few, a hybrid on a card has many.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvbudget.errors import InputError
from kvbudget.model.layers import Attention, Indexer, Latent, Layer
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.units import GIB, Bytes

# What differs by less is rounding to whole blocks, not a wrong formula.
_ROUNDING = 200
# Sizes under which cards are sold. A driver reports up to a tenth less of it (ECC, firmware, the context).
_SOLD_SIZES = (8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 256, 288)
_FORMER_UTILIZATION = 0.90  # vLLM before 0.32 config/cache.py; many tools still assume it


class Naive(NamedTuple):
    """One shortcut. `said` and `ours` are of the same `quantity`, per GPU rank:

    "request": bytes of the pool that one request of max_model_len takes; "pool": tokens as the engine prints them;
    "requests": whole requests of max_model_len at once.
    """

    code: str
    name: str
    formula: str
    quantity: str
    said: int
    ours: int
    why: str

    @property
    def ratio(self) -> float | None:
        """`said` over `ours`; None where ours is 0."""
        return self.said / self.ours if self.ours else None


def naive_answers(plan: Plan) -> tuple[Naive, ...]:
    """The shortcuts that are wrong for this plan, those about one request first."""
    candidates = [*_request_answers(plan), *_token_answers(plan), *_card_answers(plan), *_count_answers(plan)]
    return tuple(answer for answer in candidates if abs(answer.said - answer.ours) * _ROUNDING > answer.ours)


def _request_answers(plan: Plan) -> Iterator[Naive]:
    """Formulas for the bytes of one request, over all layers of this rank."""
    settings, layout, model = plan.settings, plan.stage.layout, plan.request.model
    length, ranks, element = plan.pool.max_model_len, settings.tensor_parallel_size, _element_bytes(plan)
    layers = plan.stage.end - plan.stage.first
    ours = plan.pool.blocks_per_request * layout.bytes_per_block

    def answer(code: str, name: str, formula: str, said: int, why: str) -> Naive:
        return Naive(code, name, formula, "request", said, ours, why)

    attention = _commonest_attention(model.layers)
    if attention is not None:
        kv_heads, size = attention.kv_heads, attention.key_size + attention.value_size
        on_rank, span = max(1, kv_heads // ranks), layers * length * element
        yield answer(
            "every_layer_full",
            "every layer keeps every token",
            f"2 x {layers} layers x {on_rank} KV heads x head_dim x {element} B x {length:,} tokens",
            on_rank * size * span,
            _not_full(plan, attention),
        )
        if ranks > kv_heads:
            yield answer(
                "heads_below_ranks",
                "tensor parallelism always divides",
                f"the same over {ranks} ranks",
                kv_heads * size * span // ranks,
                f"{kv_heads} KV heads cannot be split over {ranks} ranks: each rank keeps a whole one",
            )
        if model.attention_heads != kv_heads:
            all_heads = max(1, model.attention_heads // ranks)
            yield answer(
                "all_attention_heads",
                "one key and value for every attention head (MHA)",
                f"2 x {layers} layers x {all_heads} heads x head_dim x {element} B x tokens",
                all_heads * size * span,
                f"{model.attention_heads} attention heads share {kv_heads} KV heads; only those are cached",
            )
        derived = model.hidden_size // model.attention_heads
        if derived not in (attention.key_size, attention.value_size):
            yield answer(
                "hidden_over_heads",
                "head_dim = hidden_size / heads",
                f"{model.hidden_size} / {model.attention_heads} = {derived}",
                on_rank * 2 * derived * span,
                f"config.json gives heads of {_sizes(attention.key_size, attention.value_size)} by themselves",
            )
    yield from (answer(*parts) for parts in _latent_answers(plan, length))
    if any(group.most_tokens for group in layout.groups):
        yield answer(
            "window_alone",
            "layers with a window hold their window, no more",
            f"min({length:,}, window) tokens in each of them",
            layout.bytes_for(length),
            f"up to {settings.max_in_flight_tokens:,} tokens in flight are held beside the window until they are done, "
            "pages are padded to one size, and blocks are whole",
        )
    if any(group.fixed_blocks for group in layout.groups):
        yield answer(
            "attention_alone",
            "recurrent layers cost nothing",
            f"bytes a token of the attention layers x {length:,} tokens",
            layout.bytes_per_token * length,
            "a recurrent state costs whole blocks from the first token on, and pages are padded to hold it",
        )
    if model.quantization is not None and element == 2:
        yield answer(
            "cache_like_weights",
            "quantised weights mean a quantised cache",
            "1 byte an element",
            ours // 2,
            f"the checkpoint's weights are quantised ({model.quantization.method}), its cache is not: "
            f"--kv-cache-dtype {settings.kv_cache_dtype} keeps 2 bytes an element",
        )


def _latent_answers(plan: Plan, length: int) -> Iterator[tuple[str, str, str, int, str]]:
    """(code, name, formula, bytes of one request, why) of MLA models."""
    ranks, element = plan.settings.tensor_parallel_size, _element_bytes(plan)
    caches = [c for layer in plan.request.model.layers[plan.stage.first : plan.stage.end] for c in layer.caches]
    latents = [cache for cache in caches if isinstance(cache, Latent)]
    if not latents:
        return
    first, span = latents[0], len(latents) * length * element
    heads, width = max(1, first.heads // ranks), first.latent_size + first.rope_size
    yield (
        "latent_as_heads",
        "MLA as if every head had its key and value",
        f"{len(latents)} layers x {heads} heads x ({first.key_size} + {first.value_size}) x {element} B x tokens",
        heads * (first.key_size + first.value_size) * span,
        f"the engine keeps one latent of {first.latent_size} + {first.rope_size} for all heads",
    )
    if ranks > 1:
        yield (
            "latent_over_ranks",
            "MLA divided by tensor parallelism",
            f"{len(latents)} layers x ({first.latent_size} + {first.rope_size}) x {element} B x tokens / {ranks}",
            width * span // ranks,
            "the latent has one head: every rank keeps all of it",
        )
    if any(isinstance(cache, Indexer) for cache in caches):
        yield (
            "indexer_forgotten",
            "sparse attention caches the latent alone",
            f"{len(latents)} layers x ({first.latent_size} + {first.rope_size}) x {element} B x tokens",
            width * span,
            "the indexer caches a key of its own for every token, and a packed latent carries its scales",
        )


def _token_answers(plan: Plan) -> Iterator[Naive]:
    """How many tokens the pool holds, where groups differ."""
    pool, layout = plan.pool, plan.stage.layout
    several = len(layout.groups) > 1 or not layout.growing
    why = (
        f"blocks of {len(layout.groups)} groups come from one pool; the engine prints what requests of "
        f"{pool.max_model_len:,} tokens would fill, {pool.concurrency:.2f} of them"
    )
    if several and layout.bytes_per_token:
        yield Naive(
            "one_rate",
            "pool bytes over bytes a token",
            f"{pool.bytes / GIB:.2f} GiB / {layout.bytes_per_token:,} B",
            "pool",
            pool.bytes // layout.bytes_per_token,
            pool.tokens,
            f"a request has a fixed part (windows, states, padding) beside its rate; {why}",
        )
    if several:
        yield Naive(
            "blocks_times_size",
            "num_gpu_blocks x block_size",
            f"{pool.num_blocks:,} x {plan.settings.block_size}",
            "pool",
            pool.num_blocks * plan.settings.block_size,
            pool.tokens,
            f"a block belongs to one group, so a token needs one of each; {why}",
        )


def _card_answers(plan: Plan) -> Iterator[Naive]:
    """What the pool would be from another reading of the card; each is planned again by the engine's own rule."""
    request, memory, settings = plan.request, plan.memory, plan.settings
    if not memory.usable.bytes:
        return

    def answer(code: str, name: str, formula: str, changed: PlanRequest, why: str) -> Iterator[Naive]:
        tokens = _pool_tokens(changed)
        if tokens is not None:
            yield Naive(code, name, formula, "pool", tokens, plan.pool.tokens, why)

    sold = _sold_size(memory.total.bytes) if request.gpu is not None and request.gpu_memory is None else None
    if sold is not None:
        seen = f"the driver reports {memory.total.bytes / GIB:.2f} GiB to a process"
        yield from answer(
            "size_on_the_box",
            f"a card of {sold} GB has {sold} GiB",
            f"{sold} GiB in all",
            request._replace(gpu_memory=Bytes(sold * GIB)),
            seen,
        )
        yield from answer(
            "decimal_gigabytes",
            f"a card of {sold} GB has {sold} x 10^9 B",
            f"{sold * 10**9 / GIB:.2f} GiB in all",
            request._replace(gpu_memory=Bytes(sold * 10**9)),
            f"{seen}: the number on the box is neither decimal nor all there",
        )
    if request.flags.gpu_memory_utilization is None and settings.gpu_memory_utilization > _FORMER_UTILIZATION:
        flags = request.flags._replace(gpu_memory_utilization=_FORMER_UTILIZATION)
        yield from answer(
            "former_utilization",
            f"the engine takes {_FORMER_UTILIZATION:.0%} of the card",
            f"{_FORMER_UTILIZATION:g} x {memory.total.bytes / GIB:.2f} GiB",
            request._replace(flags=flags),
            f"{plan.engine_name} {plan.engine_version} takes {settings.gpu_memory_utilization:g} where nothing is said",
        )
    left = memory.total.bytes - memory.weights.bytes
    if left > 0:
        taken = memory.activation.bytes + memory.cuda_graphs.bytes + memory.non_torch.bytes
        yield from answer(
            "weights_alone",
            "what the weights leave is the cache",
            f"{memory.total.bytes / GIB:.2f} - {memory.weights.bytes / GIB:.2f} GiB",
            request._replace(kv_cache_memory=Bytes(left)),
            f"activation, CUDA graphs and non-torch memory take {taken / GIB:.2f} GiB more, and the engine leaves "
            f"{(memory.total.bytes - memory.usable.bytes) / GIB:.2f} GiB alone",
        )


def _count_answers(plan: Plan) -> Iterator[Naive]:
    """Whole requests at once."""
    pool, ceilings = plan.pool, plan.ceilings
    if not pool.blocks_per_request:
        return
    counted = min(pool.num_blocks // pool.blocks_per_request, plan.settings.max_num_seqs)
    if pool.usable_blocks < pool.num_blocks and counted != ceilings.ceiling:
        yield Naive(
            "null_block",
            "every block can be given out",
            f"{pool.num_blocks:,} // {pool.blocks_per_request:,} blocks",
            "requests",
            counted,
            ceilings.ceiling,
            f"{pool.num_blocks - pool.usable_blocks} block is the null block, which no request gets; it is counted in "
            f"the {pool.concurrency:.2f}x that the engine prints",
        )
    by_pool = int(pool.concurrency)
    if ceilings.limited_by == "max_num_seqs" and by_pool > ceilings.ceiling:
        yield Naive(
            "pool_alone",
            "the pool is the only limit",
            f"{pool.concurrency:.2f}x as the engine prints it",
            "requests",
            by_pool,
            ceilings.ceiling,
            f"max_num_seqs ends it at {ceilings.ceiling:,}; the rest of the pool is left to the prefix cache",
        )


def _element_bytes(plan: Plan) -> int:
    """Of one key or value, as a simple formula takes it: formats below a byte count as one."""
    return max(1, plan.settings.kv_element_bytes)


def _commonest_attention(layers: tuple[Layer, ...]) -> Attention | None:
    """The attention cache that most layers have: what the top-level keys of config.json describe."""
    counted: dict[Attention, int] = {}
    for layer in layers:
        for cache in layer.caches:
            if isinstance(cache, Attention):
                counted[cache] = counted.get(cache, 0) + 1
    return max(counted, key=lambda cache: counted[cache]) if counted else None


def _not_full(plan: Plan, attention: Attention) -> str:
    """Which layers do not keep what the formula says."""
    kinds = plan.request.model.kinds
    others = [f"{count} {kind}" for kind, count in kinds.items() if kind != "full"]
    if others:
        said = f"of {sum(kinds.values())} layers, {', '.join(others)}"
        return f"{said}: these do not keep every token of their own"
    if attention.key_size != attention.value_size:
        return "keys and values differ in size"
    return "pages are padded and blocks are whole"


def _sizes(key: int, value: int) -> str:
    return f"{key}" if key == value else f"{key} (keys) and {value} (values)"


def _pool_tokens(request: PlanRequest) -> int | None:
    try:
        return make_plan(request).pool.tokens
    except InputError:
        return None


def _sold_size(memory: int) -> int | None:
    """The size in GB that a card with `memory` bytes is sold under, None where none is near."""
    gib = memory / GIB
    return next((size for size in _SOLD_SIZES if gib <= size <= gib * 1.12), None)
