"""vLLM's flags become the planner's."""

from collections.abc import Callable

import pytest

from kvbudget.engines.commands.command import Command
from kvbudget.engines.commands.vllm import TABLE
from kvbudget.engines.flags import AUTO_LENGTH, EngineFlags
from kvbudget.errors import BadValueError

ReadLine = Callable[[str], Command]


def test_a_whole_line_is_read(read_line: ReadLine) -> None:
    command = read_line(
        "vllm serve Qwen/Qwen3-32B --revision abc -q fp8 --dtype bfloat16 --max-model-len 32K --max-num-seqs 64 "
        "--max-num-batched-tokens 8k --block-size 32 --kv-cache-dtype fp8_e4m3 -tp 4 -pp 2 -dcp 2 -dp 3 "
        "--gpu-memory-utilization 0.85 --kv-cache-memory-bytes 24G --num-gpu-blocks-override 512 --no-async-scheduling "
        "--no-enable-prefix-caching --disable-hybrid-kv-cache-manager --mamba-cache-dtype float32 "
        "--mamba-ssm-cache-dtype float16 --enforce-eager"
    )
    assert command.flags == EngineFlags(
        max_model_len=32_768,
        max_num_seqs=64,
        max_num_batched_tokens=8000,
        block_size=32,
        dtype="bfloat16",
        kv_cache_dtype="fp8_e4m3",
        tensor_parallel_size=4,
        pipeline_parallel_size=2,
        decode_context_parallel_size=2,
        data_parallel_size=3,
        gpu_memory_utilization=0.85,
        num_gpu_blocks_override=512,
        async_scheduling=False,
        enable_prefix_caching=False,
        disable_hybrid_kv_cache_manager=True,
        mamba_cache_dtype="float32",
        mamba_ssm_cache_dtype="float16",
        enforce_eager=True,
    )
    assert (command.engine, command.version, command.model) == ("vllm", None, "Qwen/Qwen3-32B")
    assert (command.quantization, command.revision, command.kv_cache_memory_bytes) == ("fp8", "abc", 24 * 2**30)
    assert (command.ignored, command.unmodelled, command.unknown) == ((), (), ())
    assert command.hidden == ("--max-num-batched-tokens 8k is 8000 to vLLM: small letters count 1000",)


def test_every_spelling_of_a_flag_is_the_same(read_line: ReadLine) -> None:
    lines = ["--tensor-parallel-size 2", "--tensor_parallel_size=2", "-tp 2", "-tp=2", "--tensor-par 2"]
    assert [read_line(f"vllm serve m {line}").flags.tensor_parallel_size for line in lines] == [2] * 5


def test_the_last_of_a_repeated_flag_counts(read_line: ReadLine) -> None:
    assert read_line("vllm serve m -tp 2 -tp 4").flags.tensor_parallel_size == 4


def test_the_largest_length_that_fits_can_be_asked_for(read_line: ReadLine) -> None:
    for text in ("auto", "-1"):
        assert read_line(f"vllm serve m --max-model-len {text}").flags.max_model_len == AUTO_LENGTH
    assert read_line("vllm serve m --max-model-len=-1").flags.max_model_len == AUTO_LENGTH


def test_given_tells_what_the_command_sets_even_to_a_default(read_line: ReadLine) -> None:
    assert read_line("vllm serve m --dtype auto -tp 1").given == {"dtype", "tensor_parallel_size"}


@pytest.mark.parametrize(
    "flags",
    [
        """--speculative-config '{"method": "mtp", "num-speculative-tokens": 2}'""",
        "--speculative-config.method mtp --speculative_config.num_speculative_tokens=2",
        "-sc.method mtp -sc.num_speculative_tokens 2",
        "--spec-method mtp --spec-tokens 2",
        """--speculative-config '{"method": "mtp"}' --num-speculative-tokens 2""",
    ],
)
def test_speculation_in_every_form_is_one_object(read_line: ReadLine, flags: str) -> None:
    assert read_line(f"vllm serve m {flags}").speculative_config == {"method": "mtp", "num_speculative_tokens": 2}


def test_optimization_levels_need_no_space(read_line: ReadLine) -> None:
    assert read_line("vllm serve m -O0").flags.enforce_eager
    assert read_line("vllm serve m -O=0").flags.enforce_eager
    assert not read_line("vllm serve m -O3").flags.enforce_eager
    assert not read_line("vllm serve m -O 2 --port 1").flags.enforce_eager
    assert "-O 1 changes" in read_line("vllm serve m -O1").hidden[0]


def test_flags_that_touch_the_budget_unseen_are_named_with_a_reason(read_line: ReadLine) -> None:
    command = read_line("vllm serve m --cpu-offload-gb 10 --enable-lora --kv-transfer-config '{}' --watermark 0.02")
    assert [str(one) for one in command.unmodelled] == [
        "--cpu-offload-gb 10 (weights outside of the GPU leave more for the cache)",
        "--enable-lora (LoRA adapters take memory beside the weights)",
        "--watermark 0.02 (keeps a share of the blocks free while admitting)",
    ]
    assert command.ignored == ("--kv-transfer-config",)  # an empty one connects nothing


def test_values_that_change_nothing_are_no_matter(read_line: ReadLine) -> None:
    command = read_line("vllm serve m --cpu-offload-gb 0 --no-enable-lora --runner auto --load-format safetensors")
    assert command.unmodelled == ()
    assert command.ignored == ("--cpu-offload-gb", "--no-enable-lora", "--runner", "--load-format")
    assert [one.flag for one in read_line("vllm serve m --runner pooling").unmodelled] == ["--runner"]


def test_dotted_parts_of_other_objects_are_named(read_line: ReadLine) -> None:
    command = read_line("vllm serve m -cc.cudagraph_mode NONE --compilation-config.level=3 --kernel-config.x 1")
    assert [one.flag for one in command.unmodelled] == ["--compilation-config.cudagraph_mode"]
    assert command.ignored == ("--kernel-config",)


def test_unknown_flags_are_named_and_take_no_model_away(read_line: ReadLine) -> None:
    command = read_line("vllm serve --brand-new 7 m --model n --other=1")
    assert (command.model, command.unknown) == ("m", ("--brand-new 7", "--other=1"))


def test_the_environment_that_matters_is_told(read_line: ReadLine) -> None:
    command = read_line("HF_TOKEN=secret VLLM_PP_LAYER_PARTITION=16,32 CUDA_VISIBLE_DEVICES=0,2 vllm serve m -pp 2")
    assert command.environment == (("VLLM_PP_LAYER_PARTITION", "16,32"), ("CUDA_VISIBLE_DEVICES", "0,2"))
    assert (command.gpus, command.flags.pp_layer_partition, command.unmodelled) == (2, (16, 32), ())
    assert "secret" not in repr(command)


def test_named_devices_are_counted(read_line: ReadLine) -> None:
    assert read_line("vllm serve m --device-ids 0,1,2").gpus == 3


def test_a_missing_model_is_said(read_line: ReadLine) -> None:
    command = read_line("vllm serve --port 1")
    assert command.model == ""
    assert command.hidden == ("the command names no model; vllm would serve its default, Qwen/Qwen3-0.6B",)


@pytest.mark.parametrize(
    "flag", ["-tp 0", "-tp x", "--gpu-memory-utilization 90", "--max-model-len 8q", "--block-size -3", "-sc {"]
)
def test_values_that_vllm_would_refuse_are_named(read_line: ReadLine, flag: str) -> None:
    with pytest.raises(BadValueError, match=f"in the command: {flag.split(maxsplit=1)[0]}"):
        read_line(f"vllm serve m {flag}")


def test_every_field_of_the_table_is_one_that_is_used() -> None:
    used = {*EngineFlags._fields, "model", "revision", "quantization", "kv_cache_memory_bytes", "speculative_config"}
    used |= {"config", "optimization_level", "device_ids", "spec.method", "spec.model", "spec.num_speculative_tokens"}
    used |= {"hf_overrides", "rope_scaling", "rope_theta"}
    assert {option.effect for option in TABLE.values()} - {""} <= used
