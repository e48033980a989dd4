"""How far back each layer's cache reaches: class patterns, spellings and switches, as vLLM 0.32 registers them."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.layers import Attention
from kvbudget.model.read import model_from_config

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
MIXED = ["full_attention", "sliding_attention"] * 4


def windows(config: dict[str, Any]) -> list[int | None]:
    """The window of each layer in order."""
    found: list[int | None] = []
    for layer in model_from_config(config).layers:
        (cache,) = layer.caches
        assert isinstance(cache, Attention)
        found.append(cache.window)
    return found


def of(model_type: str, **fields: Any) -> list[int | None]:
    """The windows of a model of eight layers."""
    return windows({"model_type": model_type, "num_hidden_layers": 8, "head_dim": 128} | fields)


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("gemma2", {}, [4096, None] * 4),  # published without layer_types and without a pattern
        ("gemma2", {"sliding_window": None}, [None] * 8),
        ("vaultgemma", {}, [4096, None] * 4),
        ("gpt_oss", {}, [128, None] * 4),
        ("gemma3_text", {"sliding_window": 1024}, [1024] * 5 + [None, 1024, 1024]),
        ("gemma3_text", {"sliding_window": 512, "sliding_window_pattern": 2}, [512, None] * 4),
        ("cohere2", {}, [4097, 4097, 4097, None] * 2),  # a sliding layer keeps its own token beside the window
        ("cohere2_moe", {"first_k_dense_replace": 2}, [None, None, 4097, 4097, 4097, None, 4097, 4097]),
        ("exaone4", {"sliding_window_pattern": "LLLG", "layer_types": MIXED}, [None, 4096] * 4),
        ("exaone4", {"sliding_window": None}, [None] * 8),
        ("olmo3", {}, [4096, 4096, 4096, None] * 2),
        ("afmoe", {"global_attn_every_n_layers": 2}, [1024, None] * 4),
        ("cwm", {}, [None, 8192, 8192, 8192] * 2),
        ("granite_swa", {}, [None, 128, 128, 128] * 2),
        ("muse_glimmer_text", {}, [2048, 2048, 2048, None] * 2),
        ("laguna", {}, [None] * 8),
        ("laguna", {"layer_types": MIXED}, [None, 512] * 4),
        ("ministral", {}, [4096] * 8),
        ("dots1", {"max_window_layers": 6}, [None] * 6 + [4096] * 2),
    ],
)
def test_each_class_alternates_in_its_own_way(
    model_type: str, fields: dict[str, Any], expected: list[int | None]
) -> None:
    assert of(model_type, **fields) == expected


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("mistral", {}, 4096),  # the class default
        ("mistral", {"sliding_window": None}, None),
        ("mixtral", {}, None),
        ("mixtral", {"sliding_window": 4096}, 4096),
        ("phi3", {"sliding_window": 2047}, 2047),
        ("phimoe", {"sliding_window": 2047}, 2047),
        ("starcoder2", {"sliding_window": 4096}, 4096),
        ("llama", {"sliding_window": 1024}, 1024),  # its class has none, but the engine takes the key of any config
        ("llama", {"sliding_window": 0}, None),
        ("orion", {"sliding_window": 512, "use_sliding_window": False}, None),
    ],
)
def test_a_window_without_layer_types_is_on_every_layer(
    model_type: str, fields: dict[str, Any], expected: int | None
) -> None:
    assert windows(LLAMA | {"model_type": model_type} | fields) == [expected] * 8


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("qwen2", {"sliding_window": 131072}, None),  # off by class default
        ("qwen2", {"use_sliding_window": False, "sliding_window": 131072}, None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 8}, None),  # no layer beyond the first eight
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, 4096),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": None}, None),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 512}, 512),
        ("qwen3_moe", {"use_sliding_window": True}, 4096),
        ("qwen3_moe", {"use_sliding_window": False, "sliding_window": 512}, None),
    ],
)
def test_qwen_s_switch_decides_for_all_layers(model_type: str, fields: dict[str, Any], expected: int | None) -> None:
    assert windows(LLAMA | {"model_type": model_type, "head_dim": 128} | fields) == [expected] * 8


@pytest.mark.parametrize(
    "config",
    [
        LLAMA | {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 6},
        LLAMA | {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 512, "layer_types": MIXED},
        LLAMA | {"model_type": "mixtral", "sliding_window": 512, "layer_types": MIXED},
    ],
)
def test_a_mixture_that_the_engine_would_ignore_or_refuse_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="not served by vLLM"):
        model_from_config(config)


@pytest.mark.parametrize("model_type", ["gpt_oss", "muse_glimmer_text"])
def test_layer_types_that_the_engine_would_ignore_must_agree_with_the_class(model_type: str) -> None:
    pattern = ["sliding_attention" if window else "full_attention" for window in of(model_type)]
    assert of(model_type, layer_types=pattern) == of(model_type)
    with pytest.raises(UnsupportedError, match="differs from its class"):
        of(model_type, layer_types=["full_attention"] * 8)


def test_explicit_layer_types_decide_alone() -> None:
    assert windows(LLAMA | {"sliding_window": 512, "layer_types": MIXED}) == [None, 512] * 4
    assert windows(LLAMA | {"sliding_window": 512, "layer_types": ["full_attention"] * 8}) == [None] * 8
    assert windows(LLAMA | {"sliding_window": 512, "layer_types": ["attention"] * 8}) == [None] * 8


def test_layers_without_rotary_positions_slide_in_smollm3() -> None:
    smol = {"use_sliding_window": True, "sliding_window": 512}
    assert of("smollm3", **smol) == [None, None, None, 512] * 2
    assert of("smollm3", **smol, no_rope_layers=[1, 0] * 4) == [None, 512] * 4
    assert of("smollm3", sliding_window=512) == [None] * 8


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (LLAMA | {"layer_types": MIXED}, "sliding_window is missing"),
        (LLAMA | {"layer_types": MIXED[1:], "sliding_window": 512}, "layer_types has 7 entries"),
        ({"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 9, "no_rope_layers": [1]},
         "no_rope_layers has 1"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
    ],
)  # fmt: skip
def test_a_contradiction_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(BadConfigError, match=named):
        model_from_config(config)


@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama", "gemma3_text"])
def test_a_type_that_is_not_known_is_named_and_not_taken_for_a_window(model_type: str) -> None:
    types = ["full_attention", "quantum_attention"] * 4
    with pytest.raises(UnsupportedError, match="quantum_attention"):
        model_from_config(LLAMA | {"model_type": model_type, "head_dim": 128, "layer_types": types})
