"""Decides how many elements the rotary tables have that an engine makes beside the weights."""

from kvbudget.model.fields import Fields
from kvbudget.model.layers import Attention, Latent, Layer
from kvbudget.model.weights.rule import WeightRule


def rotation_elements(fields: Fields, rule: WeightRule, layers: tuple[Layer, ...]) -> int:
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
