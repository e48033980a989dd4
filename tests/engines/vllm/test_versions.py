"""Older versions of vLLM, against what their users saw in logs and issues."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags, Settings, Speculation
from kvbudget.engines.registry import engine_named
from kvbudget.engines.rule import Pool, Refusal, Stage, Taken
from kvbudget.engines.vllm.versions import Traits, traits_of
from kvbudget.errors import UnsupportedError
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB


def llama(layers: int, heads: int, kv_heads: int, **more: object) -> Model:
    fields = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return model_from_config(
        {"model_type": "llama", "head_dim": 128, "max_position_embeddings": 1048576, **fields, **more}
    )


def gemma4(layers: int, kv_heads: int, global_heads: int) -> Model:
    return model_from_config(
        {
            "model_type": "gemma4_text", "num_hidden_layers": layers, "num_attention_heads": 32,
            "num_key_value_heads": kv_heads, "head_dim": 256, "num_global_key_value_heads": global_heads,
            "global_head_dim": 512, "sliding_window": 1024, "num_kv_shared_layers": 0, "hidden_size": 5376,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * (layers // 6),
            "attention_k_eq_v": True, "vocab_size": 262144, "intermediate_size": 21504,
            "max_position_embeddings": 262144, "hidden_size_per_layer_input": 0,
        }
    )  # fmt: skip


def qwen35(layers: int, kv_heads: int, value_heads: int) -> Model:
    return model_from_config(
        {
            "model_type": "qwen3_5_text", "num_hidden_layers": layers, "num_attention_heads": 24,
            "num_key_value_heads": kv_heads, "head_dim": 256, "hidden_size": 5120, "vocab_size": 248320,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4), "intermediate_size": 17408,
            "linear_num_key_heads": 16, "linear_num_value_heads": value_heads, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144,
        }
    )  # fmt: skip


GEMMA3_27B = model_from_config(
    {
        "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
        "head_dim": 128, "hidden_size": 5376, "vocab_size": 262208, "sliding_window": 1024,
        "sliding_window_pattern": 6, "intermediate_size": 21504, "max_position_embeddings": 131072,
    }
)  # fmt: skip


def planned(
    model: Model, version: str, *available: int, device: int = 0, **flags: Any
) -> tuple[Settings, tuple[Stage, ...], Pool, list[Refusal]]:
    engine = engine_named(f"vllm@{version}")
    settings = engine.settle(model, EngineFlags(**flags), device, "")
    stages = engine.stages(model, settings)
    spaces = list(available) * (len(stages) if len(available) == 1 else 1)
    pool = engine.pool(model, settings, stages, spaces)
    return settings, stages, pool, engine.refusals(model, settings, stages, pool)


def gib(amount: float) -> int:
    return int(amount * GIB)


def test_blocks_of_the_first_engine_had_no_null_block() -> None:
    """A 70B in June 2024: 378 blocks of 16 are 6,048 tokens, so 8,192 are refused."""
    _, _, pool, refusals = planned(llama(80, 64, 8), "0.5.0", 0, num_gpu_blocks_override=378, max_model_len=8192)
    assert (pool.tokens, pool.usable_blocks, pool.largest_max_model_len) == (6048, 378, 6048)
    assert [refusal.code for refusal in refusals] == ["max_model_len_too_large"]


def test_both_ranks_of_a_small_card_print_the_same_blocks() -> None:
    """A 6.7B with 32 KV heads on two T4: 507 blocks, 8,112 tokens, and 16,384 refused."""
    model = llama(32, 32, 32)
    _, stages, pool, refusals = planned(model, "0.4.2", 507 * 16 * 262144, tensor_parallel_size=2, max_model_len=16384)
    assert stages[0].layout.bytes_per_block == 16 * 262144
    assert (pool.num_blocks, pool.tokens, len(refusals)) == (507, 8112, 1)


def test_the_first_v1_engine_printed_its_concurrency() -> None:
    """A 70B in eight bits on one H100: 1,381 blocks are 10.79 requests of 2,048."""
    _, _, pool, _ = planned(llama(80, 64, 8), "0.7.1", 0, num_gpu_blocks_override=1381, max_model_len=2048)
    assert round(pool.concurrency, 2) == 10.79


def test_a_small_model_at_four_bits_keeps_its_cache_at_sixteen() -> None:
    """24 layers, 2 KV heads of 64: 34.81 GiB are 190,100 blocks, 92.82 requests of 32,768."""
    model = model_from_config(
        {"model_type": "qwen2", "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
         "hidden_size": 896, "vocab_size": 151936, "intermediate_size": 4864, "max_position_embeddings": 32768}
    )  # fmt: skip
    _, stages, pool, _ = planned(model, "0.6.4", 190100 * 16 * 12288, max_model_len=32768)
    assert stages[0].layout.bytes_per_block == 16 * 12288
    assert (pool.num_blocks, round(pool.concurrency, 2)) == (190100, 92.82)
    assert round(pool.bytes / GIB, 2) == 34.81


def test_chunked_layers_were_charged_in_full_before_they_had_groups() -> None:
    """A Llama 4 over eight ranks in 0.8: 1,048,576 tokens need 24 GiB, 48 layers at full length."""
    model = model_from_config(
        {"model_type": "llama4_text", "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
         "head_dim": 128, "hidden_size": 5120, "vocab_size": 202048, "attention_chunk_size": 8192,
         "no_rope_layers": [1, 1, 1, 0] * 12, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
         "max_position_embeddings": 10485760, "num_local_experts": 16, "num_experts_per_tok": 1}
    )  # fmt: skip
    _, stages, pool, refusals = planned(model, "0.8.3", gib(9.97), tensor_parallel_size=8, max_model_len=1048576)
    assert stages[0].layout.blocks_for(1048576) * stages[0].layout.bytes_per_block == 24 * GIB
    assert "24.0 GiB KV cache is needed" in refusals[0].message
    assert abs(pool.largest_max_model_len - 435600) < 500


def test_the_start_check_once_held_one_stage_s_memory_against_all_layers() -> None:
    """0.15 with stages of 16 and 32 layers: the engine refuses with 34,736; the small stage would hold thrice."""
    model = model_from_config(
        {"model_type": "qwen3_moe", "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
         "head_dim": 128, "hidden_size": 2048, "vocab_size": 151936, "intermediate_size": 6144,
         "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "max_position_embeddings": 262144}
    )  # fmt: skip
    flags: dict[str, Any] = {
        "pipeline_parallel_size": 2, "pp_layer_partition": (16, 32), "max_model_len": 262144
    }  # fmt: skip
    small, large = 34736 * 98304 + 98304, 100 * GIB
    _, _, pool, refusals = planned(model, "0.15.2rc1", small, large, **flags)
    codes = {refusal.code: refusal for refusal in refusals}
    assert "max_model_len_too_large" in codes or "pipeline_start_check" in codes
    assert pool.largest_max_model_len == 34736  # what a start with this flag alone changed would take
    assert planned(model, "0.15.2rc1", small, large, **(flags | {"max_model_len": 34736}))[3] == []
    _, _, pool, refusals = planned(model, "0.15.2rc1", small, large, **(flags | {"max_model_len": -1}))
    assert (pool.max_model_len, refusals) == (34736, [])
    _, _, pool, refusals = planned(model, "0.15.2rc1", small, large, **(flags | {"max_model_len": 65536}))
    assert [refusal.code for refusal in refusals] == ["pipeline_start_check"]
    assert "24.0" not in refusals[0].message
    assert "estimated maximum model length is 34736" in refusals[0].message
    _, _, pool, refusals = planned(model, "0.17", small, large, **(flags | {"max_model_len": 65536}))
    assert refusals == []
    assert 104000 < pool.largest_max_model_len < 104400


def test_the_same_bytes_read_as_a_tenth_of_the_tokens_before_0_20_1() -> None:
    """Gemma 4 31B: about 55,000 tokens in 0.20.0 and 525,000 in 0.21, from pools of about 48 GiB; no more fits."""
    model = gemma4(60, 16, 4)
    flags: dict[str, Any] = {"max_model_len": 262144, "max_num_batched_tokens": 2048}
    _, _, old, _ = planned(model, "0.20.0", 48 * GIB, **flags)
    _, _, new, _ = planned(model, "0.21.0", 48 * GIB, **flags)
    assert (old.num_blocks, old.concurrency) == (new.num_blocks, new.concurrency)
    assert old.tokens == old.num_blocks // 6 * 16 == pytest.approx(55000, rel=0.1)
    assert new.tokens == int(new.concurrency * 262144) == pytest.approx(525000, rel=0.1)
    assert planned(model, "0.20.2", 48 * GIB, **flags)[2].tokens == new.tokens


def test_a_hybrid_of_0_19_divides_its_blocks_by_the_groups() -> None:
    """Gemma 4 26B at fp8: 29,346 blocks, six groups, 78,256 tokens, 2.15 requests of 262,144."""
    model = gemma4(30, 8, 2)
    settings, stages, pool, _ = planned(
        model, "0.19.1rc1", 0, num_gpu_blocks_override=29346, kv_cache_dtype="fp8", max_model_len=262144,
        max_num_batched_tokens=16384, max_num_seqs=4,
    )  # fmt: skip
    assert settings.max_in_flight_tokens == 16384
    assert sorted(group.block_size for group in stages[0].layout.groups) == [16, 16, 16, 16, 16, 32]
    assert pool.blocks_per_request == 8192 + 5 * 1089
    assert (pool.tokens, round(pool.concurrency, 2)) == (78256, 2.15)


def test_recurrent_states_of_0_17_take_two_blocks_of_each_group_with_prefix_caching() -> None:
    """Qwen3.5 35B at fp8: blocks of 2,096, 284 of them, 16 + 3 x 2 for 32,768 tokens, 148,816 tokens, 12.91x."""
    model = qwen35(40, 2, 32)
    settings, _, pool, _ = planned(
        model, "0.17.1", 0, num_gpu_blocks_override=284, kv_cache_dtype="fp8", max_model_len=32768,
        enable_prefix_caching=True, enforce_eager=True,
    )  # fmt: skip
    assert settings.block_size == 2096
    assert pool.blocks_per_request == 22
    assert (pool.tokens, round(pool.concurrency, 2)) == (148816, 12.91)


def test_the_attention_block_grows_until_it_holds_a_state() -> None:
    """Qwen3.5 27B in 0.19: 784 tokens, and 0.13 % of padding."""
    settings, stages, _, _ = planned(qwen35(64, 4, 48), "0.19.0", 10 * GIB, max_model_len=8192)
    assert settings.block_size == 784
    state = 3207168
    page = max(group.page_size_bytes for group in stages[0].layout.groups)
    assert round((page - state) / state * 100, 2) == 0.13


def test_uneven_bytes_left_over_are_not_a_block() -> None:
    """A 14B over two ranks in 0.9: 151.25 GiB are 1,652,080 tokens, 403.34 requests of 4,096."""
    model = model_from_config(
        {"model_type": "qwen2", "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
         "hidden_size": 5120, "vocab_size": 152064, "intermediate_size": 13824, "max_position_embeddings": 32768}
    )  # fmt: skip
    _, stages, pool, _ = planned(model, "0.9.2", 103255 * 16 * 98304 + 9, tensor_parallel_size=2, max_model_len=4096)
    assert stages[0].layout.bytes_per_block == 16 * 98304
    assert (pool.tokens, round(pool.concurrency, 2)) == (1652080, 403.34)
    assert round(pool.bytes / GIB, 2) == 151.25


def test_the_pool_is_that_of_the_tightest_rank() -> None:
    """Qwen3 235B over four ranks in July 2025: 178,880 tokens are 8.018 GiB, though one rank printed 8.11 available."""
    model = model_from_config(
        {"model_type": "qwen3_moe", "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
         "head_dim": 128, "hidden_size": 4096, "vocab_size": 151936, "intermediate_size": 12288,
         "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8, "max_position_embeddings": 40960}
    )  # fmt: skip
    _, stages, pool, _ = planned(model, "0.9.2", gib(8.0181), tensor_parallel_size=4)
    assert stages[0].layout.bytes_per_block == 16 * 48128
    assert pool.tokens == 178880
    assert planned(model, "0.9.2", gib(8.11), tensor_parallel_size=4)[2].tokens > 180800


def test_groups_are_padded_to_the_size_of_the_smallest_kind() -> None:
    """Gemma 3 27B in 0.10.2: 10 full and 52 sliding layers are seven groups of ten; 205,696 tokens, 50.05x at 4,096."""
    _, stages, pool, _ = planned(GEMMA3_27B, "0.10.2", gib(109.86), max_model_len=4096, max_num_batched_tokens=8192)
    assert len(stages[0].layout.groups) == 7
    assert pool.blocks_per_request == 256 + 6 * 257
    assert (pool.tokens, round(pool.concurrency, 2)) == (205696, 50.05)


def test_padding_costs_an_eighth_of_the_tokens() -> None:
    """The same model in 0.19 on one H100, 19.53 GiB: 36,560 tokens and 4.46 requests of 8,192; unpadded 41,290."""
    flags: dict[str, Any] = {"max_model_len": 8192, "max_num_batched_tokens": 8192, "enable_prefix_caching": False}
    _, _, pool, refusals = planned(GEMMA3_27B, "0.19.0", gib(19.53), **flags)
    assert (pool.tokens, round(pool.concurrency, 2), refusals) == (36560, 4.46, [])
    engine = engine_named("vllm@0.19.0")
    settings = engine.settle(GEMMA3_27B, EngineFlags(gpu_memory_utilization=0.95, **flags), 0, "")
    taken = Taken(gib(51.45), gib(3.99), gib(1.05), gib(0.26))
    assert abs(engine.cache_memory(gib(79.19), taken, settings) - gib(19.53)) < gib(0.01)  # graphs are not taken off


def test_a_draft_s_layer_is_one_more() -> None:
    """An 8B with an EAGLE head in 0.9.1: 51.63 GiB are 410,128 tokens; without the head they would be 422,950."""
    target, head = llama(32, 32, 8), llama(1, 32, 8)
    _, stages, pool, _ = planned(
        target, "0.9.1", gib(51.63), max_model_len=131072, speculation=Speculation("eagle", 3, head)
    )
    assert stages[0].layout.bytes_per_block == 33 * 4096 * 16
    assert 410096 <= pool.tokens <= 410160
    assert round(pool.concurrency, 2) == 3.13


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("", (0, 32, 0)), ("0.32.1", (0, 32, 0)), ("0.31.0", (0, 29, 0)), ("0.28.0", (0, 28, 0)),
        ("0.27.1", (0, 26, 0)), ("0.25.1", (0, 20, 1)), ("0.20", (0, 20, 1)), ("0.20.1", (0, 20, 1)),
        ("0.20.0", (0, 20, 0)), ("0.20.0rc2", (0, 20, 0)), ("v0.19.1rc1", (0, 17, 0)), ("0.16.0", (0, 15, 0)),
        ("0.14.1", (0, 14, 0)), ("0.13.0", (0, 12, 0)), ("0.11.2", (0, 9, 1)), ("0.9.1", (0, 9, 1)),
        ("0.9.0.1", (0, 9, 0)), ("0.8.5.post1", (0, 8, 0)), ("0.7.3", (0, 6, 5)), ("0.6.4", (0, 5, 3)),
        ("0.4", (0, 4, 0)),
    ],
)  # fmt: skip
def test_a_version_has_the_traits_of_the_last_change_before_it(version: str, since: tuple[int, int, int]) -> None:
    assert traits_of(version).since == since


@pytest.mark.parametrize("version", ["0.33", "0.320", "1.0", "0.3.3", "0", "0.x", "0.20.x", "0.-1", "٠.٣", "0.19 1"])
def test_versions_that_are_not_known_are_refused_with_those_that_are(version: str) -> None:
    with pytest.raises(UnsupportedError, match=r"0\.4 to 0\.32"):
        traits_of(version)


def trait(name: str) -> list[tuple[str, object]]:
    """Each change of a trait over the releases, oldest first."""
    found: list[tuple[str, object]] = []
    for minor in range(4, 33):
        value = getattr(traits_of(f"0.{minor}"), name)
        if not found or found[-1][1] != value:
            found.append((f"0.{minor}", value))
    return found


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("null_block", [("0.4", False), ("0.8", True)]),
        ("hybrid_groups", [("0.4", False), ("0.9", True)]),
        ("chunked_groups", [("0.4", False), ("0.14", True)]),
        ("near_equal_groups", [("0.4", False), ("0.12", True)]),
        ("async_scheduling", [("0.4", False), ("0.14", True)]),
        ("whole_model_check", [("0.4", False), ("0.14", True), ("0.17", False)]),
        ("aligned_states", [("0.4", False), ("0.15", True)]),
        ("graphs_before_pool", [("0.4", False), ("0.20", True)]),
        ("gpu_memory_utilization", [("0.4", 0.9), ("0.20", 0.92)]),
        ("tokens_per_group", [("0.4", True), ("0.20", False)]),
        ("batches_in_flight", [("0.4", False), ("0.26", True)]),
        ("hybrid_prefix_caching", [("0.4", False), ("0.28", True)]),
        ("checks_usable_blocks", [("0.4", False), ("0.29", True)]),
        ("checkpoint_states", [("0.4", False), ("0.29", True)]),
    ],
)
def test_each_trait_changed_with_the_release_that_changed_it(name: str, changes: list[tuple[str, object]]) -> None:
    assert name in Traits._fields
    assert trait(name) == changes


@pytest.mark.parametrize(
    ("version", "length", "tokens"),
    [
        ("0.7.3", 4096, 4096), ("0.7.3", 1000, 2048), ("0.7.3", 32768, 32768), ("0.7.3", 32769, 2048),
        ("0.6.4", 32769, 512), ("0.5.2", 40000, 40000), ("0.8.0", 20000, 2048),
    ],
)  # fmt: skip
def test_the_v0_engine_took_whole_prompts_in_a_batch_up_to_32k(version: str, length: int, tokens: int) -> None:
    settings, *_ = planned(llama(32, 32, 8), version, 100 * GIB, max_model_len=length)
    assert settings.max_num_batched_tokens == tokens


def test_chunked_prefill_that_was_asked_for_or_left_out_decides() -> None:
    model = llama(32, 32, 8)
    settings, *_ = planned(model, "0.7.3", 100 * GIB, max_model_len=20000, enable_chunked_prefill=True)
    assert settings.max_num_batched_tokens == 2048
    settings, *_ = planned(model, "0.32", 100 * GIB, max_model_len=20000, enable_chunked_prefill=False)
    assert settings.max_num_batched_tokens == 20000
    *_, refusals = planned(
        model, "0.32", 100 * GIB, max_model_len=20000, enable_chunked_prefill=False, max_num_batched_tokens=8192
    )
    assert [refusal.code for refusal in refusals] == ["batched_tokens_below_length"]
    assert "max_num_batched_tokens (8192) is smaller than max_model_len (20000)" in refusals[0].message


def test_v0_cut_no_prompts_of_windows_drafts_or_images() -> None:
    assert GEMMA3_27B.max_model_len == 131072
    settings, *_ = planned(GEMMA3_27B, "0.7.3", 100 * GIB)
    assert settings.max_num_batched_tokens == 131072
