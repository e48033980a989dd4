"""Decides what is seen of a vLLM without our gate, by the names of vLLM 0.32 (`v1/metrics/loggers.py`).

Ranks of data parallelism are series of their own (label `engine`); what is counted is added over them, what is a share
of a pool is not.
"""

from typing import Final

from kvbudget.report.monitoring.panel import (
    Dashboard,
    Kind,
    Panel,
    Query,
    Row,
    Unit,
    Variable,
    figure,
    per_second,
    quantiles,
    share_of,
)

_SELECTED: Final = 'model_name=~"$model", instance=~"$instance"'
_USAGE: Final = f"vllm:kv_cache_usage_perc{{{_SELECTED}}}"

_NOW: Final = Row(
    "Now",
    (
        figure(
            "Fullest pool",
            "Share of the blocks in use. Cached blocks that can be evicted count as free, so it falls to 0 when idle.",
            Unit.SHARE,
            f"max({_USAGE})",
            levels=(0.85, 0.95),
        ),
        figure(
            "Running",
            "Requests in execution.",
            Unit.WHOLE,
            f"sum(vllm:num_requests_running{{{_SELECTED}}})",
        ),
        figure(
            "Waiting",
            "Requests that the engine lets wait, for room or for something else.",
            Unit.WHOLE,
            f"sum(vllm:num_requests_waiting{{{_SELECTED}}})",
            levels=(1, 50),
        ),
        figure(
            "Preemptions",
            "Per second, now. The counter itself may be high from days ago.",
            Unit.PER_SECOND,
            per_second("vllm:num_preemptions_total", _SELECTED),
            levels=(0.01, 0.1),
        ),
        figure(
            "Generated",
            "Tokens per second of all answers.",
            Unit.NUMBER,
            per_second("vllm:generation_tokens_total", _SELECTED),
        ),
        figure(
            "Prefix cache hits",
            "Share of prompt tokens that were found in it.",
            Unit.SHARE,
            share_of(
                per_second("vllm:prefix_cache_hits_total", _SELECTED),
                per_second("vllm:prefix_cache_queries_total", _SELECTED),
            ),
        ),
    ),
)

_POOL: Final = Row(
    "KV pool",
    (
        Panel(
            "KV use against concurrency",
            "Left: share of the blocks in use. Right, dashed: requests that run. Full with a queue: the pool is the"
            " limit. Not full with a queue and a flat number running: max_num_seqs is.",
            Unit.SHARE,
            (
                Query(f"max by (instance, engine) ({_USAGE})", "{{instance}} rank {{engine}}"),
                Query(
                    f"sum by (instance) (vllm:num_requests_running{{{_SELECTED}}})",
                    "{{instance}} running",
                    right=Unit.WHOLE,
                ),
            ),
            levels=(0.85, 0.95),
            most=1.0,
            width=12,
        ),
        Panel(
            "Waiting by reason",
            "capacity: for room, a sequence slot or tokens of a step. deferred: for a LoRA slot, a KV transfer or a"
            " grammar; more memory does not help those.",
            Unit.WHOLE,
            (
                Query(
                    f"sum by (instance, reason) (vllm:num_requests_waiting_by_reason{{{_SELECTED}}})",
                    "{{instance}} {{reason}}",
                ),
            ),
            stacked=True,
            width=12,
        ),
        Panel(
            "Preemptions",
            "Per second. Each computes a request's tokens twice.",
            Unit.PER_SECOND,
            (Query(per_second("vllm:num_preemptions_total", _SELECTED, "instance"), "{{instance}}"),),
        ),
        Panel(
            "Preemptions of a request",
            "Mean over the requests that finished lately. The histogram cannot tell 0 from 1: its first bucket is 1.",
            Unit.NUMBER,
            (
                Query(
                    share_of(
                        per_second("vllm:request_num_preemptions_sum", _SELECTED),
                        per_second("vllm:request_num_preemptions_count", _SELECTED),
                    ),
                    "preemptions of a request",
                ),
            ),
        ),
        Panel(
            "Between the ranks",
            "Fullest rank less emptiest rank, as shares of their pools. 0 with one rank.",
            Unit.SHARE,
            (Query(f"max by (instance) ({_USAGE}) - min by (instance) ({_USAGE})", "{{instance}}"),),
            levels=(0.3, 0.5),
            most=1.0,
        ),
    ),
)

_LATENCY: Final = Row(
    "Latency",
    (
        Panel(
            "Time to first token",
            "The wait in the engine's queue is in it.",
            Unit.SECONDS,
            quantiles("vllm:time_to_first_token_seconds", _SELECTED),
        ),
        Panel(
            "Time between tokens",
            "Of streams. Older versions call it time_per_output_token.",
            Unit.SECONDS,
            quantiles("vllm:inter_token_latency_seconds", _SELECTED),
        ),
        Panel(
            "Wait in the queue",
            "Its smallest bucket is 0.3 s: shorter waits cannot be told apart.",
            Unit.SECONDS,
            quantiles("vllm:request_queue_time_seconds", _SELECTED),
        ),
        Panel(
            "Whole request",
            "Arrival to last token.",
            Unit.SECONDS,
            quantiles("vllm:e2e_request_latency_seconds", _SELECTED),
        ),
        Panel(
            "Mean prefill and decode",
            "Of the requests that finished lately: which of the two a request spends its time in.",
            Unit.SECONDS,
            tuple(
                [
                    Query(
                        f"{per_second(f'vllm:request_{phase}_time_seconds_sum', _SELECTED)}"
                        f" / {per_second(f'vllm:request_{phase}_time_seconds_count', _SELECTED)}",
                        phase,
                    )
                    for phase in ("prefill", "decode")
                ]
            ),
        ),
        Panel(
            "Tokens of a step",
            "Mean. At max_num_batched_tokens for long: prefills wait for steps, not for memory.",
            Unit.NUMBER,
            (
                Query(
                    f"{per_second('vllm:iteration_tokens_total_sum', _SELECTED)}"
                    f" / {per_second('vllm:iteration_tokens_total_count', _SELECTED)}",
                    "tokens",
                ),
            ),
        ),
    ),
)

_REQUESTS: Final = Row(
    "Requests and tokens",
    (
        Panel(
            "Tokens",
            "Per second.",
            Unit.NUMBER,
            (
                Query(per_second("vllm:prompt_tokens_total", _SELECTED), "prompt"),
                Query(per_second("vllm:generation_tokens_total", _SELECTED), "generated"),
            ),
        ),
        Panel(
            "Finished, by reason",
            "Per second. Many `length`: answers are cut by max_tokens. `abort` misses clients that left.",
            Unit.PER_SECOND,
            (
                Query(
                    per_second("vllm:request_success_total", _SELECTED, "finished_reason"),
                    "{{finished_reason}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Refused by the engine",
            "Per second, by its own limits (--max-num-queued-reqs, --max-num-queued-tokens).",
            Unit.PER_SECOND,
            (
                Query(
                    per_second("vllm:admission_rejections_total", _SELECTED, "reason"),
                    "{{reason}}",
                ),
            ),
        ),
        Panel(
            "Prompt lengths",
            "Tokens.",
            Unit.NUMBER,
            quantiles("vllm:request_prompt_tokens", _SELECTED),
        ),
        Panel(
            "Answer lengths",
            "Tokens.",
            Unit.NUMBER,
            quantiles("vllm:request_generation_tokens", _SELECTED),
        ),
        Panel(
            "Asked for and used",
            "Mean max_tokens of requests, and mean length of their answers. Far apart: a gate that reserves what is"
            " asked would leave most of the pool idle; one that learns lengths does not.",
            Unit.NUMBER,
            tuple(
                [
                    Query(
                        f"{per_second(f'{histogram}_sum', _SELECTED)} / {per_second(f'{histogram}_count', _SELECTED)}",
                        legend,
                    )
                    for histogram, legend in (
                        ("vllm:request_params_max_tokens", "max_tokens"),
                        ("vllm:request_generation_tokens", "used"),
                    )
                ]
            ),
        ),
    ),
)

_PREFIX: Final = Row(
    "Prefix cache and configuration",
    (
        Panel(
            "Prefix cache",
            "Share of prompt tokens that were found and, dashed, how many were looked up. 0 for long: nothing is"
            " shared, or what is shared is shorter than a block.",
            Unit.SHARE,
            (
                Query(
                    share_of(
                        per_second("vllm:prefix_cache_hits_total", _SELECTED),
                        per_second("vllm:prefix_cache_queries_total", _SELECTED),
                    ),
                    "hits",
                ),
                Query(per_second("vllm:prefix_cache_queries_total", _SELECTED), "looked up per s", right=Unit.NUMBER),
            ),
            most=1.0,
        ),
        Panel(
            "Prompt tokens by source",
            "Per second: computed here, found in the cache, or brought from elsewhere.",
            Unit.NUMBER,
            (Query(per_second("vllm:prompt_tokens_by_source_total", _SELECTED, "source"), "{{source}}"),),
            stacked=True,
        ),
        Panel(
            "The pool by the engine's own word",
            "num_gpu_blocks includes the null block; block_size is that of the smallest group, so do not multiply the"
            " two: kv_cache_size_tokens is the pool in tokens.",
            Unit.NUMBER,
            (
                Query(
                    "max by (instance, engine, num_gpu_blocks, block_size, kv_cache_size_tokens,"
                    " kv_cache_max_concurrency, enable_prefix_caching, cache_dtype)"
                    ' (vllm:cache_config_info{instance=~"$instance"})',
                    "",
                    instant=True,
                ),
            ),
            Kind.TABLE,
        ),
    ),
)

VLLM_BOARD: Final = Dashboard(
    "kvbudget-vllm",
    "kvbudget: a vLLM by itself",
    "KV pool, queue, preemptions and latency of vLLM 0.32. Made by kvbudget dashboards.",
    (
        Variable("model", "Model", "vllm:num_requests_running", "model_name"),
        Variable("instance", "Engine", "vllm:num_requests_running", "instance"),
    ),
    (_NOW, _POOL, _LATENCY, _REQUESTS, _PREFIX),
)
