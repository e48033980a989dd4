"""Decides the caches of DeepSeek-V4 layers: a short window, and beside it compressed vectors and their compressor.

Caches are in the order in which vLLM 0.32 (`models/deepseek_v4/attention.py`, `deepseek_v41`) registers them.
"""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.attention import LARGEST_HEAD_SIZE
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.latent import draft_count
from kvbudget.model.layers import Cache, Compressed, Compressor, Indexer, Layer, Ring

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family

_INDEXED_RATIO = 4
_RATIOS = (0, 1, _INDEXED_RATIO, 128)
_SOURCE_RATIOS = (0, 1, 2)  # DeepSeek-V4.1
_FLOAT = 4
# transformers 5.19 `models/deepseek_v4/configuration_deepseek_v4.py`, when compress_ratios is not there
_RATIO_BY_NAME = {
    "sliding_attention": 0,
    "compressed_sparse_attention": _INDEXED_RATIO,
    "heavily_compressed_attention": 128,
}


def compressed_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """One layer for each compression ratio. Raises UnsupportedError for a ratio that no kernel knows."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    kinds = {ratio: _layer(fields, ratio) for ratio in _RATIOS}
    return tuple(kinds[ratio] for ratio in _ratios(fields, count))


def compressed_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """The MTP module's layers keep the short window only (vLLM 0.32: layers past the last have no ratio)."""
    return (_layer(fields, 0),) * draft_count(fields)


def sourced_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """DeepSeek-V4.1: every layer keeps the window; those in kv_source_layer_ids compress, the others read theirs.

    A source's keys for choosing are there when it is in index_source_layer_ids too.
    """
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    sources, choosers = frozenset(fields.counts("kv_source_layer_ids")), fields.counts("index_source_layer_ids")
    ratios = fields.counts("compress_ratios")[:count]
    ratios += (0,) * (count - len(ratios))  # layers past the list keep the window only
    for index, ratio in enumerate(ratios):
        if ratio not in _SOURCE_RATIOS:
            raise UnsupportedError(
                f"compress_ratios {min(ratio, 10**9)} is unknown: only 1 and 2 tokens to a vector are", fix="0, 1 or 2"
            )
        kept, chosen = (any(source <= index for source in ids) for ids in (sources, choosers))
        if (ratio > 0 and not (kept and chosen)) or (ratio == 0 and index in sources):
            raise BadConfigError(
                f"config.json: layer {index} has compression ratio {ratio}, which does not go with kv_source_layer_ids "
                "and index_source_layer_ids",
                fix="correct one of them",
            )
    return tuple(
        _sourced(fields, ratio, chooses=index in choosers) if index in sources else _layer(fields, 0)
        for index, ratio in enumerate(ratios)
    )


def _sourced(fields: Fields, ratio: int, *, chooses: bool) -> Layer:
    (window,) = _layer(fields, 0).caches
    head_size = fields.count("head_dim", high=LARGEST_HEAD_SIZE)
    rope_size = fields.count("qk_rope_head_dim", low=0, high=LARGEST_HEAD_SIZE)
    caches: list[Cache] = [Compressed(head_size, rope_size, ratio)]
    if chooses:
        caches.append(Indexer(fields.count("index_head_dim", high=LARGEST_HEAD_SIZE), ratio))
    caches.append(window)
    if ratio > 1:  # a value and a score for each element
        caches.append(Ring("deepseek_v41", 2 * head_size, _FLOAT, ratio))
    return Layer(tuple(caches))


def _layer(fields: Fields, ratio: int) -> Layer:
    head_size = fields.count("head_dim", high=LARGEST_HEAD_SIZE)
    rope_size = fields.count("qk_rope_head_dim", low=0, high=LARGEST_HEAD_SIZE)
    if rope_size > head_size:
        raise BadConfigError(
            f"config.json: qk_rope_head_dim {rope_size} is more than the whole head_dim {head_size}",
            fix="correct one of them",
        )
    window = Compressed(head_size, rope_size, 1, fields.count("sliding_window"))
    if ratio <= 1:
        return Layer((window,))
    vectors = Compressed(head_size, rope_size, ratio)
    if ratio != _INDEXED_RATIO:
        return Layer((window, vectors, _compressor(head_size, ratio)))
    index_size = fields.count("index_head_dim", high=LARGEST_HEAD_SIZE)
    indexer = Indexer(index_size, ratio)
    return Layer((indexer, _compressor(index_size, ratio), window, vectors, _compressor(head_size, ratio)))


def _compressor(head_size: int, ratio: int) -> Compressor:
    """A value and a score for each element; ratio 4 overlaps its neighbours, which doubles both width and window."""
    overlap = 2 if ratio == _INDEXED_RATIO else 1
    return Compressor(elements=2 * overlap * head_size, window=overlap * ratio, ratio=ratio)


def _ratios(fields: Fields, layers: int) -> tuple[int, ...]:
    """The ratio of each layer; entries past the last layer belong to the draft module."""
    key = "compress_ratios"
    ratios = fields.counts(key)
    if not ratios:
        key = "layer_types"
        ratios = tuple(_named_ratio(name) for name in fields.texts(key) or ())
    if not ratios:
        raise BadConfigError(
            "config.json: compress_ratios is missing, so it is unknown how far each layer compresses",
            fix="add compress_ratios: one of 0, 4, 128 for each layer",
        )
    if not layers <= len(ratios) <= layers + draft_count(fields):
        raise BadConfigError(
            f"config.json: {key} has {len(ratios)} entries, but there are {layers} layers and {draft_count(fields)} "
            "draft layers",
            fix=f"one entry of {key} for each layer",
        )
    for ratio in ratios[:layers]:
        if ratio not in _RATIOS:
            raise UnsupportedError(
                f"{key} {min(ratio, 10**9)} is unknown: only 4 and 128 tokens to a vector are", fix="0, 4 or 128"
            )
    return ratios[:layers]


def _named_ratio(name: str) -> int:
    ratio = _RATIO_BY_NAME.get(name)
    if ratio is None:
        raise UnsupportedError(f"layer_types {name[:40]!r} is unknown", fix=f"known are {', '.join(_RATIO_BY_NAME)}")
    return ratio
