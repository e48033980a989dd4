"""The cache rule of llama.cpp, against figures of public logs and issues."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags, Settings, Speculation
from kvbudget.engines.registry import engine_named
from kvbudget.engines.rule import Pool, Refusal, Stage, Taken
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import Model, model_from_config
from kvbudget.pool.groups import LayerKind
from kvbudget.units import GIB, MIB

PLENTY = 1 << 50


def llama(layers: int = 32, heads: int = 32, kv_heads: int = 8, head_dim: int = 128, **more: object) -> Model:
    fields = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return model_from_config(
        {"model_type": "llama", "head_dim": head_dim, "max_position_embeddings": 131072, **fields, **more}
    )


DEEPSEEK_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2", "num_hidden_layers": 27, "num_attention_heads": 16, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "hidden_size": 2048, "vocab_size": 102400,
    "q_lora_rank": None, "max_position_embeddings": 163840,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "hidden_size": 2880, "vocab_size": 201088, "max_position_embeddings": 131072,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12, "intermediate_size": 2880,
    "num_local_experts": 32, "num_experts_per_tok": 4,
}  # fmt: skip
QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "hidden_size": 2048, "vocab_size": 151936, "max_position_embeddings": 262144,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "intermediate_size": 5120, "decoder_sparse_step": 1,
}  # fmt: skip


def planned(
    model: Model, *available: int, engine: str = "llamacpp", **flags: Any
) -> tuple[Settings, tuple[Stage, ...], Pool, list[Refusal]]:
    rule = engine_named(engine)
    settings = rule.settle(model, EngineFlags(**flags), 0, "")
    stages = rule.stages(model, settings)
    spaces = list(available) * (len(stages) if len(available) == 1 else 1)
    pool = rule.pool(model, settings, stages, spaces)
    return settings, stages, pool, rule.refusals(model, settings, stages, pool)


def test_the_cache_is_what_the_context_asks_for_padded_to_256_cells() -> None:
    """700 tokens of an 8B become 768 cells: 96 MiB."""
    _, _, pool, refusals = planned(llama(), PLENTY, max_model_len=700)
    assert (pool.num_blocks, pool.bytes, refusals) == (768, 96 * MIB, [])


def test_the_cache_of_a_layer_lies_where_the_layer_lies() -> None:
    """20 of 32 layers on the card: 60 of the 96 MiB. Newer builds count the output layer too."""
    _, stages, pool, _ = planned(llama(), PLENTY, max_model_len=768, gpu_layers=21)
    assert [(stage.first, stage.end) for stage in stages] == [(12, 32)]
    assert pool.bytes == 60 * MIB
    *_, older, _ = planned(llama(), PLENTY, engine="llamacpp@b4000", max_model_len=768, gpu_layers=20)
    assert older.bytes == 60 * MIB
    _, everything, *_ = planned(llama(), PLENTY, gpu_layers=9999)
    assert [(stage.first, stage.end) for stage in everything] == [(0, 32)]


@pytest.mark.parametrize(("layers", "held"), [(0, (32, 32, False)), (1, (32, 32, True))])
def test_without_a_layer_on_the_card_no_cache_is_there_either(layers: int, held: tuple[int, int, bool]) -> None:
    """The output layer is the first to go to a card. The cells are there all the same, in the machine's memory."""
    _, stages, pool, refusals = planned(llama(), 0, max_model_len=768, gpu_layers=layers)
    assert [(stage.held, stage.on_card) for stage in stages] == [(held, False)]
    assert (pool.bytes, pool.num_blocks, refusals) == (0, 768, [])
    _, _, _, refusals = planned(llama(), -1, max_model_len=768, gpu_layers=layers)
    assert [refusal.code for refusal in refusals] == ["no_kv_memory"]


def test_the_cache_may_stay_in_the_machine_while_the_layers_do_not() -> None:
    _, stages, pool, refusals = planned(llama(), 0, max_model_len=768, kv_offload=False)
    assert [(stage.held, stage.on_card) for stage in stages] == [((0, 32, True), False)]
    assert (pool.bytes, refusals) == (0, [])


def test_a_context_that_is_not_fitted_is_the_models_own() -> None:
    *_, pool, refusals = planned(llama(), 96 * MIB, fit_context=False)
    assert (pool.num_blocks, [refusal.code for refusal in refusals]) == (131072, ["no_kv_memory"])


@pytest.mark.parametrize(
    ("split", "cards", "layers"),
    [
        ((3.0, 1.0), 2, [(0, 25, False), (25, 32, True)]),
        ((1.0, 1.0), 2, [(0, 17, False), (17, 32, True)]),
        ((1.0, 2.0, 1.0), 3, [(0, 9, False), (9, 25, False), (25, 32, True)]),
        ((1.0, 0.0), 2, [(0, 32, True)]),
        ((32.0, 1.0), 2, [(0, 32, False), (32, 32, True)]),
        ((1.0,), 2, [(0, 32, True)]),
        ((0.0, 0.0), 2, [(0, 32, True)]),
    ],
)
def test_shares_are_of_the_layers_and_the_output(
    split: tuple[float, ...], cards: int, layers: list[tuple[int, int, bool]]
) -> None:
    """src/llama-model.cpp: 33 for 32 layers; what lies on a boundary goes to the next card."""
    _, stages, pool, _ = planned(llama(), PLENTY, max_model_len=768, tensor_split=split, pipeline_parallel_size=cards)
    assert [stage.held for stage in stages] == layers
    most = max(end - first for first, end, _ in layers)
    assert pool.bytes == most * 3 * MIB


def test_older_builds_count_the_output_behind_the_layers() -> None:
    for asked, held in ((20, (12, 32, False)), (32, (0, 32, False)), (33, (0, 32, True))):
        _, stages, *_ = planned(llama(), PLENTY, engine="llamacpp@b4000", max_model_len=768, gpu_layers=asked)
        assert [stage.held for stage in stages] == [held]


def test_cards_share_layers_not_bytes() -> None:
    """A 48-layer model over two cards, 12 and 36 layers: 384 and 1,152 MiB of 16,384 cells."""
    model = llama(48, 32, 4)
    flags: dict[str, Any] = {"pipeline_parallel_size": 2, "pp_layer_partition": (12, 36), "max_model_len": 16384}
    _, _, pool, _ = planned(model, PLENTY, 1152 * MIB, **flags)
    assert (pool.stage, pool.bytes) == (1, 1152 * MIB)
    _, _, pool, refusals = planned(model, 384 * MIB, PLENTY, **flags)
    assert (pool.stage, pool.bytes, refusals) == (0, 384 * MIB, [])


def test_equal_cards_get_equal_shares_of_the_layers_and_the_output() -> None:
    _, stages, _, _ = planned(llama(), PLENTY, pipeline_parallel_size=2)
    assert [(stage.first, stage.end) for stage in stages] == [(0, 17), (17, 32)]


def test_before_mla_was_known_all_heads_were_kept() -> None:
    """DeepSeek-V2-Lite, 2,048 cells: 324 MiB of keys and 216 of values; the latent alone is 60.75."""
    model = model_from_config(DEEPSEEK_LITE)
    _, _, pool, _ = planned(model, PLENTY, engine="llamacpp@b5000", max_model_len=2048)
    assert pool.bytes == (324 + 216) * MIB
    _, stages, pool, _ = planned(model, PLENTY, max_model_len=2048)
    assert (pool.bytes, stages[0].layout.groups[0].kind) == (27 * 576 * 2 * 2048, LayerKind.MLA)
    *_, between, _ = planned(model, PLENTY, engine="llamacpp@b6000", max_model_len=2048)
    assert between.bytes == 27 * (576 + 512) * 2 * 2048


def test_float32_doubles_the_cache() -> None:
    """LLaMA-30B at 512 cells: 780 MiB, and 1,560 with the default of a binding."""
    model = llama(60, 52, 52)
    for name, size in (("auto", 780), ("f32", 1560)):
        _, _, pool, _ = planned(model, PLENTY, max_model_len=512, kv_cache_dtype=name, value_cache_dtype=name)
        assert pool.bytes == size * MIB


@pytest.mark.parametrize(
    ("key", "value", "bits_per_pair"),
    [("f16", "f16", 32), ("q8_0", "q8_0", 17), ("q8_0", "f16", 24.5), ("q5_1", "q4_0", 10.5), ("q4_1", "iq4_nl", 9.5)],
)
def test_quantised_types_count_their_scales(key: str, value: str, bits_per_pair: float) -> None:
    _, stages, pool, _ = planned(llama(), PLENTY, max_model_len=1024, kv_cache_dtype=key, value_cache_dtype=value)
    assert stages[0].layout.bytes_per_block == 32 * 1024 * bits_per_pair / 8
    assert pool.bytes == 1024 * stages[0].layout.bytes_per_block


def test_a_server_shares_one_cache_among_four_slots_unless_slots_are_given() -> None:
    settings, _, pool, _ = planned(llama(), PLENTY, max_model_len=8192)
    assert (settings.max_num_seqs, pool.num_blocks, pool.max_model_len, pool.most_requests) == (4, 8192, 8192, 4)
    settings, _, pool, _ = planned(llama(), PLENTY, max_model_len=8192, max_num_seqs=4)
    assert (pool.num_blocks, pool.max_model_len, pool.concurrency) == (8192, 2048, 4.0)
    settings, _, pool, _ = planned(llama(), PLENTY, max_model_len=8192, max_num_seqs=4, kv_unified=True)
    assert (pool.num_blocks, pool.max_model_len) == (8192, 8192)
    settings, _, pool, _ = planned(llama(), PLENTY, engine="llamacpp@b6000", max_model_len=8192)
    assert (settings.max_num_seqs, pool.max_model_len) == (1, 8192)


def test_slots_of_their_own_are_padded_each() -> None:
    """1,024 cells for three slots: 341 each, padded to 512, are 1,536."""
    _, _, pool, _ = planned(llama(), PLENTY, max_model_len=1024, max_num_seqs=3)
    assert (pool.num_blocks, pool.max_model_len) == (1536, 512)


def test_sliding_layers_keep_the_window_of_every_slot_and_one_micro_batch() -> None:
    model = model_from_config(GPT_OSS)
    row = 12 * 8 * 128 * 2
    _, stages, pool, _ = planned(model, PLENTY, max_model_len=16384)
    assert pool.bytes == row * 16384 + row * 1024  # 4 x 128 + 512
    assert [group.kind for group in stages[0].layout.groups] == [LayerKind.FULL, LayerKind.SLIDING]
    assert stages[0].layout.blocks_for(1000) == 1000
    *_, own, _ = planned(model, PLENTY, max_model_len=16384, max_num_seqs=4)
    assert own.bytes == row * 16384 + row * 4 * 768  # 128 + 512, padded, for each slot
    *_, small, _ = planned(model, PLENTY, max_model_len=16384, micro_batch=128)
    assert small.bytes == row * 16384 + row * 768
    *_, full, _ = planned(model, PLENTY, max_model_len=16384, swa_full=True)
    assert full.bytes == 2 * row * 16384
    *_, older, _ = planned(model, PLENTY, engine="llamacpp@b5200", max_model_len=16384)
    assert older.bytes == 2 * row * 16384


def test_models_whose_window_llama_cpp_does_not_know_keep_everything() -> None:
    model = model_from_config(
        {"model_type": "mistral", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
         "head_dim": 128, "sliding_window": 64, "max_position_embeddings": 4096}
    )  # fmt: skip
    _, _, pool, _ = planned(model, PLENTY, max_model_len=4096)
    assert pool.bytes == 2 * 8 * 256 * 2 * 4096


def test_recurrent_states_are_float32_and_one_for_each_slot() -> None:
    _, stages, pool, _ = planned(model_from_config(QWEN3_NEXT), PLENTY, max_model_len=4096)
    state = 36 * ((2 * 16 * 128 + 32 * 128) * 3 + 32 * 128 * 128) * 4
    assert pool.bytes == 12 * 2 * 512 * 2 * 4096 + 4 * state
    assert stages[0].layout.bytes_for(1) == 12 * 2 * 512 * 2 + state


def test_a_context_that_the_memory_does_not_hold_is_refused_with_the_largest_that_it_does() -> None:
    _, _, pool, refusals = planned(llama(), GIB, max_model_len=16384)
    assert pool.largest_max_model_len == 8192
    assert refusals[0].message.startswith("failed to allocate buffer for kv cache (2048.00 MiB for 16384 cells")
    assert "8192" in refusals[0].fix
    *_, refusals = planned(llama(), -GIB, max_model_len=16384)
    assert refusals[0].fix.startswith("quantise the weights")


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_the_largest_length_is_of_one_slot_and_the_context_of_all_together(slots: int) -> None:
    _, _, pool, _ = planned(llama(), GIB, max_model_len=4096, max_num_seqs=slots)
    largest = pool.largest_max_model_len
    assert largest == (8192 // slots) // 256 * 256
    assert not planned(llama(), GIB, max_model_len=largest * slots, max_num_seqs=slots)[3]
    assert planned(llama(), GIB, max_model_len=(largest + 256) * slots, max_num_seqs=slots)[3]


def test_a_context_that_is_not_given_is_fitted_to_the_memory() -> None:
    settings, _, pool, refusals = planned(llama(), GIB)
    assert settings.auto_length
    assert (pool.num_blocks, refusals) == (8192, [])
    rule = engine_named("llamacpp")
    assert rule.cache_memory(24 * GIB, Taken(8 * GIB, GIB, 0, GIB), settings) == 13 * GIB  # 1 GiB is kept free
    _, _, pool, refusals = planned(llama(), GIB, engine="llamacpp@b7000")
    assert (pool.num_blocks, [refusal.code for refusal in refusals]) == (131072, ["no_kv_memory"])
    *_, refusals = planned(llama(), 256 * MIB)
    assert [refusal.code for refusal in refusals] == ["no_kv_memory"]  # at least 4,096 cells


@pytest.mark.parametrize(
    ("model", "flags", "words"),
    [
        (llama(), {"value_cache_dtype": "q8_0", "flash_attention": False}, "quantized V cache requires flash_attn"),
        (llama(head_dim=80), {"kv_cache_dtype": "q8_0"}, "does not divide n_embd_head_k=80"),
        (llama(head_dim=80), {"value_cache_dtype": "q4_0"}, "does not divide n_embd_head_v=80"),
        (model_from_config(DEEPSEEK_LITE), {"kv_cache_dtype": "q8_0"}, "does not support different K (q8_0) and V"),
    ],
)
def test_types_that_would_stop_the_start_are_refused_in_the_engine_s_words(
    model: Model, flags: dict[str, Any], words: str
) -> None:
    *_, refusals = planned(model, PLENTY, max_model_len=1024, **flags)
    assert words in refusals[0].message


def test_the_log_line_has_the_context_of_all_slots_and_of_one() -> None:
    settings, _, pool, _ = planned(llama(), PLENTY, max_model_len=8192, max_num_seqs=2)
    assert engine_named("llamacpp").log_line(settings, pool) == (
        "n_seq_max = 2, n_ctx = 8192, n_ctx_seq = 4096, kv_unified = false"
    )


@pytest.mark.parametrize("version", ["b1", "b20000", "master", "0.3", "b"])
def test_builds_that_are_not_known_are_refused_with_those_that_are(version: str) -> None:
    with pytest.raises(UnsupportedError, match="b1500 to b19999"):
        engine_named(f"llamacpp@{version}")


def test_a_draft_s_cache_is_refused_not_forgotten() -> None:
    with pytest.raises(UnsupportedError, match="draft_model"):
        planned(llama(), PLENTY, speculation=Speculation("draft_model", 4, llama(2)))
    assert planned(llama(), PLENTY, speculation=Speculation("ngram", 4))[3] == []


@pytest.mark.parametrize(
    "flags",
    [
        {"tensor_parallel_size": 2},
        {"gpu_memory_utilization": 0.9},
        {"block_size": 16},
        {"kv_cache_dtype": "fp8"},
        {"max_model_len": -1},
        {"max_num_seqs": 257},
        {"pipeline_parallel_size": 2, "pp_layer_partition": (1, 2)},
    ],
)
def test_values_that_the_engine_does_not_have_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        planned(llama(), PLENTY, **flags)
