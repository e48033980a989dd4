"""Decides how the arithmetic of a plan is shown, one line a step, each with the numbers that went in."""

from kvbudget.plan.request import Amount, Plan
from kvbudget.units import GIB, format_size


def explain(plan: Plan) -> list[str]:
    """The steps in order, for people."""
    return [*_cache_lines(plan), *_memory_lines(plan), *_pool_lines(plan)]


def _cache_lines(plan: Plan) -> list[str]:
    model, settings, layout = plan.request.model, plan.settings, plan.stage.layout
    lines = []
    layer = model.layers[plan.stage.first]
    ranks = settings.tensor_parallel_size
    heads = max(1, layer.kv_heads // ranks)
    if ranks > 1:
        how = "split" if layer.kv_heads >= ranks else "replicated, a rank keeps one whole head"
        lines.append(f"KV heads on a rank: {layer.kv_heads} over {ranks} ranks = {heads} ({how})")
    lines.append(
        f"one token in one layer: {heads} KV heads x ({layer.key_size} + {layer.value_size}) x "
        f"{settings.kv_element_bytes} B = {heads * (layer.key_size + layer.value_size) * settings.kv_element_bytes:,} B"
    )
    for group in layout.groups:
        where = f" of {len(model.layers)}, on this pipeline stage" if group.layers < len(model.layers) else ""
        lines.append(f"one token: {group.layers} {group.kind} layers{where} = {format_size(layout.bytes_per_token)}")
        lines.append(f"one page: {group.block_size} tokens in one layer = {format_size(group.page_size_bytes)}")
    lines.append(f"one block over all layers: {layout.bytes_per_block:,} B")
    if model.filled:
        lines.append(f"not in config.json, taken from the class defaults: {', '.join(model.filled)}")
    return lines


def _memory_lines(plan: Plan) -> list[str]:
    memory = plan.memory
    if not memory.usable.bytes:
        return [f"pool memory: {_sized(memory.kv)}"]
    lines = [
        f"usable: {_sized(memory.total)} x {plan.settings.gpu_memory_utilization:g} = "
        f"{memory.usable.bytes / GIB:.2f} GiB"
    ]
    lines += [
        f"minus {name}: {_sized(amount)}"
        for name, amount in (
            ("weights", memory.weights),
            ("activation", memory.activation),
            ("CUDA graphs", memory.cuda_graphs),
            ("non-torch", memory.non_torch),
        )
    ]
    lines.append(f"left for the KV cache: {_sized(memory.kv)}")
    if 1 < plan.settings.tensor_parallel_size <= plan.request.model.layers[0].kv_heads:
        lines.append(
            "tensor parallelism splits the weights as well as the cache, so the pool of a card grows and a token costs "
            "less of it: twice the cards hold more than twice the tokens"
        )
    return lines


def _pool_lines(plan: Plan) -> list[str]:
    pool, layout, ceilings = plan.pool, plan.stage.layout, plan.ceilings
    waste = layout.tail_waste(ceilings.lengths[0])
    division = f"blocks: {plan.memory.kv.bytes:,} B // {layout.bytes_per_block:,} B = {pool.num_blocks:,}"
    null = f", one of them the null block: {pool.usable_blocks:,} usable"
    return [
        division + null if pool.num_blocks else "blocks: 0, nothing is left for them",
        f"blocks of a request of {pool.max_model_len:,} tokens: {pool.blocks_per_request:,}",
        f"as the engine prints it: {pool.num_blocks:,} / {pool.blocks_per_request:,} = {pool.concurrency:.2f}x, "
        f"{pool.tokens:,} tokens",
        f"whole requests at once: {pool.usable_blocks:,} // {pool.blocks_per_request:,}, at most "
        f"{plan.settings.max_num_seqs:,} of --max-num-seqs = {ceilings.ceiling:,} (limited by {ceilings.limited_by})",
        f"slots wasted at the tail of a request of {ceilings.lengths[0]:,} tokens: {waste}",
        f"longest max_model_len that starts: {pool.largest_max_model_len:,}",
    ]


def _sized(amount: Amount) -> str:
    note = f", {amount.note}" if amount.note else ""
    return f"{amount.bytes / GIB:.2f} GiB ({amount.source}{note})"
