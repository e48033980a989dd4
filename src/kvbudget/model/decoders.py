"""Decides which part of an encoder-decoder's config.json describes the decoder, and how long the encoder's output is.

Sizes come back under our own names, so that one reader serves all; vLLM 0.32 `model_executor/models/cohere_asr.py` and
`nemotron_parse.py` read the same fields.
"""

from collections.abc import Mapping

from kvbudget.errors import BadConfigError
from kvbudget.model.fields import LARGEST_COUNT, Fields

_SAMPLES_PER_S = 16_000
_FRAME_S = 0.01
_NECK = 4  # Nemotron-Parse merges four neighbours of a row


def decoder_of(config: Mapping[str, object], model_type: str) -> Mapping[str, object]:
    """The decoder of a cohere_asr or nemotron_parse as one flat object. Raises BadConfigError when it is not there."""
    fields = Fields(config, {}, {})
    return _speech_decoder(fields) if model_type == "cohere_asr" else _page_decoder(fields)


def _speech_decoder(fields: Fields) -> Mapping[str, object]:
    """Cohere Transcribe as published; the encoder's output is that of the longest clip."""
    decoder = Fields(_part(Fields(_part(fields, "transf_decoder"), {}, {}), "config_dict"), {}, {})
    frames = Fields(fields.section("preprocessor") or {}, {}, {"sample_rate": _SAMPLES_PER_S})
    hop = round(_number(frames, "window_stride", _FRAME_S) * frames.count("sample_rate"))
    samples = round(_number(fields, "max_audio_clip_s", None) * frames.count("sample_rate"))
    subsampling = Fields(_part(fields, "encoder"), {}, {}).count("subsampling_factor", high=1000)
    if hop < 1:
        raise BadConfigError("config.json: window_stride is less than one sample", fix="correct preprocessor")
    return {
        **fields.raw,
        "hidden_size": decoder.raw.get("hidden_size"),
        "num_hidden_layers": decoder.raw.get("num_layers"),
        "num_attention_heads": decoder.raw.get("num_attention_heads"),
        "intermediate_size": decoder.raw.get("inner_size"),
        "vocab_size": _part(fields, "head").get("num_classes"),
        "max_source_positions": -(-(samples // hop) // subsampling),
    }


def _page_decoder(fields: Fields) -> Mapping[str, object]:
    """Nemotron-Parse; the encoder's output is that of one page of image_size."""
    decoder = _part(fields, "decoder")
    patch = Fields(_part(fields, "encoder"), {}, {}).count("patch_size", high=10_000)
    size = fields.counts("image_size")
    if len(size) != 2:
        raise BadConfigError("config.json: image_size is not a height and a width", fix="correct image_size")
    height, width = size
    return {
        **decoder,
        "hidden_size": decoder.get("d_model"),
        "num_hidden_layers": decoder.get("decoder_layers"),
        "num_attention_heads": decoder.get("decoder_attention_heads"),
        "intermediate_size": decoder.get("decoder_ffn_dim"),
        "max_source_positions": height // patch * (width // patch // _NECK) + 1,
    }


def _part(fields: Fields, key: str) -> Mapping[str, object]:
    section = fields.section(key)
    if section is None:
        raise BadConfigError(
            f"config.json: {key} is missing, so the decoder's sizes are unknown",
            fix="give the model's own config.json, unchanged; vLLM 0.32 reads no other format of it",
        )
    return section


def _number(fields: Fields, key: str, default: float | None) -> float:
    value = fields.raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_COUNT:
        raise BadConfigError(f"config.json: {key} must be a positive number of seconds", fix=f"correct {key}")
    return value
