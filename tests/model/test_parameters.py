"""Parameters and weight bytes computed from config.json, against what authors publish and engines report."""

from typing import Any

import pytest

from kvbudget.model.rank_weights import draft_fraction, draft_on_rank, even_share, share_of_checkpoint, weights_on_rank
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB

QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "first_k_dense_replace": 3, "num_experts_per_tok": 8, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip
NEMOTRON_NANO: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 1856, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128, "n_shared_experts": 1, "mamba_head_dim": 64,
    "mamba_num_heads": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "vocab_size": 131072,
    "num_experts_per_tok": 6, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 2880, "vocab_size": 201088, "sliding_window": 128, "num_experts_per_tok": 4,
    "tie_word_embeddings": False, "attention_bias": True,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}  # fmt: skip


def llama(layers: int, hidden: int, inner: int, heads: int, kv: int, vocab: int, **more: object) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab, **more,
    }  # fmt: skip


def whole(model: Model, tensor_parallel: int = 1) -> int:
    """Bytes of the whole model on one rank, in a 2-byte type."""
    assert model.parameters is not None
    return weights_on_rank(model.parameters, model.quantization, 0, len(model.layers), tensor_parallel, 2)


def without_rotation(model: Model) -> int:
    assert model.parameters is not None
    return whole(model) - 2 * model.parameters.tables_of_rotation


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
        (llama(42, 3584, 14336, 16, 8, 256000, model_type="gemma2", head_dim=256), 9_241_705_984),  # Gemma-2-9B
        (llama(26, 1152, 6912, 4, 1, 262144, model_type="gemma3_text", head_dim=256), 999_885_952),  # Gemma-3-1B
        ({"model_type": "gemma3n_text"}, 6_835_235_568),  # the class default, which is about E4B
        ({"model_type": "gpt2"}, 124_439_808),
        ({"model_type": "opt"}, 125_239_296),
        (llama(24, 1024, 0, 16, 16, 250880, model_type="bloom", n_layer=24, n_head=16) | {"intermediate_size": None},
         559_214_592),  # BLOOM-560M
        ({"model_type": "gpt_neox"}, 20_554_567_680),  # GPT-NeoX-20B
        ({"model_type": "falcon"}, 6_921_720_704),  # Falcon-7B
        (llama(30, 3072, 12288, 24, 2, 49152, model_type="starcoder2", sliding_window=None), 3_030_371_328),
        (llama(32, 3072, 8192, 32, 32, 32064, model_type="phi3"), 3_821_079_552),  # Phi-3-mini
        ({"model_type": "minimax_m2", "use_routing_bias": True}, 228_689_764_864),
        (DEEPSEEK_V3, 671_026_419_200),
        (NEMOTRON_NANO, 31_577_940_288),
        (GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32}, 20_914_757_184),
        (GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128}, 116_829_156_672),
        ({"model_type": "qwen3_next"}, 79_674_391_296),  # Qwen3-Next-80B-A3B without its MTP module
        ({"model_type": "jamba"}, 51_570_323_328),  # Jamba-v0.1
        ({"model_type": "mamba2"}, 7_285_403_648),
    ],
)  # fmt: skip
def test_parameters_equal_the_published_count(config: dict[str, Any], published: int) -> None:
    model = model_from_config(config)
    assert model.parameters is not None, model.weights_unknown
    assert model.parameters.total == published


@pytest.mark.parametrize(
    ("config", "tensor_parallel", "reported_gib"),
    [
        # "Model loading took" of public vLLM logs: weights and rotary tables.
        (llama(32, 4096, 14336, 32, 8, 128256, max_position_embeddings=131072), 1, 14.99),
        (llama(32, 4096, 14336, 32, 8, 128256, max_position_embeddings=131072), 2, 7.51),
        (llama(32, 4096, 14336, 32, 8, 128256, max_position_embeddings=131072), 4, 3.77),
        (llama(40, 5120, 17408, 40, 8, 151936, model_type="qwen3", head_dim=128, max_position_embeddings=40960,
               tie_word_embeddings=False), 1, 27.52),
        (llama(80, 8192, 28672, 64, 8, 128256, max_position_embeddings=131072, quantization_config={
            "quant_method": "compressed-tensors", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"],
                              "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}), 1, 67.72),
        (QWEN3_MOE | {"hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
                      "moe_intermediate_size": 1536, "max_position_embeddings": 262144,
                      "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, 8, 27.72),
    ],
)  # fmt: skip
def test_bytes_on_a_rank_are_what_engines_report(
    config: dict[str, Any], tensor_parallel: int, reported_gib: float
) -> None:
    assert whole(model_from_config(config), tensor_parallel) / GIB == pytest.approx(reported_gib, abs=0.006)


@pytest.mark.parametrize(("layers", "experts", "checkpoint"), [(24, 32, 13_761_264_768), (36, 128, 65_248_815_744)])
def test_mxfp4_experts_have_the_size_of_the_published_checkpoint(layers: int, experts: int, checkpoint: int) -> None:
    model = model_from_config(GPT_OSS | {"num_hidden_layers": layers, "num_local_experts": experts})
    assert without_rotation(model) == pytest.approx(checkpoint, rel=1e-5)


def test_sparse_layers_among_dense_ones_are_counted_by_their_rule() -> None:
    every_second = model_from_config(QWEN3_MOE | {"decoder_sparse_step": 2}).parameters
    listed = model_from_config(QWEN3_MOE | {"mlp_only_layers": list(range(0, 48, 2))}).parameters
    assert every_second is not None
    assert listed is not None
    assert every_second.total == listed.total
    assert every_second.layers[0] != every_second.layers[1]


def test_of_experts_only_the_chosen_ones_are_active() -> None:
    parameters = model_from_config(QWEN3_MOE).parameters
    dense = model_from_config(llama(32, 4096, 14336, 32, 8, 128256)).parameters
    assert parameters is not None
    assert dense is not None
    assert 2.9e9 < parameters.active < 3.4e9  # "A3B"
    assert dense.active == dense.total - dense.embedding


def test_bytes_of_all_stages_and_ranks_cover_the_whole_model() -> None:
    model = model_from_config(llama(32, 4096, 14336, 32, 8, 128256))
    parameters = model.parameters
    assert parameters is not None
    rotation = 2 * parameters.tables_of_rotation
    size = whole(model)
    assert size == 2 * parameters.total + rotation
    halves = [weights_on_rank(parameters, None, first, first + 16, 1, 2) for first in (0, 16)]
    assert sum(halves) == size + rotation  # every stage has the rotary tables
    eighth = whole(model, 8)
    assert size / 8 < eighth < size / 8 + 2 * rotation  # norms and tables are on every rank


def test_a_tied_head_is_one_table_on_one_stage_and_a_copy_on_the_last_of_two() -> None:
    model = model_from_config(llama(16, 2048, 8192, 32, 8, 128256, tie_word_embeddings=True))
    parameters = model.parameters
    assert parameters is not None
    rotation = 2 * parameters.tables_of_rotation
    table = 2 * 128256 * 2048
    assert whole(model) == 2 * parameters.total + rotation
    split = sum(weights_on_rank(parameters, None, first, first + 8, 1, 2) for first in (0, 8))
    assert split == 2 * parameters.total + table + 2 * rotation


def test_key_and_value_matrices_are_shared_by_no_more_ranks_than_kv_heads() -> None:
    two = model_from_config(llama(32, 4096, 14336, 32, 2, 128256))
    assert two.parameters is not None
    matrices = 32 * 2 * 256 * 4096 * 2  # k and v, bytes
    gain = whole(two, 8) - whole(model_from_config(llama(32, 4096, 14336, 32, 8, 128256)), 8)
    assert gain == matrices // 2 - (4 * matrices) // 8


def test_what_mla_keeps_on_every_rank_does_not_shrink_with_ranks() -> None:
    parameters = model_from_config(DEEPSEEK_V3).parameters
    assert parameters is not None
    replicated = [m for m in parameters.layers[0].matrices if m.ranks == 1]
    assert [m.name for m in replicated] == ["self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"]
    assert parameters.layers[0].second_copy == 128 * 256 * 512  # the absorbed up projection


def test_the_draft_module_is_counted_apart() -> None:
    model = model_from_config(DEEPSEEK_V3 | {"quantization_config": {"quant_method": "fp8"}})
    parameters = model.parameters
    assert parameters is not None
    assert 11e9 < parameters.draft_total < 12e9  # the published 14 B have copies of embedding and head
    assert 11e9 < draft_on_rank(parameters, model.quantization, 1, 2) < 12.5e9
    part, whole_bytes = draft_fraction(parameters, model.quantization, 2)
    assert part == draft_on_rank(parameters, model.quantization, 1, 2)
    assert 0.015 < part / whole_bytes < 0.02
    without = model_from_config(DEEPSEEK_V3 | {"num_nextn_predict_layers": 0}).parameters
    assert without is not None
    assert (without.total, without.draft_total) == (parameters.total, 0)


def test_a_rank_s_part_of_a_checkpoint_follows_the_count() -> None:
    parameters = model_from_config(DEEPSEEK_V3).parameters
    assert parameters is not None
    checkpoint = 2 * parameters.total

    def share(first: int, end: int, ranks: int) -> int:
        return share_of_checkpoint(parameters, None, checkpoint, first, end, ranks, 2)

    for first, end, ranks in ((0, 61, 1), (0, 61, 8), (0, 31, 2), (31, 61, 4)):
        assert share(first, end, ranks) == weights_on_rank(parameters, None, first, end, ranks, 2)
    made = 2 * (parameters.tables_of_rotation + 61 * 128 * 256 * 512)
    assert share(0, 61, 1) == checkpoint + made


def test_a_size_that_a_person_gave_is_divided_evenly() -> None:
    parameters = model_from_config(llama(32, 4096, 14336, 32, 8, 128256)).parameters
    assert even_share(parameters, 32, 16 * GIB, 0, 32, 4) == 4 * GIB
    assert even_share(None, 32, 16 * GIB, 0, 8, 2) == 2 * GIB
    stages = [even_share(parameters, 32, 16 * GIB, first, first + 16, 1) for first in (0, 16)]
    assert sum(stages) == pytest.approx(16 * GIB, abs=2)


def test_simple_fp8_halves_the_linears_and_adds_their_scales() -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "x.mlp.gate"]}
    plain, quantised = model_from_config(QWEN3_MOE), model_from_config(QWEN3_MOE | {"quantization_config": fp8})
    assert plain.parameters is not None
    linear = sum(matrix.parameters for layer in plain.parameters.layers for matrix in layer.matrices)
    assert whole(plain) - whole(quantised) == linear - 4 * linear // 16384


def test_layers_that_a_checkpoint_leaves_unquantised_keep_their_size() -> None:
    def config(ignore: list[str]) -> dict[str, Any]:
        return QWEN3_MOE | {
            "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore}
        }

    every = whole(model_from_config(config(["lm_head"])))
    third = whole(model_from_config(config(["lm_head", "model.layers.3.*"])))
    attention = whole(model_from_config(config(["lm_head", "model.layers.3.self_attn*"])))
    assert model_from_config(QWEN3_MOE).parameters is not None
    assert every < attention < third
    q_k_v_o = 2048 * (4096 + 512 + 512) + 4096 * 2048
    assert attention - every == pytest.approx(q_k_v_o * (2 - 0.5625), rel=1e-4)


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "aqlm"},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "quark"},
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NEW4"}},
    ],
)
def test_the_bytes_of_other_quantised_weights_are_refused_not_guessed(section: dict[str, Any]) -> None:
    model = model_from_config(QWEN3_MOE | {"quantization_config": section})
    assert model.parameters is None
    assert "computed" in model.weights_unknown


def test_an_architecture_whose_weights_are_not_known_says_so() -> None:
    model = model_from_config(llama(2, 64, 128, 4, 4, 100, model_type="nanbeige"))
    assert model.parameters is None
    assert "nanbeige" in model.weights_unknown


def test_a_field_that_only_weights_need_does_not_stop_a_plan_of_the_cache() -> None:
    config = llama(4, 64, 128, 4, 4, 100, model_type="bailing_moe_v2", num_experts=4, head_dim=16)
    model = model_from_config(config)
    assert model.parameters is None
    assert "moe_intermediate_size" in model.weights_unknown
    assert len(model.layers) == 4


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
        ({"kv_cache_scheme": "FP8", "quant_algo": "FP8"}, ""),
    ],
)
def test_the_kv_dtype_that_a_checkpoint_prescribes_is_read(section: dict[str, Any], dtype: str) -> None:
    model = model_from_config(QWEN3_MOE | {"quantization_config": section})
    assert model.quantization is not None
    assert model.quantization.kv_cache_dtype == dtype
