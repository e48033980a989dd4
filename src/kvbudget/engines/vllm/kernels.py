"""Decides which attention backend a card's MLA layers get, and so the block that their kernel reads at once.

vLLM 0.32 `platforms/cuda.py`, `platforms/rocm.py`: _get_backend_priorities; `v1/attention/backends/mla/`:
get_supported_kernel_block_sizes, supports_combination.
"""

from functools import lru_cache

from kvbudget.engines.vllm.devices import capability_of
from kvbudget.engines.vllm.pages import LATENT_KERNEL_BLOCK, caches_of
from kvbudget.model.layers import Indexer, Latent
from kvbudget.model.read import Model
from kvbudget.model.same import Same

_ANY_CARD = 16  # multiples of it: Triton's, that of FlashMLA being 64; also FlashAttention's on Hopper, and the default
_FLASHINFER, _CUTLASS = 32, 128  # on SM100
_FLASHINFER_HEADS = (64, 128, 192)  # flashinfer_mla.py: of the part of a key without rotation
_CHOICES_KEPT = 256
_PLAIN_FORMATS = ("auto", "float16", "bfloat16")  # flashattn_mla.py: what FlashAttention stores


@lru_cache(maxsize=_CHOICES_KEPT)
def latent_block(same: "Same[Model]", device_name: str, kv_format: str, asked: int, exact: bool) -> int:
    """Tokens of the smallest block that the MLA kernel takes on this card, of which its blocks are multiples.

    `device_name`: "" where no card is known. `asked`: --block-size, 0 for none: a backend that does not take it makes
    room for one that does. `exact`: the version whose choice was read; older ones are told apart only where FlashMLA,
    which they take, has no kernel.
    """
    caches = caches_of(same.value)
    latents = [cache for cache in caches if isinstance(cache, Latent)]
    capability, amd = capability_of(device_name), _is_amd(device_name)
    if not latents or (capability == (0, 0) and not amd):
        return LATENT_KERNEL_BLOCK
    sparse = any(isinstance(cache, Indexer) for cache in caches) or any(cache.window for cache in latents)
    if sparse:  # their kernels and those of the indexer beside them (rocm_aiter_mla_sparse.py: any multiple of 16)
        pooled = any(isinstance(cache, Indexer) and cache.tokens_per_key > 1 for cache in caches)
        return _ANY_CARD if amd and not pooled else LATENT_KERNEL_BLOCK
    block = _ANY_CARD
    if capability[0] == 10:
        without_rotation = {cache.key_size - cache.rope_size for cache in latents}
        block = _FLASHINFER if without_rotation <= set(_FLASHINFER_HEADS) else _CUTLASS
    if capability[0] == 9 and kv_format not in _PLAIN_FORMATS:
        block = LATENT_KERNEL_BLOCK
    if capability[0] in (9, 10) and not exact:
        block = LATENT_KERNEL_BLOCK
    return block if asked % block == 0 else _ANY_CARD


def _is_amd(device_name: str) -> bool:
    """Whether a name is of one of AMD's cards: "MI300X", "Radeon AI PRO R9700", "RX 7900 XTX"."""
    words = device_name.lower().replace("-", " ").split()
    return any(word in ("radeon", "instinct", "rx") or (word[:2] == "mi" and word[2:3].isdigit()) for word in words)
