"""The longest max_model_len that starts: found with the batch that each length itself gives."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.engines.flags import EngineFlags
from kvbudget.engines.rule import Pool
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB

LENGTH = {"max_position_embeddings": 262144}
GEMMA3 = model_from_config(
    {"model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32,
     "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, **LENGTH}
)  # fmt: skip
GEMMA4 = model_from_config(
    {"model_type": "gemma4_text", "num_hidden_layers": 30, "hidden_size": 2816, "num_attention_heads": 16,
     "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
     "attention_k_eq_v": True, "sliding_window": 1024, **LENGTH}
)  # fmt: skip
MODELS = {
    "llama": model_from_config({"model_type": "llama", "num_hidden_layers": 4, **LENGTH}),
    "gemma3": GEMMA3,
    "gemma4": GEMMA4,
    "gpt_oss": model_from_config({"model_type": "gpt_oss", "num_hidden_layers": 24}),
    "llama4": model_from_config({"model_type": "llama4_text"}),
    "qwen3_5": model_from_config({"model_type": "qwen3_5_text", **LENGTH}),
    "deepseek_v4": model_from_config({"model_type": "deepseek_v4", "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0]}),
    "whisper": model_from_config({"model_type": "whisper"}),
    "mamba2": model_from_config({"model_type": "mamba2"}),
}
VERSIONS = ("0.32", "0.27", "0.19", "0.14", "0.10", "0.7", "0.6")


def pool_and_codes(version: str, model: Model, memory: int, **flags: Any) -> tuple[Pool, list[str]]:
    engine = Vllm(version)
    settled = engine.settle(model, EngineFlags(**flags), 80 * GIB, "H100")
    stages = engine.stages(model, settled)
    pool = engine.pool(model, settled, stages, [memory] * len(stages))
    return pool, [refusal.code for refusal in engine.refusals(model, settled, stages, pool)]


@pytest.mark.parametrize(
    ("length", "batch", "largest"),
    [(8192, 2048, 167136), (99025, 2048, 167136), (167136, 2048, 167136), (167137, 2048, 167136),
     (99025, 8192, 105696), (150000, 8192, 105696)],
)  # fmt: skip
def test_a_window_s_freed_blocks_count_for_the_longest_length(length: int, batch: int, largest: int) -> None:
    """vLLM 0.32's own start check of gemma-4-26b-a4b: full layers have blocks of 32 tokens, windows those of 16."""
    flags = {"kv_cache_dtype": "fp8", "block_size": 16, "async_scheduling": False, "max_num_batched_tokens": batch}
    pool, codes = pool_and_codes("0.32", GEMMA4, 2_028_109_523, max_model_len=length, max_num_seqs=256, **flags)
    assert (pool.num_blocks, pool.largest_max_model_len) == (6189, largest)
    assert codes == ([] if length <= largest else ["max_model_len_too_large"])


@pytest.mark.parametrize("asked", [1, 210096, 210097, 233904])
def test_the_longest_length_is_the_same_whatever_length_is_asked(asked: int) -> None:
    """64 sequences of one token are a batch of 64, and few tokens in flight; those of the longest are 8,192."""
    flags: dict[str, Any] = {"tensor_parallel_size": 2, "max_num_seqs": 64}
    engine = Vllm()
    settled = engine.settle(GEMMA3, EngineFlags(max_model_len=asked, **flags), 0, "")
    stages = engine.stages(GEMMA3, settled)
    pool = engine.pool(GEMMA3, settled, stages, [9_869_065_810])
    assert pool.largest_max_model_len == 210096
    found = engine.refusals(GEMMA3, settled, stages, pool)
    assert [refusal.code for refusal in found] == ([] if asked <= 210096 else ["max_model_len_too_large"])
    assert all("use --max-model-len 210096" in refusal.fix for refusal in found)


@given(
    version=st.sampled_from(VERSIONS),
    name=st.sampled_from(sorted(MODELS)),
    memory=st.integers(2**24, 2**34),
    asked=st.integers(1, 300_000),
    tokens=st.none() | st.sampled_from([512, 2048, 40_000]),
    seqs=st.none() | st.sampled_from([1, 3, 64, 512]),
    chunked=st.none() | st.booleans(),
    caching=st.none() | st.booleans(),
    stages=st.sampled_from([1, 2]),
    long=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_longest_length_starts_and_the_next_one_does_not(
    version: str, name: str, memory: int, asked: int, long: bool, **given_flags: Any
) -> None:
    model = MODELS[name]
    flags = {
        "max_num_batched_tokens": given_flags["tokens"],
        "max_num_seqs": given_flags["seqs"],
        "enable_chunked_prefill": given_flags["chunked"],
        "enable_prefix_caching": given_flags["caching"],
        "pipeline_parallel_size": given_flags["stages"],
        "allow_long_max_model_len": long,
        "enforce_eager": True,
    }
    pool, _ = pool_and_codes(version, model, memory, max_model_len=asked, **flags)
    largest = pool.largest_max_model_len
    lengthy = {"max_model_len_too_large", "no_kv_memory", "batched_tokens_below_length", "pipeline_start_check"}
    if not long:
        lengthy.add("max_model_len_beyond_model")

    def stops(length: int) -> set[str]:
        return lengthy & set(pool_and_codes(version, model, memory, max_model_len=length, **flags)[1])

    if largest and "pipeline_start_check" not in (stopped := stops(largest)):
        assert not stopped
    if largest and pool_and_codes(version, model, memory, max_model_len=largest, **flags)[0].blocks_per_request == (
        pool_and_codes(version, model, memory, max_model_len=largest * 100, **flags)[0].blocks_per_request
    ):
        return  # nothing grows, and the model has no limit: any length starts
    assert stops(largest + 1)


def test_a_length_that_0_7_cuts_into_chunks_may_start_where_shorter_ones_do_not() -> None:
    """Up to 32,768 tokens a batch takes whole prompts, and 4,096 batched tokens are too few for them."""
    flags = {"max_num_batched_tokens": 4096}
    starts = {
        length: pool_and_codes("0.7", MODELS["llama"], 64 * GIB, max_model_len=length, **flags)
        for length in (4096, 4097, 32768, 32769)
    }
    assert [not codes for _, codes in starts.values()] == [True, False, False, True]
    assert {pool.largest_max_model_len for pool, _ in starts.values()} == {262144}
    small = pool_and_codes("0.7", MODELS["llama"], GIB, max_model_len=4096, **flags)[0]
    assert small.largest_max_model_len == 4096
