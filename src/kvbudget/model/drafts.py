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
_HEADS_ONLY = ("medusa", "mlp_speculator")  # they read the target's last hidden state and keep nothing
_LARGEST_NAME = 200
_VOCABULARY_PADDING = 64  # model_executor/layers/vocab_parallel_embedding.py
# configs/medusa.py: what is taken where the file does not say it
_MEDUSA_HIDDEN, _MEDUSA_VOCABULARY, _MEDUSA_HEADS = 4096, 32001, 5
_LARGEST = 2**24


class Draft(NamedTuple):
    """`config`: of the model that keeps caches, None where the draft keeps none. `method`: what its model_type makes of
    it, "" where that is any model."""

    config: Mapping[str, object] | None
    method: str


class Speculators(NamedTuple):
    """A draft in the speculators format that names the model it was made for."""

    verifier: str
    method: str
    num_speculative_tokens: int


class MedusaHeads(NamedTuple):
    """`number` in the files; the engine builds one for each speculative token. `layers` of hidden x hidden in each, and
    an output head over `vocab_size` (0: the target's), which is one for all where `shared`."""

    number: int
    layers: int
    hidden_size: int
    vocab_size: int
    shared: bool
    biased: bool

    def parameters(self, count: int, target_vocab_size: int) -> tuple[int, int]:
        """(what every rank holds whole, what ranks share) of `count` heads (model_executor/models/medusa.py)."""
        vocabulary = -(-(self.vocab_size or target_vocab_size) // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
        block = self.layers * (self.hidden_size * self.hidden_size + (self.hidden_size if self.biased else 0))
        return count * block, (1 if self.shared else count) * vocabulary * self.hidden_size


def medusa_heads(config: Mapping[str, object], *, named: bool) -> MedusaHeads:
    """Of a config.json. Old ones spell their keys with a prefix, and name no vocabulary: where the method is `named`
    it is the target's (config/speculative.py)."""
    counts = {"heads": _MEDUSA_HEADS, "layers": 1}
    for key, value in config.items():
        part = next((part for part in counts if "num" in key and part in key), None)
        if part is not None:
            counts[part] = _count(value, key)
    vocabulary = _count(config.get("vocab_size", _MEDUSA_VOCABULARY), "vocab_size")
    shared = config.get("original_lm_head") is True
    if shared and config.get("truncated_vocab_size") is not None:
        vocabulary = _count(config["truncated_vocab_size"], "truncated_vocab_size")
    return MedusaHeads(
        counts["heads"],
        counts["layers"],
        _count(config.get("hidden_size", _MEDUSA_HIDDEN), "hidden_size"),
        0 if named else vocabulary,
        shared,
        config.get("medusa_fc_bias") is True,
    )


def _count(value: object, key: str) -> int:
    if type(value) is not int or not 0 < value <= _LARGEST:
        raise BadConfigError(f"config.json: {key[:40]} of the draft is {str(value)[:40]!r}", fix=f"correct {key[:40]}")
    return value


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
    _algorithm(config)
    return Draft({"model_type": "llama", **_inner(config, "transformer_layer_config")}, "")


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
    return Draft({**_inner(config, "model"), **beside}, "")


def _inner(config: object, key: str) -> Mapping[str, object]:
    inner = config.get(key) if isinstance(config, dict) else None
    if not isinstance(inner, dict):
        raise BadConfigError(
            f"config.json: {key} of the draft is not a JSON object", fix="give the draft's own config.json, unchanged"
        )
    return inner
