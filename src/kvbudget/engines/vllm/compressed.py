"""Decides the pages of DeepSeek-V4's and V4.1's caches: packed vectors of a short window, compressed ones, indexers.

`models/deepseek_v4/`, `models/deepseek_v41/`: attention.py, compressor.py; `v1/attention/backends/mla/sparse_swa.py`.
All of them lie in block-outermost pages that may differ in size.
"""

from math import ceil, gcd
from typing import NamedTuple

from kvbudget.engines.vllm.spec import Family, Spec
from kvbudget.errors import UnsupportedError
from kvbudget.model.layers import Compressed, Compressor, Indexer
from kvbudget.pool.groups import Content

_WINDOW_BLOCK_SIZES = {"deepseek_v4": 64, "deepseek_v41": 32}
_COMPRESSOR_BLOCK_SIZES = {4: 4, 128: 8}
_FLOAT = 4
_PACKED = ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla")
_PLAIN = ("bfloat16", "float16")
# The packed layout: fp8 elements, rotary ones in bf16, one scale byte for each 64 fp8 ones and a spare byte; a page is
# a multiple of the decode kernel's stride.
_PACKED_ALIGNMENT = 576
_SCALED = 64
# V4.1 on SM100: every element in fp8, a scale byte for each 32 of them.
_FINE_SCALED = 32
_HALF = "nvfp4_ds_mla"
_NVFP4_SCALED = 16
_PLAIN_ALIGNMENT = 512


class Record(NamedTuple):
    """How vectors are stored: `block` tokens of a block, `kernel` of those that its kernel reads at once, `alignment`
    of a page in bytes. `half`: the compressed ones in NVFP4, the window's as ever."""

    model_type: str
    block: int
    kernel: int
    packed: bool
    fine: bool
    half: bool
    alignment: int


def kernel_block_of(model_type: str, *, sm100: bool) -> int:
    """Tokens that the sparse kernels read at once (sparse_mla.py, indexer.py: get_supported_kernel_block_sizes)."""
    if model_type == "deepseek_v41":
        return 128 if sm100 else 64
    return 256


def record_of(model_type: str, kv_format: str, block: int, *, sm100: bool) -> Record:
    """Raises UnsupportedError for a format that these caches are not known in."""
    fine = sm100 and model_type == "deepseek_v41"
    half = fine and kv_format == _HALF
    packed = half or kv_format in _PACKED
    known = (*_PACKED, _HALF) if fine else _PACKED if model_type == "deepseek_v41" else (*_PACKED, *_PLAIN)
    if kv_format not in known:
        raise UnsupportedError(
            f"--kv-cache-dtype {kv_format} for the compressed caches of {model_type} is not known here",
            fix=f"use {' or '.join(known[:1] + known[4:5])}",
        )
    alignment = _PACKED_ALIGNMENT if packed and not fine else _PLAIN_ALIGNMENT
    return Record(model_type, block, kernel_block_of(model_type, sm100=sm100), packed, fine, half, alignment)


def compressed_spec(cache: Compressed | Compressor | Indexer, record: Record, indexer_token_bytes: int = 0) -> Spec:
    """The spec of one cache; `indexer_token_bytes` of one entry of an indexer."""
    if isinstance(cache, Compressor):
        block = _COMPRESSOR_BLOCK_SIZES[cache.ratio]
        token = cache.elements * _FLOAT
        content = Content(token, cache.window)
        return _spec(Family.SLIDING_MLA, block, token * block, record.alignment, content, cache)
    if isinstance(cache, Indexer):
        return _growing(cache, cache.tokens_per_key, indexer_token_bytes, record)
    vector = _vector_bytes(cache, record)
    if cache.window is None:
        return _growing(cache, cache.ratio, vector, record)
    block = _WINDOW_BLOCK_SIZES.get(record.model_type, 64)
    return _spec(Family.SLIDING_MLA, block, block * vector, record.alignment, Content(vector, cache.window), cache)


def _growing(cache: Compressed | Indexer, ratio: int, entry: int, record: Record) -> Spec:
    """A cache with one entry for each `ratio` tokens."""
    page = record.block // ratio * entry
    content = Content(_aligned(page, record.alignment), per_tokens=record.block)
    spec = _spec(Family.MLA, record.block, page, record.alignment, content, cache)
    kernel = gcd(record.kernel, record.block)
    if kernel == record.block:
        return spec
    # v1/worker/utils.py: customize_attention_spec: blocks that the kernel reads in parts keep the parts whole
    return spec._replace(stride=_aligned(kernel // ratio * entry, record.alignment))


def _spec(
    family: Family, block: int, page: int, alignment: int, content: Content, cache: Compressed | Compressor | Indexer
) -> Spec:
    aligned = _aligned(page, alignment)
    padded = aligned if aligned != page else 0
    return Spec(family, block, page, content, ("compressed", cache.kind, *cache), content.window, padded)


def _aligned(page: int, alignment: int) -> int:
    return ceil(page / alignment) * alignment


def _vector_bytes(cache: Compressed, record: Record) -> int:
    """512 with 64 rotary elements: 448 + 64 x 2 + 7 + 1 = 584, or 512 + 16 = 528, or 256 + 32 = 288."""
    if not record.packed:
        return cache.head_size * 2
    if record.half and cache.window is None:
        return cache.head_size // 2 + ceil(cache.head_size / _NVFP4_SCALED)
    if record.fine:
        return cache.head_size + ceil(cache.head_size / _FINE_SCALED)
    plain = cache.head_size - cache.rope_size
    return plain + cache.rope_size * 2 + ceil(plain / _SCALED) + 1
