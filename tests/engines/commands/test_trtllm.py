"""TensorRT-LLM's options become the planner's."""

from collections.abc import Callable

from kvbudget.engines.commands.command import Command
from kvbudget.engines.commands.trtllm import flattened
from kvbudget.engines.flags import EngineFlags

ReadLine = Callable[[str], Command]


def test_a_whole_line_is_read(read_line: ReadLine) -> None:
    command = read_line(
        "trtllm-serve org/m --max_batch_size 161 --max_num_tokens 1160 --max_seq_len 8192 --tp_size 8 --pp_size 2 "
        "--kv_cache_free_gpu_memory_fraction 0.95 --kv_cache_dtype fp8 --backend pytorch --host 0.0.0.0 --ep_size 4"
    )
    assert command.flags == EngineFlags(
        max_model_len=8192,
        max_num_seqs=161,
        max_num_batched_tokens=1160,
        kv_cache_dtype="fp8",
        tensor_parallel_size=8,
        pipeline_parallel_size=2,
        gpu_memory_utilization=0.95,
    )
    assert (command.engine, command.model, command.unknown) == ("trtllm", "org/m", ())
    assert [one.flag for one in command.unmodelled] == ["--ep_size"]


def test_single_settings_win_over_flags(read_line: ReadLine) -> None:
    command = read_line(
        "trtllm-serve m --set kv_cache_config.dtype=fp8 --set kv_cache_config.tokens_per_block=64 --kv_cache_dtype auto"
    )
    assert (command.flags.kv_cache_dtype, command.flags.block_size, command.model) == ("fp8", 64, "m")


def test_nested_settings_become_dotted_options() -> None:
    settings = {
        "max_batch_size": 8,
        "kv_cache_config": {
            "free_gpu_memory_fraction": 0.8,
            "enable_block_reuse": False,
            "max_attention_window": [1, 2],
        },
        "cuda_graph_config": {"max_batch_size": 4},
        "speculative_config": None,
    }
    assert flattened(settings) == [
        "--max_batch_size=8",
        "--kv_cache_config.free_gpu_memory_fraction=0.8",
        "--kv_cache_config.enable_block_reuse=false",
        "--kv_cache_config.max_attention_window=1,2",
        "--cuda_graph_config={'max_batch_size': 4}",
    ]
