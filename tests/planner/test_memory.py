"""The split of a card's memory: what was given, measured, computed or estimated, and by which rank."""

from collections.abc import Callable

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import GPUS, gpu_named
from kvbudget.planner.request import Amount, PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]


def test_every_number_says_where_it_comes_from(request_of: MakeRequest) -> None:
    memory = make_plan(request_of(gpu=gpu_named("h100"), max_model_len=8192)).memory
    assert {name: amount.source for name, amount in memory._asdict().items()} == {
        "total": "measured",
        "usable": "measured",
        "weights": "computed",
        "activation": "estimated",
        "cuda_graphs": "estimated",
        "non_torch": "estimated",
        "kv": "estimated",
    }


def test_with_all_of_it_given_the_rest_is_computed(request_of: MakeRequest) -> None:
    memory = make_plan(
        request_of(
            weights=16 * GIB,
            gpu_memory=Bytes(24 * GIB),
            activation=Bytes(GIB),
            overhead=Bytes(GIB),
            max_model_len=1024,
        )
    ).memory
    assert (memory.weights.source, memory.activation.source, memory.non_torch.source) == ("given", "given", "given")
    assert (memory.usable.source, memory.kv.source) == ("computed", "computed")
    parts = memory.weights.bytes + memory.activation.bytes + memory.cuda_graphs.bytes + memory.non_torch.bytes
    assert memory.usable.bytes - parts == memory.kv.bytes


def test_a_given_pool_skips_all_else(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(kv_cache_memory=Bytes(24 * GIB), gpu=gpu_named("h100"), max_model_len=8192))
    assert plan.memory.kv == Amount(Bytes(24 * GIB), "given", "--kv-cache-memory-bytes")
    assert plan.memory.activation.bytes == 0
    assert plan.pool.num_blocks == 12288


def test_an_override_replaces_whatever_memory_there_is(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(num_gpu_blocks_override=65, block_size=32, max_model_len=1024, gpu=gpu_named("t4")))
    assert (plan.pool.num_blocks, plan.pool.tokens) == (65, 2080)
    assert plan.memory.kv.source == "computed"


def test_weights_are_split_over_ranks_and_stages(request_of: MakeRequest) -> None:
    def weights(**flags: int) -> int:
        return make_plan(
            request_of(weights=16 * GIB, gpu=gpu_named("h100"), max_model_len=8192, **flags)
        ).memory.weights.bytes

    assert weights() == 16 * GIB
    assert weights(tensor_parallel_size=4) == 4 * GIB
    assert weights(pipeline_parallel_size=2) == pytest.approx(8 * GIB, rel=1e-5)
    assert weights(pipeline_parallel_size=4) > 4 * GIB  # the deciding stage also holds the embedding or the head


def test_the_stage_with_the_table_decides_the_pool(request_of: MakeRequest) -> None:
    """Four stages of 8 layers: the first and the last also hold embedding or head, so they have the fewest blocks."""
    plan = make_plan(request_of(gpu=gpu_named("rtx-4090"), pipeline_parallel_size=4, max_model_len=8192))
    assert plan.stage.first in (0, 24)


def test_measured_weights_keep_their_source(request_of: MakeRequest) -> None:
    measured = Amount(Bytes(15 * GIB), "measured", "4 safetensors file(s)")
    memory = make_plan(
        request_of(weights=None, gpu=gpu_named("h100"), max_model_len=8192)._replace(weights=measured)
    ).memory
    rotary_tables = 32 * 2**20  # 131,072 positions x 128 x 2 bytes, made beside the weights
    assert (memory.weights.bytes, memory.weights.source) == (15 * GIB + rotary_tables, "measured")


@pytest.mark.parametrize(("vocabulary", "seen_gib"), [(128256, 1.89), (152064, 2.21), (151936, 2.23), (262208, 3.99)])
def test_the_activation_that_public_logs_show_lies_in_the_interval(
    request_of: MakeRequest, vocabulary: int, seen_gib: float
) -> None:
    request = request_of(config={"vocab_size": vocabulary}, gpu=gpu_named("h100"), max_model_len=8192)
    activation = make_plan(request._replace(engine="vllm@0.19")).memory.activation
    assert activation.low is not None
    assert activation.high is not None
    assert activation.low <= seen_gib * GIB <= activation.high


def test_an_h100_with_llama_8b_comes_within_two_percent_of_its_start_up_log(request_of: MakeRequest) -> None:
    """Public log of vLLM 0.19: utilisation 0.95, max_model_len 8,192: 58.11 GiB, 29,751 blocks."""
    request = request_of(gpu=gpu_named("h100"), gpu_memory_utilization=0.95, max_model_len=8192)
    plan = make_plan(request._replace(engine="vllm@0.19"))
    assert plan.pool.num_blocks == pytest.approx(29751, rel=0.02)
    kv = plan.memory.kv
    assert kv.low is not None
    assert kv.high is not None
    assert kv.low <= 58.11 * GIB <= kv.high


def test_what_is_left_errs_as_its_parts_do_together(request_of: MakeRequest) -> None:
    memory = make_plan(request_of(gpu=gpu_named("h100"), max_model_len=8192)).memory
    parts = (memory.activation, memory.cuda_graphs, memory.non_torch)
    less = sum((part.high - part.bytes) ** 2 for part in parts if part.high is not None) ** 0.5
    assert memory.kv.low == memory.kv.bytes - int(less)
    given = make_plan(request_of(gpu=gpu_named("h100"), activation=Bytes(GIB), overhead=Bytes(GIB))).memory
    assert (given.kv.low, given.kv.high) == (None, None)


def test_no_memory_at_all_is_a_usage_error(request_of: MakeRequest) -> None:
    with pytest.raises(BadValueError, match="memory"):
        make_plan(request_of())


def test_cards_have_the_memory_that_a_process_sees() -> None:
    assert gpu_named("H100").memory_bytes / GIB == pytest.approx(79.19, abs=0.005)
    assert gpu_named("rtx 4090") is GPUS["rtx-4090"]
    assert all(gpu.source in ("measured", "estimated") for gpu in GPUS.values())


def test_an_unknown_card_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(Exception, match="h100-80gb"):
        gpu_named("voodoo2")


def test_llama_cpp_keeps_the_embedding_in_the_machine_and_a_copy_of_it_as_the_output_where_it_is_tied(
    request_of: MakeRequest,
) -> None:
    """src/llama-model.cpp: load_tensors: dev_input is the CPU."""
    embedding = 128256 * 4096 * 2
    for tied in (False, True):
        request = request_of(config={"tie_word_embeddings": tied}, gpu=gpu_named("h100"), max_model_len=8192)
        every = request._replace(engine="llamacpp")

        def weights(layers: int | None, request: PlanRequest = every) -> int:
            return make_plan(request._replace(flags=request.flags._replace(gpu_layers=layers))).memory.weights.bytes

        whole = make_plan(request).memory.weights.bytes
        assert whole - weights(None) == pytest.approx(0 if tied else embedding, abs=4 * 2**20)
        assert weights(0) == 0
        assert weights(1) == pytest.approx(embedding, abs=40 * 2**20)
        a_layer = weights(3) - weights(2)
        assert weights(33) == weights(None) == weights(1) + 32 * a_layer


def test_sizes_that_are_given_or_measured_are_shared_out_over_what_a_card_holds(request_of: MakeRequest) -> None:
    for source in ("given", "measured"):
        request = request_of(gpu=gpu_named("h100"), max_model_len=8192)._replace(engine="llamacpp")
        request = request._replace(weights=Amount(Bytes(8 * GIB), source, ""))
        seen = [
            make_plan(request._replace(flags=request.flags._replace(gpu_layers=count))).memory.weights.bytes
            for count in (0, 1, 2, 17, 33)
        ]
        assert seen[0] == 0
        assert seen == sorted(seen)
        assert seen[-1] < 8 * GIB
