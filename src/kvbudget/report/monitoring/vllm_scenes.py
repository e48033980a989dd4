"""Decides what a vLLM looks like in the scenes that prove its alerts: series with vLLM's own names and labels."""

from typing import Final

OF: Final = 'instance="e1:8000", model_name="m"'
BY: Final = f'{OF}, engine="0"'
MODEL: Final = {"instance": "e1:8000", "model_name": "m"}
RANK: Final = {**MODEL, "engine": "0"}
BY_RANK: Final = "by (instance, model_name, engine)"
BY_MODEL: Final = "by (instance, model_name)"


def engine(
    usage: str,
    running: str,
    waiting: str,
    deferred: str = "0x90",
    steps: str = "0+600x90",
    prompt_tokens: str = "0+2000x90",
    generated: str = "0+6000x90",
    for_room: str | None = None,
) -> dict[str, str]:
    """An hour and a half of one rank; counters grow by so much a minute. `for_room`: all that wait, if not said."""
    reason = f"vllm:num_requests_waiting_by_reason{{{BY}, reason=%s}}"
    return {
        f"vllm:kv_cache_usage_perc{{{BY}}}": usage,
        f"vllm:num_requests_running{{{BY}}}": running,
        f"vllm:num_requests_waiting{{{BY}}}": waiting,
        reason % '"capacity"': waiting if for_room is None else for_room,
        reason % '"deferred"': deferred,
        f"vllm:iteration_tokens_total_count{{{BY}}}": steps,
        f'vllm:prompt_tokens_by_source_total{{{BY}, source="local_compute"}}': prompt_tokens,
        f"vllm:generation_tokens_total{{{BY}}}": generated,
    }


def preempted(per_minute: str, finished: str) -> dict[str, str]:
    """Preemptions beside answers."""
    return {
        f"vllm:num_preemptions_total{{{BY}}}": per_minute,
        f'vllm:request_success_total{{{BY}, finished_reason="stop"}}': finished,
    }


def prefix(queries: str, hits: str) -> dict[str, str]:
    """Tokens that were looked up and found."""
    return {f"vllm:prefix_cache_queries_total{{{BY}}}": queries, f"vllm:prefix_cache_hits_total{{{BY}}}": hits}


_BOUNDS: Final = ("1.0", "2.0", "5.0", "15.0", "20.0", "+Inf")


def queue(*counts: int) -> dict[str, str]:
    """So many a minute within each of the bounds and not within the one before."""
    bucket = f"vllm:request_queue_time_seconds_bucket{{{BY}, le=%s}}"
    return {bucket % f'"{bound}"': f"0+{sum(counts[: place + 1])}x40" for place, bound in enumerate(_BOUNDS)}
