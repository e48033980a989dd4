"""GGUF metadata against the config.json of the same model."""

import pytest

from kvbudget.edge.hub.gguf_config import config_of
from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.layers import Attention, Latent
from kvbudget.model.read import Model, model_from_config


def model(architecture: str, keys: dict[str, object], *tensors: str) -> Model:
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()}
    return model_from_config(
        config_of({"general.architecture": architecture, **metadata}, frozenset(("output.weight", *tensors)))
    )


def plain(
    layers: int, hidden: int, heads: object, kv: object, inner: object, vocab: int, **more: object
) -> dict[str, object]:
    return {
        "block_count": layers, "embedding_length": hidden, "attention.head_count": heads,
        "attention.head_count_kv": kv, "feed_forward_length": inner, "vocab_size": vocab, "context_length": 8192,
        **{key.replace("__", "."): value for key, value in more.items()},
    }  # fmt: skip


def test_llama_has_the_layers_and_parameters_of_its_config_json() -> None:
    found = model("llama", plain(32, 4096, 32, 8, 14336, 128256, rope__dimension_count=128))
    assert found.kinds == {"full": 32}
    assert found.layers[0].caches == (Attention(8, 128, 128),)
    assert found.parameters is not None
    assert found.parameters.total == 8_030_261_248
    assert found.max_model_len == 8192


def test_without_an_output_matrix_the_embedding_serves_as_head() -> None:
    keys = plain(16, 2048, 32, 8, 8192, 128256)
    metadata = {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in keys.items()}
    parameters = model_from_config(config_of(metadata, frozenset())).parameters
    assert parameters is not None
    assert parameters.total == 1_235_814_400  # Llama-3.2-1B


def test_gemma3_slides_by_its_class_default() -> None:
    keys = plain(26, 1152, 4, 1, 6912, 262144, attention__key_length=256, attention__value_length=256,
                 attention__sliding_window=512)  # fmt: skip
    assert model("gemma3", keys).kinds == {"sliding": 22, "full": 4}


def test_a_list_of_windows_decides() -> None:
    keys = plain(4, 64, 4, 4, 128, 100, attention__key_length=16, attention__value_length=16,
                 attention__sliding_window=32,
                 attention__sliding_window_pattern=[True, False, False, False])  # fmt: skip
    assert model("gemma3", keys).kinds == {"sliding": 1, "full": 3}


def test_gpt_oss_alternates() -> None:
    keys = plain(24, 2880, 64, 8, 2880, 201088, attention__key_length=64, attention__value_length=64,
                 attention__sliding_window=128, expert_count=32, expert_used_count=4,
                 expert_feed_forward_length=2880)  # fmt: skip
    found = model("gpt-oss", keys)
    assert found.kinds == {"sliding": 12, "full": 12}
    assert found.parameters is not None
    assert found.parameters.total == 20_914_757_184


@pytest.mark.parametrize("newer", [True, False])
def test_deepseek_is_mla_in_both_spellings(newer: bool) -> None:
    keys = plain(61, 7168, 128, 1 if newer else 128, 18432, 129280, attention__kv_lora_rank=512,
                 attention__q_lora_rank=1536, rope__dimension_count=64, expert_count=256, expert_used_count=8,
                 expert_shared_count=1, expert_feed_forward_length=2048, leading_dense_block_count=3,
                 expert_gating_func=2, attention__key_length=576 if newer else 192,
                 attention__value_length=512 if newer else 128)  # fmt: skip
    if newer:
        keys |= {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
    found = model("deepseek2", keys)
    assert found.layers[0].caches == (Latent(512, 64, 128, 192, 128),)
    assert found.parameters is not None
    assert found.parameters.total == 671_026_419_200


def test_blocks_of_the_draft_module_are_no_layers_of_the_model() -> None:
    keys = plain(47, 4096, 96, 8, 10944, 151552, attention__key_length=128, attention__value_length=128,
                 expert_count=128, expert_used_count=8, expert_shared_count=1, expert_feed_forward_length=1408,
                 leading_dense_block_count=1, nextn_predict_layers=1)  # fmt: skip
    found = model("glm4moe", keys)
    assert (len(found.layers), len(found.draft_layers)) == (46, 1)


def test_mixtral_is_llama_with_experts() -> None:
    found = model("llama", plain(32, 4096, 32, 8, 14336, 32000, expert_count=8, expert_used_count=2))
    assert found.parameters is not None
    assert found.parameters.total == 46_702_792_704


def test_gemma4_tells_full_and_sliding_layers_apart() -> None:
    pattern = [True] * 5 + [False]
    keys = plain(6, 2816, 16, [8] * 5 + [2], 2112, 1000, attention__key_length=512, attention__value_length=512,
                 attention__key_length_swa=256, attention__sliding_window=1024,
                 attention__sliding_window_pattern=pattern, embedding_length_per_layer_input=0)  # fmt: skip
    found = model("gemma4", keys)
    assert [layer.caches[0] for layer in found.layers] == [Attention(8, 256, 256, 1024)] * 5 + [Attention(2, 512, 512)]


def test_heads_that_differ_where_it_is_not_known_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="differs between layers"):
        model("llama", plain(2, 64, 4, [4, 2], 128, 100))


def test_a_pruned_model_lists_its_blocks() -> None:
    found = model("deci", plain(3, 64, [4, 0, 4], [2, 0, 1], [128, 64, 0], 100))
    assert [layer.caches for layer in found.layers] == [(Attention(2, 16, 16),), (), (Attention(1, 16, 16),)]
    assert found.parameters is not None
    widths = [[m.rows for m in layer.matrices if m.name == "mlp.up_proj"] for layer in found.parameters.layers]
    assert widths == [[128], [64], []]


def test_kv_heads_of_zero_are_layers_without_attention() -> None:
    keys = plain(4, 64, 4, [0, 0, 2, 0], 128, 100, ssm__conv_kernel=4, ssm__state_size=16, ssm__time_step_rank=8,
                 ssm__group_count=1, ssm__inner_size=128)  # fmt: skip
    assert model("granitehybrid", keys).kinds == {"mamba": 3, "full": 1}


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({}, BadConfigError),
        ({"general.architecture": 7}, BadConfigError),
        ({"general.architecture": "brandnew"}, UnsupportedError),
        ({"general.architecture": "llama"}, BadConfigError),
        ({"general.architecture": "llama", "llama.vocab_size": 9, "llama.attention.key_length": 64,
          "llama.attention.value_length": 32}, UnsupportedError),
        ({"general.architecture": "deepseek2", "deepseek2.vocab_size": 9, "deepseek2.attention.kv_lora_rank": 512},
         BadConfigError),
        ({"general.architecture": "granitehybrid", "granitehybrid.vocab_size": 9,
          "granitehybrid.attention.head_count_kv": [0, 0]}, BadConfigError),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(metadata: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        config_of(metadata, frozenset())
