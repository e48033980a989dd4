"""The pool rule of vLLM 0.32, against figures that its own code computed, and against brute force."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.engines.flags import AUTO_LENGTH, EngineFlags, Settings
from kvbudget.engines.registry import engine_named
from kvbudget.engines.rule import Pool, Refusal, Taken
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB

RECORDS = json.loads((Path(__file__).parent / "data" / "vllm_0_32_uniform.json").read_text())["records"]
ENGINE = Vllm()


def llama(layers: int = 32, heads: int = 32, kv_heads: int = 8, **more: object) -> Model:
    return model_from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            **more,
        }
    )


def pool_of(model: Model, available: int, device_memory: int = 0, **flags: Any) -> tuple[Settings, Pool, list[Refusal]]:
    settings = ENGINE.settle(model, EngineFlags(**flags), device_memory, "")
    stages = ENGINE.stages(model, settings)
    pool = ENGINE.pool(model, settings, stages, [available] * len(stages))
    return settings, pool, ENGINE.refusals(model, settings, stages, pool)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: f"{r['model']}-tp{r['tp']}pp{r['pp']}-{r['kv_cache_dtype']}")
def test_the_pool_equals_what_the_engine_s_own_code_computed(record: dict[str, Any]) -> None:
    model = model_from_config(record["config"])
    for row in record["rows"]:
        settings, pool, refusals = pool_of(
            model,
            int(row["kv_gib"] * GIB),
            tensor_parallel_size=record["tp"],
            pipeline_parallel_size=record["pp"],
            kv_cache_dtype=record["kv_cache_dtype"],
            block_size=record["block_size"],
            max_model_len=row["max_model_len"],
        )
        layout = ENGINE.stages(model, settings)[pool.stage].layout
        assert layout.bytes_per_block == record["bytes_per_block"]
        if row.get("starts", True):
            assert refusals == []
            assert (pool.num_blocks, pool.tokens, pool.blocks_per_request) == (
                row["num_blocks"],
                row["tokens"],
                row["blocks_per_request"],
            )
            assert round(pool.concurrency, 4) == row["concurrency"]
        else:
            assert [refusal.code for refusal in refusals] == ["max_model_len_too_large"]
            assert "largest" not in row or pool.largest_max_model_len == row["largest"]


def test_the_null_block_alone_decides_whether_a_request_of_full_length_starts() -> None:
    """The start-up message of a real engine: 128 blocks of 16 are one too few for 2,048 tokens, 129 are enough."""
    _, pool, refusals = pool_of(llama(), 0, num_gpu_blocks_override=128, max_model_len=2048)
    assert [refusal.code for refusal in refusals] == ["max_model_len_too_large"]
    assert "estimated maximum model length is 2032" in refusals[0].message
    _, pool, refusals = pool_of(llama(), 0, num_gpu_blocks_override=129, max_model_len=2048)
    assert refusals == []
    assert (pool.num_blocks, pool.usable_blocks) == (129, 128)


def test_the_printed_figures_count_the_null_block() -> None:
    _, pool, _ = pool_of(llama(4, 4, 2), 0, num_gpu_blocks_override=65, block_size=32, max_model_len=1024)
    assert (pool.tokens, pool.concurrency, pool.usable_blocks) == (2080, 2.03125, 64)


def test_a_refusal_for_length_is_in_the_engine_s_words_with_its_numbers() -> None:
    _, _, refusals = pool_of(llama(), 8 * GIB, max_model_len=131072)
    assert refusals[0].message.startswith(
        "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (8.0 GiB). Based on the available memory, the estimated maximum "
        "model length is 65520."
    )
    assert refusals[0].message.endswith(
        " Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
        "`max_model_len` when initializing the engine. See "
        "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
    )


def test_a_refusal_names_the_memory_that_is_left_not_that_of_whole_blocks() -> None:
    """v1/core/kv_cache_utils.py: what there is without the null block's bytes, rounded to the hundredth."""
    block = 32 * 16 * 8 * 256 * 2
    for available, shown in ((8 * GIB, "8.0"), (8 * GIB - GIB // 128, "7.99"), (block + block // 2, "0.0")):
        _, _, refusals = pool_of(llama(), available, max_model_len=131072)
        assert f"available KV cache memory ({shown} GiB)" in refusals[0].message


@pytest.mark.parametrize("available", [-GIB, 0, 2097152])  # one block is the null block
def test_no_memory_for_blocks_is_refused_in_the_engine_s_words(available: int) -> None:
    _, pool, refusals = pool_of(llama(), available, max_model_len=16)
    assert refusals[-1].message.startswith("No available memory for the cache blocks.")
    assert pool.usable_blocks == 0
    assert pool.largest_max_model_len == 0


def test_a_vocabulary_that_the_ranks_cannot_share_is_refused_in_the_engine_s_words() -> None:
    model = llama(40, 40, 40, vocab_size=151936)
    _, _, refusals = pool_of(model, 24 * GIB, tensor_parallel_size=5, max_model_len=8192)
    assert [(r.code, r.message) for r in refusals] == [
        ("vocabulary_not_divisible", "AssertionError: 151936 is not divisible by 5")
    ]
    assert refusals[0].fix == "use --tensor-parallel-size 4"


def test_heads_that_tensor_parallelism_cannot_split_are_refused_in_the_engine_s_words() -> None:
    _, _, refusals = pool_of(llama(28, 28, 4), 24 * GIB, tensor_parallel_size=8, max_model_len=8192)
    assert refusals[0].message == (
        "Total number of attention heads (28) must be divisible by tensor parallel size (8)."
    )
    assert refusals[0].fix == "use --tensor-parallel-size 4"  # 7 divides 28 heads, but not 4 KV heads
    _, _, refusals = pool_of(llama(28, 48, 8, vocab_size=6 * 64), 24 * GIB, tensor_parallel_size=6, max_model_len=8192)
    assert refusals[0].code == "kv_heads_not_divisible"


def test_fewer_heads_than_ranks_are_replicated_not_split() -> None:
    four, eight = (
        pool_of(llama(94, 64, 4), 24 * GIB, tensor_parallel_size=ranks, max_model_len=8192)[1].num_blocks
        for ranks in (4, 8)
    )
    assert four == eight


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"block_size": 8}, "block_size_unsupported"),
        ({"block_size": 40}, "block_size_unsupported"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 128}, "batched_tokens_below_seqs"),
        ({"max_model_len": 8193}, "max_model_len_beyond_model"),
    ],
)
def test_flags_that_would_stop_the_start_are_refused(flags: dict[str, Any], code: str) -> None:
    _, _, refusals = pool_of(llama(max_position_embeddings=8192), 24 * GIB, **flags)
    assert [refusal.code for refusal in refusals] == [code]


@pytest.mark.parametrize(
    ("gib", "name", "batched", "seqs"),
    [
        (178.3, "B200", 16384, 1024),
        (79.19, "H100 80GB", 8192, 1024),
        (79.25, "A100 80GB", 2048, 256),
        (23.55, "RTX 4090", 2048, 256),
        (0, "", 2048, 256),
    ],
)
def test_batch_defaults_follow_the_card(gib: float, name: str, batched: int, seqs: int) -> None:
    settings = ENGINE.settle(llama(), EngineFlags(), int(gib * GIB), name)
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (batched, seqs)
    assert settings.max_in_flight_tokens == 2 * batched


def test_default_batches_never_exceed_what_the_sequences_could_hold() -> None:
    settings = ENGINE.settle(llama(), EngineFlags(max_num_seqs=4, max_model_len=100), 0, "")
    assert settings.max_num_batched_tokens == 400
    settings = ENGINE.settle(llama(), EngineFlags(max_num_batched_tokens=64), 0, "")
    assert settings.max_num_seqs == 64


@pytest.mark.parametrize(
    ("asynchronous", "stages", "batches"), [(None, 1, 2), (True, 4, 5), (False, 1, 1), (False, 4, 4)]
)
def test_in_flight_tokens_are_those_of_all_concurrent_batches(
    asynchronous: bool | None, stages: int, batches: int
) -> None:
    flags = EngineFlags(async_scheduling=asynchronous, pipeline_parallel_size=stages, max_num_batched_tokens=1000)
    assert ENGINE.settle(llama(), flags, 0, "").max_in_flight_tokens == batches * 1000


@pytest.mark.parametrize(
    ("dtype", "size"), [("auto", 2), ("bfloat16", 2), ("float16", 2), ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1)]
)
def test_the_cache_dtype_sizes_the_page(dtype: str, size: int) -> None:
    settings = ENGINE.settle(llama(), EngineFlags(kv_cache_dtype=dtype), 0, "")
    assert ENGINE.stages(llama(), settings)[0].layout.bytes_per_block == 32 * 8 * 16 * 256 * size


def test_the_cache_follows_a_float32_model_only_when_that_is_asked_for() -> None:
    assert ENGINE.settle(llama(torch_dtype="float32"), EngineFlags(), 0, "").kv_element_bytes == 2
    assert ENGINE.settle(llama(), EngineFlags(dtype="float32"), 0, "").kv_element_bytes == 4


def test_auto_takes_the_cache_dtype_that_the_checkpoint_prescribes() -> None:
    scheme = {"type": "float", "num_bits": 8, "dynamic": False}
    model = llama(quantization_config={"quant_method": "modelopt", "kv_cache_scheme": scheme})
    settings = ENGINE.settle(model, EngineFlags(), 0, "")
    assert (settings.kv_cache_dtype, settings.kv_element_bytes) == ("fp8_e4m3", 1)
    assert ENGINE.settle(model, EngineFlags(kv_cache_dtype="bfloat16"), 0, "").kv_element_bytes == 2
    unnamed = llama(quantization_config={"kv_cache_scheme": "FP8"})  # get_kv_cache_quant_algo_string: of modelopt only
    assert ENGINE.settle(unnamed, EngineFlags(), 0, "").kv_element_bytes == 2


@pytest.mark.parametrize(
    ("dtype", "token_bytes"),
    [
        ("nvfp4", 8 * 2 * (64 + 8)),  # 4 bits, and a scale byte for each 16
        ("fp8_per_token_head", 8 * (256 + 2 * 4)),  # a float32 scale for each key and value
        ("int8_per_token_head", 8 * (256 + 2 * 4)),
        ("int4_per_token_head", 8 * (128 + 2 * 4)),
        ("fp8_e5m2", 8 * 256),
    ],
)
def test_a_cache_format_with_scales_pays_for_them(dtype: str, token_bytes: int) -> None:
    settings, _, _ = pool_of(llama(), GIB, kv_cache_dtype=dtype, max_model_len=1024)
    (stage,) = ENGINE.stages(llama(), settings)
    assert stage.layout.groups[0].page_size_bytes == 16 * token_bytes


@pytest.mark.parametrize("dtype", ["fp8_ds_mla", "nvfp4_ds_mla", "ultraquant_4bit"])
def test_a_cache_format_that_does_not_suit_the_model_is_refused_not_approximated(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match=dtype):
        pool_of(llama(), GIB, kv_cache_dtype=dtype, max_model_len=1024)


def test_unknown_dtypes_are_bad_values() -> None:
    with pytest.raises(BadValueError, match="kv-cache-dtype"):
        ENGINE.settle(llama(), EngineFlags(kv_cache_dtype="fp7"), 0, "")
    with pytest.raises(BadValueError, match="--dtype"):
        ENGINE.settle(llama(), EngineFlags(dtype="int3"), 0, "")


def test_usable_memory_is_a_share_of_the_total_rounded_up() -> None:
    settings = ENGINE.settle(llama(), EngineFlags(), 0, "")
    assert ENGINE.usable_memory(101, settings) == 93  # 92.92
    assert settings.gpu_memory_utilization == 0.92


@given(layers=st.integers(1, 200), stages=st.integers(1, 64))
def test_stages_split_the_layers_as_the_engine_does(layers: int, stages: int) -> None:
    if stages > layers:
        with pytest.raises(BadValueError, match="pipeline"):
            ENGINE.settle(llama(layers), EngineFlags(pipeline_parallel_size=stages), 0, "")
        return
    settings = ENGINE.settle(llama(layers), EngineFlags(pipeline_parallel_size=stages), 0, "")
    bounds = [(stage.first, stage.end) for stage in ENGINE.stages(llama(layers), settings)]
    # brute force: hand out what is left over one by one, from the last but one stage backwards
    sizes = [layers // stages] * stages
    left, position = layers % stages, stages - 2
    while left:
        sizes[position] += 1
        left, position = left - 1, position - 1
    expected = [(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(stages)]
    assert bounds == expected


@given(
    blocks=st.integers(1, 400),
    length=st.integers(1, 5000),
    block_size=st.sampled_from([16, 32, 48]),
    limit=st.none() | st.integers(1, 5000),
)
def test_the_largest_length_is_the_last_one_that_starts(
    blocks: int, length: int, block_size: int, limit: int | None
) -> None:
    model = llama(max_position_embeddings=limit or 131072)
    _, pool, _ = pool_of(model, 0, num_gpu_blocks_override=blocks, max_model_len=length, block_size=block_size)

    def starts(candidate: int) -> bool:
        codes = {
            refusal.code
            for refusal in pool_of(
                model, 0, num_gpu_blocks_override=blocks, max_model_len=candidate, block_size=block_size
            )[2]
        }
        return not codes

    largest = pool.largest_max_model_len
    assert largest == 0 or starts(largest)
    assert not starts(largest + 1)


@given(available=st.lists(st.integers(0, 10**12), min_size=3, max_size=3))
def test_the_stage_with_the_fewest_blocks_decides_for_all(available: list[int]) -> None:
    model = llama(31)
    settings = ENGINE.settle(model, EngineFlags(pipeline_parallel_size=3), 0, "")
    stages = ENGINE.stages(model, settings)
    pool = ENGINE.pool(model, settings, stages, available)
    per_stage = [space // stage.layout.bytes_per_block for stage, space in zip(stages, available, strict=True)]
    assert pool.num_blocks == min(per_stage)
    assert per_stage[pool.stage] == min(per_stage)


def test_an_automatic_length_is_the_largest_that_fits_up_to_the_model_s_own() -> None:
    model = llama(max_position_embeddings=131072)
    _, pool, refusals = pool_of(model, 8 * GIB, max_model_len=AUTO_LENGTH)
    assert (pool.max_model_len, refusals) == (65520, [])
    _, pool, refusals = pool_of(model, 80 * GIB, max_model_len=AUTO_LENGTH)
    assert (pool.max_model_len, refusals) == (131072, [])


@pytest.mark.parametrize(
    ("name", "version"),
    [("vllm", "0.32"), ("vllm@0.32", "0.32"), ("vllm@0.32.1", "0.32.1"), ("vllm@0.19.1rc1", "0.19.1rc1")],
)
def test_the_engine_is_found_by_name_and_version(name: str, version: str) -> None:
    assert (engine_named(name).name, engine_named(name).version) == ("vllm", version)


@pytest.mark.parametrize("name", ["vllm@0.3", "vllm@0.320", "vllm@latest", "nope", ""])
def test_versions_and_engines_that_are_not_known_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match="--engine"):
        engine_named(name)


def test_a_share_that_the_cuda_context_leaves_no_room_for_is_refused() -> None:
    total = int(79.19 * GIB)
    _, pool, _ = pool_of(llama(), GIB, max_model_len=1024)

    def found(share: float, card: str) -> list[Refusal]:
        settings = ENGINE.settle(llama(), EngineFlags(gpu_memory_utilization=share), total, card)
        return ENGINE.overruns(settings, total, Taken(0, 0, 0, 0), pool)

    assert found(0.99, "H100 80GB") == found(1.0, "") == []
    (refusal,) = found(1.0, "H100 80GB")
    assert refusal.code == "free_memory_below_share"
    assert "(about 78.68/79.19 GiB)" in refusal.message
    assert refusal.fix.startswith("use --gpu-memory-utilization 0.99")
