"""Decides with which sizes and options an engine would start at all."""

from kvbudget.pool.groups import Layout


def start_refusal(layout: Layout, num_blocks: int, max_model_len: int) -> str | None:
    """Why vLLM 0.32 would not start with this pool, in its words; None when it would start.

    One request of `max_model_len` must fit the usable blocks, `num_blocks - 1` (`v1/core/kv_cache_utils.py`).
    """
    usable = num_blocks - 1
    if max_model_len < 2:
        return f"max_model_len: {max_model_len} leaves no room for a prompt and an answer"
    if usable < 1:
        return f"No available memory for the cache blocks: {num_blocks} blocks, one of them the null block"
    need = layout.blocks_for(max_model_len)
    if need <= usable:
        return None
    return (
        f"To serve at least one request with the model's max seq len ({max_model_len}), {need} KV cache blocks are "
        f"needed, which is larger than the {usable} usable ones ({num_blocks} with the null block). Based on the "
        f"available memory, the estimated maximum model length is {layout.largest_length(usable)}"
    )
