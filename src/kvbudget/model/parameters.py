"""Decides how many parameters a model has, layer by layer; what of them one rank holds is in `rank_weights.py`."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from kvbudget.model.fields import Fields
from kvbudget.model.layers import Attention, Cache, Indexer, Latent, Layer, State
from kvbudget.model.same import Same
from kvbudget.model.weights.attention import add_attention, add_indexer, add_latent, lender
from kvbudget.model.weights.feedforward import FeedForward, add_feed_forward, feed_forward_of, has_experts
from kvbudget.model.weights.matrices import LayerWeights, Matrix, Parts
from kvbudget.model.weights.rotation import rotation_elements
from kvbudget.model.weights.rule import WeightRule

_COUNTS_KEPT = 256  # results, one for each model
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
        tables_of_rotation=0 if positions else rotation_elements(fields, rule, layers),
        experts_of_token=_experts_of_token(fields),
        estimated=estimated,
    )


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
