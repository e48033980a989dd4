"""What an engine takes besides weights and pool, against figures of public logs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.planner.hardware.estimates import (
    Interval,
    Run,
    Shape,
    activation_peak,
    cuda_graphs,
    graph_count,
    graphs_are_counted,
    non_torch,
    overheads,
    version_of,
)
from kvbudget.units import GIB, Bytes

LLAMA_8B = Shape(128256, 4096, 14336)
QWEN3_14B = Shape(151936, 5120, 17408)
QWEN3_30B = Shape(151936, 2048, 6144, experts_per_token=8, expert_intermediate_size=768)
MIXTRAL = Shape(32000, 4096, 14336, experts_per_token=2, expert_intermediate_size=14336)
GPT_OSS = Shape(201088, 2880, 2880)  # MXFP4: no workspace of its own
CODELLAMA = Shape(32016, 4096, 11008)


def run(version: str, seqs: int = 1024, tokens: int = 8192, **more: Any) -> Run:
    return Run(version_of(version), seqs, tokens)._replace(**more)


def gib(size: int) -> float:
    return size / GIB


@pytest.mark.parametrize(
    ("shape", "how", "reported"),
    [
        # llm-d-planner accuracy report, H100; Qwen3-14B fell from 5.64 to 2.23 GiB with 0.17
        (QWEN3_14B, run("0.16.0"), 5.64),
        (QWEN3_14B, run("0.17.0"), 2.23),
        (LLAMA_8B, run("0.19.0"), 1.89),
        (LLAMA_8B, run("0.19.0", tensor_parallel_size=4), 1.89),  # sampling is not split
        (QWEN3_30B, run("0.19.0"), 2.68),
        (MIXTRAL, run("0.19.0", tensor_parallel_size=2), 1.21),
        (CODELLAMA, run("0.19.0"), 0.77),  # the forward pass decides
        (LLAMA_8B, run("0.19.0", pipeline_parallel_size=4, samples=False), 1.05),  # compiling decides
        (GPT_OSS, run("0.11.0"), 7.38),
        # vLLM PR 10511 and issue 13882
        (LLAMA_8B, run("0.6.5", seqs=256), 1.26),
        (Shape(152064, 3584, 18944), run("0.7.3", seqs=256, tokens=4096), 1.42),
        # public logs of 0.26: gemma-4-31B on a B300, Qwen2.5-0.5B on a 16 GB card
        (Shape(262144, 5376, 21504, multimodal=True), run("0.26.0"), 3.9),
        (Shape(151936, 896, 4864), run("0.26.0", seqs=256, tokens=32768, compile_cached=True), 1.06),
    ],
)
def test_the_activation_peak_of_public_logs(shape: Shape, how: Run, reported: float) -> None:
    peak = activation_peak(shape, how)
    assert gib(peak.best) == pytest.approx(reported, abs=0.03 + 0.02 * reported)
    assert gib(peak.low) <= reported <= gib(peak.high)


def test_a_first_start_is_charged_for_the_compilers_copy_of_the_embedding() -> None:
    # vLLM PR 54479: Qwen3-32B-AWQ on two 4090s, 0.28, lost 0.47 GiB of the pool at its first start
    shape = Shape(151936, 5120, 25600)
    how = run("0.28.0", seqs=40, tokens=3584, tensor_parallel_size=2)
    cold = activation_peak(shape, how._replace(compile_cached=False))
    warm = activation_peak(shape, how._replace(compile_cached=True))
    assert gib(cold.best - warm.best) == pytest.approx(0.47, abs=0.1)
    unknown = activation_peak(shape, how)
    assert unknown.best == cold.best
    assert unknown.low < warm.best
    assert activation_peak(shape, how._replace(enforce_eager=True)).best == warm.best


def test_the_peak_grows_with_sequences_where_sampling_decides_and_with_tokens_where_the_forward_pass_does() -> None:
    for more, fewer in ((1024, 512), (512, 256)):
        assert activation_peak(QWEN3_14B, run("0.16", more)).best > activation_peak(QWEN3_14B, run("0.16", fewer)).best
    assert activation_peak(CODELLAMA, run("0.19", tokens=16384)).best > activation_peak(CODELLAMA, run("0.19")).best


@pytest.mark.parametrize(
    ("how", "reported"),
    [
        (run("0.19", tensor_parallel_size=1), 0.25),
        (run("0.17"), 0.13),
        (run("0.19", tensor_parallel_size=2), 2.07),
        (run("0.19", tensor_parallel_size=4), 2.13),
        (run("0.11", tensor_parallel_size=2), 0.55),
        (run("0.19", pipeline_parallel_size=2, samples=False), 0.07),
    ],
)
def test_non_torch_memory_of_public_logs(how: Run, reported: float) -> None:
    told = non_torch(LLAMA_8B, how)
    assert gib(told.best) == pytest.approx(reported, abs=0.06)
    assert gib(told.low) <= reported <= gib(told.high)


def test_cards_without_nvlink_have_no_fused_all_reduce_buffers() -> None:
    how = run("0.28", tensor_parallel_size=2)
    assert gib(non_torch(LLAMA_8B, how).best - non_torch(LLAMA_8B, how._replace(nvlink=False)).best) > 1.5


@pytest.mark.parametrize(("seqs", "graphs"), [(1024, 102), (256, 86), (128, 54), (16, 7 + 5), (1, 3)])
def test_as_many_graphs_are_captured_as_logs_say(seqs: int, graphs: int) -> None:
    # "Profiling CUDA graph memory: PIECEWISE=51 (largest=512), FULL=35 (largest=256)" is a log of 256 sequences
    assert graph_count(run("0.22", seqs)) == graphs


def test_graphs_are_taken_off_before_the_pool_is_sized_since_0_20() -> None:
    before, since = overheads(LLAMA_8B, run("0.19.1")), overheads(LLAMA_8B, run("0.20.0"))
    assert before.cuda_graphs == Interval(Bytes(0), Bytes(0), Bytes(0))
    assert before.graphs_later.best > 0
    assert since.cuda_graphs == since.graphs_later
    assert 0.4 < gib(since.cuda_graphs.best) < 1.1


def test_the_second_model_runner_did_not_profile_graphs_at_first() -> None:
    assert not graphs_are_counted(LLAMA_8B, run("0.26"))
    assert graphs_are_counted(LLAMA_8B._replace(multimodal=True), run("0.26"))
    assert graphs_are_counted(LLAMA_8B, run("0.32"))


def test_eager_mode_captures_nothing() -> None:
    assert cuda_graphs(LLAMA_8B, run("0.32", enforce_eager=True)).high == 0


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32)),
        ("v0.19.1rc1", (0, 19)),
        ("0.8", (0, 8)),
        ("1.0", (1, 0)),
        ("nightly", (99, 0)),
        ("", (99, 0)),
    ],
)
def test_versions_are_read_and_what_cannot_be_read_is_the_newest(text: str, version: tuple[int, int]) -> None:
    assert version_of(text) == version


SHAPES = st.builds(
    Shape,
    st.integers(1, 10**6),
    st.integers(1, 32768),
    st.integers(0, 10**6),
    st.integers(0, 64),
    st.integers(0, 32768),
    st.booleans(),
    st.booleans(),
)
RUNS = st.builds(
    Run,
    st.tuples(st.integers(0, 1), st.integers(0, 40)),
    st.integers(1, 4096),
    st.integers(1, 10**6),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 64),
    st.integers(1, 16),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.none() | st.booleans(),
    st.sampled_from([512, 1024]),
)


@given(SHAPES, RUNS)
def test_every_interval_holds_its_best_number_and_is_not_negative(shape: Shape, how: Run) -> None:
    told = overheads(shape, how)
    for part in (told.activation, told.cuda_graphs, told.non_torch, told.graphs_later, told.total):
        assert 0 <= part.low <= part.best <= part.high


@given(SHAPES, RUNS)
def test_the_sum_is_no_wider_than_its_parts_together(shape: Shape, how: Run) -> None:
    told = overheads(shape, how)
    parts = (told.activation, told.cuda_graphs, told.non_torch)
    assert told.total.best == sum(part.best for part in parts)
    assert told.total.high <= sum(part.high for part in parts) + 3
    assert told.total.low >= sum(part.low for part in parts) - 3
