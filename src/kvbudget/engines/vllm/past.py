"""Which traits vLLM had before 0.32, each version's as the difference from the one after it, with its source."""

from kvbudget.engines.vllm.versions import Traits
from kvbudget.units import GIB

_NEVER = 10**15
# v1/core/kv_cache_utils.py: get_kv_cache_configs takes one block off from here on; v1/kv_cache_interface.py:
# MambaSpec.num_prefill_checkpoint_blocks
_0_29 = Traits((0, 29, 0))
# engine/arg_utils.py: default_prefix_caching no longer excludes hybrids; the row for 160 GiB and more
# quantization/fp8.py refuses experts whose blocks ranks would cut through (read back to 0.9)
_0_28 = _0_29._replace(
    since=(0, 28, 0), checks_usable_blocks=False, checkpoint_states=False, refined_blocks=False
)  # fmt: skip
# config/vllm.py: max_in_flight_tokens appears; v1/kv_cache_interface.py takes it
_0_26 = _0_28._replace(
    since=(0, 26, 0), hybrid_prefix_caching=False, batch_defaults=((70 * GIB, 8192, 1024), (0, 2048, 256))
)
# v1/core/kv_cache_utils.py: "GPU KV cache size" from the concurrency; 0.20.0 still from blocks // groups
_0_20_1 = _0_26._replace(since=(0, 20, 1), batches_in_flight=False)
# config/cache.py: 0.92; envs.py: VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS on (present but off in 0.18 and 0.19)
_0_20 = _0_20_1._replace(since=(0, 20, 0), tokens_per_group=True)
# v1/core/kv_cache_utils.py: _project_kv_cache_groups_to_worker, checks stage by stage
_0_17 = _0_20._replace(since=(0, 17, 0), graphs_before_pool=False, gpu_memory_utilization=0.9)
# config/cache.py: mamba_cache_mode
_0_15 = _0_17._replace(since=(0, 15, 0), whole_model_check=True)
# config/vllm.py: async scheduling None means on; envs.py: VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE on
_0_14 = _0_15._replace(since=(0, 14, 0), aligned_states=False)
_0_12 = _0_14._replace(since=(0, 12, 0), async_scheduling=False, chunked_groups=False, whole_model_check=False)
_0_9_1 = _0_12._replace(since=(0, 9, 1), near_equal_groups=False)  # v1/core/kv_cache_coordinator.py appears
_0_9 = _0_9_1._replace(since=(0, 9, 0), hybrid_groups=False)
_0_8 = _0_9._replace(since=(0, 8, 0), a100_is_small=False)  # the V1 engine is the default
# The V0 engine: no null block; engine/arg_utils.py: use_long_context; config.py: SchedulerConfig
_0_6_5 = _0_8._replace(
    since=(0, 6, 5), null_block=False, chunked_beyond=32768, batch_defaults=((0, 2048, 256),)
)  # fmt: skip
_0_5_3 = _0_6_5._replace(since=(0, 5, 3), batch_defaults=((0, 512, 256),))
_V0 = _0_5_3._replace(since=(0, 4, 0), chunked_beyond=_NEVER)
PAST = (
    _0_29, _0_28, _0_26, _0_20_1, _0_20, _0_17, _0_15, _0_14, _0_12, _0_9_1, _0_9, _0_8,
    _0_6_5, _0_5_3, _V0
)  # fmt: skip
