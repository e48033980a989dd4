"""Decides in whose words a change is written: as flags of the engine that is planned, else in plain words."""

from collections.abc import Mapping

from kvbudget.engines.commands.dialects import DIALECTS
from kvbudget.planner.request import PlanRequest
from kvbudget.units import format_size

# What steps change, in the order in which people would write it.
_CHANGED = (
    "max_num_seqs", "max_model_len", "kv_cache_dtype", "value_cache_dtype", "tensor_parallel_size",
    "pipeline_parallel_size", "decode_context_parallel_size", "data_parallel_size", "gpu_layers",
)  # fmt: skip
# Where an engine has no flag for it.
_IN_WORDS = {
    "pipeline_parallel_size": "layers shared out over {} cards",
    "max_num_seqs": "at most {} requests at once",
    "max_model_len": "requests of at most {} tokens",
    "data_parallel_size": "{} engines beside one another",
    "tensor_parallel_size": "{} tensor-parallel ranks",
    "gpu_memory_utilization": "share of the card {}",
}
_EIGHT_BIT = {"sglang": "fp8_e4m3", "tgi": "fp8_e4m3fn", "llamacpp": "q8_0"}
# SGLang (RadixAttention) and vLLM share prefixes unless told not to; TensorRT-LLM's key is in its YAML file.
_SHARING = {
    "vllm": "--enable-prefix-caching",
    "sglang": "leave --disable-radix-cache out",
    "tgi": "PREFIX_CACHING=1",
    "trtllm": "kv_cache_config.enable_block_reuse: true",
}


def spelt_name(engine: str, field: str) -> str:
    """`--max-running-requests` for SGLang's max_num_seqs; "" where the engine has no flag for it."""
    table = DIALECTS[engine].table
    return next((option.name for option in table.values() if option.effect == field), "")


def spelt(engine: str, changes: Mapping[str, object]) -> str:
    """Flags with their values, in a fixed order; what has no flag, in words behind them."""
    flags, words = [], []
    for field in _CHANGED:
        if field not in changes:
            continue
        name, value = spelt_name(engine, field), changes[field]
        if name:
            flags.append(f"{name} {value}")
        elif field in _IN_WORDS:
            words.append(_IN_WORDS[field].format(value))
    if changes.get("kv_unified") is False:
        flags.append("--no-kv-unified")
    return ", ".join([" ".join(flags), *words] if flags else words)


def eight_bit_cache(engine: str) -> dict[str, object]:
    """The fields that give every key and value eight bits."""
    dtype = _EIGHT_BIT.get(engine, "fp8")
    both: dict[str, object] = {"kv_cache_dtype": dtype}
    return both | {"value_cache_dtype": dtype} if engine == "llamacpp" else both


def prefix_sharing(engine: str) -> str:
    """How prefixes come to be shared; "" where no two requests share anything."""
    return _SHARING.get(engine, "")


def joined(engine: str, before: PlanRequest, after: PlanRequest) -> str:
    """All that makes `before` into `after`: flags of the engine, and the checkpoint in words."""
    changes = {
        field: getattr(after.flags, field)
        for field in (*_CHANGED, "kv_unified")
        if getattr(before.flags, field) != getattr(after.flags, field)
    }
    said = [spelt(engine, changes)] if changes else []
    if before.weights != after.weights and after.weights is not None:
        said.append(f"a checkpoint of {format_size(after.weights.bytes)}")
    return ", ".join(said)
