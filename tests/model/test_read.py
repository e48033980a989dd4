"""What a config.json says of the layers: spellings, class defaults, nested configs, and the kinds that are refused."""

import copy
import random
from typing import Any

import pytest

from kvbudget.errors import BadConfigError, BadValueError, InputError, UnsupportedError
from kvbudget.model.families.multimodal import WRAPPERS
from kvbudget.model.families.other import OTHER
from kvbudget.model.families.plain import PLAIN
from kvbudget.model.families.sliding import SLIDING
from kvbudget.model.families.table import FAMILIES
from kvbudget.model.families.uniform import UNIFORM
from kvbudget.model.layers import Attention
from kvbudget.model.read import Model, model_from_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}


def heads(config: dict[str, Any]) -> tuple[int, int, int]:
    """(layers, KV heads, head size) of a uniform model."""
    model = model_from_config(config)
    (cache,) = model.layers[0].caches
    assert isinstance(cache, Attention)
    assert cache.key_size == cache.value_size
    return len(model.layers), cache.kv_heads, cache.key_size


def test_a_grouped_query_model_is_read_as_written() -> None:
    model = model_from_config(LLAMA, "m")
    assert (model.name, model.architectures, model.kinds) == ("m", ("LlamaForCausalLM",), {"full": 32})
    assert heads(LLAMA) == (32, 8, 128)
    assert (model.max_model_len, model.longest_given, model.longest_key) == (131072, 131072, "max_position_embeddings")
    assert model.filled == ()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "llama"}, (32, 32, 128)),  # no KV heads named: as many as attention heads
        ({"model_type": "mistral", "sliding_window": None}, (32, 8, 128)),  # class default 8
        ({"model_type": "mistral", "sliding_window": None, "num_key_value_heads": None}, (32, 32, 128)),  # null: MHA
        ({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8},
         (32, 8, 128)),
        ({"model_type": "gemma"}, (28, 16, 256)),  # 16 x 256 is more than hidden_size 3072
        ({"model_type": "gpt2", "n_layer": 24, "n_head": 16, "n_embd": 1024}, (24, 16, 64)),
        ({"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144}, (40, 1, 128)),
        ({"model_type": "falcon", "num_attention_heads": 71, "hidden_size": 4544}, (32, 1, 64)),
        (
            {"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8,
             "new_decoder_architecture": True, "num_hidden_layers": 60},
            (60, 8, 64),
        ),
        ({"model_type": "falcon", "multi_query": False, "alibi": True, "hidden_size": 2048,
          "num_attention_heads": 32}, (32, 32, 64)),
        ({"model_type": "RefinedWebModel", "n_layer": 32, "n_head": 71, "hidden_size": 4544, "multi_query": True},
         (32, 1, 64)),
        ({"model_type": "bloom", "n_layer": 30, "n_head": 32, "hidden_size": 4096}, (30, 32, 128)),
        ({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32}, (32, 32, 128)),
        ({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32,
          "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}}, (32, 8, 128)),
        ({"model_type": "opt", "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768}, (12, 12, 64)),
        ({"model_type": "gpt_neox"}, (44, 64, 96)),
        ({"model_type": "exaone", "num_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}, (32, 8, 128)),
        ({"model_type": "internlm2", "num_key_value_heads": 8}, (32, 8, 128)),
        ({"model_type": "chatglm", "num_layers": 40, "multi_query_attention": True, "multi_query_group_num": 2,
          "kv_channels": 128, "num_attention_heads": 32}, (40, 2, 128)),
        ({"model_type": "glm4_moe", "num_hidden_layers": 46, "num_attention_heads": 96, "head_dim": 128}, (46, 8, 128)),
        ({"model_type": "minimax_m2", "attn_type_list": [1] * 62}, (62, 8, 128)),
    ],
)  # fmt: skip
def test_every_spelling_and_class_default_gives_the_layers_of_its_class(
    config: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    assert heads(config) == expected


def test_what_came_from_a_class_default_is_named() -> None:
    assert "num_hidden_layers" in model_from_config({"model_type": "llama", "hidden_size": 4096}).filled


@pytest.mark.parametrize(
    ("config", "default"),
    [
        ({"model_type": "llama"}, 2048),
        ({"model_type": "olmo2"}, 2048),
        ({"model_type": "deepseek_v3"}, 4096),
        ({"model_type": "deepseek_v32"}, 4096),  # vLLM reads it with DeepSeek-V3's class
        ({"model_type": "muse_glimmer_text"}, 16384),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 8192),
        ({"model_type": "gpt2"}, 1024),
        ({"model_type": "whisper"}, 448),
        ({"model_type": "step3p7"}, 128000),
        ({"model_type": "bloom"}, None),
        ({"model_type": "RefinedWeb"}, None),
        ({"model_type": "mamba2"}, None),
    ],
)
def test_a_class_default_is_a_limit_of_its_own(config: dict[str, Any], default: int | None) -> None:
    model = model_from_config(config)
    assert (model.longest_given, model.longest_default) == (None, default)
    assert model.max_model_len == (default or 2048)


def test_a_class_default_below_what_config_json_states_counts() -> None:
    """vLLM takes the smallest of all keys, and a class has its own whether config.json says it or not."""
    model = model_from_config({"model_type": "llama", "max_seq_len": 8192})
    assert (model.longest_given, model.longest_key, model.longest_default) == (2048, "max_position_embeddings", None)


@pytest.mark.parametrize("kind", [["linear"], {"name": "linear"}, 4, True])
def test_a_kind_of_rope_scaling_that_is_no_string_is_damage(kind: object) -> None:
    for key in ("rope_type", "type"):
        with pytest.raises(BadConfigError, match=key):
            model_from_config({**LLAMA, "rope_scaling": {key: kind, "factor": 2.0}})


def test_a_draft_module_of_thousands_of_layers_is_damage() -> None:
    with pytest.raises(BadConfigError, match="num_nextn_predict_layers"):
        model_from_config({"model_type": "deepseek_v3", "num_nextn_predict_layers": 10_000})


def test_a_nested_text_config_is_the_model() -> None:
    text = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 2048}
    config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {"depth": 24}}
    assert heads(config) == (28, 8, 128)


def test_an_old_flat_multimodal_config_is_read_as_its_text_model() -> None:
    flat = {"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}
    assert heads(flat) == (80, 4, 128)


@pytest.mark.parametrize(
    ("change", "length", "limit"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 262144, 262144),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 131072, 131072),
        ({"rope_scaling": None}, 131072, 131072),
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 32.0}, "original_max_position_embeddings": 4096},
            4096,
            131072,
        ),
        ({"seq_length": 8192}, 8192, 8192),
        ({"model_max_length": 500000}, 500000, 500000),
    ],
)
def test_the_default_length_follows_the_engine_s_reading_of_rope(
    change: dict[str, Any], length: int, limit: int
) -> None:
    model = model_from_config(LLAMA | change)
    assert (model.max_model_len, model.longest_given) == (length, limit)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (LLAMA | {"layer_types": ["chunked_attention"] * 32}, "chunked"),
        (LLAMA | {"layer_types": ["linear_attention"] * 32}, "linear attention"),
        (LLAMA | {"layer_types": ["astral"] * 32}, "astral"),
        (LLAMA | {"attention_chunk_size": 8192}, "chunked"),
        (LLAMA | {"kv_lora_rank": 512}, "MLA"),
        (LLAMA | {"index_topk": 2048}, "indexer"),
        (LLAMA | {"sliding_window_pattern": 6}, "sliding-window"),
        (LLAMA | {"num_kv_shared_layers": 4}, "shared across layers"),
        (LLAMA | {"is_encoder_decoder": True}, "encoder-decoder"),
        (LLAMA | {"mamba_d_state": 16}, "Mamba"),
        ({"model_type": "qwen2", "kv_lora_rank": 512}, "MLA"),
        ({"model_type": "minimax_m2", "attn_type_list": [1, 0] * 31}, "linear attention"),
        ({"model_type": "t5"}, "no longer serves"),
        ({"model_type": "bart"}, "no longer serves"),
        ({"model_type": "mllama", "text_config": {}}, "no longer serves"),
        ({"model_type": "modernbert"}, "an encoder"),
        ({"model_type": "voxtral_realtime", "text_config": {}}, "an audio encoder"),
        ({"model_type": "mistral3", "text_config": {"model_type": "bart"}}, "no longer serves"),
    ],
)
def test_another_layer_kind_is_refused_by_its_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        model_from_config(config)


def test_omni_models_nest_their_text_model_twice() -> None:
    text = {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}
    assert heads({"model_type": "qwen2_5_omni", "thinker_config": {"text_config": text}}) == (28, 4, 128)


def test_a_wrapper_whose_class_has_no_default_needs_the_text_model_named() -> None:
    text = LLAMA | {"model_type": "llama"}
    assert heads({"model_type": "opencua", "text_config": text}) == (32, 8, 128)
    del text["model_type"]
    with pytest.raises(BadConfigError, match="names no model_type"):
        model_from_config({"model_type": "opencua", "text_config": text})


def test_every_wrapper_leads_to_a_known_text_model() -> None:
    assert {text for text in WRAPPERS.values() if text} <= set(FAMILIES)


@pytest.mark.parametrize("config", [{"model_type": "frobnicator"}, {"model_type": "mystery_vl", "text_config": LLAMA}])
def test_an_unknown_architecture_is_refused_and_the_missing_knowledge_named(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="missing") as caught:
        model_from_config(config)
    assert "kvbudget models lists all" in caught.value.fix
    assert len(caught.value.fix) < 200


def test_an_unknown_architecture_is_read_as_full_attention_only_when_asked() -> None:
    unknown = LLAMA | {"model_type": "frobnicator"}
    assert model_from_config(unknown, assume="full").kinds == {"full": 32}
    assert model_from_config({"model_type": "mystery_vl", "text_config": LLAMA}, assume="full").kinds == {"full": 32}
    # No key has a default then, and a key that means another cache is refused as ever.
    with pytest.raises(BadConfigError, match="num_hidden_layers is missing"):
        model_from_config({"model_type": "frobnicator"}, assume="full")
    with pytest.raises(UnsupportedError, match="MLA"):
        model_from_config(unknown | {"kv_lora_rank": 512}, assume="full")
    with pytest.raises(UnsupportedError, match="sliding_window"):
        model_from_config(unknown | {"sliding_window": 512}, assume="full")
    with pytest.raises(BadValueError, match="astral"):
        model_from_config(unknown, assume="astral")


def test_a_known_architecture_is_read_as_ever_whatever_is_assumed() -> None:
    assert model_from_config({"model_type": "gemma2"}, assume="full").kinds == {"sliding": 13, "full": 13}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'"),
        ({"num_hidden_layers": 32.0}, "num_hidden_layers is 32.0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": 5}, "32 attention heads cannot share 5 KV heads"),
        ({"num_key_value_heads": 64}, "cannot share 64"),
        ({"num_key_value_heads": [8]}, r"num_key_value_heads is \[8\]"),
        ({"num_attention_heads": 30, "num_key_value_heads": 10}, "not a multiple"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"hidden_size": 10**40}, "more than 40 digits"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": 7}, "model_type is 7"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"quantization_config": 4}, "quantization_config"),
        ({"quantization_config": {"quant_method": 4}}, "quant_method"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 1]}}, "weight_block_size"),
        ({"sliding_window": -1}, "sliding_window is -1"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ],
)
def test_a_damaged_field_is_named_with_its_value_and_rule(change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadConfigError, match=field) as caught:
        model_from_config(LLAMA | change)
    assert caught.value.fix


@pytest.mark.parametrize("config", [None, [], "x", 3, {}, {"model_type": ""}])
def test_what_is_no_model_config_is_a_clear_error(config: object) -> None:
    with pytest.raises(BadConfigError):
        model_from_config(config)


def test_every_known_family_with_class_defaults_can_be_read_from_them() -> None:
    head_size = {"head_dim": 128}  # the defaults of some classes do not divide
    for model_type, family in {**UNIFORM, **PLAIN, **SLIDING, **OTHER}.items():
        if not family.defaults or family.layers.__name__ == "pruned_layers":
            continue
        needed = {"swa_num_key_value_heads": 8, "swa_head_dim": 192} if model_type.startswith("mimo_v2") else {}
        model = model_from_config({"model_type": model_type, **head_size, **needed})
        assert model.layers
        assert (model.parameters is None) == bool(model.weights_unknown)


def test_a_family_without_class_defaults_names_what_is_missing() -> None:
    sizes = {key: LLAMA[key] for key in ("hidden_size", "num_attention_heads", "vocab_size")}
    with pytest.raises(BadConfigError, match="num_hidden_layers is missing"):
        model_from_config({"model_type": "orion", **sizes})
    assert model_from_config({"model_type": "orion", **sizes, "num_hidden_layers": 40}).kinds == {"full": 40}


JUNK: list[object] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 4096, 10**9, 10**30, -(10**30), 0.5, float("inf"), float("nan"), "", "8",
    "x" * 500, [], [1], [None], ["full_attention"] * 32, ["sliding_attention"] * 32, {}, {"factor": 2},
    {"quant_method": "fp8"}, [[]] * 3, [0, 1] * 16, [{"attention": {"no_op": False, "n_heads_in_group": 8}}] * 32,
]  # fmt: skip
KEYS = [
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rope_scaling", "rope_parameters",
    "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "text_config", "quantization_config",
    "tie_word_embeddings", "attention_bias", "mlp_bias", "architectures", "num_experts", "n_head", "n_embd",
    "moe_intermediate_size", "num_local_experts", "n_routed_experts", "decoder_sparse_step", "mlp_only_layers",
    "attn_config", "attn_type_list", "multi_query", "new_decoder_architecture", "is_encoder_decoder", "seq_length",
    "model_max_length", "expansion_ratio", "first_k_dense_replace", "sliding_window_pattern", "no_rope_layers",
    "attention_chunk_size", "hybrid_layer_pattern", "swa_num_key_value_heads", "swa_head_dim", "num_kv_shared_layers",
    "block_configs", "attention_other_setting", "interleaved_sliding_window", "loop_num", "H_cycles", "global_head_dim",
    "num_nextn_predict_layers", "thinker_config",
]  # fmt: skip


def mutated(seed: int) -> object:
    """One hostile config; `mutated(seed)` repeats it."""
    choose = random.Random(seed)
    config: dict[str, Any] = copy.deepcopy(LLAMA) if choose.random() < 0.5 else {}
    if choose.random() < 0.6:
        config["model_type"] = choose.choice([*FAMILIES, *WRAPPERS])
    target = config
    if config.get("model_type") in WRAPPERS and choose.random() < 0.7:
        target = config["text_config"] = copy.deepcopy(LLAMA)
        if choose.random() < 0.5:
            target["model_type"] = choose.choice([*FAMILIES])
    for _ in range(choose.randint(0, 4)):
        key = choose.choice(KEYS)
        if choose.random() < 0.2:
            target.pop(key, None)
        else:
            target[key] = copy.deepcopy(choose.choice(JUNK))
    return config


def outcome(seed: int) -> Model | InputError:
    try:
        return model_from_config(mutated(seed))
    except InputError as error:
        return error


def test_five_thousand_mutated_configs_give_a_model_or_a_clear_refusal() -> None:
    results = [outcome(seed) for seed in range(5000)]
    for seed, result in enumerate(results):
        if isinstance(result, Model):
            assert result.layers, seed
        else:
            assert result.message, seed
            assert result.fix, seed
            assert len(str(result)) < 3000, seed
    assert (
        sum(isinstance(result, Model) for result in results) > 500
    )  # the mutations are not all fatal, or the test would say nothing


def test_gemma_3_states_its_length_after_scaling() -> None:
    """vLLM 0.32 `config/model.py`: 131,072 is what the linear factor of 8 has made of it."""
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = {"model_type": "gemma3_text", "max_position_embeddings": 131072, "rope_scaling": scaling}
    assert model_from_config(config).max_model_len == 131072
    assert model_from_config({**config, "model_type": "llama"}).max_model_len == 8 * 131072


def test_a_scaling_of_each_layer_type_counts_as_one_does() -> None:
    apart = {"full_attention": {"rope_type": "linear", "factor": 4}, "sliding_attention": {"rope_type": "default"}}
    config = {"model_type": "llama", "max_position_embeddings": 1024, "rope_parameters": apart}
    assert model_from_config(config).max_model_len == 4096


def test_a_list_with_an_entry_for_each_layer_says_how_many_there_are() -> None:
    """Nemotron-3 has no num_hidden_layers: its class counts the entries of layers_block_type."""
    named = {"model_type": "nemotron_h", "layers_block_type": ["mamba", "moe", "attention"]}
    lettered = {"model_type": "nemotron_h", "hybrid_override_pattern": "ME*"}
    for config in (named, lettered):
        model = model_from_config(config)
        assert len(model.layers) == 3
        assert "num_hidden_layers" not in model.filled
    whole = model_from_config({"model_type": "gpt_oss"})
    assert "num_hidden_layers" in whole.filled
    types = ["sliding_attention", "full_attention"] * (len(whole.layers) // 2)
    assert "num_hidden_layers" not in model_from_config({"model_type": "gpt_oss", "layer_types": types}).filled


@pytest.mark.parametrize("model_type", ["llama", "qwen3_next", "gemma3_text", "deepseek_v3", "nemotron_h", "falcon_h1"])
def test_a_class_default_is_named_once_however_often_it_is_read(model_type: str) -> None:
    config: dict[str, Any] = {"model_type": model_type}
    if model_type == "nemotron_h":
        config["hybrid_override_pattern"] = "M*"
    filled = model_from_config(config).filled
    assert filled
    assert len(filled) == len(set(filled))


def test_an_assumed_architecture_needs_no_vocabulary_for_its_cache() -> None:
    config = {
        "model_type": "mystery", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
        "hidden_size": 1024, "head_dim": 128, "max_position_embeddings": 4096,
    }  # fmt: skip
    model = model_from_config(config, assume="full")
    assert (model.vocab_size, len(model.layers)) == (0, 4)
    assert model_from_config({**config, "vocab_size": 32000}, assume="full").vocab_size == 32000
