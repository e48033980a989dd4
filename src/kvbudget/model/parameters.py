"""Decides how many parameters a model has, layer by layer, and how many bytes of them one rank holds."""

from typing import NamedTuple

from kvbudget.errors import BadConfigError
from kvbudget.model.families import WeightRule
from kvbudget.model.fields import Fields
from kvbudget.model.layers import Layer
from kvbudget.units import Bytes

_SCALE_BYTES = 4  # fp8 scales are float32


class Parameters(NamedTuple):
    """Counts of parameters, not bytes. `layers` holds (linear, other) for each layer in order.

    Linear ones are matrices that quantisation shrinks and tensor parallelism splits; other ones (norms, router,
    biases) stay. `head` is 0 when tied to the embedding.
    """

    embedding: int
    layers: tuple[tuple[int, int], ...]
    final_norm: int
    head: int

    @property
    def total(self) -> int:
        """All parameters of the model."""
        return self.embedding + sum(a + b for a, b in self.layers) + self.final_norm + self.head

    def stage_bytes(
        self, first: int, end: int, tensor_parallel: int, element_bytes: int, fp8_block: tuple[int, int] | None
    ) -> Bytes:
        """Bytes on one rank of the pipeline stage that holds layers first..end (end exclusive).

        The first stage has the embedding, the last one the head (a copy of the embedding when tied). Norms and the
        like are on every rank of tensor parallelism.
        """
        linear = sum(layer[0] for layer in self.layers[first:end])
        other = sum(layer[1] for layer in self.layers[first:end])
        table = self.embedding if first == 0 else 0
        if end == len(self.layers):
            table += self.head or (self.embedding if first else 0)
            other += self.final_norm
        linear_bytes = linear * element_bytes
        if fp8_block is not None:
            area = fp8_block[0] * fp8_block[1]
            linear_bytes = linear + (-(-linear // area) * _SCALE_BYTES if area else 0)
        return Bytes(-(-(linear_bytes + table * element_bytes) // tensor_parallel) + other * element_bytes)


def parameters_of(fields: Fields, rule: WeightRule, layers: tuple[Layer, ...], heads: int) -> Parameters:
    """Count them by the family's rule. Raises BadConfigError for sizes that contradict one another."""
    hidden = fields.count("hidden_size")
    vocabulary = fields.count("vocab_size")
    embedding_width = fields.optional_count("word_embed_proj_dim") or hidden
    if embedding_width != hidden:
        raise BadConfigError(
            f"config.json: word_embed_proj_dim {embedding_width} differs from hidden_size {hidden}, "
            "whose projections are not counted",
            fix="give --weights",
        )
    embedding = vocabulary * hidden
    if rule.learned_positions >= 0:
        embedding += (fields.count("max_position_embeddings") + rule.learned_positions) * hidden
    norm = hidden * (2 if rule.norm_bias else 1)
    if rule.embedding_norm:
        embedding += norm
    head = 0 if fields.flag("tie_word_embeddings") else vocabulary * (hidden + rule.head_bias)
    attention = _attention(fields, rule, layers[0], heads, hidden)
    norms = _norms_per_layer(fields, rule) * norm
    dense = _dense_mlp(fields, rule, hidden)
    experts = _experts(fields, rule, hidden) if rule.experts else dense
    counted = []
    for index in range(len(layers)):
        mlp = experts if rule.experts and _has_experts(fields, rule, index) else dense
        counted.append((attention[0] + mlp[0], attention[1] + mlp[1] + norms))
    return Parameters(embedding, tuple(counted), norm * rule.final_norm, head)


def _attention(fields: Fields, rule: WeightRule, layer: Layer, heads: int, hidden: int) -> tuple[int, int]:
    query = heads * layer.key_size
    key, value = layer.kv_heads * layer.key_size, layer.kv_heads * layer.value_size
    output = heads * layer.value_size
    linear = hidden * (query + key + value) + output * hidden
    other = (query + key + value if _bias(fields, rule.qkv_bias) else 0) + (
        hidden if _bias(fields, rule.out_bias) else 0
    )
    qk_norm = rule.qk_norm
    if qk_norm == "use_qk_norm":
        qk_norm = "head" if fields.flag("use_qk_norm") else ""
    if qk_norm == "head":
        other += 2 * layer.key_size
    elif qk_norm == "projection":
        other += query + key
    return linear, other


def _norms_per_layer(fields: Fields, rule: WeightRule) -> int:
    """Falcon has one norm when attention and MLP run in parallel, two with its new architecture; StableLM one too."""
    if fields.flag("new_decoder_architecture"):
        return fields.optional_count("num_ln_in_parallel_attn") or 2
    if fields.flag("parallel_attn") or (rule.qkv_bias == "use_qkv_bias" and fields.flag("use_parallel_residual")):
        return 1
    return rule.norms


def _dense_mlp(fields: Fields, rule: WeightRule, hidden: int) -> tuple[int, int]:
    inner = fields.optional_count("intermediate_size")
    if inner is None:
        inner = hidden * (fields.optional_count("expansion_ratio") or 4)
    bias = inner * (rule.mlp_matrices - 1) + hidden if _bias(fields, rule.mlp_bias) else 0
    return rule.mlp_matrices * hidden * inner, bias


def _experts(fields: Fields, rule: WeightRule, hidden: int) -> tuple[int, int]:
    """All experts of one layer; the router counts as other: it stays unquantised and whole on every rank."""
    count = fields.count("num_experts", high=100_000)
    inner = fields.count("intermediate_size" if rule.experts == "all" else "moe_intermediate_size")
    linear = count * 3 * hidden * inner
    other = hidden * count
    if rule.experts == "qwen":
        shared = fields.optional_count("shared_expert_intermediate_size", low=0)
        if shared:
            linear += 3 * hidden * shared
            other += hidden
    elif rule.experts == "glm":
        linear += fields.count("n_shared_experts", low=0, high=100_000) * 3 * hidden * inner
        other += count
    elif fields.flag("use_routing_bias"):
        other += count
    return linear, other


def _has_experts(fields: Fields, rule: WeightRule, index: int) -> bool:
    if rule.experts == "glm":
        return index >= fields.count("first_k_dense_replace", low=0)
    if rule.experts == "qwen":
        step = fields.count("decoder_sparse_step")
        return index not in fields.counts("mlp_only_layers") and (index + 1) % step == 0
    return True


def _bias(fields: Fields, rule: bool | str) -> bool:
    return fields.flag(rule) if isinstance(rule, str) else rule
