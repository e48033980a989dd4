"""Weight bytes computed from config.json, against the parameter counts that the models' authors publish."""

from typing import Any

import pytest

from kvbudget.model.read import model_from_config

QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip


def llama(layers: int, hidden: int, inner: int, heads: int, kv: int, vocab: int, **more: object) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (llama(32, 4096, 14336, 32, 8, 128256), 8_030_261_248),  # Llama-3.1-8B
        (llama(80, 8192, 28672, 64, 8, 128256), 70_553_706_496),  # Llama-3.1-70B
        (llama(126, 16384, 53248, 128, 8, 128256), 405_853_388_800),  # Llama-3.1-405B
        (llama(16, 2048, 8192, 32, 8, 128256, tie_word_embeddings=True), 1_235_814_400),  # Llama-3.2-1B
        (
            llama(28, 3584, 18944, 28, 4, 152064, model_type="qwen2", tie_word_embeddings=False),
            7_615_616_512,
        ),  # Qwen2.5-7B: q, k and v have biases
        (llama(24, 896, 4864, 14, 2, 151936, model_type="qwen2", tie_word_embeddings=True), 494_032_768),
        (llama(36, 4096, 12288, 32, 8, 151936, model_type="qwen3"), 8_190_735_360),  # Qwen3-8B: norms on q and k
        (QWEN3_MOE, 30_532_122_624),  # Qwen3-30B-A3B
        (
            llama(32, 4096, 14336, 32, 8, 32000, model_type="mixtral", sliding_window=None, num_local_experts=8),
            46_702_792_704,
        ),  # Mixtral-8x7B
        (llama(28, 3072, 24576, 16, 16, 256000, model_type="gemma"), 8_537_680_896),  # Gemma-7B, tied
        ({"model_type": "gpt2"}, 124_439_808),
        ({"model_type": "opt"}, 125_239_296),
        (llama(24, 1024, 0, 16, 16, 250880, model_type="bloom", n_layer=24, n_head=16) | {"intermediate_size": None},
         559_214_592),  # BLOOM-560M
        ({"model_type": "gpt_neox"}, 20_554_567_680),  # GPT-NeoX-20B
        ({"model_type": "falcon"}, 6_921_720_704),  # Falcon-7B
        (llama(30, 3072, 12288, 24, 2, 49152, model_type="starcoder2", sliding_window=None), 3_030_371_328),
        (llama(32, 3072, 8192, 32, 32, 32064, model_type="phi3"), 3_821_079_552),  # Phi-3-mini
        ({"model_type": "minimax_m2", "use_routing_bias": True}, 228_689_764_864),
    ],
)  # fmt: skip
def test_parameters_equal_the_published_count(config: dict[str, Any], published: int) -> None:
    parameters = model_from_config(config).parameters
    assert parameters is not None
    assert parameters.total == published


def test_sparse_layers_among_dense_ones_are_counted_by_their_rule() -> None:
    every_second = model_from_config(QWEN3_MOE | {"decoder_sparse_step": 2}).parameters
    listed = model_from_config(QWEN3_MOE | {"mlp_only_layers": list(range(0, 48, 2))}).parameters
    assert every_second is not None
    assert listed is not None
    assert every_second.total == listed.total
    assert every_second.layers[0] != every_second.layers[1]


def test_bytes_of_all_stages_and_ranks_cover_the_whole_model() -> None:
    parameters = model_from_config(llama(32, 4096, 14336, 32, 8, 128256)).parameters
    assert parameters is not None
    whole = parameters.stage_bytes(0, 32, 1, 2, None)
    assert whole == 2 * parameters.total
    assert parameters.stage_bytes(0, 16, 1, 2, None) + parameters.stage_bytes(16, 32, 1, 2, None) == whole
    eighth = parameters.stage_bytes(0, 32, 8, 2, None)
    assert whole / 8 < eighth < whole / 8 * 1.001  # norms are on every rank


def test_a_tied_head_is_one_table_on_one_stage_and_a_copy_on_the_last_of_two() -> None:
    parameters = model_from_config(llama(16, 2048, 8192, 32, 8, 128256, tie_word_embeddings=True)).parameters
    assert parameters is not None
    table = 2 * 128256 * 2048
    assert parameters.stage_bytes(0, 16, 1, 2, None) == 2 * parameters.total
    split = parameters.stage_bytes(0, 8, 1, 2, None) + parameters.stage_bytes(8, 16, 1, 2, None)
    assert split == 2 * parameters.total + table


def test_simple_fp8_halves_the_linears_and_adds_their_scales() -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "x.mlp.gate"]}
    model = model_from_config(QWEN3_MOE | {"quantization_config": fp8})
    assert model.parameters is not None
    assert model.quantization is not None
    linear = sum(layer[0] for layer in model.parameters.layers)
    size = model.parameters.stage_bytes(0, 48, 1, 2, model.quantization.fp8_block)
    assert size == linear + 4 * -(-linear // 16384) + 2 * (model.parameters.total - linear)


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.mlp.down_proj"]},
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}},
    ],
)
def test_the_bytes_of_other_quantised_weights_are_refused_not_guessed(section: dict[str, Any]) -> None:
    model = model_from_config(QWEN3_MOE | {"quantization_config": section})
    assert model.parameters is None
    assert "computed" in model.weights_unknown


@pytest.mark.parametrize(
    ("section", "dtype"),
    [
        ({"quant_method": "fp8"}, ""),
        (
            {"quant_method": "modelopt", "kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}},
            "fp8_e4m3",
        ),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
            "fp8_e4m3",
        ),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"type": "float", "num_bits": 8}}, "fp8"),
        ({"kv_cache_scheme": "FP8", "quant_algo": "FP8"}, "?"),
    ],
)
def test_the_kv_dtype_that_a_checkpoint_prescribes_is_read(section: dict[str, Any], dtype: str) -> None:
    model = model_from_config(QWEN3_MOE | {"quantization_config": section})
    assert model.quantization is not None
    assert model.quantization.kv_cache_dtype == dtype
