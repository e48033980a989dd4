"""The metric names by which SGLang, TGI, llama.cpp and TensorRT-LLM tell of themselves, and what they mean to the gate.

Read at: SGLang main of 2026 (`managers/scheduler_metrics_mixin.py`, one series per rank), TGI 3.3 (2026-01,
`router/src/infer`), llama.cpp of 2026 (`tools/server`; no usage gauge since #13660), TensorRT-LLM 1.x (`trtllm-serve`,
collector adapted from vLLM 0.10). None of them has a block that requests cannot use.
"""

from kvbudget.engines.readings import EngineReading, Sums, pool_of_tokens

SGLANG = (
    "sglang:token_usage", "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:max_total_num_tokens",
    "sglang:num_retracted_requests_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total",
    "sglang:num_grammar_queue_reqs",
)  # fmt: skip
TGI = (
    "tgi_batch_current_max_tokens", "tgi_batch_max_total_tokens", "tgi_batch_current_size", "tgi_queue_size",
    "tgi_request_generated_tokens_sum", "tgi_request_input_length_sum",
)  # fmt: skip
LLAMACPP = (
    "llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:prompt_tokens_total",
    "llamacpp:tokens_predicted_total",
)  # fmt: skip
TRTLLM = (
    "trtllm_kv_cache_utilization", "trtllm_kv_cache_max_blocks", "trtllm_kv_cache_used_blocks",
    "trtllm_kv_cache_tokens_per_block", "trtllm_num_requests_running", "trtllm_num_requests_waiting",
    "trtllm_num_paused_requests", "trtllm_max_num_active_requests", "trtllm_prompt_tokens_total",
    "trtllm_generation_tokens_total",
)  # fmt: skip


def sglang_reading(sums: Sums) -> EngineReading:
    """Ranks of one data-parallel replica show the same; the pool is that of one replica, the smallest. Pages are of one
    token unless `/get_server_info` says otherwise."""
    usage = sums.most("sglang:token_usage", 1.0)
    grammar = sums.over("sglang:num_grammar_queue_reqs", "dp_rank")
    waiting = sums.over("sglang:num_queue_reqs", "dp_rank")
    if waiting is not None and grammar is not None:
        waiting += grammar
    return EngineReading(
        pool=pool_of_tokens(sums.least("sglang:max_total_num_tokens"), 1),
        usage=usage,
        running=sums.over("sglang:num_running_reqs", "dp_rank"),
        waiting=waiting,
        preemptions=sums.count("sglang:num_retracted_requests_total"),
        engine="sglang",
        deferred=grammar,
        progress=sums.progress("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
    )


def tgi_reading(sums: Sums) -> EngineReading:
    """TGI reserves prompt and max_new_tokens of what it runs, and tells that, not what is held; it never preempts."""
    most, current = sums.least("tgi_batch_max_total_tokens"), sums.total("tgi_batch_current_max_tokens")
    usage = None if not most or current is None else min(1.0, current / most)
    return EngineReading(
        pool=pool_of_tokens(most, 1),
        usage=usage,
        running=sums.count("tgi_batch_current_size"),
        waiting=sums.count("tgi_queue_size"),
        preemptions=0,
        engine="tgi",
        progress=sums.progress("tgi_request_input_length_sum", "tgi_request_generated_tokens_sum"),
        usage_is_reserved=True,
    )


def llamacpp_reading(sums: Sums) -> EngineReading:
    """No pool and no usage: `/props` tells the slots and their context."""
    return EngineReading(
        pool=None,
        usage=None,
        running=sums.count("llamacpp:requests_processing"),
        waiting=sums.count("llamacpp:requests_deferred"),
        preemptions=None,
        engine="llamacpp",
        progress=sums.progress("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
    )


def trtllm_reading(sums: Sums) -> EngineReading:
    """Blocks in use are told as such; one that is paused was thrown out for want of room and waits to go on."""
    blocks, size = sums.least("trtllm_kv_cache_max_blocks"), sums.most("trtllm_kv_cache_tokens_per_block")
    pool = None if blocks is None or not size else pool_of_tokens(blocks * size, int(size))
    usage, used = sums.most("trtllm_kv_cache_utilization", 1.0), sums.most("trtllm_kv_cache_used_blocks")
    if usage is None and used is not None and blocks:
        usage = min(1.0, used / blocks)
    most = sums.count("trtllm_max_num_active_requests")
    return EngineReading(
        pool=pool,
        usage=usage,
        running=sums.count("trtllm_num_requests_running"),
        waiting=sums.count("trtllm_num_requests_waiting"),
        preemptions=None,
        engine="trtllm",
        deferred=None,
        progress=sums.progress("trtllm_prompt_tokens_total", "trtllm_generation_tokens_total"),
        max_num_seqs=most or None,
    )
