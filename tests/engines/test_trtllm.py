"""The pool rule of TensorRT-LLM, against figures of public start-up logs and issues."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags, Settings, Speculation
from kvbudget.engines.registry import engine_named
from kvbudget.engines.rule import Pool, Refusal, Stage, Taken
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import Model, model_from_config
from kvbudget.pool.groups import LayerKind
from kvbudget.units import GIB, MIB


def llama(layers: int = 32, heads: int = 32, kv_heads: int = 32, **more: object) -> Model:
    fields = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return model_from_config({"model_type": "llama", "head_dim": 128, **fields, **more})


GEMMA3: dict[str, Any] = {
    "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
    "head_dim": 128, "hidden_size": 5376, "vocab_size": 262208, "sliding_window": 1024, "sliding_window_pattern": 6,
    "intermediate_size": 21504, "max_position_embeddings": 131072,
}  # fmt: skip


def planned(
    model: Model, available: int, engine: str = "trtllm", **flags: Any
) -> tuple[Settings, tuple[Stage, ...], Pool, list[Refusal]]:
    rule = engine_named(engine)
    settings = rule.settle(model, EngineFlags(**flags), 0, "")
    stages = rule.stages(model, settings)
    pool = rule.pool(model, settings, stages, [available] * len(stages))
    return settings, stages, pool, rule.refusals(model, settings, stages, pool)


def test_nine_tenths_of_what_is_free_are_rounded_up_to_whole_blocks() -> None:
    """A 7B with 32 KV heads and 21.89 GiB free: 0.9 of it are 630.4 blocks of 32 MiB, and the log says 631."""
    rule = engine_named("trtllm@0.13.0")
    model = llama()
    settings = rule.settle(model, EngineFlags(), 0, "")
    available = rule.cache_memory(2189 * GIB // 100, Taken(0, 0, 0, 0), settings)
    _, stages, pool, refusals = planned(model, available, "trtllm@0.13.0")
    assert stages[0].layout.bytes_per_block == 32 * MIB
    assert available // (32 * MIB) == 630
    assert (pool.num_blocks, pool.usable_blocks, refusals) == (631, 631, [])


def test_from_1_0_on_blocks_are_half_as_large_and_rounded_down() -> None:
    settings, stages, pool, _ = planned(llama(), 630 * 32 * MIB + 17 * MIB, "trtllm@1.0")
    assert (settings.block_size, stages[0].layout.bytes_per_block) == (32, 16 * MIB)
    assert pool.num_blocks == 1261
    assert pool.tokens == 1261 * 32


@pytest.mark.parametrize(("extra", "blocks"), [(0, 10), (1, 10), (512 * 1024, 11), (MIB, 11)])
def test_the_c_runtime_counts_whole_tokens_before_it_rounds_up(extra: int, blocks: int) -> None:
    """A token of this model is 512 KiB."""
    _, _, pool, _ = planned(llama(), 10 * 32 * MIB + extra, "trtllm@0.21")
    assert pool.num_blocks == blocks


def test_weights_and_the_largest_pass_are_taken_off_before_the_share() -> None:
    rule = engine_named("trtllm")
    settings = rule.settle(llama(), EngineFlags(gpu_memory_utilization=0.5), 0, "")
    assert rule.cache_memory(80 * GIB, Taken(14 * GIB, 4 * GIB, 9 * GIB, 2 * GIB), settings) == 30 * GIB
    assert rule.usable_memory(80 * GIB, settings) == 80 * GIB


def test_heads_are_rounded_up_over_ranks_and_latents_are_not_split() -> None:
    _, stages, _, _ = planned(llama(1, 32, 2), GIB, tensor_parallel_size=8)
    assert stages[0].layout.bytes_per_block == 32 * 256 * 2
    latent = model_from_config(
        {
            "model_type": "deepseek_v2", "num_hidden_layers": 27, "num_attention_heads": 16, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "hidden_size": 2048,
            "vocab_size": 102400, "q_lora_rank": None, "max_position_embeddings": 163840,
        }
    )  # fmt: skip
    _, stages, _, _ = planned(latent, GIB, tensor_parallel_size=8, kv_cache_dtype="fp8")
    assert (stages[0].layout.groups[0].kind, stages[0].layout.bytes_per_block) == (LayerKind.MLA, 27 * 576 * 32)


def test_sliding_layers_keep_every_token_unless_windows_are_given() -> None:
    _, stages, _, _ = planned(model_from_config(GEMMA3), GIB)
    assert [group.layers for group in stages[0].layout.groups] == [62]


def test_windows_have_pools_with_an_equal_share_of_the_memory_each() -> None:
    full, sliding = 10 * 16 * 256 * 2 * 32, 52 * 16 * 256 * 2 * 32
    _, stages, pool, _ = planned(model_from_config(GEMMA3), 2 * 1000 * sliding, window_pools=True, max_model_len=4096)
    layout = stages[0].layout
    assert [(group.kind, group.bytes_per_block) for group in layout.groups] == [
        (LayerKind.FULL, full), (LayerKind.SLIDING, sliding)
    ]  # fmt: skip
    assert pool.num_blocks == 1000 * sliding // full
    assert pool.bytes == 1000 * sliding // full * full + 1000 * sliding
    assert layout.blocks_for(1024) == 167  # 32 blocks of the sliding pool are worth 166.4 of the other
    assert layout.blocks_for(131072) == 4096


def test_a_length_beyond_the_pool_is_cut_not_refused() -> None:
    _, _, pool, refusals = planned(llama(max_position_embeddings=131072), 10 * 16 * MIB)
    assert (pool.max_model_len, pool.largest_max_model_len, refusals) == (320, 320, [])
    _, _, nothing, _ = planned(llama(max_position_embeddings=131072), MIB)
    assert (nothing.tokens, nothing.max_model_len) == (0, 131072)  # not "0 requests of 1 token"


def test_a_pool_without_a_block_and_uneven_heads_are_refused() -> None:
    *_, refusals = planned(llama(), MIB)
    assert [refusal.message for refusal in refusals] == ["Impossible to fit in any sequence in kvCache"]
    *_, refusals = planned(llama(28, 28, 4), GIB, tensor_parallel_size=8)
    assert [refusal.fix for refusal in refusals] == ["use --tensor-parallel-size 7"]


def test_the_log_line_is_the_engine_s() -> None:
    settings, _, pool, _ = planned(llama(), 64 * GIB)
    assert engine_named("trtllm").log_line(settings, pool) == (
        "[MemUsageChange] Allocated 64.00 GiB for max tokens in paged KV cache (131072)."
    )


def test_layers_that_are_over_go_to_the_first_stages() -> None:
    _, stages, _, _ = planned(llama(31), GIB, pipeline_parallel_size=2)
    assert [(stage.first, stage.end) for stage in stages] == [(0, 16), (16, 31)]


@pytest.mark.parametrize("version", ["0.7", "1.3", "2", "x", "1.x"])
def test_versions_that_are_not_known_are_refused_with_those_that_are(version: str) -> None:
    with pytest.raises(UnsupportedError, match=r"0\.8 to 1\.2"):
        engine_named(f"trtllm@{version}")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"gpu_memory_utilization": 1.0}, BadValueError),
        ({"kv_cache_dtype": "q8_0"}, BadValueError),
        ({"max_model_len": -1}, BadValueError),
        ({"speculation": Speculation("eagle3", 3)}, UnsupportedError),
    ],
)
def test_values_that_the_engine_does_not_have_are_refused(flags: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        planned(llama(), GIB, **flags)


def test_recurrent_states_are_refused_not_guessed() -> None:
    mamba = {"model_type": "mamba2", "num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 100, "num_heads": 2,
             "head_dim": 64, "state_size": 16, "n_groups": 1, "conv_kernel": 4, "expand": 2}  # fmt: skip
    with pytest.raises(UnsupportedError, match="recurrent"):
        planned(model_from_config(mamba), GIB)


def test_ranks_that_share_a_sequence_are_refused_not_guessed() -> None:
    with pytest.raises(UnsupportedError, match="--decode-context-parallel-size 2"):
        planned(llama(), GIB, decode_context_parallel_size=2, tensor_parallel_size=2)
