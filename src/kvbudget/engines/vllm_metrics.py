"""The metric names of vLLM 0.32 that the gate reads, and what its `cache_config_info` labels say of the pool.

Names: `v1/metrics/loggers.py`. Older versions called the usage gauge `vllm:gpu_cache_usage_perc` (deprecated by PR
#18354, removed by #29330); a scrape has the one or the other.
"""

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.units import Blocks, Tokens, is_digits

CACHE_CONFIG_INFO = "vllm:cache_config_info"  # gauge, always 1; the facts are its labels
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"  # 0 to 1, share of num_gpu_blocks - 1; evictable cached blocks are free
OLD_KV_CACHE_USAGE = "vllm:gpu_cache_usage_perc"
NUM_REQUESTS_RUNNING = "vllm:num_requests_running"
NUM_REQUESTS_WAITING = "vllm:num_requests_waiting"
NUM_WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"  # reason: capacity, or deferred (PR #38435)
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
NUM_PREEMPTIONS = "vllm:num_preemptions_total"
NUM_DRAFTS = "vllm:spec_decode_num_drafts_total"  # there, 0 at first, only with speculative decoding

_NULL_BLOCKS = 1
_LARGEST = 10**15
_NONE = ("", "None", "none", "null")


class EnginePool(NamedTuple):
    """The pool by the engine's own word. None: the label was missing or "None".

    `num_blocks` includes the null block. `block_size` is that of the SMALLEST group: num_blocks x block_size is the
    pool in tokens only when `single_group` is true. `max_model_len` and `blocks_per_request` follow from the figures.
    """

    num_blocks: Blocks
    usable_blocks: Blocks
    block_size: Tokens
    tokens: int | None
    max_concurrency: float | None
    max_model_len: Tokens | None
    blocks_per_request: Blocks | None
    single_group: bool | None
    prefix_caching: bool | None


def pool_from_cache_config(labels: Mapping[str, str]) -> EnginePool:
    """Read the labels of one `vllm:cache_config_info` sample.

    Raises BadValueError when blocks or block size are missing or no numbers: an engine that has not sized its pool yet,
    or another version.
    """
    blocks = _whole(labels, "num_gpu_blocks")
    block_size = _whole(labels, "block_size")
    if blocks is None or block_size is None:
        missing = "num_gpu_blocks" if blocks is None else "block_size"
        raise BadValueError(
            f"{CACHE_CONFIG_INFO}: label {missing} is missing or None, so the pool is not sized",
            fix="wait until the engine is ready, or give --pool-blocks and --block-size",
        )
    tokens = _whole(labels, "kv_cache_size_tokens")
    concurrency = _fraction(labels, "kv_cache_max_concurrency")
    per_request = max_length = None
    single = None
    if tokens and concurrency:
        per_request = max(1, round(blocks / concurrency))
        max_length, single = _length_behind(tokens, concurrency, per_request, block_size)
    caching = labels.get("enable_prefix_caching", "")
    return EnginePool(
        num_blocks=Blocks(blocks),
        usable_blocks=Blocks(max(0, blocks - _NULL_BLOCKS)),
        block_size=Tokens(block_size),
        tokens=tokens,
        max_concurrency=concurrency,
        max_model_len=None if max_length is None else Tokens(max_length),
        blocks_per_request=None if per_request is None else Blocks(per_request),
        single_group=single,
        prefix_caching={"True": True, "true": True, "False": False, "false": False}.get(caching),
    )


def labels_of_one(labels: Mapping[str, str], engines: int) -> Mapping[str, str]:
    """The same with the blocks of one of the data-parallel `engines` that a server tells of.

    vLLM 0.32 adds up num_gpu_blocks over all of them and tells kv_cache_size_tokens and kv_cache_max_concurrency of one
    (v1/engine/core_client.py `_apply_ready_response`, seen with --data-parallel-size 2). Where tokens are those of all
    blocks told, or not told at all, the number is taken as it stands.
    """
    texts = [labels.get(name, "") for name in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens")]
    if engines < 2 or not all(is_digits(text) and len(text) < 16 for text in texts):
        return labels
    blocks, block_size, tokens = map(int, texts)
    if blocks % engines or tokens > blocks // engines * block_size:
        return labels
    return {**labels, "num_gpu_blocks": str(blocks // engines)}


def _length_behind(tokens: int, concurrency: float, per_request: int, block_size: int) -> tuple[int, bool]:
    """(max_model_len, whether one group of `block_size` explains the figures).

    The engine prints tokens = int(concurrency x max_model_len): every length from tokens / concurrency up to
    (tokens + 1) / concurrency prints the same. One group needs exactly ceil(length / block_size) blocks.
    """
    nearest = max(1, round(tokens / concurrency))
    low = max((per_request - 1) * block_size + 1, int(tokens / concurrency))
    high = min(per_request * block_size, int((tokens + 1) / concurrency) + 1)
    for length in (nearest, per_request * block_size, low, low + 1, high, high - 1):
        if low <= length <= high and int(concurrency * length) == tokens:
            return length, True
    return nearest, False


def _whole(labels: Mapping[str, str], name: str) -> int | None:
    text = labels.get(name, "").strip()
    if text in _NONE:
        return None
    number = int(text) if is_digits(text) and len(text) <= len(str(_LARGEST)) else -1
    if not 0 <= number <= _LARGEST:
        raise BadValueError(
            f"{CACHE_CONFIG_INFO}: label {name} is {text[:40]!r}, not a whole number", fix="check the engine"
        )
    return number or None


def _fraction(labels: Mapping[str, str], name: str) -> float | None:
    text = labels.get(name, "").strip()
    if text in _NONE:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0:
        raise BadValueError(f"{CACHE_CONFIG_INFO}: label {name} is {text[:40]!r}, not a number", fix="check the engine")
    return number or None
