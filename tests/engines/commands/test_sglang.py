"""SGLang's flags become the planner's."""

from collections.abc import Callable

import pytest

from kvbudget.engines.commands.command import Command
from kvbudget.engines.commands.sglang import refused_by
from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadValueError, UnsupportedError

ReadLine = Callable[[str], Command]
START = "python -m sglang.launch_server --model-path m "


def test_a_whole_line_is_read(read_line: ReadLine) -> None:
    command = read_line(
        START + "--tp 8 --dp-size 2 --pp 2 --context-length 65536 --mem-fraction-static 0.85 --page-size 64 "
        "--max-running-requests 128 --chunked-prefill-size 4096 --kv-cache-dtype fp8_e4m3 --disable-radix-cache "
        "--disable-overlap-schedule --mamba-ssm-dtype bfloat16 --disable-cuda-graph --quantization fp8 --host 0.0.0.0"
    )
    assert command.flags == EngineFlags(
        max_model_len=65_536,
        max_num_seqs=128,
        max_num_batched_tokens=4096,
        block_size=64,
        kv_cache_dtype="fp8_e4m3",
        tensor_parallel_size=8,
        data_parallel_size=2,
        pipeline_parallel_size=2,
        gpu_memory_utilization=0.85,
        enable_prefix_caching=False,
        async_scheduling=False,
        mamba_ssm_cache_dtype="bfloat16",
        enforce_eager=True,
    )
    assert (command.engine, command.model, command.quantization) == ("sglang", "m", "fp8")
    assert (command.ignored, command.unknown) == (("--host",), ())


def test_chunked_prefill_can_be_off(read_line: ReadLine) -> None:
    assert read_line(START + "--chunked-prefill-size -1").flags.max_num_batched_tokens is None


def test_the_model_may_be_positional(read_line: ReadLine) -> None:
    assert read_line("sglang serve org/model --tp 2").model == "org/model"


def test_what_caps_or_divides_the_pool_is_named(read_line: ReadLine) -> None:
    command = read_line(START + "--max-total-tokens 50000 --swa-full-tokens-ratio 0.5 --ep 8")
    assert [one.flag for one in command.unmodelled] == ["--swa-full-tokens-ratio", "--ep"]
    assert command.flags.max_pool_tokens == 50000


@pytest.mark.parametrize(
    ("flags", "each"),
    [
        ("--tp 8 --dp 8 --enable-dp-attention", 1),
        ("--tp 8 --dp 2 --enable-dp-attention", 4),
        ("--tp 8 --attn-dp-size 4", 2),
    ],
)
def test_attention_that_is_data_parallel_inside_of_the_ranks_is_refused_by_its_name(
    flags: str, each: int, read_line: ReadLine
) -> None:
    with pytest.raises(UnsupportedError, match="data-parallel attention") as caught:
        read_line(START + flags)
    assert f"--tensor-parallel-size {each} --kv-cache-memory-bytes SIZE" in (caught.value.fix or "")


@pytest.mark.parametrize("flags", ["--tp 8 --enable-dp-attention", "--tp 8 --attn-dp-size 1", "--tp 8 --dp 2"])
def test_one_pool_in_each_engine_is_read(flags: str, read_line: ReadLine) -> None:
    command = read_line(START + flags)
    assert (command.unmodelled, command.unknown) == ((), ())


def test_flags_that_are_gone_are_told_by_release() -> None:
    gone = refused_by("--enable-ep-moe", "")
    assert gone is not None
    assert (gone.since, gone.other, gone.instead) == ("0.5.5", "0.5.4", "use --ep-size")
    assert refused_by("--enable-ep-moe", "0.5.5.post1") is not None
    assert refused_by("--enable-ep-moe", "0.5.4") is None
    assert refused_by("--disable-mla", "0.5") is not None
    assert refused_by("--tp-size", "0.4.0") is None


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        (
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path d --speculative-num-steps 3 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
            {
                "method": "eagle3",
                "num_speculative_tokens": 3,
                "num_draft_tokens": 4,
                "model": "d",
                "num_steps": 3,
                "eagle_topk": 1,
            },
        ),
        ("--speculative-algorithm NEXTN", {"method": "mtp"}),
        (
            "--speculative-algorithm STANDALONE --speculative-draft-model d --speculative-num-draft-tokens 5",
            {"method": "draft_model", "num_speculative_tokens": 5, "num_draft_tokens": 5, "model": "d"},
        ),
        ("--speculative-num-steps 3", None),
    ],
)
def test_speculation_is_told_in_vllms_words(read_line: ReadLine, flags: str, config: object) -> None:
    assert read_line(START + flags).speculative_config == config


def test_lengths_are_plain_numbers(read_line: ReadLine) -> None:
    with pytest.raises(BadValueError, match="--context-length"):
        read_line(START + "--context-length 32k")
