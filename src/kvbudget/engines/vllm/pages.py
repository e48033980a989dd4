"""Decides the page of every layer's cache on one rank: block size, bytes, and the blocks of constant caches.

`model_executor/layers/attention/attention.py`, `mla_attention.py`, `layers/mamba/abstract.py`: get_kv_cache_spec;
`platforms/interface.py`: update_block_size_for_backend, _align_hybrid_block_size.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import ceil, gcd
from typing import NamedTuple

from kvbudget.engines.vllm.compressed import compressed_spec, kernel_block_of, record_of
from kvbudget.engines.vllm.formats import (
    attention_token_bytes,
    indexer_token_bytes,
    latent_token_bytes,
    plain_layers,
)
from kvbudget.engines.vllm.rings import ring_spec
from kvbudget.engines.vllm.spec import Family, Spec
from kvbudget.errors import UnsupportedError
from kvbudget.model.layers import (
    Attention,
    Cache,
    Compressed,
    Compressor,
    ConvolutionWindow,
    CrossAttention,
    Indexer,
    Latent,
    Layer,
    Ring,
    State,
)
from kvbudget.model.read import Model
from kvbudget.model.same import Same
from kvbudget.pool.groups import Content

DEFAULT_BLOCK_SIZE = 16  # config/cache.py: DEFAULT_BLOCK_SIZE
# v1/attention/backends: get_supported_kernel_block_sizes of FlashAttention (multiples of 16), of FlashMLA, which the
# rule takes where no card is named (kernels.py), and of indexers
ATTENTION_KERNEL_BLOCK = 16
LATENT_KERNEL_BLOCK = 64
_INDEXER_KERNEL_BLOCK = 64
_SPARSE_KERNEL_BLOCK = 128  # models/minimax_m3/common/sparse_attention.py
_POOLED_KERNEL_ENTRIES = 32  # v1/attention/backends/mla/indexer.py: Glm5NextIndexerBackend, the smallest
_STRIDE_ENTRIES = 64  # and the largest, that of other indexers too
_FLASHINFER_ROWS = 32  # v1/attention/backends/mla/flashinfer_mla_sparse.py
# model_executor/models/minicpm3.py: keys and values of every head, the values padded to the keys' size
_WITHOUT_LATENTS = ("minicpm3",)
# platforms/interface.py: hybrids of MLA and recurrent layers
_LATENT_HYBRID_ALIGNMENT = 128
_MODELS_KEPT = 64


class Ranks(NamedTuple):
    """What one rank's pages depend on besides the layer. Sizes in bytes of one element."""

    tensor_parallel: int
    block_size: int
    kv_format: str
    model_bytes: int
    conv_bytes: int
    matrix_bytes: int  # 0: what the layer itself asks for
    speculative_tokens: int
    aligned: bool  # recurrent states are kept at block boundaries (prefix caching on)
    max_model_len: int
    batched_tokens: int
    sm100: bool  # a GPU of compute capability 10.x
    latent_block: int = LATENT_KERNEL_BLOCK
    asked_block_size: int = 0
    aligned_states: bool = True  # see versions.Traits
    checkpoint_states: bool = True


def packs(model: Model) -> bool:
    """Whether a block holds pages of different sizes side by side: a backend asks for a block-outermost layout
    (supported_kv_cache_layouts of the DeepSeek-V4, GLM5-Next, Qwen4-Exp and dots3 backends)."""
    return any(
        isinstance(cache, Compressed | Ring) or (isinstance(cache, Latent) and cache.padded_size > 0)
        for cache in caches_of(model)
    )


def kernel_block(model: Model, *, sm100: bool = False, latent_block: int = LATENT_KERNEL_BLOCK) -> int:
    """Smallest block that all attention kernels of this model take; a block is a multiple of it. `latent_block`: see
    kernels.py."""
    caches = caches_of(model)
    if any(isinstance(cache, Compressed) for cache in caches):
        return kernel_block_of(model.model_type, sm100=sm100)
    latent = any(isinstance(cache, Latent) for cache in caches)
    indexers = [cache for cache in caches if isinstance(cache, Indexer)]
    if latent or (indexers and not indexers[0].plain):
        smallest = latent_block if latent else _INDEXER_KERNEL_BLOCK
        return max([smallest, *(_POOLED_KERNEL_ENTRIES * c.tokens_per_key for c in indexers if c.tokens_per_key > 1)])
    return _SPARSE_KERNEL_BLOCK if any(c.tokens_per_key == 1 for c in indexers) else ATTENTION_KERNEL_BLOCK


def block_size_of(model: Model, ranks: Ranks, asked: int | None) -> int:
    """Tokens in a block of attention layers: what was asked, the kernels' own, and larger where a recurrent state must
    fit into an attention page."""
    kernel = kernel_block(model, sm100=ranks.sm100, latent_block=ranks.latent_block)
    size = asked or max(DEFAULT_BLOCK_SIZE, kernel)
    if any(isinstance(cache, Compressed) for cache in caches_of(model)) and size % kernel:
        size = kernel  # refused anyway; a smaller block would hold no vector
    states = [cache for cache in caches_of(model) if isinstance(cache, State)]
    attention = next((c for c in caches_of(model) if isinstance(c, Attention | Latent)), None)
    if not states and plain_layers(model, ranks.kv_format):
        # platforms/interface.py: _align_heterogeneous_kv_block_size, with one byte for an element that is packed
        return size * ceil(kernel * ranks.model_bytes / size)
    if not states or attention is None:
        return size
    page = max(_state_bytes(cache, ranks) for cache in dict.fromkeys(states))
    token = _token_bytes(attention, ranks)
    alignment = max(kernel, size)
    if isinstance(attention, Latent):
        alignment = max(alignment, _LATENT_HYBRID_ALIGNMENT)
    needed = alignment * ceil(page / (alignment * token))
    return max(size, ceil(needed / kernel) * kernel)


def specs_of(layers: Iterable[Layer], model: Model, ranks: Ranks, first: int = 0) -> list[Spec]:
    """One spec for each cache of `layers`, in the order in which the engine registers them. `first`: the number of the
    first of them in the model."""
    layers = tuple(layers)
    padded = _padded_state_page(model, ranks)
    if padded and not any(
        isinstance(served(cache, model), Attention | Latent)
        for layer in dict.fromkeys(layers)
        for cache in layer.caches
    ):
        # platforms/interface.py: a worker without attention layers leaves blocks and states as they are
        ranks = ranks._replace(block_size=ranks.asked_block_size or DEFAULT_BLOCK_SIZE)
        padded = 0
    known: dict[Layer, tuple[Spec, ...]] = {}
    specs: list[Spec] = []
    plain = plain_layers(model, ranks.kv_format)
    for number, layer in enumerate(layers, first):
        if number in plain:
            own = ranks._replace(kv_format="auto")
            specs += [_spec_of(served(c, model), layer, model, own, padded) for c in layer.caches]
            continue
        if layer not in known:
            known[layer] = tuple(_spec_of(served(c, model), layer, model, ranks, padded) for c in layer.caches)
        specs += known[layer]
    return specs


def served(cache: Cache, model: Model) -> Cache:
    """The cache as this engine keeps it: heads instead of a latent where it has no MLA for the model."""
    if isinstance(cache, Latent) and model.model_type in _WITHOUT_LATENTS:
        return Attention(cache.heads, cache.key_size, cache.key_size, cache.window)
    return cache


def _spec_of(cache: Cache, layer: Layer, model: Model, ranks: Ranks, padded: int) -> Spec:
    if isinstance(cache, Attention):
        return _attention(cache, ranks)
    if isinstance(cache, Latent):
        return _latent(cache, layer, model, ranks)
    if isinstance(cache, Compressed | Compressor):
        return compressed_spec(cache, record_of(model.model_type, ranks.kv_format, ranks.block_size, sm100=ranks.sm100))
    if isinstance(cache, Indexer):
        return _indexer(cache, layer, model, ranks)
    if isinstance(cache, Ring):
        return ring_spec(cache, model, ranks.block_size, ranks.speculative_tokens)
    if isinstance(cache, ConvolutionWindow):
        return _convolution(cache, ranks)
    if isinstance(cache, State):
        return _state(cache, ranks, padded)
    return _cross(cache, ranks)


def _attention(cache: Attention, ranks: Ranks) -> Spec:
    heads = _heads(cache.kv_heads, ranks)
    token = attention_token_bytes(cache, heads, ranks.kv_format, ranks.model_bytes)
    block = ranks.block_size
    family = Family.FULL
    if cache.window is not None:
        family = Family.SLIDING
        # a sliding layer takes the largest block that its kernel runs unsplit and that is not above the primary one
        block = max(ATTENTION_KERNEL_BLOCK, block // ATTENTION_KERNEL_BLOCK * ATTENTION_KERNEL_BLOCK)
    elif cache.chunk is not None:
        family = Family.CHUNKED
    window = cache.window or cache.chunk or 0
    return Spec(family, block, token * block, Content(token, window), (heads, cache.key_size, cache.value_size), window)


def _latent(cache: Latent, layer: Layer, model: Model, ranks: Ranks) -> Spec:
    token = latent_token_bytes(cache, ranks.kv_format, ranks.model_bytes)
    leads = any(isinstance(other, Indexer) for other in layer.caches)
    window = cache.window or 0
    family = Family.SLIDING_MLA if window else Family.MLA
    return Spec(
        family,
        ranks.block_size,
        token * ranks.block_size,
        Content(token, window),
        (cache.latent_size, cache.rope_size, leads),
        window,
        stride=1 if window or not packs(model) else _sparse_rows(cache, ranks) * token,
    )


def _sparse_rows(cache: Latent, ranks: Ranks) -> int:
    """Rows that blocks are apart by multiples of, where they are packed (align_blocks_to_rows of the sparse backends):
    one, or a kernel block with FlashInfer, which SM100 prefers (platforms/cuda.py: _get_backend_priorities)."""
    flashinfer = ranks.sm100 and not cache.padded_size
    return _FLASHINFER_ROWS if flashinfer else 1


def _indexer(cache: Indexer, layer: Layer, model: Model, ranks: Ranks) -> Spec:
    token = indexer_token_bytes(cache, ranks.model_bytes)
    if any(isinstance(other, Compressed) for other in layer.caches):
        record = record_of(model.model_type, ranks.kv_format, ranks.block_size, sm100=ranks.sm100)
        return compressed_spec(cache, record, token)
    entries = ranks.block_size // cache.tokens_per_key
    stride = 1
    if not cache.plain and entries > _STRIDE_ENTRIES:
        stride = gcd(_STRIDE_ENTRIES, entries) * token  # the parts that the kernel reads stay whole
    return Spec(
        Family.MLA,
        ranks.block_size,
        token * entries,
        Content(token, per_tokens=cache.tokens_per_key),
        ("indexer", *cache),
        stride=stride,
    )


def _convolution(cache: ConvolutionWindow, ranks: Ranks) -> Spec:
    """models/inkling/nvidia/sconv_swa_attn.py: InklingConvState; a rank holds whole heads, bf16 whatever the format."""
    if cache.kv_heads % ranks.tensor_parallel:
        raise UnsupportedError(
            f"{cache.kv_heads} KV heads cannot be divided by --tensor-parallel-size {ranks.tensor_parallel}: vLLM "
            "asserts that they can for this model's convolution states",
            fix="use a tensor-parallel size that divides them",
        )
    size = 1 << (cache.size - 1).bit_length()  # so that pages of all layers fit into one another
    token = cache.kv_heads // ranks.tensor_parallel * size * 2
    return Spec(
        Family.SLIDING,
        cache.window,
        token * cache.window,
        Content(token, cache.window),
        ("convolution", cache.kv_heads, cache.size),
        cache.window,
    )


def _state(cache: State, ranks: Ranks, padded: int) -> Spec:
    size = _state_bytes(cache, ranks)
    if ranks.aligned:  # v1/kv_cache_interface.py: MambaSpec.max_memory_usage_bytes
        # layers/mamba/mamba_mixer2.py: one more block holds the state at a prefill checkpoint
        blocks = 2 + ranks.speculative_tokens + (1 if cache.mixer == "mamba2" and ranks.checkpoint_states else 0)
        if not ranks.aligned_states:  # one for each block of the longest request
            blocks = ceil(ranks.max_model_len / ranks.block_size) + ranks.speculative_tokens
    else:
        blocks = 1 + ranks.speculative_tokens
    return Spec(
        Family.MAMBA,
        ranks.block_size if ranks.aligned else ranks.max_model_len,
        size,
        Content(0, 0, _logical_state_bytes(cache, ranks)),
        (cache.mixer, cache.conv_channels, cache.conv_taps, cache.matrix_elements),
        padded=padded if padded > size else 0,
        fixed_blocks=blocks,
        replicated=True,
        whole=cache.replicated,
    )


def _cross(cache: CrossAttention, ranks: Ranks) -> Spec:
    heads = _heads(cache.kv_heads, ranks)
    shape = Attention(cache.kv_heads, cache.key_size, cache.value_size)
    token = attention_token_bytes(shape, heads, ranks.kv_format, ranks.model_bytes)
    # config/scheduler.py: max_num_encoder_input_tokens is max_num_batched_tokens, whatever the encoder's length
    blocks = ceil(ranks.batched_tokens / ranks.block_size)
    return Spec(
        Family.CROSS,
        ranks.block_size,
        token * ranks.block_size,
        Content(0, 0, token * cache.encoder_tokens),
        (heads, cache.key_size, cache.value_size, cache.encoder_tokens),
        fixed_blocks=blocks,
    )


def _heads(kv_heads: int, ranks: Ranks) -> int:
    """config/model.py: get_num_kv_heads: split over the ranks, and replicated when there are fewer than ranks."""
    return max(1, kv_heads // ranks.tensor_parallel)


def _token_bytes(cache: Attention | Latent, ranks: Ranks) -> int:
    if isinstance(cache, Latent):
        return latent_token_bytes(cache, ranks.kv_format, ranks.model_bytes)
    return attention_token_bytes(cache, _heads(cache.kv_heads, ranks), ranks.kv_format, ranks.model_bytes)


def _padded_state_page(model: Model, ranks: Ranks) -> int:
    """The attention page, which a recurrent page is padded up to; 0 where there is no attention."""
    attention = next((c for c in caches_of(model) if isinstance(c, Attention | Latent)), None)
    return 0 if attention is None else _token_bytes(attention, ranks) * ranks.block_size


def _state_bytes(cache: State, ranks: Ranks) -> int:
    """Bytes of one state as allocated: speculative tokens lengthen the convolution's history."""
    taps = cache.conv_taps + (ranks.speculative_tokens if cache.mixer in _SPECULATIVE_TAPS else 0)
    return _conv_channels(cache, ranks) * taps * ranks.conv_bytes + _matrix_bytes(cache, ranks)


def _logical_state_bytes(cache: State, ranks: Ranks) -> int:
    return _conv_channels(cache, ranks) * cache.conv_taps * ranks.conv_bytes + _matrix_bytes(cache, ranks)


# layers/mamba/mamba_utils.py: the *_state_shape functions that take num_spec
_SPECULATIVE_TAPS = ("mamba2", "gdn", "kda", "conv")


def _conv_channels(cache: State, ranks: Ranks) -> int:
    groups = cache.groups
    if groups % ranks.tensor_parallel:  # mamba_utils.py: extra_groups_for_head_shards
        groups = ranks.tensor_parallel
    channels = cache.conv_channels + groups * cache.group_channels
    return channels if cache.replicated else _split(channels, ranks, "convolution channels")


def _matrix_bytes(cache: State, ranks: Ranks) -> int:
    size = ranks.matrix_bytes or _ELEMENTS.get(cache.matrix_dtype, ranks.conv_bytes)
    return _split(cache.matrix_elements, ranks, "recurrent state elements") * size


def _split(count: int, ranks: Ranks, what: str) -> int:
    if count % ranks.tensor_parallel:
        raise UnsupportedError(
            f"{count} {what} cannot be divided by --tensor-parallel-size {ranks.tensor_parallel}: vLLM asserts that "
            "they can",
            fix="use a tensor-parallel size that divides them",
        )
    return count // ranks.tensor_parallel


_ELEMENTS = {"float32": 4, "float16": 2, "bfloat16": 2}


def caches_of(model: Model) -> tuple[Cache, ...]:
    """The caches of all layers, as this engine keeps them, each kind of layer once."""
    return _distinct_caches(Same(model))


@lru_cache(maxsize=_MODELS_KEPT)
def _distinct_caches(same: "Same[Model]") -> tuple[Cache, ...]:
    model = same.value
    return tuple(served(cache, model) for layer in dict.fromkeys(model.layers) for cache in layer.caches)
