"""The pool rule of Text Generation Inference, against figures of public start-up logs and issues."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags, Settings, Speculation
from kvbudget.engines.registry import engine_named
from kvbudget.engines.rule import Pool, Refusal, Stage, Taken
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB, MIB


def llama(layers: int = 32, heads: int = 32, kv_heads: int = 8, head_dim: int = 128, **more: object) -> Model:
    fields = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return model_from_config({"model_type": "llama", "head_dim": head_dim, **fields, **more})


def planned(
    model: Model, available: int, engine: str = "tgi", **flags: Any
) -> tuple[Settings, tuple[Stage, ...], Pool, list[Refusal]]:
    rule = engine_named(engine)
    settings = rule.settle(model, EngineFlags(**flags), 0, "")
    stages = rule.stages(model, settings)
    pool = rule.pool(model, settings, stages, [available] * len(stages))
    return settings, stages, pool, rule.refusals(model, settings, stages, pool)


def test_the_cache_of_a_70b_on_eight_shards_is_small_and_its_weights_decide() -> None:
    """Llama-2-70B on eight cards of 24 GB, 0.9: 16,000 tokens need 0.61 GiB of each, but weights leave less."""
    rule = engine_named("tgi@0.9.4")
    model = llama(80, 64, 8, max_position_embeddings=4096)
    flags = EngineFlags(tensor_parallel_size=8, max_model_len=4096)
    settings = rule.settle(model, flags, 24 * GIB, "A10G")
    stages = rule.stages(model, settings)
    assert stages[0].layout.bytes_per_block == 16 * 40960
    assert round(16000 * 40960 / GIB, 2) == 0.61
    left = rule.cache_memory(2206 * GIB // 100, Taken(17_200_000_000, 6 * GIB, 0, GIB), settings)
    pool = rule.pool(model, settings, stages, [left])
    refusals = rule.refusals(model, settings, stages, pool)
    assert [refusal.code for refusal in refusals] == ["no_kv_memory"]
    assert refusals[0].message.startswith("Not enough memory to handle 4096 prefill tokens.")
    assert "quantise the weights" in refusals[0].fix


def test_a_card_of_22_gib_holds_what_its_log_said() -> None:
    """0.9 printed 16,224 tokens: blocks of 16, all of what the warm-up left."""
    _, _, pool, refusals = planned(llama(32, 32, 32), 16224 * 524288 + 524287, "tgi@0.9")
    assert (pool.tokens, pool.num_blocks, refusals) == (16224, 1014, [])


@pytest.mark.parametrize(
    ("engine", "head_dim", "block"),
    [("tgi@0.9", 128, 16), ("tgi@2.2", 128, 16), ("tgi@2.3", 128, 1), ("tgi@3", 128, 1), ("tgi@3.3", 80, 256)],
)
def test_the_block_follows_version_and_attention_kernel(engine: str, head_dim: int, block: int) -> None:
    settings, *_ = planned(llama(head_dim=head_dim), GIB, engine)
    assert settings.block_size == block


@pytest.mark.parametrize(
    ("engine", "left"),
    [
        ("tgi@1.4", 60 * GIB),
        ("tgi@2.0", 57 * GIB),
        ("tgi@2.4", 54 * GIB),
        ("tgi@3.3", 52 * GIB),
    ],
)
def test_the_room_is_a_share_of_what_is_free_first_and_of_the_card_since_3(engine: str, left: int) -> None:
    rule = engine_named(engine)
    settings = rule.settle(llama(), EngineFlags(), 0, "")
    assert rule.cache_memory(80 * GIB, Taken(16 * GIB, 3 * GIB, 2 * GIB, GIB), settings) == left


def test_the_memory_fraction_and_the_room_multiply() -> None:
    rule = engine_named("tgi")
    settings = rule.settle(llama(), EngineFlags(gpu_memory_utilization=0.5), 0, "")
    assert rule.usable_memory(80 * GIB, settings) == 36 * GIB


def test_a_length_that_is_not_given_is_what_fits_and_a_given_one_is_refused() -> None:
    model = llama(max_position_embeddings=131072)
    _, _, pool, refusals = planned(model, 1000 * 131072)
    assert (pool.max_model_len, refusals) == (1000, [])
    *_, refusals = planned(model, 1000 * 131072, max_model_len=4096)
    assert refusals[0].message == "Not enough memory to handle `max_total_tokens=4096`"
    assert refusals[0].fix.startswith("use --max-model-len 1000")
    _, _, nothing, refusals = planned(model, 0)
    assert (nothing.tokens, nothing.max_model_len) == (0, 131072)  # not "0 requests of 1 token"
    assert [refusal.code for refusal in refusals] == ["no_kv_memory"]


@pytest.mark.parametrize(("engine", "length"), [("tgi@1.4", 2048), ("tgi@2.0", 4096), ("tgi@2.4", 131072)])
def test_older_defaults_of_the_longest_request_are_their_own(engine: str, length: int) -> None:
    settings, *_ = planned(llama(max_position_embeddings=131072), GIB, engine)
    assert settings.max_model_len == length


def test_sliding_layers_keep_every_token_and_mla_is_expanded_to_the_wider_of_key_and_value() -> None:
    sliding = model_from_config(
        {"model_type": "mistral", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
         "head_dim": 128, "sliding_window": 64, "max_position_embeddings": 4096}
    )  # fmt: skip
    _, stages, pool, _ = planned(sliding, 100 * 2 * 8 * 256 * 2)
    assert (pool.tokens, stages[0].layout.blocks_for(100)) == (100, 100)
    latent = model_from_config(
        {"model_type": "deepseek_v2", "num_hidden_layers": 27, "num_attention_heads": 16, "kv_lora_rank": 512,
         "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "hidden_size": 2048, "vocab_size": 102400,
         "q_lora_rank": None, "max_position_embeddings": 163840}
    )  # fmt: skip
    settings, stages, _, _ = planned(latent, GIB, tensor_parallel_size=2)
    assert (settings.block_size, stages[0].layout.bytes_per_block) == (256, 256 * 27 * 8 * 2 * 192 * 2)


def test_heads_that_shards_do_not_divide_are_refused_in_the_engine_s_words() -> None:
    *_, refusals = planned(llama(28, 28, 4), 100 * GIB, tensor_parallel_size=8)
    assert refusals[0].message.startswith("`num_heads` must be divisible by `num_shards` (got `num_heads`: 28")
    assert refusals[0].fix == "use --tensor-parallel-size 4"


def test_the_log_line_is_the_router_s() -> None:
    settings, _, pool, _ = planned(llama(), 1000 * 131072)
    assert engine_named("tgi").log_line(settings, pool) == "Setting max batch total tokens to 1000"


@pytest.mark.parametrize("version", ["0.8", "3.4", "4", "x", "3.x"])
def test_versions_that_are_not_known_are_refused_with_those_that_are(version: str) -> None:
    with pytest.raises(UnsupportedError, match=r"0\.9 to 3\.3"):
        engine_named(f"tgi@{version}")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"pipeline_parallel_size": 2}, BadValueError),
        ({"kv_cache_dtype": "nvfp4"}, BadValueError),
        ({"max_model_len": -1}, BadValueError),
        ({"speculation": Speculation("eagle3", 3)}, UnsupportedError),
    ],
)
def test_values_that_the_engine_does_not_have_are_refused(flags: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        planned(llama(), GIB, **flags)


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    *_, half, _ = planned(llama(), 64 * MIB)
    *_, whole, _ = planned(llama(), 64 * MIB, kv_cache_dtype="fp8_e4m3fn")
    assert (half.tokens, whole.tokens) == (512, 1024)
