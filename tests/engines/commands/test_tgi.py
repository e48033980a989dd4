"""TGI's options and variables become the planner's."""

from collections.abc import Callable

from kvbudget.engines.commands.command import Command
from kvbudget.engines.flags import EngineFlags

ReadLine = Callable[[str], Command]


def test_options_and_variables_are_one(read_line: ReadLine) -> None:
    command = read_line(
        "docker run -e MODEL_ID=org/m -e NUM_SHARD=2 -e MAX_BATCH_SIZE=32 -e HF_TOKEN=s -e PREFIX_CACHING=0 "
        "ghcr.io/huggingface/text-generation-inference:3.3.6 --max-total-tokens 8192 --num-shard=4 --quantize awq "
        "--max-batch-prefill-tokens 4096 --cuda-memory-fraction 0.9 --kv-cache-dtype fp8_e5m2 -p 80"
    )
    assert (command.engine, command.version, command.model) == ("tgi@3.3.6", "3.3.6", "org/m")
    assert command.flags == EngineFlags(
        max_model_len=8192,
        max_num_seqs=32,
        max_num_batched_tokens=4096,
        kv_cache_dtype="fp8_e5m2",
        tensor_parallel_size=4,
        gpu_memory_utilization=0.9,
    )
    assert command.environment == (("MODEL_ID", "org/m"), ("MAX_BATCH_SIZE", "32"), ("PREFIX_CACHING", "0"))
    assert ([one.flag for one in command.unmodelled], command.ignored) == (["PREFIX_CACHING"], ("-p",))


def test_what_several_options_say_is_put_together(read_line: ReadLine) -> None:
    command = read_line("text-generation-launcher --num-shard 4 --sharded false --cuda-graphs 0 --speculate 3")
    assert (command.flags.tensor_parallel_size, command.flags.enforce_eager) == (1, True)
    assert command.speculative_config == {"method": "ngram", "num_speculative_tokens": 3}
    assert "bigscience/bloom-560m" in command.hidden[0]


def test_the_pools_own_size_is_named(read_line: ReadLine) -> None:
    command = read_line("text-generation-launcher --model-id m --max-batch-total-tokens 100000")
    assert [str(one) for one in command.unmodelled] == ["--max-batch-total-tokens 100000 (sets the pool, in tokens)"]
