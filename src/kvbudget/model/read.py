"""Decides what model a config.json describes: its layers by kind, its longest context, its parameters.

Entry: `model_from_config`. Everything is pure; the edge reads the file.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvbudget.errors import BadConfigError, BadValueError, MissingFieldError, UnsupportedError
from kvbudget.model.attention import LARGEST_HEADS, assumed_layers
from kvbudget.model.families.aliases import spelt_as_read
from kvbudget.model.families.family import Family
from kvbudget.model.families.lookup import family_of, near_names, text_inside
from kvbudget.model.fields import LARGEST_COUNT, Fields
from kvbudget.model.kinds import refuse_other_architecture
from kvbudget.model.layers import Layer
from kvbudget.model.parameters import Parameters, parameters_of
from kvbudget.model.quantization import Quantization, quantisation_named, quantization_of
from kvbudget.model.weights.rules import RULES
from kvbudget.units import Tokens

_LONGEST_TYPE = 20
_MOST_EXPERTS = 10_000
_TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")
_DECODER_INSIDE = ("cohere_asr", "nemotron_parse")  # the decoder is a part of its own
# vLLM 0.32 `transformers_utils/model_arch_config_convertor.py: derive_max_model_len_and_key`; the smallest wins.
_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# vLLM 0.32 `config/model.py: _get_and_verify_max_len`: these leave max_position_embeddings as it is.
_ROPE_ALREADY_SCALED = (
    "default", "mrope", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"
)  # fmt: skip
# One entry for each layer; those of compress_ratios go on with the draft's layers.
_LAYER_LISTS = (
    "layer_types", "layers_block_type", "hybrid_override_pattern", "compress_ratios", "block_configs",
    "hybrid_layer_pattern", "attn_type_list", "no_rope_layers", "indexer_types",
)  # fmt: skip
_PREDICTIONS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
# An architecture that nobody knows, read as full attention because the caller said so: no key has a default.
_ASSUMED = Family({}, layers=assumed_layers)


class Model(NamedTuple):
    """What planning needs of a model. Sizes are of the whole model, before any parallelism.

    `draft_layers`: those of its built-in draft module (MTP), which an engine runs only when asked to.
    `max_model_len`: what the engine takes when nothing is asked. `longest_given`: the limit that config.json states
    itself, None when only a class default was there, which is `longest_default` then. `parameters` is None when they
    are not counted, and then `weights_unknown` says why. `named_quantisation`: the word of a name that says the weights
    are quantised where config.json does not, else "". `experts_per_token` is 0 for dense models, and
    `expert_intermediate_size` is that of one routed expert. `multimodal`: the language model is part of a larger one.
    `config_type`: the model_type at the top of config.json. `remote_model`: the checkpoint brings its model's own code.
    `stored_dtype`: the type that config.json says that the weights have, in PyTorch's name; "" where it does not.
    `assumed`: it was read with `assume`, on purpose, whatever its architecture.
    `draft_predicts`: the tokens that one pass of its draft module proposes (vLLM's n_predict), 0 without one.
    `vocab_size` is 0 where an assumed architecture does not say it.
    """

    name: str
    architectures: tuple[str, ...]
    model_type: str
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...]
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
    experts_per_token: int = 0
    expert_intermediate_size: int = 0
    multimodal: bool = False
    longest_default: Tokens | None = None
    config_type: str = ""
    remote_model: bool = False
    stored_dtype: str = ""
    assumed: bool = False
    draft_predicts: int = 0

    @property
    def kinds(self) -> dict[str, int]:
        """Number of layers of each kind."""
        counted: dict[str, int] = {}
        for layer in self.layers:
            counted[layer.kind] = counted.get(layer.kind, 0) + 1
        return counted


def model_from_config(config: object, name: str = "", assume: str = "") -> Model:
    """Read a parsed config.json.

    `assume="full"`: read an unknown architecture as full attention with equal layers, from the fields that it states
    itself; a known one is read as ever. Keys that mean another kind of cache are refused all the same.

    Raises UnsupportedError for an architecture or layer kind that is not known, BadConfigError for a damaged config;
    both name the field or the knowledge that is missing.
    """
    if not isinstance(config, dict):
        raise BadConfigError("config.json is not a JSON object", fix="give the model's own config.json")
    if assume not in ("", "full"):
        raise BadValueError(f"assume: {assume[:40]!r} is no layer kind to assume", fix="full is the only one")
    text, model_type = _text_part(config, assume)
    family = family_of(model_type)
    if family is None and assume:
        family = _ASSUMED
    if family is None:
        raise UnsupportedError(
            f"model_type {model_type[:40]!r} is unknown: which of its layers keep a KV cache, and the defaults of its "
            "config class, are missing",
            fix=f"{near_names(model_type)}; or assume full attention on purpose (--assume full)",
        )
    spelt = spelt_as_read(text, model_type)
    multimodal = text is not config
    if not multimodal:
        config = spelt
    text = spelt
    fields = Fields(text, family.spelling, family.defaults)
    layers = family.layers(family, fields, model_type)
    drafts = family.draft_layers(family, fields, model_type) if family.draft_layers else ()
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads", low=0, high=LARGEST_HEADS)
    length, given, key, default = _longest(fields, model_type)
    quantization = quantization_of(config, text)
    parameters, unknown = _parameters(fields, family, model_type, layers, drafts, heads, quantization, config)
    return Model(
        name=name or fields.text("_name_or_path")[:200] or model_type,
        architectures=Fields(config, {}, {}).texts("architectures") or (),
        model_type=model_type,
        layers=layers,
        draft_layers=drafts,
        attention_heads=heads,
        hidden_size=hidden,
        intermediate_size=_widest(fields) or 4 * hidden,
        vocab_size=_vocabulary(fields, family),
        max_model_len=length,
        longest_given=given,
        longest_key=key,
        quantization=quantization,
        parameters=parameters,
        weights_unknown=unknown,
        filled=_filled(fields, len(layers), len(drafts)),
        named_quantisation="" if quantization else quantisation_named(name, config.get("_name_or_path")),
        experts_per_token=_experts_per_token(fields),
        expert_intermediate_size=_expert_size(fields),
        multimodal=multimodal,
        longest_default=default,
        config_type=Fields(config, {}, {}).text("model_type"),
        remote_model=_brings_code(config),
        assumed=bool(assume),
        draft_predicts=_predicts(text, drafts),
        stored_dtype=_stored_dtype(config) or _stored_dtype(text),
    )


def _predicts(text: Mapping[str, object], drafts: tuple[Layer, ...]) -> int:
    """vLLM 0.32 config/speculative.py: hf_config_override. MiMo-V2 says no number: its first module alone is run."""
    beside = text.get("mtp_config")
    parts = text, beside if isinstance(beside, dict) else {}
    told = [value for part in parts for key in _PREDICTIONS if isinstance(value := part.get(key), int)]
    return told[0] if drafts and told else min(1, len(drafts))


def _vocabulary(fields: Fields, family: Family) -> int:
    """0 where it is not known: weights and the activation peak need it, the cache does not."""
    return fields.optional_count("vocab_size") or 0 if family is _ASSUMED else fields.count("vocab_size")


def _stored_dtype(config: Mapping[str, object]) -> str:
    named = config.get("dtype") or config.get("torch_dtype")
    return named.removeprefix("torch.")[:_LONGEST_TYPE] if isinstance(named, str) else ""


def _brings_code(config: Mapping[str, object]) -> bool:
    """Whether auto_map names a model class; a damaged one may, which no plan depends on."""
    named = config.get("auto_map")
    return named is not None and (not isinstance(named, dict) or any(str(k).startswith("AutoModel") for k in named))


def _filled(fields: Fields, layers: int, drafts: int) -> tuple[str, ...]:
    """What class defaults decided. A list with an entry for each layer says how many there are."""
    lengths = {len(value) for key in _LAYER_LISTS if isinstance(value := fields.raw.get(key), list | str)}
    told = bool(lengths & {layers, layers + drafts})
    return tuple(name for name in fields.filled if not (told and name == "num_hidden_layers"))


def _text_part(config: Mapping[str, object], assume: str) -> tuple[Mapping[str, object], str]:
    """The object that describes the language model, and its model_type."""
    outer = Fields(config, {}, {})
    model_type = outer.text("model_type")
    if not model_type and config.get("speculators_config") is not None:
        raise _is_a_draft(config)
    if not model_type:
        raise BadConfigError(
            "config.json: model_type is missing, so the class defaults and layer kinds are unknown",
            fix="give the model's own config.json, unchanged",
        )
    refuse_other_architecture(model_type)
    if model_type in _DECODER_INSIDE:
        from kvbudget.model.decoders import decoder_of

        return decoder_of(config, model_type), model_type
    section = _section(outer)
    if section is None:
        return config, text_inside(model_type) or model_type
    if text_inside(model_type) is None and not assume:
        raise UnsupportedError(
            f"model_type {model_type[:40]!r} has a nested text config but is unknown: how it uses its text model is "
            "missing",
            fix=near_names(model_type),
        )
    inner = Fields(section, {}, {})
    section = _section(inner) or section  # Qwen's omni models nest once more
    text_type = Fields(section, {}, {}).text("model_type") or text_inside(model_type) or ""
    text_type = text_inside(text_type) or text_type
    if not text_type:
        raise BadConfigError(
            f"config.json: the text config of {model_type} names no model_type, and its class has no default for it",
            fix="give the model's own config.json, unchanged",
        )
    refuse_other_architecture(text_type)
    drafts = config.get("mtp_config")  # Inkling's stands beside the text config
    return (section if drafts is None else {"mtp_config": drafts, **section}), text_type


def _is_a_draft(config: Mapping[str, object]) -> UnsupportedError:
    from kvbudget.model.drafts import speculators_of

    found = speculators_of(config)
    verifier, method, tokens = found or ("its verifier", "eagle3", 1)
    return UnsupportedError(
        f"this is a draft in the speculators format, with which vLLM serves {verifier}",
        fix=f'plan {verifier} with --speculative-config \'{{"method": "{method}", "num_speculative_tokens": {tokens}, '
        '"model": "THIS FOLDER"}\'',
    )


def _section(fields: Fields) -> Mapping[str, object] | None:
    return next((s for s in (fields.section(key) for key in _TEXT_SECTIONS) if s is not None), None)


def _widest(fields: Fields) -> int | None:
    """intermediate_size; the widest layer's where it is a list (Gemma 3n)."""
    if isinstance(fields.given("intermediate_size"), list):
        return max(fields.counts("intermediate_size"), default=None)
    return fields.optional_count("intermediate_size")


def _experts_per_token(fields: Fields) -> int:
    """How many routed experts a token goes through; 0 for a dense model."""
    keys = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k", "moe_top_k")
    found = [fields.raw[key] for key in keys if type(fields.raw.get(key)) is int]
    return next((value for value in found if isinstance(value, int) and 0 < value <= _MOST_EXPERTS), 0)


def _expert_size(fields: Fields) -> int:
    for key in ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"):
        value = fields.raw.get(key)
        if type(value) is int and 0 < value <= LARGEST_COUNT:
            return value
    return 0


def _longest(fields: Fields, model_type: str) -> tuple[Tokens, Tokens | None, str, Tokens | None]:
    """(default context length, limit stated by config.json or None, the key that stated it, limit of the class when
    config.json states none)."""
    stated = [(fields.count(key), key) for key in _LENGTH_KEYS if fields.raw.get(key) is not None]
    default = None
    if fields.given("max_position_embeddings") is None and not fields.is_null("max_position_embeddings"):
        default = fields.optional_count("max_position_embeddings")  # the config class has it, said or not
    model_max = fields.optional_count("model_max_length")
    if model_max is not None:  # Command-R: replaces the others
        stated, default = [(model_max, "model_max_length")], None
    if stated and default is not None and default < min(stated)[0]:
        stated = [(default, "max_position_embeddings")]
    length, key = min(stated) if stated else (fields.optional_count("max_position_embeddings") or 2048, "")
    scalings = _scalings(fields)
    kinds = [_rope_kind(scaling) for scaling in scalings]
    if "gemma3" not in model_type:  # its length is scaled already
        length = _scaled(length, zip(kinds, scalings, strict=True))
    longest = Tokens(length) if key else None
    by_class = Tokens(length) if default is not None and not key else None
    if "longrope" in kinds or "su" in kinds:
        # Long-RoPE models serve their original length unless a longer one is asked for.
        length = fields.optional_count("original_max_position_embeddings") or length
    return Tokens(length), longest, key, by_class


def _scalings(fields: Fields) -> tuple[Mapping[str, object], ...]:
    """The RoPE scaling, or those of each layer type where they are apart (rope_parameters of transformers 5)."""
    section = fields.section("rope_scaling") or fields.section("rope_parameters") or {}
    _rope_kind(section)  # an object there is damage, no scaling of a layer type
    apart = tuple(value for value in section.values() if isinstance(value, dict))
    return apart or (section,)


def _rope_kind(scaling: Mapping[str, object]) -> str:
    for key in ("rope_type", "type"):
        kind = scaling.get(key)
        if kind is not None and not isinstance(kind, str):
            raise BadConfigError(
                f"config.json: the {key} of the RoPE scaling is {str(kind)[:60]}, but it must be a string",
                fix=f"correct {key} in config.json",
            )
        if kind:
            return kind
    return "default"


def _scaled(length: int, scalings: Iterable[tuple[object, Mapping[str, object]]]) -> int:
    """vLLM 0.32 `config/model.py: _get_and_verify_max_len`: the last factor of a kind that is not scaled already."""
    found: float = 1
    for kind, scaling in scalings:
        factor = scaling.get("factor")
        if kind in _ROPE_ALREADY_SCALED or factor is None:
            continue
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= LARGEST_COUNT / length:
            raise BadConfigError("config.json: the RoPE scaling factor is not a positive number", fix="correct factor")
        found = factor
    return max(1, int(length * found))


def _parameters(
    fields: Fields,
    family: Family,
    model_type: str,
    layers: tuple[Layer, ...],
    drafts: tuple[Layer, ...],
    heads: int,
    quantization: Quantization | None,
    config: Mapping[str, object],
) -> tuple[Parameters | None, str]:
    rule = RULES.get(model_type)
    if rule is None:
        return None, f"the parameter count of {model_type[:40]} is not known"
    if quantization is not None and quantization.weights_unknown:
        return None, quantization.weights_unknown
    own = Fields(fields.raw, family.spelling, {**(rule.defaults or {}), **family.defaults})
    try:
        return parameters_of(own, rule, layers, drafts, heads, config), ""
    except MissingFieldError as error:  # the cache can be planned without the weights; --weights gives them
        return None, f"its weights cannot be counted: {error.message.removeprefix('config.json: ')}"
