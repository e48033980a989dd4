"""The pool rule of SGLang, against figures of public start-up logs and issues."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags, Settings, Speculation
from kvbudget.engines.registry import engine_named
from kvbudget.engines.rule import Engine, Pool, Refusal, Stage, Taken
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import Model, model_from_config
from kvbudget.pool.groups import LayerKind
from kvbudget.units import GIB

H100 = 81089 * 1024**2
LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
QWEN3_235B: dict[str, Any] = {
    "model_type": "qwen3_moe", "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 128, "hidden_size": 4096, "vocab_size": 151936, "max_position_embeddings": 40960,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "intermediate_size": 12288,
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "hidden_size": 7168,
    "vocab_size": 129280, "max_position_embeddings": 163840, "intermediate_size": 18432, "n_routed_experts": 256,
    "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
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


def llama(layers: int = 32, heads: int = 32, kv_heads: int = 8, **more: object) -> Model:
    fields = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return model_from_config({"model_type": "llama", "head_dim": 128, **fields, **more})


def planned(
    model: Model, available: int, engine: str = "sglang", device: int = 0, **flags: Any
) -> tuple[Settings, tuple[Stage, ...], Pool, list[Refusal]]:
    rule: Engine = engine_named(engine)
    settings = rule.settle(model, EngineFlags(**flags), device, "")
    stages = rule.stages(model, settings)
    pool = rule.pool(model, settings, stages, [available] * len(stages))
    return settings, stages, pool, rule.refusals(model, settings, stages, pool)


def test_keys_and_values_of_a_pool_are_printed_per_rank_in_gib() -> None:
    """Qwen3-235B on four H100: 367,404 tokens are 8.23 GiB of keys and as much of values on each."""
    model = model_from_config(QWEN3_235B)
    _, stages, pool, _ = planned(model, int(367404.5 * 48128), tensor_parallel_size=4)
    assert pool.tokens == 367404
    assert stages[0].layout.bytes_per_block == 48128
    assert round(pool.bytes / 2 / GIB, 2) == 8.23


def test_any_number_of_tokens_fits_because_a_page_is_one_token() -> None:
    """A 32B on four cards of 24 GB: 46,611 tokens, 1.42 GiB of keys; no multiple of 16."""
    _, _, pool, _ = planned(llama(64, 40, 8), 46611 * 65536 + 65535, "sglang@0.4.4", tensor_parallel_size=4)
    assert pool.tokens == 46611
    assert round(pool.bytes / 2 / GIB, 2) == 1.42


def test_virtual_reservations_are_no_capacity() -> None:
    """GPT-2 beside a balloon allocator: the 248,479 tokens that are backed are 4.27 GiB of keys."""
    model = model_from_config(
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    )
    _, stages, pool, _ = planned(model, 248479 * 36864)
    assert stages[0].layout.bytes_per_block == 36864
    assert pool.tokens == 248479
    assert round(pool.bytes / 2 / GIB, 2) == 4.27


def test_a_latent_is_not_divided_by_tensor_parallelism() -> None:
    """DeepSeek-V3 on eight cards: 201,681 tokens are 13.2 GiB on every one of them."""
    model = model_from_config(DEEPSEEK_V3)
    settings, stages, pool, refusals = planned(model, 201681 * 70272, "sglang@0.4.4", tensor_parallel_size=8)
    assert stages[0].layout.bytes_per_block == 70272
    assert (pool.tokens, settings.max_model_len, refusals) == (201681, 163840, [])
    assert round(pool.bytes / GIB, 1) == 13.2
    assert pool.most_requests == 2048


def test_the_share_is_taken_of_what_is_free_when_an_instance_starts() -> None:
    """Three instances with the same 0.27 on one H100 got 97,503, 53,149 and 20,961 tokens: each one finds less.

    What an instance takes shrinks by the same factor from start to start, 1 - 0.27.
    """
    rule = engine_named("sglang")
    settings = rule.settle(llama(), EngineFlags(gpu_memory_utilization=0.27), H100, "")
    weights, used, pools = 9 * GIB, 0, []
    for _ in range(3):
        pools.append(rule.cache_memory(H100, Taken(weights, 0, 0, used), settings))
        used += weights + pools[-1]
    first, second = pools[0] - pools[1], pools[1] - pools[2]
    assert second / first == pytest.approx(0.73, abs=0.0001)
    assert pytest.approx(0.73, abs=0.01) == (53149 - 20961) / (97503 - 53149)


def test_activation_and_graphs_must_do_with_what_the_fraction_leaves() -> None:
    rule = engine_named("sglang")
    settings = rule.settle(llama(), EngineFlags(gpu_memory_utilization=0.9), H100, "")
    assert rule.cache_memory(80 * GIB, Taken(16 * GIB, 3 * GIB, GIB, 0), settings) == 56 * GIB
    assert rule.usable_memory(80 * GIB, settings) == 72 * GIB


@pytest.mark.parametrize(
    ("engine", "mib", "ranks", "fraction"),
    [
        ("sglang@0.4.4", 81559, 1, 0.88),
        ("sglang@0.4.4", 81559, 8, 0.81),
        ("sglang@0.4.9", 81559, 1, 0.874),
        ("sglang@0.5.2", 24564, 4, 0.867),
        ("sglang@0.5.6", 81559, 1, 0.835),
        ("sglang@0.5.12", 81559, 1, 0.83),
        ("sglang@0.5.23", 81559, 1, 0.83),
        ("sglang@0.5.23", 24564, 1, 0.704),
        ("sglang@0.5.23", 0, 1, 0.95),
        ("sglang@0.5.12", 0, 1, 0.88),
    ],
)
def test_the_default_fraction_follows_card_ranks_and_version(
    engine: str, mib: int, ranks: int, fraction: float
) -> None:
    settings, *_ = planned(llama(), GIB, engine, mib * 1024**2, tensor_parallel_size=ranks)
    assert settings.gpu_memory_utilization == fraction


def test_latent_models_and_switched_off_graphs_reserve_other_amounts() -> None:
    latent, *_ = planned(model_from_config(DEEPSEEK_V3), GIB, "sglang@0.5.23", 40960 * 1024**2, tensor_parallel_size=8)
    assert latent.gpu_memory_utilization == round((40960 - 512 - 4096 * 1.5 - 1024 - 320 - 1536) / 40960, 3)
    eager, *_ = planned(llama(), GIB, "sglang@0.5.23", 40960 * 1024**2, enforce_eager=True)
    graphs, *_ = planned(llama(), GIB, "sglang@0.5.23", 40960 * 1024**2)
    assert eager.gpu_memory_utilization > graphs.gpu_memory_utilization


def test_a_page_size_rounds_the_pool_down_to_whole_pages() -> None:
    _, _, pool, _ = planned(llama(), 1000 * 131072, block_size=64)
    assert (pool.tokens, pool.num_blocks, pool.usable_blocks) == (960, 15, 15)


def test_sliding_layers_get_a_pool_of_eight_tenths_of_the_tokens() -> None:
    model = model_from_config(GPT_OSS)
    cell = 12 * 8 * 128 * 2
    _, stages, pool, refusals = planned(model, 10001 * cell + 8000 * cell, max_model_len=4096)
    assert [group.kind for group in stages[0].layout.groups] == [LayerKind.FULL, LayerKind.SLIDING]
    assert (pool.tokens, refusals) == (10000, [])
    assert pool.bytes == 10000 * cell + 8000 * cell
    assert pool.blocks_per_request == 4096
    layout = stages[0].layout
    assert layout.blocks_for(100) == 125  # the sliding pool runs out first
    assert layout.blocks_for(1000) == 1000


def test_without_the_sliding_pool_every_layer_keeps_every_token() -> None:
    model = model_from_config(GPT_OSS)
    _, stages, pool, _ = planned(model, 1000 * 24 * 2048, disable_hybrid_kv_cache_manager=True)
    assert ([group.layers for group in stages[0].layout.groups], pool.tokens) == ([24], 1000)


def test_models_that_are_not_known_to_have_a_sliding_pool_keep_every_token() -> None:
    model = model_from_config(
        {
            "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
            "head_dim": 128, "hidden_size": 5376, "vocab_size": 262208, "sliding_window": 1024,
            "sliding_window_pattern": 6, "intermediate_size": 21504, "max_position_embeddings": 131072,
        }
    )  # fmt: skip
    _, stages, _, _ = planned(model, GIB)
    assert [(group.kind, group.layers) for group in stages[0].layout.groups] == [(LayerKind.FULL, 62)]


def test_a_sliding_pool_that_holds_no_request_is_refused_in_the_engine_s_words() -> None:
    """The window of 128 and a page must be less than it holds: 0.8 x 162 = 129 is not enough, 0.8 x 163 = 130 is."""
    cell = 12 * 8 * 128 * 2
    *_, refusals = planned(model_from_config(GPT_OSS), int(162.5 * 1.8 * cell))
    assert refusals[0].message.startswith("SWA pool (129 tokens) cannot hold even one request:")
    *_, refusals = planned(model_from_config(GPT_OSS), int(163.5 * 1.8 * cell))
    assert refusals == []


def test_state_groups_that_ranks_do_not_divide_are_copied() -> None:
    """Mamba-2 with one group over two ranks: each keeps B and C of a group of its own."""
    model = model_from_config(
        {"model_type": "mamba2", "num_hidden_layers": 3, "hidden_size": 64, "vocab_size": 100, "num_heads": 2,
         "head_dim": 64, "state_size": 16, "n_groups": 1, "conv_kernel": 4, "expand": 2}
    )  # fmt: skip
    _, stages, pool, refusals = planned(model, GIB, tensor_parallel_size=2, max_model_len=1000)
    state = 3 * ((64 + 2 * 16) * 3 * 2 + 64 * 16 * 4)
    assert stages[0].layout.groups[0].bytes_per_block == state
    assert (pool.tokens, refusals) == (1000, [])
    assert pool.bytes == pytest.approx(GIB * 0.9 / 1.9, rel=0.001)


def test_recurrent_states_take_nine_nineteenths_of_the_memory() -> None:
    """Slots for states first, one more than are counted; five for each running request."""
    model = model_from_config(QWEN3_NEXT)
    settings, stages, pool, _ = planned(model, 38 * GIB, max_model_len=32768)
    state = 36 * ((2 * 16 * 128 + 32 * 128) * 3 * 2 + 32 * 128 * 128 * 4)
    slots = (18 * GIB - state) // state
    assert stages[0].layout.groups[1].bytes_per_block == state
    assert pool.tokens == (38 * GIB - (slots + 1) * state) // (12 * 2 * 512 * 2)
    assert pool.most_requests == slots // 5
    assert settings.prefix_caching
    *_, plain, _ = planned(model, 38 * GIB, max_model_len=32768, async_scheduling=False)
    assert plain.most_requests == slots // 3


def test_a_draft_s_layers_are_charged_to_every_token() -> None:
    speculation = Speculation("eagle", 3, llama(1, 32, 8))
    _, stages, pool, _ = planned(llama(32, 32, 8), 33 * 4096 * 100, speculation=speculation)
    assert pool.tokens == 100
    assert stages[0].layout.bytes_per_block == 33 * 4096
    *_, older, _ = planned(llama(32, 32, 8), 32 * 4096 * 100, "sglang@0.5.9", speculation=speculation)
    assert older.tokens == 100


def test_layers_that_are_over_go_to_the_last_stages() -> None:
    _, stages, _, _ = planned(llama(31), GIB, pipeline_parallel_size=2)
    assert [(stage.first, stage.end) for stage in stages] == [(0, 15), (15, 31)]


def test_a_pool_smaller_than_the_context_starts_and_takes_shorter_requests() -> None:
    _, _, pool, refusals = planned(llama(max_position_embeddings=8192), 1000 * 131072)
    assert (pool.max_model_len, pool.largest_max_model_len, refusals) == (1000, 1000, [])


def test_a_pool_of_nothing_keeps_the_length_that_was_asked_for() -> None:
    for available in (0, -GIB):
        _, _, pool, refusals = planned(llama(), available, max_model_len=4096)
        assert (pool.tokens, pool.max_model_len, pool.concurrency) == (0, 4096, 0.0)
        assert [refusal.code for refusal in refusals] == ["no_kv_memory"]


def test_no_memory_and_too_long_a_context_are_refused_in_the_engine_s_words() -> None:
    *_, refusals = planned(llama(), -GIB, gpu_memory_utilization=0.5)
    assert refusals[-1].message.startswith("Not enough memory. Please try to increase --mem-fraction-static.")
    *_, refusals = planned(llama(max_position_embeddings=8192), GIB, max_model_len=9000)
    assert "context_length (9000) is greater than the derived context_length (8192)" in refusals[0].message
    *_, refusals = planned(llama(28, 28, 4), GIB, tensor_parallel_size=8)
    assert [refusal.code for refusal in refusals] == ["heads_not_divisible"]


def test_the_log_line_is_the_scheduler_s() -> None:
    rule = engine_named("sglang")
    settings, _, pool, _ = planned(llama(max_position_embeddings=8192), 100000 * 131072, device=H100)
    assert rule.log_line(settings, pool) == (
        "max_total_num_tokens=100000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=4096, context_len=8192"
    )


@pytest.mark.parametrize("version", ["0.3.6", "0.5.24", "0.6.0", "1.0", "x", "0.5.x", "0"])
def test_versions_that_are_not_known_are_refused_with_those_that_are(version: str) -> None:
    with pytest.raises(UnsupportedError, match=r"0\.4\.0 to 0\.5\.23"):
        engine_named(f"sglang@{version}")


@pytest.mark.parametrize("version", ["", "0.5", "0.5.23.post1", "v0.4.6", "0.4"])
def test_versions_that_are_known_are_taken(version: str) -> None:
    assert engine_named(f"sglang@{version}").name == "sglang"


@pytest.mark.parametrize(
    "flags", [{"kv_cache_dtype": "q8_0"}, {"max_model_len": -1}, {"dtype": "int4"}, {"mamba_ssm_cache_dtype": "int8"}]
)
def test_values_that_the_engine_does_not_have_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        planned(llama(), GIB, **flags)


def test_caches_that_are_not_known_here_are_refused_not_guessed() -> None:
    whisper = {
        "model_type": "whisper", "d_model": 1280, "decoder_layers": 4, "encoder_layers": 32, "vocab_size": 51866,
        "decoder_attention_heads": 20, "encoder_attention_heads": 20, "max_target_positions": 448,
    }  # fmt: skip
    with pytest.raises(UnsupportedError, match="sglang"):
        planned(model_from_config(whisper), GIB)


def test_ranks_that_share_a_sequence_are_refused_not_guessed() -> None:
    with pytest.raises(UnsupportedError, match="--decode-context-parallel-size 2"):
        planned(llama(), GIB, decode_context_parallel_size=2, tensor_parallel_size=2)


@pytest.mark.parametrize("version", ["0.4.6", "0.5.2", "0.5.10", "0.5.15", "0.5.23"])
def test_memory_beside_weights_and_pool_is_that_of_an_engine_that_profiles_no_sampling(version: str) -> None:
    """4,096 rows of logits, copied as old vLLM did, would be 22 GiB; SGLang never has them."""
    rule = engine_named(f"sglang@{version}")
    settings = rule.settle(llama(), EngineFlags(max_model_len=32768), 45487 * 1024**2, "L40S")
    assert rule.memory_version == (0, 32)
    assert 1 <= settings.profiled_seqs <= 160
    fewer = rule.settle(llama(), EngineFlags(max_model_len=32768, max_num_seqs=4), 45487 * 1024**2, "L40S")
    assert fewer.profiled_seqs == 4


def overruns(activation: int, graphs: int, weights: int = 60 * GIB) -> list[Refusal]:
    rule = engine_named("sglang")
    model = llama()
    settings = rule.settle(model, EngineFlags(gpu_memory_utilization=0.9, max_model_len=4096), 80 * GIB, "")
    taken = Taken(weights, activation, graphs, 0)
    stages = rule.stages(model, settings)
    pool = rule.pool(model, settings, stages, [rule.cache_memory(80 * GIB, taken, settings)])
    return rule.overruns(settings, 80 * GIB, taken, pool)


def test_what_the_static_fraction_leaves_must_hold_graphs_and_a_prefill_chunk() -> None:
    """0.9 of 80 GiB: 8 GiB are left, whatever the weights take."""
    assert overruns(6 * GIB, 2 * GIB - 1) == []
    (chunk,) = overruns(8 * GIB, GIB)
    assert (chunk.code, chunk.fix) == ("beyond_the_card", "use --gpu-memory-utilization 0.88 (--mem-fraction-static)")
    assert chunk.message.startswith("CUDA out of memory in the first prefill of 8192 tokens.")
    (graphs,) = overruns(GIB, 9 * GIB)
    assert graphs.message.startswith("Capture cuda graph failed: CUDA out of memory.")


def test_a_smaller_fraction_is_no_advice_where_weights_need_it() -> None:
    (refusal,) = overruns(12 * GIB, GIB, weights=71 * GIB)
    assert refusal.fix == "quantise the weights, or use more tensor-parallel ranks"


@pytest.mark.parametrize("engine", ["vllm", "tgi", "trtllm", "llamacpp"])
def test_engines_that_measure_first_never_overrun(engine: str) -> None:
    rule = engine_named(engine)
    model = llama()
    settings = rule.settle(model, EngineFlags(max_model_len=4096), 80 * GIB, "")
    stages = rule.stages(model, settings)
    pool = rule.pool(model, settings, stages, [GIB])
    assert rule.overruns(settings, GIB, Taken(GIB, GIB, GIB, GIB), pool) == []


def test_a_sliding_group_says_its_window() -> None:
    _, stages, _, _ = planned(model_from_config(GPT_OSS), GIB, max_model_len=4096)
    assert [group.window for group in stages[0].layout.groups] == [0, 128]


@pytest.mark.parametrize(
    ("most", "page", "tokens"), [(None, None, 81920), (50_000, None, 50_000), (50_001, 64, 49_984), (10**9, 64, 81920)]
)
def test_the_pool_holds_no_more_than_max_total_tokens(most: int | None, page: int | None, tokens: int) -> None:
    """kv_cache_configurator.py: the smaller of what memory holds and --max-total-tokens, in whole pages."""
    model = model_from_config(LLAMA)
    rule = engine_named("sglang")
    settings = rule.settle(model, EngineFlags(max_model_len=8192, max_pool_tokens=most, block_size=page), 80 * GIB, "")
    stages = rule.stages(model, settings)
    pool = rule.pool(model, settings, stages, [81920 * 131072])
    assert (pool.tokens, rule.refusals(model, settings, stages, pool)) == (tokens, [])


def test_less_than_a_page_is_no_pool() -> None:
    model = model_from_config(LLAMA)
    rule = engine_named("sglang")
    settings = rule.settle(model, EngineFlags(max_model_len=8192, max_pool_tokens=63, block_size=64), 80 * GIB, "")
    stages = rule.stages(model, settings)
    found = rule.refusals(model, settings, stages, rule.pool(model, settings, stages, [10 * GIB]))
    assert [refusal.code for refusal in found] == ["no_kv_memory"]
    assert "--max-total-tokens 64" in found[0].fix
