"""Decides what is seen of an SGLang, by the names of its main of 2026 (`srt/observability/metrics_collector.py`).

Every rank may publish the same figures. Tensor-parallel ranks repeat one another, so the largest of them is taken;
data-parallel ranks are different engines, so theirs are added.
"""

from typing import Final

from kvbudget.report.monitoring.panel import Dashboard, Panel, Query, Row, Unit, Variable, figure, quantiles

_SELECTED: Final = 'model_name=~"$model", instance=~"$instance"'


def _share(gauge: str) -> str:
    return f"max by (instance, dp_rank) (sglang:{gauge}{{{_SELECTED}}})"


def _over_ranks(asked: str, by: str = "instance") -> str:
    """Added over the data-parallel ranks, of each of which the tensor-parallel ones say the same."""
    return f"sum by ({by}) (max by ({by}, dp_rank) ({asked}))"


def _gauge(gauge: str) -> str:
    return _over_ranks(f"sglang:{gauge}{{{_SELECTED}}}")


def _rate(counter: str, by: str = "instance") -> str:
    return _over_ranks(f"rate(sglang:{counter}{{{_SELECTED}}}[$__rate_interval])", by)


def _total_rate(counter: str, by: str = "instance") -> str:
    """Of what the front end counts, once for all ranks; its labels split it further."""
    return f"sum by ({by}) (rate(sglang:{counter}{{{_SELECTED}}}[$__rate_interval]))"


_NOW: Final = Row(
    "Now",
    (
        figure(
            "Fullest pool",
            "The fullest of full attention, sliding window and Mamba states; what can be evicted is not counted.",
            Unit.SHARE,
            f"max(sglang:token_usage{{{_SELECTED}}})",
            levels=(0.85, 0.95),
            width=6,
        ),
        figure(
            "Running",
            "Requests in execution.",
            Unit.WHOLE,
            f"sum({_gauge('num_running_reqs')})",
            width=6,
        ),
        figure(
            "Waiting",
            "Requests in the queue, without those that wait for a grammar.",
            Unit.WHOLE,
            f"sum({_gauge('num_queue_reqs')})",
            levels=(1, 50),
            width=6,
        ),
        figure(
            "Retracted",
            "Per second: thrown out of the batch for want of room, and computed again.",
            Unit.PER_SECOND,
            f"sum({_rate('num_retracted_requests_total')})",
            levels=(0.01, 0.1),
            width=6,
        ),
    ),
)

_POOL: Final = Row(
    "KV pool",
    (
        Panel(
            "KV use against concurrency",
            "Left: share of the pool in use. Right, dashed: requests that run. Under 90 % with a queue: SGLang reserves"
            " too cautiously (--schedule-conservativeness down).",
            Unit.SHARE,
            (
                Query(_share("token_usage"), "{{instance}} {{dp_rank}}"),
                Query(_gauge("num_running_reqs"), "{{instance}} running", right=Unit.WHOLE),
            ),
            levels=(0.85, 0.95),
            most=1.0,
            width=12,
        ),
        Panel(
            "Sub-pools",
            "Full attention, sliding window and Mamba states have pools of their own. One at 100 % and another empty:"
            " the split is wrong (--swa-full-tokens-ratio, --mamba-full-memory-ratio), not the size.",
            Unit.SHARE,
            (
                Query(_share("full_token_usage"), "{{instance}} full"),
                Query(_share("swa_token_usage"), "{{instance}} sliding"),
                Query(_share("mamba_usage"), "{{instance}} mamba"),
            ),
            levels=(0.85, 0.95),
            most=1.0,
            width=12,
        ),
        Panel(
            "Whose tokens",
            "Slots of the full-attention pool: used by running requests, kept for reuse and evictable, free.",
            Unit.WHOLE,
            (
                Query(_gauge("kv_used_tokens"), "{{instance}} used"),
                Query(_gauge("kv_evictable_tokens"), "{{instance}} evictable"),
                Query(_gauge("kv_available_tokens"), "{{instance}} free"),
                Query(_gauge("max_total_num_tokens"), "{{instance}} pool", line=True),
            ),
            stacked=True,
        ),
        Panel(
            "Waiting",
            "For room, and for a grammar to be compiled.",
            Unit.WHOLE,
            (
                Query(_gauge("num_queue_reqs"), "{{instance}} queue"),
                Query(_gauge("num_grammar_queue_reqs"), "{{instance}} grammar"),
            ),
            stacked=True,
        ),
        Panel(
            "Retractions",
            "Requests per second and, dashed, the tokens that were computed for nothing.",
            Unit.PER_SECOND,
            (
                Query(_rate("num_retracted_requests_total"), "{{instance}} requests"),
                Query(
                    f"{_rate('num_retracted_input_tokens_total')} + {_rate('num_retracted_output_tokens_total')}",
                    "{{instance}} tokens",
                    right=Unit.NUMBER,
                ),
            ),
        ),
    ),
)

_WORK: Final = Row(
    "Latency and work",
    (
        Panel(
            "Time to first token",
            "With the wait in the queue.",
            Unit.SECONDS,
            quantiles("sglang:time_to_first_token_seconds", _SELECTED),
        ),
        Panel(
            "Time between tokens",
            "Of streams.",
            Unit.SECONDS,
            quantiles("sglang:inter_token_latency_seconds", _SELECTED),
        ),
        Panel(
            "Wait in the queue",
            "By the scheduler.",
            Unit.SECONDS,
            quantiles("sglang:queue_time_seconds", _SELECTED),
        ),
        Panel(
            "Tokens",
            "Per second.",
            Unit.NUMBER,
            (
                Query(_total_rate("prompt_tokens_total"), "{{instance}} prompt"),
                Query(_total_rate("generation_tokens_total"), "{{instance}} generated"),
            ),
        ),
        Panel(
            "Requests",
            "Per second: finished, and given up by their clients.",
            Unit.PER_SECOND,
            (
                Query(_total_rate("num_requests_total"), "{{instance}} finished"),
                Query(
                    f"sum(rate(sglang:num_aborted_requests_total{{{_SELECTED}}}[$__rate_interval])) or vector(0)",
                    "aborted",
                ),
            ),
        ),
        Panel(
            "Prefix cache",
            "Hit rate of the last batches by SGLang's own word and, dashed, the reserve it thinks a new request needs.",
            Unit.SHARE,
            (
                Query(_share("cache_hit_rate"), "{{instance}} hits"),
                Query(_share("new_token_ratio"), "{{instance}} new token ratio", right=Unit.NUMBER),
            ),
            most=1.0,
        ),
    ),
)

SGLANG_BOARD: Final = Dashboard(
    "kvbudget-sglang",
    "kvbudget: an SGLang by itself",
    "KV pools, queue, retractions and latency of SGLang. Made by kvbudget dashboards.",
    (
        Variable("model", "Model", "sglang:num_running_reqs", "model_name"),
        Variable("instance", "Engine", "sglang:num_running_reqs", "instance"),
    ),
    (_NOW, _POOL, _WORK),
)
