"""Decides what one cell of llama.cpp's caches holds: bytes by type, and which layers share a cache.

`src/llama-kv-cache.cpp`, `src/llama-memory-recurrent.cpp`, `ggml/src/ggml-common.h`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvbudget.engines.llamacpp.builds import Build
from kvbudget.engines.tokens import caches_of
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.layers import Attention, Indexer, Latent, Layer, State
from kvbudget.model.read import Model

PADDING = 256  # src/llama-context.cpp, src/llama-kv-cache-iswa.cpp: cells come in multiples of it
# common/arg.cpp: kv_cache_types; (elements, bytes) of one quantisation block
TYPES = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q5_1": (32, 24), "q5_0": (32, 22),
    "q4_1": (32, 20), "q4_0": (32, 18), "iq4_nl": (32, 18),
}  # fmt: skip
_OTHER_NAMES = {"auto": "f16", "float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_STATE_ELEMENT = 4  # src/llama-model.cpp: create_memory: recurrent states are float32
# src/models/: these have no swa_type, so their sliding layers keep the whole context
_WINDOWLESS = ("mistral", "ministral", "mixtral", "phi", "qwen", "starcoder")


class Cells(NamedTuple):
    """Bytes on one device: of one cell of the main cache, of one of the sliding layers' cache, and of one slot's
    states; `window` in tokens; layers of each."""

    main: int
    sliding: int
    states: int
    window: int
    main_layers: int
    sliding_layers: int
    state_layers: int
    latent: bool
    indexed: bool


class Types(NamedTuple):
    """--cache-type-k and --cache-type-v."""

    key: str
    value: str


def type_named(name: str, flag: str) -> str:
    """llama.cpp's own name of a type. Raises BadValueError."""
    name = _OTHER_NAMES.get(name, name)
    if name not in TYPES:
        raise BadValueError(f"{flag}: {name[:40]!r} is no cache type of llama.cpp", fix=f"one of {', '.join(TYPES)}")
    return name


def row_bytes(elements: int, name: str) -> int:
    """Bytes of one row of `elements`."""
    block, size = TYPES[name]
    if elements % block:
        raise UnsupportedError(
            f"cache type {name} has blocks of {block} elements, which do not divide a row of {elements}",
            fix="use f16, or q8_0 for the part that it divides",
        )
    return elements // block * size


def cells_of(layers: Sequence[Layer], model: Model, build: Build, types: Types) -> Cells:
    """The caches of `layers`, which lie on one device."""
    windows = build.windows and not model.model_type.startswith(_WINDOWLESS)
    main = sliding = states = window = 0
    counts = [0, 0, 0]
    latent = indexed = False
    for cache in caches_of(layers):
        if isinstance(cache, State):
            states += (cache.conv_channels + cache.groups * cache.group_channels) * cache.conv_taps * _STATE_ELEMENT
            states += cache.matrix_elements * _STATE_ELEMENT
            counts[2] += 1
        elif isinstance(cache, Attention):
            size = row_bytes(cache.kv_heads * cache.key_size, types.key)
            size += row_bytes(cache.kv_heads * cache.value_size, types.value)
            if windows and (cache.window or cache.chunk):
                sliding, window = sliding + size, max(window, cache.window or cache.chunk or 0)
                counts[1] += 1
            else:
                main += size
                counts[0] += 1
        elif isinstance(cache, Latent):
            main += _latent_bytes(cache, build, types)
            counts[0] += 1
            latent = True
        elif isinstance(cache, Indexer):
            main += row_bytes(cache.head_size, types.key)
            indexed = True
        else:
            raise UnsupportedError(f"--engine llamacpp: {cache} is not known here", fix="use --engine vllm@0.32")
    return Cells(main, sliding, states, window, counts[0], counts[1], counts[2], latent, indexed)


def _latent_bytes(cache: Latent, build: Build, types: Types) -> int:
    if not build.latent:
        keys = row_bytes(cache.heads * cache.key_size, types.key)
        return keys + row_bytes(cache.heads * cache.value_size, types.value)
    size = row_bytes(cache.latent_size + cache.rope_size, types.key)
    return size + (row_bytes(cache.latent_size, types.value) if build.latent_values else 0)


def padded(cells: int) -> int:
    """Rounded up to whole paddings."""
    return -(-cells // PADDING) * PADDING
