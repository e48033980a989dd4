"""Decides the ring that keeps the keys of the group of tokens that is not compressed yet: one block for each request.

`v1/kv_cache_interface.py: CircularBufferSpec`; how long it is, is decided by the model's own class.
"""

from math import ceil

from kvbudget.engines.vllm.spec import Family, Spec
from kvbudget.errors import UnsupportedError
from kvbudget.model.layers import Ring
from kvbudget.model.read import Model
from kvbudget.pool.groups import Content

_LEAST_COMPRESSOR_ROWS = 8


def ring_spec(cache: Ring, model: Model, block_size: int, speculative_tokens: int) -> Spec:
    """Raises UnsupportedError where the engine's class asserts that the ring divides a block and it does not."""
    slots = _slots(cache, speculative_tokens)
    if cache.family != "deepseek_v41" and block_size % slots:
        raise UnsupportedError(
            f"the ring of {slots} uncompressed keys does not divide the attention block of {block_size} tokens: vLLM "
            "asserts that it does",
            fix="use another --block-size or tensor-parallel size, or fewer speculative tokens",
        )
    token = cache.elements * cache.element_bytes
    if any("ConditionalGeneration" in name for name in model.architectures):
        token += cache.positions
    return Spec(
        Family.RING,
        slots,
        token * slots,
        Content(0, 0, token * slots),
        ("ring", *cache),
        fixed_blocks=1,
        replicated=True,
    )


def _slots(cache: Ring, speculative_tokens: int) -> int:
    """Tokens in the ring: an open group, and the rows that a step stores before drafts are accepted."""
    if cache.family == "deepseek_v41":  # models/deepseek_v41/compressor.py: CompressorStateCache
        return max(_LEAST_COMPRESSOR_ROWS, _power_of_two(speculative_tokens + 2))
    groups = ceil((cache.ratio + speculative_tokens) / cache.ratio)
    if cache.family == "glm5_next":  # models/glm5next/common/attention.py: Glm5NextTailCache
        groups = _power_of_two(groups)
    return cache.ratio * groups  # models/qwen4_exp/common/qsa_cache.py: QSAKeyStateCache


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
