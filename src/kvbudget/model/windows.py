"""Decides how far back each layer's cache reaches: the whole context, a sliding window, or the current chunk.

A config class names the type of each layer (`layer_types`), or computes it when the key is missing; which rule it
follows is `Family.window`. Engines take the rest from that: vLLM 0.32 `engine/arg_utils.py: create_engine_config` gives
`sliding_window` to every layer when the class names no types or only sliding ones, whatever the architecture.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.kinds import kind_named

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"


class Reach(NamedTuple):
    """What a layer keeps: the last `window` tokens, those of the current `chunk`, or all with neither."""

    window: int | None = None
    chunk: int | None = None


WHOLE = Reach()


def reaches(
    fields: Fields, model_type: str, count: int, types: tuple[str, ...] | None, *, beyond: int = 0
) -> tuple[Reach, ...]:
    """The reach of each of `count` layers of the given `types`; None: the class names none, and all are alike.

    `beyond`: tokens that the engine keeps beside the window (Cohere's layers see the token before it too).
    """
    if types is None:
        window = window_of(fields)
        return (WHOLE if window is None else Reach(window + beyond),) * count
    return tuple(_reach(fields, model_type, name, beyond) for name in types)


def window_of(fields: Fields) -> int | None:
    """sliding_window or its class default; null and 0 both mean that there is none, as in vLLM 0.32 config/model.py."""
    if fields.is_null("sliding_window"):
        return None
    return fields.optional_count("sliding_window", low=0) or None


def named_types(fields: Fields, count: int) -> tuple[str, ...] | None:
    """An explicit layer_types, None when missing or null. Raises BadConfigError for a wrong length."""
    named = fields.texts("layer_types")
    if named is None:
        return None
    if len(named) != count:
        raise BadConfigError(
            f"config.json: layer_types has {len(named)} entries, but there are {count} layers",
            fix="one entry of layer_types for each layer",
        )
    # The older spelling of GraniteMoE and its kin.
    return tuple(FULL if name == "attention" else name for name in named)


def class_types(family: "Family", fields: Fields, count: int) -> tuple[str, ...] | None:
    """The types that the config class computes without layer_types; None when it computes none."""
    rule = family.window
    if rule in ("never", "always"):
        # A config class that ships in the checkpoint may know the switch; those of transformers here do not.
        return (FULL,) * count if not family.defaults and fields.raw.get("use_sliding_window") is False else None
    if rule == "last":  # every nth layer, counted from 1, sees everything
        if fields.is_null("sliding_window"):
            return (FULL,) * count
        step = fields.count("sliding_window_pattern", high=LARGEST_LAYERS)
        return tuple(FULL if (index + 1) % step == 0 else SLIDING for index in range(count))
    if rule == "prefixed":  # Cohere 2 MoE: the dense layers before the experts follow a pattern of their own
        dense = fields.count("first_k_dense_replace", low=0, high=count)
        step, before = fields.count("sliding_window_pattern"), fields.count("prefix_dense_sliding_window_pattern")
        return tuple(
            FULL if ((index + 1) % before if index < dense else (index - dense + 1) % step) == 0 else SLIDING
            for index in range(count)
        )
    if rule == "first":  # the first layer and every 4th after it
        return tuple(FULL if index % 4 == 0 else SLIDING for index in range(count))
    if rule == "backward":  # the last layer and every 4th before it, which have no rotary positions
        if fields.counts("no_rope_layers"):
            return tuple(SLIDING if rotary == 1 else FULL for rotary in rotary_layers(fields, count))
        return tuple(FULL if (count - 1 - index) % 4 == 0 else SLIDING for index in range(count))
    if rule == "named":  # all full unless layer_types says otherwise
        return (FULL,) * count
    if rule == "norope":  # SmolLM3: layers without rotary positions slide, if anything does
        return _rope_types(fields, count)
    return _switched(rule, fields, count)


def agreed_types(fields: Fields, model_type: str, computed: tuple[str, ...]) -> tuple[str, ...]:
    """`computed`, for engines that ignore layer_types. Raises UnsupportedError when layer_types says something else."""
    named = named_types(fields, len(computed))
    if named is not None and named != computed:
        raise UnsupportedError(
            f"{model_type} with a layer_types that differs from its class's own pattern: vLLM 0.32 would ignore it",
            fix="correct layer_types",
        )
    return computed


def _switched(rule: str, fields: Fields, count: int) -> tuple[str, ...] | None:
    """Qwen's and dots.1's: `flag` is all layers or none, `switch` those from max_window_layers on, `beyond` unasked."""
    on = fields.flag("use_sliding_window") if rule != "beyond" else True
    if not on or window_of(fields) is None:
        return (FULL,) * count
    if rule == "flag":
        return (SLIDING,) * count
    first = fields.optional_count("max_window_layers", low=0, high=LARGEST_LAYERS) or 0
    return tuple(SLIDING if index >= first else FULL for index in range(count))


def _rope_types(fields: Fields, count: int) -> tuple[str, ...]:
    if not fields.flag("use_sliding_window") or window_of(fields) is None:
        return (FULL,) * count
    return tuple(FULL if rotary else SLIDING for rotary in rotary_layers(fields, count))


def rotary_layers(fields: Fields, count: int) -> tuple[int, ...]:
    """no_rope_layers (1: the layer has rotary positions), by class default 0 for every 4th."""
    named = fields.counts("no_rope_layers")
    if named:
        if len(named) != count:
            raise BadConfigError(
                f"config.json: no_rope_layers has {len(named)} entries, but there are {count} layers",
                fix="one entry of no_rope_layers for each layer",
            )
        return named
    step = fields.optional_count("no_rope_layer_interval", high=LARGEST_LAYERS) or 4
    return tuple(int((index + 1) % step != 0) for index in range(count))


def refuse_unknown_types(model_type: str, types: Iterable[str]) -> None:
    """Raises UnsupportedError for the first that is neither full nor sliding."""
    for name in types:
        if name not in (FULL, SLIDING):
            raise UnsupportedError(
                f"{model_type} with layer_types {name[:40]!r} keeps a cache that this architecture does not have: "
                f"{kind_named(name)}",
                fix="full_attention and sliding_attention are known for it",
            )


def _reach(fields: Fields, model_type: str, name: str, beyond: int) -> Reach:
    refuse_unknown_types(model_type, (name,))
    if name == FULL:
        return WHOLE
    window = window_of(fields)
    if window is None:
        raise BadConfigError(
            f"config.json: layers of {model_type} are sliding_attention, but sliding_window is missing or null",
            fix="add sliding_window: the number of tokens",
        )
    return Reach(window + beyond)
