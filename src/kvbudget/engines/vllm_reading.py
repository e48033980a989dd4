"""What a scrape of vLLM 0.32, and of older versions by their names, tells the gate."""

from kvbudget.engines.readings import EngineReading, Sums
from kvbudget.engines.vllm_metrics import (
    CACHE_CONFIG_INFO,
    GENERATION_TOKENS,
    KV_CACHE_USAGE,
    NUM_DRAFTS,
    NUM_PREEMPTIONS,
    NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING,
    NUM_WAITING_BY_REASON,
    OLD_KV_CACHE_USAGE,
    PROMPT_TOKENS,
    pool_from_cache_config,
)

VLLM = (
    CACHE_CONFIG_INFO, KV_CACHE_USAGE, OLD_KV_CACHE_USAGE, NUM_DRAFTS, NUM_PREEMPTIONS, NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING, NUM_WAITING_BY_REASON, PROMPT_TOKENS, GENERATION_TOKENS,
)  # fmt: skip


def vllm_reading(sums: Sums) -> EngineReading:
    """Data-parallel engines each have a series and a pool: usage is their mean, requests add up.

    Raises BadValueError for a pool that is not sized yet, or told in a form that we do not know.
    """
    told = sums.samples(CACHE_CONFIG_INFO)
    pool = pool_from_cache_config(told[-1].labels) if told else None
    if pool is not None and (len(told) > 1 or NUM_DRAFTS in sums):
        # Data-parallel engines do not use one another's blocks; with EAGLE or MTP a request computes the last block
        # that it finds again (vLLM 0.32 v1/core/kv_cache_coordinator.py: drop_eagle_block).
        pool = pool._replace(prefix_caching=False)
    usage = sums.mean(KV_CACHE_USAGE if KV_CACHE_USAGE in sums else OLD_KV_CACHE_USAGE, 1.0)
    deferred = Sums(one for one in sums.samples(NUM_WAITING_BY_REASON) if one.labels.get("reason") == "deferred")
    return EngineReading(
        pool=pool,
        usage=usage,
        running=sums.count(NUM_REQUESTS_RUNNING),
        waiting=sums.count(NUM_REQUESTS_WAITING),
        preemptions=sums.count(NUM_PREEMPTIONS),
        deferred=deferred.count(NUM_WAITING_BY_REASON),
        progress=sums.progress(PROMPT_TOKENS, GENERATION_TOKENS),
    )
