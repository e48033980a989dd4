"""Encoder-decoders whose decoder is described in a part of its own."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError
from kvbudget.model.layers import Attention, CrossAttention, Layer
from kvbudget.model.read import model_from_config

SPEECH: dict[str, Any] = {
    "model_type": "cohere_asr",
    "architectures": ["CohereAsrForConditionalGeneration"],
    "encoder": {"n_heads": 8, "subsampling_factor": 8},
    "transf_decoder": {
        "config_dict": {"hidden_size": 1024, "num_layers": 2, "num_attention_heads": 8, "max_sequence_length": 1024}
    },
    "head": {"num_classes": 16384},
    "preprocessor": {"sample_rate": 16000, "window_stride": 0.01},
    "max_audio_clip_s": 35,
    "max_seq_len": 1024,
}
PAGE: dict[str, Any] = {
    "model_type": "nemotron_parse",
    "architectures": ["NemotronParseForConditionalGeneration"],
    "image_size": [2048, 1648],
    "encoder": {"patch_size": 16},
    "decoder": {
        "d_model": 1024,
        "decoder_layers": 10,
        "decoder_attention_heads": 16,
        "decoder_ffn_dim": 4096,
        "vocab_size": 52352,
        "max_sequence_length": 9000,
    },
}


def test_a_speech_decoder_keeps_the_longest_clip() -> None:
    model = model_from_config(SPEECH)
    # 35 s are 3,500 frames, 8 to a token
    assert model.layers == (Layer((Attention(8, 128, 128), CrossAttention(8, 128, 128, 438))),) * 2
    assert (model.max_model_len, model.longest_key, model.vocab_size) == (1024, "max_seq_len", 16384)


def test_a_page_decoder_keeps_one_page() -> None:
    model = model_from_config(PAGE)
    # 128 rows of 103 patches, four of a row merged
    assert model.layers == (Layer((Attention(16, 64, 64), CrossAttention(16, 64, 64, 128 * 25 + 1))),) * 10
    assert (model.max_model_len, model.hidden_size, model.intermediate_size) == (9000, 1024, 4096)


@pytest.mark.parametrize("key", ["transf_decoder", "encoder", "head", "max_audio_clip_s"])
def test_a_missing_part_of_a_speech_model_is_named(key: str) -> None:
    with pytest.raises(BadConfigError, match=key):
        model_from_config({name: value for name, value in SPEECH.items() if name != key})


@pytest.mark.parametrize(
    "change",
    [
        {"image_size": [2048]},
        {"decoder": None},
        {"decoder": PAGE["decoder"] | {"decoder_layers": "ten"}},
    ],
)
def test_a_damaged_page_model_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadConfigError):
        model_from_config(PAGE | change)


@pytest.mark.parametrize("stride", [0, -1, "slow", 1e-9])
def test_a_clip_cannot_be_cut_into_frames_of_no_length(stride: object) -> None:
    with pytest.raises(BadConfigError, match="window_stride"):
        model_from_config(SPEECH | {"preprocessor": {"window_stride": stride}})
