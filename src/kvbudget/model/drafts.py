"""Decides what the config.json of a speculative draft describes: the model inside it that keeps caches, or none.

vLLM 0.32 `transformers_utils/configs/`: eagle.py, medusa.py, mlp_speculator.py, speculators/; `config/speculative.py`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.errors import BadConfigError, UnsupportedError

# speculators/algos.py, and the method that each of them becomes (speculators/base.py)
_ALGORITHMS = {
    "eagle3": "eagle3", "peagle": "eagle3", "dflash": "dflash", "dflash2": "dflash", "dspark": "dspark",
}  # fmt: skip
_EAGLE_METHODS = ("eagle", "eagle3", "dflash")
_HEADS_ONLY = ("medusa", "mlp_speculator")  # they read the target's last hidden state and keep nothing
_LARGEST_NAME = 200


class Draft(NamedTuple):
    """`config`: of the model that keeps caches, None where the draft keeps none. `method`: what the file says that it
    is for, "" when it says nothing."""

    config: Mapping[str, object] | None
    method: str


class Speculators(NamedTuple):
    """A draft in the speculators format that names the model it was made for."""

    verifier: str
    method: str
    num_speculative_tokens: int


def draft_inside(config: object) -> Draft:
    """Of a parsed config.json. Raises BadConfigError and UnsupportedError for wrappers that cannot be read."""
    if not isinstance(config, dict):
        return Draft({}, "")  # whoever reads it as a model says so
    model_type = config.get("model_type")
    if config.get("speculators_config") is not None and model_type in (None, "speculators"):
        return _speculators(config)
    if model_type == "eagle":
        return _eagle(config)
    if model_type in _HEADS_ONLY:
        return Draft(None, str(model_type))
    return Draft(config, "")


def speculators_of(config: Mapping[str, object]) -> Speculators | None:
    """What vLLM serves when this draft is named as the model itself (transformers_utils/config.py:
    maybe_override_with_speculators); None for every other config.json."""
    section = config.get("speculators_config")
    if section is None:
        return None
    method = _algorithm(config)
    verifier = _inner(section, "verifier").get("name_or_path")
    proposals = _inner({"speculators_config": section}, "speculators_config").get("proposal_methods")
    first = proposals[0] if isinstance(proposals, list) and proposals else None
    tokens = first.get("speculative_tokens") if isinstance(first, dict) else None
    if not isinstance(verifier, str) or not 0 < len(verifier) <= _LARGEST_NAME or type(tokens) is not int or tokens < 1:
        raise BadConfigError(
            "config.json: speculators_config does not name its verifier and its speculative_tokens",
            fix="give the draft's own config.json, unchanged",
        )
    return Speculators(verifier, method, tokens)


def _speculators(config: Mapping[str, object]) -> Draft:
    method = _algorithm(config)
    return Draft({"model_type": "llama", **_inner(config, "transformer_layer_config")}, method)


def _algorithm(config: Mapping[str, object]) -> str:
    algorithm = config.get("speculators_model_type")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise UnsupportedError(
            f"config.json: speculators_model_type is {str(algorithm)[:40]!r}",
            fix=f"vLLM 0.32 has {', '.join(_ALGORITHMS)}",
        )
    return _ALGORITHMS[algorithm]


def _eagle(config: Mapping[str, object]) -> Draft:
    """What stands beside `model` replaces what is in it."""
    beside = {
        key: value
        for key, value in config.items()
        if key not in ("architectures", "model_type", "model", "truncated_vocab_size", "method")
    }
    method = next((method for method in _EAGLE_METHODS if method == config.get("method")), "eagle")
    return Draft({**_inner(config, "model"), **beside}, method)


def _inner(config: object, key: str) -> Mapping[str, object]:
    inner = config.get(key) if isinstance(config, dict) else None
    if not isinstance(inner, dict):
        raise BadConfigError(
            f"config.json: {key} of the draft is not a JSON object", fix="give the draft's own config.json, unchanged"
        )
    return inner
