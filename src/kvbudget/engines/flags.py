"""What was asked of an engine, and what the engine makes of it."""

from typing import NamedTuple

from kvbudget.units import Bytes, Tokens

# vLLM's value of --max-model-len for "the largest that fits".
AUTO_LENGTH = -1


class EngineFlags(NamedTuple):
    """Flags by vLLM's names; None means the engine's own default. `max_model_len` may be AUTO_LENGTH."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    async_scheduling: bool | None = None
    enable_prefix_caching: bool = True
    num_gpu_blocks_override: int | None = None


class Settings(NamedTuple):
    """Every value that the engine would run with. `element_bytes`: of one weight; `kv_element_bytes`: of one K or V."""

    max_model_len: Tokens
    auto_length: bool
    max_num_seqs: int
    max_num_batched_tokens: Tokens
    max_in_flight_tokens: Tokens
    block_size: Tokens
    kv_cache_dtype: str
    kv_element_bytes: Bytes
    element_bytes: Bytes
    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpu_memory_utilization: float
    async_scheduling: bool
    num_gpu_blocks_override: int | None
