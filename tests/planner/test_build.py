"""Whole plans: first the numbers that the product's founding documents state, then ceilings and findings."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.document import plan_json
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.lengths import parse_lengths
from kvbudget.units import GIB, Bytes

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
MakeRequest = Callable[..., PlanRequest]
GB = 10**9
# 40 layers x 40 heads x 128 x 2 x 2 bytes = 819,200 bytes a token: the documents' "0.8 MB"
WIDE = {"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 40}


def codes(plan: Plan) -> list[str]:
    return [finding.code for finding in plan.findings]


def test_a_token_of_32_layers_with_8_heads_of_128_is_128_kib(request_of: MakeRequest) -> None:
    document: Any = plan_json(make_plan(request_of(kv_cache_memory=Bytes(17 * GIB), max_model_len=8192)))
    assert document["kv"]["bytes_per_token"] == 131072
    assert document["kv"]["bytes_per_request"] * 16 == 16 * GIB


def test_24_gib_minus_16_weights_minus_2_overhead_is_6_gib_and_49152_tokens(request_of: MakeRequest) -> None:
    plan = make_plan(
        request_of(
            weights=16 * GIB,
            gpu_memory=Bytes(24 * GIB),
            overhead=Bytes(2 * GIB),
            activation=Bytes(0),
            gpu_memory_utilization=1.0,
            max_model_len=8192,
        )
    )
    assert plan.memory.kv.bytes == 6 * GIB
    assert (plan.pool.tokens, plan.pool.concurrency) == (49152, 6.0)  # six requests of 8k, as the engine prints it
    assert plan.ceilings.ceiling == 5  # the null block is missing for the sixth


def test_8001_tokens_take_501_blocks_and_waste_15_slots(request_of: MakeRequest) -> None:
    document: Any = plan_json(make_plan(request_of(kv_cache_memory=Bytes(24 * GIB), max_model_len=8001)))
    assert document["kv"]["groups"][0]["blocks_per_request"] == 501
    assert document["tail_waste"] == {"slots": 15, "fraction": 15 / 8016}


def wide_plan(request_of: MakeRequest, ranks: int) -> Plan:
    return make_plan(
        request_of(
            config=WIDE,
            weights=42 * GB,
            gpu_memory=Bytes(80 * GB),
            activation=Bytes(4 * GB),
            overhead=Bytes(0),
            gpu_memory_utilization=0.9,
            max_model_len=4096,
            tensor_parallel_size=ranks,
        )
    )


def test_80_gb_at_90_percent_minus_42_minus_4_holds_7_requests_of_4096(request_of: MakeRequest) -> None:
    plan = wide_plan(request_of, 1)
    assert plan.memory.usable.bytes == 72 * GB
    assert plan.memory.kv.bytes == 26 * GB
    assert plan.stage.layout.bytes_per_token == 819_200
    assert round(plan.pool.concurrency, 1) == 7.7
    assert (plan.ceilings.ceiling, plan.ceilings.limited_by) == (7, "pool")


def test_two_tensor_parallel_cards_more_than_triple_the_pool(request_of: MakeRequest) -> None:
    one, two = wide_plan(request_of, 1), wide_plan(request_of, 2)
    assert two.memory.kv.bytes == 47 * GB  # 72 - 21 - 4: the weights are split too
    assert two.ceilings.ceiling == 28
    assert two.pool.tokens > 3 * one.pool.tokens


def test_a_quarter_of_the_heads_is_a_quarter_of_the_cache(request_of: MakeRequest) -> None:
    many, few = (
        make_plan(request_of(config={"num_key_value_heads": heads}, kv_cache_memory=Bytes(80 * GIB)))
        for heads in (32, 8)
    )
    assert many.stage.layout.bytes_per_token == 4 * few.stage.layout.bytes_per_token


def test_one_million_tokens_cost_128_times_8k(request_of: MakeRequest) -> None:
    config = {"max_position_embeddings": 2**20}
    long, short = (
        make_plan(request_of(config=config, kv_cache_memory=Bytes(200 * GIB), max_model_len=length))
        for length in (2**20, 8192)
    )
    assert long.pool.blocks_per_request == 128 * short.pool.blocks_per_request


def test_the_ceiling_is_limited_by_max_num_seqs_when_the_pool_would_hold_more(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(kv_cache_memory=Bytes(80 * GIB), max_model_len=1024, max_num_seqs=16))
    assert (plan.ceilings.ceiling, plan.ceilings.limited_by) == (16, "max_num_seqs")
    assert (plan.ceilings.p50, plan.ceilings.p99) == (16, 16)


def test_without_lengths_every_request_is_taken_at_full_length(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(kv_cache_memory=Bytes(24 * GIB), max_model_len=8192))
    assert plan.ceilings.lengths == (8192, 8192, 8192)
    assert plan.ceilings.p50 == plan.ceilings.ceiling == 23  # 24.0x printed, one block short


def test_percentile_ceilings_add_prompt_and_output(request_of: MakeRequest) -> None:
    plan = make_plan(
        request_of(
            kv_cache_memory=Bytes(24 * GIB),
            max_model_len=8192,
            prompt_lengths=parse_lengths("p50=800,p95=4000", "--prompt-lengths"),
            output_lengths=parse_lengths("p50=200,p95=96,p99=8k".replace("p95=96", "p95=400"), "--output-lengths"),
        )
    )
    assert plan.ceilings.lengths == (1000, 4400, 8192)  # p99 of the prompt is not given: derived, and cut
    assert (plan.ceilings.p50, plan.ceilings.p95, plan.ceilings.p99) == (12287 // 63, 12287 // 275, 23)


def test_lengths_beyond_the_context_are_cut_and_named(request_of: MakeRequest) -> None:
    plan = make_plan(
        request_of(
            kv_cache_memory=Bytes(24 * GIB),
            max_model_len=4096,
            prompt_lengths=parse_lengths("p50=800,p95=4000,p99=8000", "--prompt-lengths"),
            output_lengths=parse_lengths("p50=10,p95=10,p99=10", "--output-lengths"),
        )
    )
    assert plan.fits
    assert codes(plan) == ["length_beyond_max_model_len"]
    assert plan.ceilings.lengths[2] == 4096


def test_a_plan_that_does_not_fit_is_whole(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=gpu_named("rtx-4090")))
    document: Any = plan_json(plan)
    assert not plan.fits
    assert codes(plan) == ["max_model_len_too_large"]
    assert document["fits"] is False
    assert 0 < document["concurrency"]["largest_max_model_len"] < 131072
    assert document["concurrency"]["ceiling"] == 0
    assert plan.low_end is not None
    assert document["findings"][0]["fix"].startswith(f"use --max-model-len {plan.low_end.largest_max_model_len}, ")
    assert f"(best estimate: {plan.pool.largest_max_model_len})" in document["findings"][0]["fix"]


def test_weights_larger_than_the_card_leave_no_blocks(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(weights=100 * GIB, gpu=gpu_named("h100"), max_model_len=8192))
    assert plan.memory.kv.bytes < 0
    assert codes(plan) == ["no_kv_memory"]
    assert (plan.pool.num_blocks, plan.pool.tokens, plan.pool.largest_max_model_len) == (0, 0, 0)


def test_a_missed_target_is_an_error_and_a_met_one_is_not(request_of: MakeRequest) -> None:
    missed, met = (
        make_plan(request_of(kv_cache_memory=Bytes(24 * GIB), max_model_len=8192, target_concurrency=n))
        for n in (24, 23)
    )
    assert (missed.fits, codes(missed)) == (False, ["below_target_concurrency"])
    assert (met.fits, codes(met)) == (True, [])


@pytest.mark.parametrize(("gpus", "code", "fits"), [(1, "too_few_gpus", False), (8, "gpus_idle", True)])
def test_ranks_and_cards_are_compared(request_of: MakeRequest, gpus: int, code: str, fits: bool) -> None:
    plan = make_plan(request_of(gpu=gpu_named("h100"), gpus=gpus, tensor_parallel_size=2, max_model_len=8192))
    assert (codes(plan), plan.fits) == ([code], fits)


def test_a_given_pool_that_the_card_cannot_hold_is_an_error(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(kv_cache_memory=Bytes(70 * GIB), gpu=gpu_named("h100"), max_model_len=8192))
    assert codes(plan) == ["pool_beyond_memory"]


@pytest.mark.parametrize(
    "change",
    [
        {"tensor_parallel_size": 0},
        {"pipeline_parallel_size": 0},
        {"pipeline_parallel_size": 33},
        {"block_size": -16},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 0},
        {"num_gpu_blocks_override": 0},
        {"max_model_len": 0},
        {"max_model_len": -2},
        {"gpus": 0},
        {"gpu_memory_utilization": 0.0},
        {"gpu_memory_utilization": 1.01},
        {"gpu_memory_utilization": float("nan")},
        {"prompt_lengths": parse_lengths("p50=1", "--prompt-lengths")},
        {"kv_cache_memory": None},
    ],
)
def test_impossible_inputs_are_refused_by_flag(request_of: MakeRequest, change: dict[str, Any]) -> None:
    with pytest.raises(BadValueError) as caught:
        make_plan(request_of(**({"kv_cache_memory": Bytes(GIB)} | change)))
    assert caught.value.fix


def test_weights_that_nothing_tells_are_asked_for_not_guessed(request_of: MakeRequest) -> None:
    quantised = {"quantization_config": {"quant_method": "awq"}}
    with pytest.raises(UnsupportedError, match="awq") as caught:
        make_plan(request_of(config=quantised, gpu=gpu_named("h100")))
    assert "--weights" in caught.value.fix
    assert make_plan(request_of(config=quantised, weights=5 * GIB, gpu=gpu_named("h100"), max_model_len=8192)).fits
    assert make_plan(request_of(config=quantised, kv_cache_memory=Bytes(24 * GIB), max_model_len=8192)).fits


LLAMA_70B = {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}


@pytest.mark.parametrize(
    ("gpu", "length", "ranks"), [("h100", 8192, 2), ("h100", 131072, 4), ("l40s", 4096, 4), ("rtx-4090", 4096, 8)]
)
def test_weights_beyond_the_card_are_answered_with_the_smallest_split_that_fits(
    request_of: MakeRequest, gpu: str, length: int, ranks: int
) -> None:
    given = {"config": LLAMA_70B, "gpu": gpu_named(gpu), "max_model_len": length}
    (finding,) = make_plan(request_of(**given)).findings
    assert finding.code == "no_kv_memory"
    assert "gpu-memory-utilization" not in finding.fix
    assert finding.fix.startswith(f"use --tensor-parallel-size {ranks},")
    assert make_plan(request_of(**given, tensor_parallel_size=ranks)).fits
    assert not make_plan(request_of(**given, tensor_parallel_size=ranks // 2)).fits


def test_where_no_split_helps_none_is_named(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(config=LLAMA_70B, gpu=gpu_named("t4"), overhead=Bytes(15 * GIB), max_model_len=8192))
    assert codes(plan) == ["no_kv_memory"]
    assert "--tensor-parallel-size" not in plan.findings[0].fix
    assert "gpu-memory-utilization" not in plan.findings[0].fix


def test_more_utilization_is_advised_only_where_it_helps(request_of: MakeRequest) -> None:
    given = {"weights": 20 * GIB, "gpu_memory": Bytes(24 * GIB), "activation": Bytes(GIB), "overhead": Bytes(GIB)}
    plan = make_plan(request_of(**given, gpu_memory_utilization=0.8, max_model_len=8192))
    assert codes(plan) == ["no_kv_memory"]
    assert "raise --gpu-memory-utilization" in plan.findings[0].fix


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("nvidia--Qwen3-235B-A22B-NVFP4", "NVFP4"),
        ("Llama-3.1-8B-Instruct-FP8-KV", "FP8"),
        ("Qwen2.5-7B-Instruct-AWQ", "AWQ"),
        ("llama_gptq_4bit", "gptq"),
        ("model.int8", "int8"),
        ("Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "quantized"),
        ("x-W8A8", "W8A8"),
        ("gpt-MXFP4", "MXFP4"),
        ("Llama-3.1-8B-bnb-4bit", "bnb"),
        ("x-FP8-dynamic", "FP8"),
        ("Llama-3.1-8B", ""),
        ("Hawqs-8B", ""),
        ("Llama-3.1-8B-FP16", ""),
        ("point8-int80-xfp8", ""),
    ],
)
def test_a_quantisation_in_the_name_is_a_whole_word(request_of: MakeRequest, name: str, word: str) -> None:
    request = request_of(gpu=gpu_named("h100"), max_model_len=8192)
    for model in (
        model_from_config(LLAMA_8B, name),
        model_from_config(LLAMA_8B | {"_name_or_path": f"org/{name}"}, "a-folder"),
    ):
        plan = make_plan(request._replace(model=model))
        assert codes(plan) == (["quantisation_only_in_name"] if word else [])
        assert plan.fits
        assert word in (plan.findings[0].message if word else "")


def test_a_quantisation_that_the_config_tells_is_not_warned_of(request_of: MakeRequest) -> None:
    request = request_of(gpu=gpu_named("h100"), max_model_len=8192)
    config = LLAMA_8B | {"quantization_config": {"quant_method": "fp8"}}
    assert codes(make_plan(request._replace(model=model_from_config(config, "Llama-FP8")))) == []


@given(
    kv=st.integers(0, 2**45),
    length=st.integers(1, 2**20),
    ranks=st.sampled_from([1, 2, 4, 8]),
    stages=st.integers(1, 8),
    dtype=st.sampled_from(["auto", "fp8"]),
)
def test_a_plan_never_promises_more_than_the_bytes_hold(
    kv: int, length: int, ranks: int, stages: int, dtype: str
) -> None:
    model = model_from_config({"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 32000})
    flags = EngineFlags(
        max_model_len=length, tensor_parallel_size=ranks, pipeline_parallel_size=stages, kv_cache_dtype=dtype
    )
    plan = make_plan(PlanRequest(model=model, engine="vllm", flags=flags, kv_cache_memory=Bytes(kv)))
    layout, pool = plan.stage.layout, plan.pool
    assert pool.bytes <= kv < pool.bytes + layout.bytes_per_block
    assert plan.ceilings.ceiling * pool.blocks_per_request <= pool.usable_blocks
    assert plan.ceilings.ceiling <= plan.settings.max_num_seqs
    assert plan.fits == (pool.blocks_per_request <= pool.usable_blocks)
    assert plan.fits == (plan.ceilings.ceiling >= 1)
    assert pool.largest_max_model_len * layout.bytes_per_token <= kv
