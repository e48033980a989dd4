"""Decides how many parameters a model has, layer by layer, and how many bytes of them one rank holds.

Entries: `parameters_of`, `weights_on_rank`, `draft_on_rank`, `share_of_checkpoint`, `even_share`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.model.fields import Fields
from kvbudget.model.layers import Attention, Cache, Indexer, Latent, Layer, State
from kvbudget.model.quantization import Quantization
from kvbudget.model.same import Same
from kvbudget.model.weights.attention import add_attention, add_indexer, add_latent, lender
from kvbudget.model.weights.feedforward import FeedForward, add_feed_forward, feed_forward_of, has_experts
from kvbudget.model.weights.matrices import LayerWeights, Matrix, Parts
from kvbudget.model.weights.rule import WeightRule
from kvbudget.units import Bytes

if TYPE_CHECKING:
    from kvbudget.model.weights.formats import Format

_COUNTS_KEPT = 256  # results for one model and one split each
# How families spell the number of experts of one token.
_CHOSEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)


class Parameters(NamedTuple):
    """Counts of parameters, not bytes.

    `tables`: embedding and what is split like it, on the first stage; `positions`: learned ones, whole. `head` is None
    when tied to the embedding. `top_whole`: what every rank of the last stage holds whole. `drafts`: layers of the
    built-in draft module. `encoder`: (split, whole) of a vision or audio part, on every stage. `tables_of_rotation`:
    elements of the rotary tables that an engine makes beside the weights, on every rank; they are no parameters.
    `experts_of_token`: how many experts of a layer each token is sent to.
    `estimated`: why the count is not exact, "" when it is.
    """

    embedding: int
    tables: int
    positions: int
    layers: tuple[LayerWeights, ...]
    top_whole: int
    head: Matrix | None
    head_bias: int
    drafts: tuple[LayerWeights, ...]
    encoder: tuple[int, int]
    tables_of_rotation: int
    experts_of_token: int
    estimated: str

    @property
    def text_total(self) -> int:
        """All parameters of the language model, without its draft module."""
        return (
            self.embedding
            + self.tables
            + self.positions
            + _in_layers(Same(self.layers))
            + self.top_whole
            + (self.head.parameters if self.head else 0)
            + self.head_bias
        )

    @property
    def total(self) -> int:
        """All parameters that are loaded when no draft module is asked for."""
        return self.text_total + sum(self.encoder)

    @property
    def active(self) -> int:
        """Parameters that one token passes through: of the experts only those that it is sent to."""
        idle = 0
        for layer in self.layers:
            for matrix in layer.matrices:
                if ".experts." in matrix.name:
                    idle += matrix.rows * matrix.columns * max(0, matrix.copies - self.experts_of_token)
        return self.text_total - self.embedding - self.tables - idle + (0 if self.head else self.embedding)

    @property
    def draft_total(self) -> int:
        """Parameters of the built-in draft module; it shares embedding and head with the model."""
        return sum(layer.parameters for layer in self.drafts)


def parameters_of(
    fields: Fields,
    rule: WeightRule,
    layers: tuple[Layer, ...],
    drafts: tuple[Layer, ...],
    heads: int,
    config: Mapping[str, object],
) -> Parameters:
    """Count them by the architecture's rule. Raises BadConfigError for sizes that contradict one another.

    `config` is the whole config.json, whose text part `fields` reads; it tells a vision or audio part.
    """
    if fields.raw.get("block_configs") and not rule.special:
        rule = rule._replace(special="pruned")  # a pruned model that names itself llama
    hidden, vocabulary = fields.count("hidden_size"), fields.count("vocab_size")
    norm = hidden * (2 if rule.norm_bias else 1)
    positions = 0
    if rule.learned_positions >= 0:
        positions = (fields.count("max_position_embeddings") + rule.learned_positions) * hidden
    tables, whole = 0, norm * rule.final_norm + (norm if rule.embedding_norm else 0)
    if rule.special:
        from kvbudget.model.weights.special import special_top

        top = special_top(fields, rule, len(layers))
        tables, whole = top.split, whole + top.whole
    embedding, projection = _embedding(fields, vocabulary, hidden)
    outer = Fields(config, {}, {})  # of a nested config the outer key decides, as in transformers
    tied = outer.flag("tie_word_embeddings") if "tie_word_embeddings" in config else fields.flag("tie_word_embeddings")
    encoder, estimated = _encoder(config, fields, hidden)
    return Parameters(
        embedding=embedding,
        tables=tables,
        positions=positions,
        layers=_layers(fields, rule, layers, heads),
        top_whole=whole + projection,
        head=None if tied else Matrix("lm_head", vocabulary, hidden),
        head_bias=vocabulary if rule.head_bias and not tied else 0,
        drafts=_drafts(fields, rule, drafts, len(layers), heads),
        encoder=encoder,
        tables_of_rotation=0 if positions else _rotation(fields, rule, layers),
        experts_of_token=_experts_of_token(fields),
        estimated=estimated,
    )


def weights_on_rank(
    parameters: Parameters,
    quantization: Quantization | None,
    first: int,
    end: int,
    tensor_parallel: int,
    element_bytes: int,
) -> Bytes:
    """Bytes on one rank of the pipeline stage that holds layers first..end (end exclusive).

    `element_bytes`: of the type in which unquantised weights are loaded. The first stage has the embedding, the last
    one the head (a copy of the embedding when tied) and the last norm; a vision part is on every stage. What an engine
    makes beside the weights while it loads them (rotary tables, MLA's absorbed matrices) is part of it.
    """
    stored = _stored_on_rank(parameters, quantization, first, end, tensor_parallel, element_bytes)
    return Bytes(stored + _made_on_rank(parameters, first, end, tensor_parallel, element_bytes))


def _stored_on_rank(
    parameters: Parameters,
    quantization: Quantization | None,
    first: int,
    end: int,
    tensor_parallel: int,
    element_bytes: int,
) -> int:
    split, whole = parameters.encoder
    size = 0
    if first == 0:
        split += parameters.embedding + parameters.tables
        whole += parameters.positions
    if end == len(parameters.layers):
        whole += parameters.top_whole
        split += parameters.head_bias
        if parameters.head is not None:
            stored = quantization.head_format() if quantization else None
            size += _matrix_bytes(parameters.head, stored, tensor_parallel, element_bytes)
        elif first:
            split += parameters.embedding
    size += -(-split * element_bytes // tensor_parallel) + whole * element_bytes
    return size + _layer_bytes(parameters.layers, first, end, 0, quantization, tensor_parallel, element_bytes)


def _made_on_rank(parameters: Parameters, first: int, end: int, tensor_parallel: int, element_bytes: int) -> int:
    copies = sum(layer.second_copy for layer in parameters.layers[first:end])
    return (parameters.tables_of_rotation - (-copies // tensor_parallel)) * element_bytes


def experts_spread(parameters: Parameters, data_parallel: int) -> Parameters:
    """What one of several data-parallel engines holds: experts are shared out over all of their ranks, all else is not.

    vLLM 0.32 `model_executor/layers/fused_moe/config.py`: experts are split over tensor x data parallel ranks, whole
    ones with expert parallelism, slices of each without.
    """
    return parameters if data_parallel == 1 else _spread(Same(parameters), data_parallel)


@lru_cache(maxsize=_COUNTS_KEPT)
def _spread(same: "Same[Parameters]", data_parallel: int) -> Parameters:
    parameters = same.value
    layers = []
    for layer in parameters.layers:
        matrices = tuple(
            m._replace(copies=-(-m.copies // data_parallel)) if ".experts." in m.name else m for m in layer.matrices
        )
        layers.append(layer._replace(matrices=matrices))
    return parameters._replace(layers=tuple(layers))


def draft_on_rank(
    parameters: Parameters, quantization: Quantization | None, tensor_parallel: int, element_bytes: int
) -> Bytes:
    """Bytes of the built-in draft module on one rank of the last stage, when speculation with it is asked for."""
    count = len(parameters.layers)
    drafts = parameters.drafts
    return Bytes(_layer_bytes(drafts, 0, len(drafts), count, quantization, tensor_parallel, element_bytes))


def draft_fraction(parameters: Parameters, quantization: Quantization | None, element_bytes: int) -> tuple[int, int]:
    """(bytes of the draft module, bytes of the whole checkpoint with it), for checkpoints that tell only a total."""
    part = draft_on_rank(parameters, quantization, 1, element_bytes)
    count = len(parameters.layers)
    return part, part + _stored_on_rank(parameters, quantization, 0, count, 1, element_bytes)


def share_of_checkpoint(
    parameters: Parameters,
    quantization: Quantization | None,
    checkpoint_bytes: int,
    first: int,
    end: int,
    tensor_parallel: int,
    element_bytes: int,
    data_parallel: int = 1,
) -> Bytes:
    """A rank's part of a checkpoint of known size, in the proportion that the count gives, and what is made beside it.

    What every rank holds whole is not divided. `checkpoint_bytes` is without the draft module.
    """
    everything = _stored_on_rank(parameters, quantization, 0, len(parameters.layers), 1, element_bytes)
    parameters = experts_spread(parameters, data_parallel)
    part = _stored_on_rank(parameters, quantization, first, end, tensor_parallel, element_bytes)
    made = _made_on_rank(parameters, first, end, tensor_parallel, element_bytes)
    return Bytes(-(-checkpoint_bytes * part // everything) + made)


def even_share(
    parameters: Parameters | None, layers: int, given_bytes: int, first: int, end: int, tensor_parallel: int
) -> Bytes:
    """A rank's part of a size that a person gave: the stage's part by parameters, divided evenly over the ranks.

    Without a count (`parameters` None) every one of the `layers` counts the same.
    """
    if parameters is None:
        part, whole = end - first, layers
    else:
        part = _stored_on_rank(parameters, None, first, end, 1, 1)
        whole = _stored_on_rank(parameters, None, 0, layers, 1, 1)
    return Bytes(-(-given_bytes * part // (whole * tensor_parallel)))


def _layers(fields: Fields, rule: WeightRule, layers: tuple[Layer, ...], heads: int) -> tuple[LayerWeights, ...]:
    known: dict[tuple[object, ...], LayerWeights] = {}
    types = fields.texts("layer_types")
    lent: dict[str, Cache] = {}
    counted = []
    by_index = len(layers) if rule.special == "zamba2" else 0  # so many layers at the start differ by their number
    if rule.special == "deepseek_v4":
        by_index = fields.optional_count("num_hash_layers", low=0) or 0
    for index, layer in enumerate(layers):
        cache = lender(layer.caches, types, index, lent)
        part = feed_forward_of(fields, rule, index, shared=layer.shared)
        key = (layer, cache if layer.shared else None, part, min(index, by_index))
        if key not in known:
            known[key] = _layer(fields, rule, layer, cache, part, heads, index)
        counted.append(known[key])
    return tuple(counted)


def _layer(
    fields: Fields, rule: WeightRule, layer: Layer, lent: Cache | None, part: FeedForward, heads: int, index: int
) -> LayerWeights:
    parts = Parts()
    _add_caches(parts, fields, rule, layer, heads, index)
    if layer.shared and isinstance(lent, Attention):
        add_attention(parts, fields, rule, lent, heads, keys=False)  # vLLM 0.32 `models/gemma3n.py`, `gemma4.py`
    add_feed_forward(parts, fields, rule, part)
    norm = fields.count("hidden_size") * (2 if rule.norm_bias else 1)
    parts.whole += _norms(fields, rule, layer, part) * norm
    if rule.special:
        from kvbudget.model.weights.special import special_layer

        special_layer(parts, fields, rule, layer, index)
    return parts.result()


def _add_caches(parts: Parts, fields: Fields, rule: WeightRule, layer: Layer, heads: int, index: int) -> None:
    if rule.special:
        from kvbudget.model.weights.special import special_attention

        if special_attention(parts, fields, rule, layer, index):
            return
    for cache in layer.caches:
        if isinstance(cache, Attention):
            add_attention(parts, fields, rule, cache, heads)
        elif isinstance(cache, Latent):
            add_latent(parts, fields, rule, cache)
        elif isinstance(cache, Indexer):
            add_indexer(parts, fields, rule, cache)
        elif isinstance(cache, State):
            from kvbudget.model.weights.mixers import add_mixer

            add_mixer(parts, fields, rule, cache)


def _norms(fields: Fields, rule: WeightRule, layer: Layer, part: FeedForward) -> int:
    """Falcon has one norm when attention and MLP run in parallel, two with its new architecture; StableLM one too."""
    if fields.flag("new_decoder_architecture"):
        return fields.optional_count("num_ln_in_parallel_attn") or 2
    if fields.flag("parallel_attn") or (rule.qkv_bias == "use_qkv_bias" and fields.flag("use_parallel_residual")):
        return 1
    if rule.special == "pruned" and not layer.caches:
        return 1 if part.inner else 0
    return rule.norms


def _drafts(
    fields: Fields, rule: WeightRule, drafts: tuple[Layer, ...], layers: int, heads: int
) -> tuple[LayerWeights, ...]:
    """Each draft layer joins the last hidden state and a new embedding, both normed, in one matrix."""
    hidden = fields.count("hidden_size")
    counted = []
    for number, layer in enumerate(drafts):
        parts = Parts()
        _add_caches(parts, fields, rule, layer, heads, layers + number)
        sparse = rule.experts is not None and has_experts(fields, rule.experts, layers + number)
        if rule.special == "nemotron_h":
            if not layer.caches:
                add_feed_forward(parts, fields, rule, FeedForward(0, experts=True))
        elif sparse:
            add_feed_forward(parts, fields, rule, FeedForward(0, experts=True))
        else:
            inner = fields.optional_count(rule.inner) or 0
            add_feed_forward(parts, fields, rule, FeedForward(inner))
        if number == 0 or rule.special != "nemotron_h":
            parts.matrix("eh_proj", hidden, 2 * hidden, ranks=1)
            parts.whole += 3 * hidden
        parts.whole += rule.norms * hidden
        counted.append(parts.result())
    return tuple(counted)


@lru_cache(maxsize=_COUNTS_KEPT)
def _in_layers(same: "Same[tuple[LayerWeights, ...]]") -> int:
    counted = {id(layer): layer.parameters for layer in same.value}
    return sum(counted[id(layer)] for layer in same.value)


def _embedding(fields: Fields, vocabulary: int, hidden: int) -> tuple[int, int]:
    """(embedding, projections to and from its own width): OPT-350M embeds in fewer channels than it works with."""
    width = fields.optional_count("word_embed_proj_dim") or hidden
    return vocabulary * width, 2 * width * hidden if width != hidden else 0


def _encoder(config: Mapping[str, object], fields: Fields, hidden: int) -> tuple[tuple[int, int], str]:
    if (
        fields.raw is config
        and config.get("vision_config") is None
        and config.get("audio_config") is None
        and config.get("model_type") not in ("qwen2_vl", "qwen2_5_vl")  # flat, and with a vision part nevertheless
    ):
        return (0, 0), ""
    from kvbudget.model.weights.encoders import encoder_of

    return encoder_of(config, hidden)


def _experts_of_token(fields: Fields) -> int:
    for key in _CHOSEN:
        chosen = fields.optional_count(key, low=0)
        if chosen is not None:
            return chosen
    return 1


def _rotation(fields: Fields, rule: WeightRule, layers: tuple[Layer, ...]) -> int:
    """Cosines and sines for every position, one table for each kind of rotation (vLLM 0.32 `layers/rotary_embedding`).

    They are why engines report 14.99 GiB for Llama-3.1-8B, whose weights are 14.96 GiB.
    """
    if fields.flag("alibi") or fields.flag("mla_use_nope"):
        return 0
    scaling = fields.section("rope_scaling") or fields.section("rope_parameters") or {}
    length = fields.optional_count("max_position_embeddings") or 0
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    kind = scaling.get("rope_type") or scaling.get("type")
    if isinstance(factor, int | float) and 0 < factor < 10_000:
        if kind == "yarn" and type(original) is int:
            length = int(min(original, 10**9) * factor)
        elif kind in ("linear", "dynamic"):
            length = int(length * factor)
    share = fields.given("partial_rotary_factor")
    share = share if isinstance(share, int | float) and 0 < share <= 1 else 1
    sizes = set()
    for layer in set(layers):
        for cache in layer.caches:
            if isinstance(cache, Latent):
                sizes.add((cache.rope_size, False))
            elif isinstance(cache, Attention):
                sizes.add((int(cache.key_size * share), cache.window is not None and _rotates_apart(fields, rule)))
    return length * sum(size for size, _ in sizes)


def _rotates_apart(fields: Fields, rule: WeightRule) -> bool:
    """Sliding layers with a rotation of their own; by class default in Gemma 3."""
    if rule.two_rotations:
        return True
    given = fields.section("rope_parameters") or {}
    keys = ("rope_local_base_freq", "swa_rope_theta", "local_rope_theta")
    return any(fields.raw.get(key) is not None for key in keys) or "sliding_attention" in given


def _layer_bytes(
    layers: tuple[LayerWeights, ...],
    first: int,
    end: int,
    offset: int,
    quantization: Quantization | None,
    tensor_parallel: int,
    element_bytes: int,
) -> int:
    """Bytes of layers first..end on one rank; `offset` is added to their number in the checkpoint's names."""
    return _counted_bytes(Same(layers), first, end, offset, Same(quantization), tensor_parallel, element_bytes)


@lru_cache(maxsize=_COUNTS_KEPT)
def _counted_bytes(
    same_layers: "Same[tuple[LayerWeights, ...]]",
    first: int,
    end: int,
    offset: int,
    same_quantization: "Same[Quantization | None]",
    tensor_parallel: int,
    element_bytes: int,
) -> int:
    layers, quantization = same_layers.value, same_quantization.value
    known: dict[tuple[object, ...], int] = {}
    size = 0
    for index in range(first, end):
        layer = layers[index]
        key = (id(layer), quantization.apart(offset + index) if quantization is not None else None)
        if key not in known:
            own = layer.whole * element_bytes
            own += -(-layer.split * element_bytes // tensor_parallel)
            for matrix in layer.matrices:
                stored = quantization.format_of(offset + index, matrix.name) if quantization is not None else None
                own += _matrix_bytes(matrix, stored, tensor_parallel, element_bytes)
            known[key] = own
        size += known[key]
    return size


def _matrix_bytes(matrix: Matrix, stored: "Format | None", tensor_parallel: int, element_bytes: int) -> int:
    if stored is not None:
        size = stored.size(matrix.rows, matrix.columns) * matrix.copies
    else:
        size = matrix.parameters * element_bytes
    return -(-size // matrix.sharers(tensor_parallel))
