"""Decides what --hf-overrides makes of a config.json, before anything is read of it."""

from collections.abc import Mapping

# One replaces the other: transformers 5 renamed the first, and every reader takes either.
_ROPE = ("rope_scaling", "rope_parameters")
_NO_SECTION = ("quantization_config", "compression_config")
_DEEPEST = 8


def with_overrides(config: object, overrides: Mapping[str, object], depth: int = 0) -> object:
    """`config` as vLLM 0.32 plans with it (config/model.py: _apply_dict_overrides): the config of a part (text_config)
    is updated key by key, everything else is set as it is given. A config that is no object stays what it is."""
    if not isinstance(config, Mapping) or depth > _DEEPEST:
        return config
    merged = dict(config)
    for key, value in overrides.items():
        part = merged.get(key)
        if key in _ROPE:
            for name in _ROPE:
                merged.pop(name, None)
        if (
            isinstance(value, Mapping)
            and isinstance(part, Mapping)
            and key.endswith("_config")
            and key not in _NO_SECTION
        ):
            merged[key] = with_overrides(part, value, depth + 1)
        else:
            merged[key] = value
    return merged
