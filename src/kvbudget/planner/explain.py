"""Decides how the arithmetic of a plan is shown, one line a step, each with the numbers that went in."""

from kvbudget.model.layers import Attention, Cache, Compressed, Compressor, CrossAttention, Indexer, Latent, State
from kvbudget.planner.request import Amount, Plan
from kvbudget.units import GIB, format_size

_AS_PRINTED = 0.005  # engines print two decimals


def explain(plan: Plan) -> list[str]:
    """The steps in order, for people."""
    return [*_cache_lines(plan), *_memory_lines(plan), *_pool_lines(plan)]


def _cache_lines(plan: Plan) -> list[str]:
    model, layout = plan.request.model, plan.stage.layout
    counts: dict[Cache, int] = {}
    for layer in model.layers:
        for cache in layer.caches:
            counts[cache] = counts.get(cache, 0) + 1
    lines = [_cache_line(cache, count, plan) for cache, count in counts.items()]
    idle = sum(1 for layer in model.layers if not layer.caches)
    if idle:
        lines.append(f"{idle} of {len(model.layers)} layers keep nothing: shared, pruned, or no attention")
    lines += _group_lines(plan)
    lines.append(f"one block over the widest group: {layout.bytes_per_block:,} B")
    if model.filled:
        lines.append(f"not in config.json, taken from the class defaults: {', '.join(model.filled)}")
    return lines


def _cache_line(cache: Cache, count: int, plan: Plan) -> str:
    """What one layer of this kind keeps, from the sizes in config.json."""
    element, ranks = plan.settings.kv_element_bytes, plan.settings.tensor_parallel_size
    if isinstance(cache, Attention | CrossAttention):
        heads = max(1, cache.kv_heads // ranks)
        split = "" if ranks == 1 else f", {cache.kv_heads} KV heads over {ranks} ranks = {heads}"
        if cache.kv_heads < ranks:
            split += " (replicated, a rank keeps one whole head)"
        size = cache.key_size + cache.value_size
        kept = ""
        if isinstance(cache, CrossAttention):
            kept = f" of {cache.encoder_tokens:,} encoder tokens"
        elif cache.window or cache.chunk:
            kept = f" of the last {cache.window:,}" if cache.window else f" of a chunk of {cache.chunk:,}"
        return (
            f"one token{kept} in each of {count} {cache.kind} layers: {heads} KV heads x ({cache.key_size} + "
            f"{cache.value_size}) x {element} B = {heads * size * element:,} B{split}"
        )
    if isinstance(cache, Latent):
        size = cache.latent_size + cache.rope_size
        return (
            f"one token in each of {count} MLA layers: a latent of {cache.latent_size} and {cache.rope_size} rotary x "
            f"{element} B = {size * element:,} B, whole on every rank"
        )
    if isinstance(cache, Indexer):
        keys = "keys" if cache.plain else "fp8 keys and their scales"
        every = f"{cache.tokens_per_key} tokens" if cache.tokens_per_key > 1 else "one token"
        return f"{every} in each of {count} sparse-attention indexers: {cache.head_size} {keys}"
    if isinstance(cache, State):
        return (
            f"a {cache.mixer} state in each of {count} layers, whatever the length: {cache.conv_taps} taps of a "
            f"convolution and {cache.matrix_elements:,} elements over {cache.heads} heads, split over {ranks} "
            f"{_plural('rank', ranks)}"
        )
    if isinstance(cache, Compressed):
        vector = f"a vector of {cache.head_size} (key and value at once, {cache.rope_size} of it rotary)"
        vector += ", whole on every rank"
        if cache.window is not None:
            return f"one token of the last {cache.window:,} in each of {count} sliding layers: {vector}"
        every = "one token" if cache.ratio == 1 else f"each {cache.ratio:,} tokens"
        return f"{every} in each of {count} compressed layers: {vector}"
    if isinstance(cache, Compressor):
        return (
            f"one token of the last {cache.window:,} in each of {count} compressors, which make one vector of "
            f"{cache.ratio:,} tokens: {cache.elements:,} x 4 B not compressed yet, whole on every rank"
        )
    return f"{count} further caches of kind {cache.kind}: see the groups"


def _group_lines(plan: Plan) -> list[str]:
    """How the engine groups the layers, groups that are alike in one line."""
    length, counts = plan.pool.max_model_len, dict.fromkeys(plan.stage.layout.groups, 0)
    for group in plan.stage.layout.groups:
        counts[group] += 1
    lines = []
    for group, count in counts.items():
        blocks = group.blocks_for(length)
        if group.fixed_blocks:
            how = "whatever the length"
        elif group.most_tokens:
            how = f"of at most {group.most_tokens:,} tokens (window or chunk, and what is in flight), plus "
            how += f"{group.extra_blocks}"
        else:
            how = f"{length:,} / {group.block_size:,} rounded up"
        times = f"{count} groups of" if count > 1 else "a group of"
        layers, tokens = _plural("layer", group.layers), _plural("token", group.block_size)
        shared = f" over {group.sharing_ranks} ranks" if group.sharing_ranks > 1 else ""
        lines.append(
            f"{times} {group.layers} {group.kind} {layers}, a page of {group.block_size:,} {tokens}{shared} in one "
            f"layer is {format_size(group.page_size_bytes)}: {blocks:,} {_plural('block', blocks)} a request ({how})"
        )
    return lines


def _memory_lines(plan: Plan) -> list[str]:
    memory = plan.memory
    if not memory.usable.bytes:
        return [f"pool memory: {_sized(memory.kv)}"]
    lines = [f"usable: {memory.usable.note}, {_sized(memory.total)} = {memory.usable.bytes / GIB:.2f} GiB"]
    parts = (
        ("weights", memory.weights),
        ("activation", memory.activation),
        ("CUDA graphs", memory.cuda_graphs),
        ("non-torch", memory.non_torch),
    )
    lines += [f"minus {name}: {_sized(amount)}" for name, amount in parts]
    left = "left for the KV cache"
    if memory.usable.bytes - sum(amount.bytes for _, amount in parts) != memory.kv.bytes:
        left += f", as {plan.engine_name} counts (not every part is taken off, or only a share of the rest is used)"
    lines.append(f"{left}: {_sized(memory.kv)}")
    if plan.settings.tensor_parallel_size > 1 and _splits(plan):
        lines.append(
            "tensor parallelism splits the weights as well as the cache, so the pool of a card grows and a token costs "
            "less of it: twice the cards hold more than twice the tokens"
        )
    return lines


def _splits(plan: Plan) -> bool:
    """Whether tensor parallelism makes a token cheaper on a rank: KV heads are split, not replicated, and not MLA."""
    caches = [cache for layer in dict.fromkeys(plan.request.model.layers) for cache in layer.caches]
    heads = [cache.kv_heads for cache in caches if isinstance(cache, Attention)]
    return bool(heads) and all(n >= plan.settings.tensor_parallel_size for n in heads)


def _pool_lines(plan: Plan) -> list[str]:
    pool, ceilings, waste = plan.pool, plan.ceilings, plan.tail_waste
    kept, seqs = ceilings.margin_blocks, plan.settings.max_num_seqs
    usable = f"({pool.usable_blocks:,} - {kept:,} of --margin)" if kept else f"{pool.usable_blocks:,}"
    most = f"at most {seqs:,} of --max-num-seqs"
    if 0 < pool.most_requests < seqs:
        most += f" and {pool.most_requests:,} of the pool of states or slots"
    per_request = pool.blocks_per_request
    printed = f"{pool.concurrency:.2f}x, {pool.tokens:,} tokens"
    if per_request and abs(pool.num_blocks / per_request - pool.concurrency) < _AS_PRINTED:
        printed = f"{pool.num_blocks:,} / {per_request:,} = {printed}"
    totals = []
    if plan.engines > 1:
        held, tokens = plan.engines * ceilings.ceiling, plan.engines * pool.tokens
        totals = [
            f"all of this is of one engine; {plan.engines} of them (--data-parallel-size) share out the experts and "
            f"have a pool each: {plan.engines} x {ceilings.ceiling:,} = {held:,} whole requests, {plan.engines} x "
            f"{pool.tokens:,} = {tokens:,} tokens. One request still has to fit one"
        ]
    return [
        _division(plan),
        f"blocks of a request of {pool.max_model_len:,} tokens: {per_request:,}",
        f"as the engine prints it: {printed}",
        f"whole requests at once: {usable} // {per_request:,}, {most} = {ceilings.ceiling:,} (limited by "
        f"{'states' if ceilings.limited_by == 'state' else ceilings.limited_by})",
        f"slots wasted at the tail of {_typical(plan)}: {waste.slots:,} ({waste.fraction:.2%})",
        f"longest max_model_len that starts: {pool.largest_max_model_len:,}",
        *totals,
    ]


def _division(plan: Plan) -> str:
    pool, size = plan.pool, plan.stage.layout.bytes_per_block
    if not pool.num_blocks:
        return "blocks: 0, nothing is left for them"
    line = f"blocks: {pool.num_blocks:,} by the rule of {plan.engine_name}"
    if size and plan.memory.kv.bytes // size == pool.num_blocks:
        line = f"blocks: {plan.memory.kv.bytes:,} B // {size:,} B = {pool.num_blocks:,}"
    if pool.num_blocks - pool.usable_blocks == 1:
        line += f", one of them the null block: {pool.usable_blocks:,} usable"
    return line


def _typical(plan: Plan) -> str:
    if plan.request.requests:
        return f"{len(plan.request.requests):,} real requests on average"
    return f"a request of {plan.ceilings.lengths[0]:,} tokens"


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"


def _sized(amount: Amount) -> str:
    note = f", {amount.note}" if amount.note else ""
    return f"{amount.bytes / GIB:.2f} GiB ({amount.source}{note})"
