"""Texts of any kind: damaged, hostile, very large, of several engines at once."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.engines.metrics.observation import observation_of
from kvbudget.errors import InputError

NAMES = (
    "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_preemptions_total", "vllm:cache_config_info",
    "vllm:request_queue_time_seconds_bucket", "vllm:request_queue_time_seconds_count", "sglang:token_usage",
    "vllm:num_requests_waiting_by_reason", "sglang:num_running_reqs", "sglang:realtime_tokens_total", "tgi_queue_size",
    "sglang:max_total_num_tokens", "tgi_request_failure", "llamacpp:requests_processing", "kvbudget_pool_blocks",
    "trtllm_kv_cache_utilization", "trtllm_kv_cache_tokens_per_block", "nv_trt_llm_request_metrics", "kvbudget_x",
    "nv_trt_llm_kv_cache_block_metrics", "lmdeploy:gpu_cache_usage_perc", "dynamo_frontend_inflight_requests",
    "dynamo_frontend_model_kv_cache_block_size", "process_start_time_seconds",
)  # fmt: skip
LABELS = ("engine", "model_name", "dp_rank", "tp_rank", "priority", "le", "reason", "block_size", "num_gpu_blocks",
          "kv_cache_size_tokens", "kv_cache_max_concurrency", "instance", "mode", "request_type", "pid")  # fmt: skip
VALUES = ("0", "1", "0.5", "NaN", "+Inf", "-1", "1e308", "5", "1000", "x", "", "-0.0")


def line(name: str, labels: dict[str, str], value: str) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}"


LABEL_SETS = st.dictionaries(st.sampled_from(LABELS), st.sampled_from(VALUES), max_size=4)
LINES = st.builds(line, st.sampled_from(NAMES), LABEL_SETS, st.sampled_from(VALUES))
TEXTS = st.lists(LINES, max_size=25).map("\n".join)


@settings(deadline=None, max_examples=300)
@given(st.none() | TEXTS, TEXTS, st.none() | st.floats(0, 1e6))
def test_no_two_texts_raise_anything_but_an_error_of_input(
    older: str | None, newer: str, seconds: float | None
) -> None:
    try:
        observation = observation_of(older, newer, seconds)
    except InputError:
        return
    for window in observation.engines:
        assert all(look.usage is None or 0 <= look.usage <= 1 for look in window.looks)
        numbers = [window.counts.preemptions, window.counts.prompt_tokens, *window.counts.finished.values()]
        assert all(number is None or number >= 0 for number in numbers)


def test_more_engines_than_anybody_runs_are_refused_soon() -> None:
    text = "\n".join(f'vllm:num_requests_running{{engine="{number}"}} 1' for number in range(50_000))
    began = time.process_time()
    with pytest.raises(InputError, match="more than 256 engines"):
        observation_of(text, text, 1.0)
    assert time.process_time() - began < 10


def test_a_very_large_scrape_of_many_engines_is_read_in_seconds() -> None:
    text = "\n".join(
        f'vllm:request_success_total{{engine="{engine}",finished_reason="{reason}"}} {reason}\n'
        f'vllm:num_requests_running{{engine="{engine}"}} 1'
        for engine in range(100)
        for reason in range(500)
    )
    began = time.process_time()
    observation = observation_of(None, text)
    assert len(observation.engines) == 100
    assert sum(observation.engines[7].counts.finished.values()) == 500 * 499 / 2
    assert time.process_time() - began < 20


def test_signs_that_steer_a_terminal_do_not_pass() -> None:
    (window,) = observation_of(None, 'vllm:num_requests_running{model_name="a\x1b[31mb"} 1\n').engines
    assert window.model == "a?[31mb"


def test_one_counter_that_fell_is_no_restart_of_the_others() -> None:
    older = 'vllm:num_requests_running{engine="0"} 1\nvllm:prompt_tokens_total{engine="0"} 9000\n'
    older += 'vllm:generation_tokens_total{engine="0"} 800\nvllm:num_preemptions_total{engine="0"} 5\n'
    (window,) = observation_of(older, older.replace("} 5\n", "} 1\n"), 10.0).engines
    assert (window.counts.prompt_tokens, window.counts.preemptions, window.restarted) == (0, 1, True)


def test_totals_are_what_the_counters_stand_at() -> None:
    older = 'vllm:num_requests_running{engine="0"} 1\nvllm:num_preemptions_total{engine="0"} 5\n'
    (window,) = observation_of(older, older.replace("} 5\n", "} 7\n"), 10.0).engines
    assert (window.counts.preemptions, window.totals.preemptions) == (2, 7)
