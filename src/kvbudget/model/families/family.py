"""What is known of one config class: its defaults, spellings, and which caches its layers have."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kvbudget.model.attention import uniform_layers
from kvbudget.model.fields import Fields
from kvbudget.model.layers import Layer

_NO_SPELLING: Mapping[str, str] = MappingProxyType({})


class Family(NamedTuple):
    """One config class: what a missing key means, how keys are spelled, and when its window is active.

    `window`: the rule by which the class says how far back each layer reaches when layer_types is missing, see
    `model/windows.py: class_types`. `layers` reads the layers of the fields and their number.
    `draft_layers` reads those of the built-in draft module (MTP).
    """

    defaults: Mapping[str, object]
    spelling: Mapping[str, str] = _NO_SPELLING
    window: str = "never"
    layers: Callable[["Family", Fields, str], tuple[Layer, ...]] = uniform_layers
    draft_layers: Callable[["Family", Fields, str], tuple[Layer, ...]] | None = None


def sizes(
    layers: int,
    hidden: int,
    heads: int,
    kv: int | None,
    inner: int | None,
    vocab: int,
    positions: int | None,
    **more: object,
) -> dict[str, object]:
    """Class defaults by our names."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        **more,
    }
