"""Decides which weights the feed-forward part of a layer has, dense or experts, and which layers have experts."""

from typing import NamedTuple

from kvbudget.errors import BadConfigError
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.weights.attention import is_set
from kvbudget.model.weights.matrices import Parts
from kvbudget.model.weights.rule import Experts, WeightRule

LARGEST_EXPERTS = 100_000
_NAMES = {3: ("gate_proj", "up_proj", "down_proj"), 2: ("up_proj", "down_proj")}


class FeedForward(NamedTuple):
    """What layer has: a dense part of `inner` channels (0: none), and experts or not."""

    inner: int
    experts: bool = False


def feed_forward_of(fields: Fields, rule: WeightRule, index: int, *, shared: bool) -> FeedForward:
    """What layer `index` has. `shared`: it reads another layer's cache, which widens it in some Gemma 4."""
    if rule.special:
        from kvbudget.model.weights.special import special_feed_forward

        special = special_feed_forward(fields, rule, index, shared=shared)
        if special is not None:
            return special
    if rule.experts is not None and has_experts(fields, rule.experts, index):
        return FeedForward(0, experts=True)
    return FeedForward(dense_inner(fields, rule))


def dense_inner(fields: Fields, rule: WeightRule) -> int:
    """Channels of the dense part."""
    inner = fields.optional_count(rule.inner)
    if inner is None:
        inner = fields.count("hidden_size") * (fields.optional_count("expansion_ratio", high=1000) or 4)
    return inner


def add_feed_forward(parts: Parts, fields: Fields, rule: WeightRule, part: FeedForward) -> None:
    """Its weights."""
    hidden = fields.count("hidden_size")
    if part.inner:
        _add_dense(parts, rule.mlp, rule.mlp_matrices, hidden, part.inner)
        if is_set(fields, rule.mlp_bias):
            parts.split += part.inner * (rule.mlp_matrices - 1)
            parts.whole += hidden
    if part.experts and rule.experts is not None:
        _add_experts(parts, fields, rule, rule.experts)


def _add_dense(parts: Parts, name: str, matrices: int, hidden: int, inner: int, copies: int = 1) -> None:
    for part in _NAMES[matrices]:
        down = part == "down_proj"
        parts.matrix(f"{name}.{part}", hidden if down else inner, inner if down else hidden, copies)


def _add_experts(parts: Parts, fields: Fields, rule: WeightRule, experts: Experts) -> None:
    """The router stays unquantised and whole on every rank (vLLM 0.32: ReplicatedLinear without a quant_config)."""
    hidden = fields.count("hidden_size")
    name = rule.moe or rule.mlp
    count = expert_count(fields, experts)
    inner = fields.count(experts.inner)
    width = (fields.optional_count(experts.width) if experts.width else None) or hidden
    _add_dense(parts, f"{name}.experts.0", experts.matrices, width, inner, count)
    routed = count + (fields.optional_count(experts.idle, low=0, high=LARGEST_EXPERTS) or 0 if experts.idle else 0)
    parts.whole += hidden * routed
    if is_set(fields, experts.router_bias):
        parts.whole += routed
    if width != hidden:
        parts.matrix(f"{name}.latent_proj", width, hidden, copies=2, ranks=1)
        if fields.flag("latent_moe_use_norm"):
            parts.whole += width
    if experts.bias:
        parts.split += count * inner * (experts.matrices - 1)
        parts.whole += count * hidden
    shared = _shared_inner(fields, experts, inner)
    if shared:
        _add_dense(parts, f"{name}.{experts.shared_name}", experts.matrices, hidden, shared)
        if experts.shared_gate:
            parts.whole += hidden


def _shared_inner(fields: Fields, experts: Experts, inner: int) -> int:
    count = fields.optional_count(experts.shared, low=0, high=LARGEST_EXPERTS) if experts.shared else 1
    if not count:
        return 0
    if experts.shared_inner:
        return count * (fields.optional_count(experts.shared_inner, low=0) or 0)
    return count * inner if experts.shared else 0


def expert_count(fields: Fields, experts: Experts) -> int:
    """How many experts a layer routes to; families spell it in several ways."""
    for key in (experts.number, "num_local_experts", "n_routed_experts", "num_experts"):
        count = fields.optional_count(key, low=0, high=LARGEST_EXPERTS)
        if count is not None:
            return count
    return fields.count(experts.number, high=LARGEST_EXPERTS)


def has_experts(fields: Fields, experts: Experts, index: int) -> bool:
    """Whether layer `index` has experts in place of a dense part."""
    return _WHERE[experts.where](fields, index) and expert_count(fields, experts) > 0


def _step(fields: Fields, index: int) -> bool:
    step = fields.optional_count("decoder_sparse_step") or 1
    return index not in fields.counts("mlp_only_layers") and (index + 1) % step == 0


def _first(fields: Fields, index: int) -> bool:
    types = fields.texts("mlp_layer_types")
    if types is not None and index < len(types):
        return types[index] == "sparse"
    given = fields.given("moe_layer_freq")
    if isinstance(given, list):
        flags = fields.counts("moe_layer_freq")
        return index < len(flags) and flags[index] == 1  # a draft layer past the last is dense
    dense = fields.optional_count("first_k_dense_replace", low=0, high=LARGEST_LAYERS) or 0
    return index >= dense and index % (fields.optional_count("moe_layer_freq") or 1) == 0


def _interleaved(fields: Fields, index: int) -> bool:
    layers = fields.counts("moe_layers")
    if layers:
        return index in layers
    step = fields.optional_count("interleave_moe_layer_step", low=0) or 0
    return step > 0 and (index + 1) % step == 0


def _period(fields: Fields, index: int) -> bool:
    period = fields.count("expert_layer_period")
    return index % period == fields.count("expert_layer_offset", low=0)


def _range(fields: Fields, index: int) -> bool:
    start, end = fields.given("moe_layer_start_index"), fields.given("moe_layer_end_index")
    if isinstance(start, list):
        first: int | None = min(fields.counts("moe_layer_start_index"), default=None)
    else:
        first = fields.optional_count("moe_layer_start_index", low=0)
    if isinstance(end, list):
        last: int | None = max(fields.counts("moe_layer_end_index"), default=None)
    else:
        last = fields.optional_count("moe_layer_end_index", low=-1)
    if last is None or last < 0:
        last = LARGEST_LAYERS
    return (first or 0) <= index <= last and (index + 1) % (fields.optional_count("moe_layer_interval") or 1) == 0


def _dense_first(fields: Fields, index: int) -> bool:
    return index >= (fields.optional_count("num_dense_layers", low=0) or 0)


def _listed(fields: Fields, index: int) -> bool:
    given = fields.given("moe_layers_enum")
    if given is None:  # the draft module's layers are dense
        return index < fields.count("num_hidden_layers", high=LARGEST_LAYERS) and _first(fields, index)
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list):
        raise BadConfigError("config.json: moe_layers_enum is no list of layer numbers", fix="correct moe_layers_enum")
    return str(index) in [str(name).strip() for name in names]


_WHERE = {
    "all": lambda fields, index: True,
    "step": _step,
    "first": _first,
    "interleaved": _interleaved,
    "period": _period,
    "range": _range,
    "dense_first": _dense_first,
    "listed": _listed,
}
