"""Decides what model a config.json describes: its layers by kind, its longest context, its parameters.

Entry: `model_from_config`. Everything is pure; the edge reads the file.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.families import FAMILIES, WRAPPERS, Family
from kvbudget.model.fields import LARGEST_COUNT, LARGEST_LAYERS, Fields
from kvbudget.model.kinds import refuse_other_architecture, refuse_other_kinds
from kvbudget.model.layers import FullAttention, Layer
from kvbudget.model.parameters import Parameters, parameters_of
from kvbudget.model.quantization import Quantization, quantisation_named, quantization_of
from kvbudget.units import Tokens

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
_LARGEST_HEADS = 100_000
_LARGEST_HEAD_SIZE = 100_000
# vLLM 0.32 `transformers_utils/model_arch_config_convertor.py: derive_max_model_len_and_key`; the smallest wins.
_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# vLLM 0.32 `config/model.py: _get_and_verify_max_len`: these leave max_position_embeddings as it is.
_ROPE_ALREADY_SCALED = (
    "default", "mrope", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"
)  # fmt: skip


class Model(NamedTuple):
    """What planning needs of a model. Sizes are of the whole model, before any parallelism.

    `max_model_len`: what the engine takes when nothing is asked. `longest_given`: the limit that config.json states
    itself, None when only a class default was there. `parameters` is None when they are not counted, and then
    `weights_unknown` says why. `named_quantisation`: the word of a name that says the weights are quantised where
    config.json does not, else "".
    """

    name: str
    architectures: tuple[str, ...]
    model_type: str
    layers: tuple[Layer, ...]
    attention_heads: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: Tokens
    longest_given: Tokens | None
    longest_key: str
    quantization: Quantization | None
    parameters: Parameters | None
    weights_unknown: str
    filled: tuple[str, ...]
    named_quantisation: str

    @property
    def kinds(self) -> dict[str, int]:
        """Number of layers of each kind."""
        counted: dict[str, int] = {}
        for layer in self.layers:
            counted[layer.kind] = counted.get(layer.kind, 0) + 1
        return counted


def model_from_config(config: object, name: str = "") -> Model:
    """Read a parsed config.json.

    Raises UnsupportedError for an architecture or layer kind that is not known, BadConfigError for a damaged config;
    both name the field or the knowledge that is missing.
    """
    if not isinstance(config, dict):
        raise BadConfigError("config.json is not a JSON object", fix="give the model's own config.json")
    text, model_type = _text_part(config)
    family = FAMILIES.get(model_type)
    if family is None:
        raise UnsupportedError(
            f"model_type {model_type[:40]!r} is unknown: which of its layers keep a KV cache, and the defaults of its "
            "config class, are missing",
            fix=f"known are {', '.join(sorted(FAMILIES))}",
        )
    fields = Fields(text, family.spelling, family.defaults)
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, family, model_type, count)
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads", high=_LARGEST_HEADS)
    layers = (_attention(fields, model_type, hidden, heads),) * count
    length, given, key = _longest(fields)
    quantization = quantization_of(config, text)
    parameters, unknown = _parameters(fields, family, layers, heads, quantization, nested=text is not config)
    return Model(
        name=name or fields.text("_name_or_path")[:200] or model_type,
        architectures=Fields(config, {}, {}).texts("architectures") or (),
        model_type=model_type,
        layers=layers,
        attention_heads=heads,
        hidden_size=hidden,
        intermediate_size=fields.optional_count("intermediate_size") or 4 * hidden,
        vocab_size=fields.count("vocab_size"),
        max_model_len=length,
        longest_given=given,
        longest_key=key,
        quantization=quantization,
        parameters=parameters,
        weights_unknown=unknown,
        filled=tuple(dict.fromkeys(fields.filled)),
        named_quantisation="" if quantization else quantisation_named(name, config.get("_name_or_path")),
    )


def _text_part(config: Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """The object that describes the language model, and its model_type."""
    outer = Fields(config, {}, {})
    model_type = outer.text("model_type")
    if not model_type:
        raise BadConfigError(
            "config.json: model_type is missing, so the class defaults and layer kinds are unknown",
            fix="give the model's own config.json, unchanged",
        )
    refuse_other_architecture(model_type)
    section = next((s for s in (outer.section(key) for key in _TEXT_SECTIONS) if s is not None), None)
    if section is None:
        return config, WRAPPERS.get(model_type, model_type)
    if model_type not in WRAPPERS:
        raise UnsupportedError(
            f"model_type {model_type[:40]!r} has a nested text config but is unknown: how it uses its text model is "
            "missing",
            fix=f"known are {', '.join(sorted(WRAPPERS))}",
        )
    text_type = Fields(section, {}, {}).text("model_type") or WRAPPERS[model_type]
    text_type = WRAPPERS.get(text_type, text_type)
    refuse_other_architecture(text_type)
    return section, text_type


def _attention(fields: Fields, model_type: str, hidden: int, heads: int) -> FullAttention:
    kv_heads = _kv_heads(fields, model_type, heads)
    if kv_heads > heads or heads % kv_heads:
        raise BadConfigError(
            f"config.json: {heads} attention heads cannot share {kv_heads} KV heads evenly",
            fix=f"{fields.key('num_attention_heads')} must be a multiple of {fields.key('num_key_value_heads')}",
        )
    head_size = None if fields.is_null("head_dim") else fields.optional_count("head_dim", high=_LARGEST_HEAD_SIZE)
    if head_size is None:
        if hidden % heads:
            raise BadConfigError(
                f"config.json: head_dim is missing and {fields.key('hidden_size')} {hidden} is not a multiple of "
                f"{fields.key('num_attention_heads')} {heads}",
                fix="add head_dim",
            )
        head_size = hidden // heads
    return FullAttention(kv_heads, head_size, head_size)


def _kv_heads(fields: Fields, model_type: str, heads: int) -> int:
    """KV heads of one layer; the older spellings of multi-query attention come first, as the engines read them."""
    if model_type in ("falcon", "RefinedWeb", "RefinedWebModel"):
        # vLLM 0.32 FalconModelArchConfigConvertor: the new architecture ignores multi_query.
        if not fields.flag("new_decoder_architecture") and fields.flag("multi_query"):
            return 1
    elif model_type == "gpt_bigcode":
        return 1 if fields.flag("multi_query") else heads
    elif model_type == "chatglm" and fields.flag("multi_query_attention"):
        return fields.count("multi_query_group_num", high=_LARGEST_HEADS)
    elif model_type == "mpt":
        return _mpt_kv_heads(fields, heads)
    if fields.is_null("num_key_value_heads"):
        return heads
    return fields.optional_count("num_key_value_heads", high=_LARGEST_HEADS) or heads


def _mpt_kv_heads(fields: Fields, heads: int) -> int:
    section = Fields(fields.section("attn_config") or {}, {}, {"attn_type": "multihead_attention"})
    kind = section.text("attn_type")
    if kind == "multihead_attention":
        return heads
    if kind == "multiquery_attention":
        return 1
    if kind == "grouped_query_attention":
        return section.count("kv_n_heads", high=_LARGEST_HEADS)
    raise UnsupportedError(f"mpt with attn_type {kind[:40]!r} is unknown", fix="multihead, multiquery or grouped_query")


def _longest(fields: Fields) -> tuple[Tokens, Tokens | None, str]:
    """(default context length, limit stated by config.json or None, the key that stated it)."""
    stated = [(fields.count(key), key) for key in _LENGTH_KEYS if fields.raw.get(key) is not None]
    model_max = fields.optional_count("model_max_length")
    if model_max is not None:  # Command-R: replaces the others
        stated = [(model_max, "model_max_length")]
    length, key = min(stated) if stated else (fields.optional_count("max_position_embeddings") or 2048, "")
    scaling = fields.section("rope_scaling") or fields.section("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    factor = scaling.get("factor")
    if kind not in _ROPE_ALREADY_SCALED and factor is not None:
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= LARGEST_COUNT / length:
            raise BadConfigError("config.json: the RoPE scaling factor is not a positive number", fix="correct factor")
        length = max(1, int(length * factor))
    longest = Tokens(length) if key else None
    if kind in ("longrope", "su"):
        # Long-RoPE models serve their original length unless a longer one is asked for.
        length = fields.optional_count("original_max_position_embeddings") or length
    return Tokens(length), longest, key


def _parameters(
    fields: Fields,
    family: Family,
    layers: tuple[Layer, ...],
    heads: int,
    quantization: Quantization | None,
    *,
    nested: bool,
) -> tuple[Parameters | None, str]:
    if nested:
        return None, "it is multimodal, and the weights of its vision or audio part are not computed yet"
    if family.weights is None:
        return None, "the parameter count of this architecture is not known yet"
    if quantization is not None and quantization.fp8_block is None:
        return None, quantization.weights_unknown
    return parameters_of(fields, family.weights, layers, heads), ""
