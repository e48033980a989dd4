"""What vLLM tells, by its names of today and of before. Figures are made up."""

from collections.abc import Callable
from math import inf

import pytest

from kvbudget.engines.metrics.observation import observation_of
from kvbudget.engines.window import EngineWindow

Text = Callable[..., str]
LABELS = 'model_name="m",engine="0"'
INFO = (
    'vllm:cache_config_info{block_size="32",num_gpu_blocks="65",kv_cache_size_tokens="2080",'
    'kv_cache_max_concurrency="2.03125",enable_prefix_caching="True",cache_hit_alignment_tokens="64",'
    'mamba_block_size="None",engine="0"} 1.0\n'
)
OLDER = {
    "vllm:kv_cache_usage_perc": 0.5, "vllm:num_requests_running": 3, "vllm:num_requests_waiting": 2,
    "vllm:prompt_tokens_total": 1000, "vllm:generation_tokens_total": 400, "vllm:num_preemptions_total": 7,
    "vllm:prefix_cache_queries_total": 1000, "vllm:prefix_cache_hits_total": 320,
}  # fmt: skip
NEWER = {
    **OLDER, "vllm:kv_cache_usage_perc": 0.75, "vllm:num_requests_running": 4, "vllm:prompt_tokens_total": 1600,
    "vllm:generation_tokens_total": 500, "vllm:num_preemptions_total": 9, "vllm:prefix_cache_queries_total": 1640,
    "vllm:prefix_cache_hits_total": 384,
}  # fmt: skip


def only(older: str | None, newer: str, seconds: float | None = None) -> EngineWindow:
    (window,) = observation_of(older, newer, seconds).engines
    return window


def test_two_scrapes_give_looks_growth_limits_and_times(text: Text) -> None:
    histograms = ("vllm:request_queue_time_seconds", "vllm:time_to_first_token_seconds", "vllm:iteration_tokens_total")
    older = INFO + text(OLDER, LABELS, dict.fromkeys(histograms, (1, 2, 4, 20)))
    reasons = f'vllm:num_requests_waiting_by_reason{{reason="deferred",{LABELS}}} 1\n'
    ends = "".join(
        f'vllm:request_success_total{{finished_reason="{reason}",{LABELS}}} {count}\n'
        for reason, count in (("stop", 5), ("length", 2), ("abort", 1), ("error", 3))
    )
    rejections = 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 6\n'
    newer = INFO + text(NEWER, LABELS, dict.fromkeys(histograms, (2, 4, 7, 50))) + reasons + ends + rejections
    window = only(older, newer, 10.0)
    assert (window.engine, window.model, window.where, window.window_s) == ("vllm", "m", "", 10.0)
    assert [(look.at_s, look.usage, look.running, look.waiting) for look in window.looks] == [
        (0.0, 0.5, 3, 2), (10.0, 0.75, 4, 2),
    ]  # fmt: skip
    assert window.last.deferred == 1
    counts = window.counts
    assert (counts.prompt_tokens, counts.generation_tokens, counts.preemptions) == (600, 100, 2)
    assert (counts.prefix_queries, counts.prefix_hits) == (640, 64)
    assert counts.finished == {"stop": 5, "length": 2, "abort": 1, "error": 3}
    assert (counts.failed, counts.aborted, counts.rejected) == (3, 1, {"max_num_queued_reqs": 6})
    limits = window.limits
    assert limits.pool is not None
    assert (limits.pool.usable_blocks, limits.pool.tokens, limits.max_model_len) == (64, 2080, 1024)
    assert (limits.prefix_caching, limits.smallest_block, limits.largest_block) == (True, 32, 64)
    assert window.queue_s is not None
    assert (window.queue_s.bounds, window.queue_s.counts, window.queue_s.total) == ((1, 10, inf), (1, 1, 1), 30)
    assert window.step_tokens is not None
    assert window.ttft_s is not None
    assert window.max_tokens is None
    assert any("max_num_seqs" in line for line in window.missing)


def test_one_scrape_tells_of_all_time_since_the_start(text: Text) -> None:
    window = only(None, text(NEWER, LABELS))
    assert (window.since_start, window.window_s, window.restarted, len(window.looks)) == (True, None, False, 1)
    assert window.counts.preemptions == 9


def test_two_scrapes_of_unknown_distance_are_a_window_all_the_same(text: Text) -> None:
    window = only(text(OLDER, LABELS), text(NEWER, LABELS))
    assert (window.since_start, window.window_s, window.counts.preemptions) == (False, None, 2)


def test_time_stamps_in_the_texts_tell_the_distance(text: Text) -> None:
    stamped = [
        text(values, LABELS).replace("\n", f" {at}\n")
        for values, at in ((OLDER, 1700000000000), (NEWER, 1700000030000))
    ]
    assert only(stamped[0], stamped[1]).window_s == 30


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_"])
def test_underscores_and_ray_s_names_tell_the_same(text: Text, prefix: str) -> None:
    one = only(text(OLDER, LABELS), text(NEWER, LABELS), 5)
    assert one == only(text(OLDER, LABELS).replace("vllm:", prefix), text(NEWER, LABELS).replace("vllm:", prefix), 5)


def test_counters_without_total_tell_the_same(text: Text) -> None:
    bare = [
        text({name.removesuffix("_total"): value for name, value in values.items()}, LABELS)
        for values in (OLDER, NEWER)
    ]
    assert only(bare[0], bare[1], 5) == only(text(OLDER, LABELS), text(NEWER, LABELS), 5)


def test_removed_and_renamed_metrics_are_read_with_a_note(text: Text) -> None:
    values = {
        "vllm:gpu_cache_usage_perc": 0.9, "vllm:num_requests_running": 3, "vllm:num_requests_waiting": 1,
        "vllm:num_requests_swapped": 4, "vllm:cpu_cache_usage_perc": 0.25, "vllm:gpu_prefix_cache_hit_rate": 0.5,
        "vllm:gpu_prefix_cache_queries_total": 30, "vllm:gpu_prefix_cache_hits_total": 10,
    }  # fmt: skip
    histograms = {
        "vllm:time_in_queue_requests": (1, 2, 3, 9),
        "vllm:time_per_output_token_seconds": (4, 5, 6, 3),
    }
    info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    window = only(None, info + text(values, 'model_name="m"', histograms))
    assert (window.last.usage, window.last.swapped) == (0.9, 4)
    assert (window.extra["cpu_usage"], window.extra["prefix_hit_rate"]) == (0.25, 0.5)
    assert (window.counts.prefix_queries, window.counts.prefix_hits) == (480, 160)
    assert window.queue_s is not None
    assert window.gap_s is not None
    assert any("gpu_cache_usage_perc" in note for note in window.notes)
    assert any("blocks" in note for note in window.notes)


def test_a_help_line_tells_that_hits_are_counted_in_tokens(text: Text) -> None:
    info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    values = {"vllm:gpu_prefix_cache_queries_total": 30, "vllm:num_requests_running": 0}
    helped = "# HELP vllm:gpu_prefix_cache_queries_total queries, in terms of number of queried tokens\n"
    assert only(None, helped + info + text(values)).counts.prefix_queries == 30
    blocks = "# HELP vllm:prefix_cache_queries_total queries, in terms of number of queried blocks\n"
    values = {"vllm:prefix_cache_queries_total": 30, "vllm:num_requests_running": 0}
    assert only(None, blocks + info + text(values)).counts.prefix_queries == 480


def test_data_parallel_engines_are_one_window_each(text: Text) -> None:
    second = LABELS.replace('engine="0"', 'engine="1"')
    info = INFO + INFO.replace('engine="0"', 'engine="1"').replace('num_gpu_blocks="65"', 'num_gpu_blocks="33"')
    rejections = 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 6\n'
    newer = info + text(NEWER, LABELS) + text({**NEWER, "vllm:kv_cache_usage_perc": 0.1}, second) + rejections
    one, two = observation_of(text(OLDER, LABELS) + text(OLDER, second), newer, 5).engines
    assert (one.where, two.where) == ("engine=0", "engine=1")
    assert (one.last.usage, two.last.usage) == (0.75, 0.1)
    assert one.limits.pool is not None
    assert two.limits.pool is not None
    assert (one.limits.pool.num_blocks, two.limits.pool.num_blocks) == (65, 33)
    assert (one.counts.rejected, two.counts.rejected) == ({"max_num_queued_reqs": 6}, {})
    assert one.counts.preemptions == two.counts.preemptions == 2


def test_models_behind_one_port_are_one_window_each(text: Text) -> None:
    other = LABELS.replace('"m"', '"n"')
    windows = observation_of(None, text(NEWER, LABELS) + text(OLDER, other)).engines
    assert [(window.where, window.model) for window in windows] == [("model_name=m", "m"), ("model_name=n", "n")]


def test_labels_that_a_collector_adds_do_not_matter(text: Text) -> None:
    added = 'pod="vllm-0",instance="10.0.0.7:8000",' + LABELS
    for labels in ((LABELS, added), (added, LABELS), (added, added)):
        window = only(text(OLDER, labels[0]), text(NEWER, labels[1]), 5)
        assert (window.counts.preemptions, window.where, window.restarted) == (2, "", False)


def test_scrapes_given_newer_first_are_swapped(text: Text) -> None:
    window = only(text(NEWER, LABELS), text(OLDER, LABELS), 10)
    assert (window.counts.preemptions, window.last.usage, window.restarted) == (2, 0.75, False)
    assert any("newer first" in note for note in window.notes)


def test_a_restart_between_two_scrapes_is_no_wrong_order(text: Text) -> None:
    fresh = {**NEWER, **{name: 5 for name in NEWER if name.endswith("_total")}}
    window = only(text(OLDER, LABELS), text(fresh, LABELS), 10)
    assert (window.restarted, window.counts.preemptions, window.counts.prompt_tokens) == (True, 5, 5)
    assert any("began anew" in note for note in window.notes)


def test_the_start_of_the_process_tells_the_order_and_restarts(text: Text) -> None:
    early, late = "process_start_time_seconds 100\n", "process_start_time_seconds 900\n"
    same = only(text(NEWER, LABELS) + early, text(OLDER, LABELS) + early, 10)
    assert (same.restarted, same.counts.preemptions) == (False, 2)
    again = only(text(OLDER, LABELS) + early, text(NEWER, LABELS) + late, 10)
    assert (again.restarted, again.counts.preemptions) == (True, 9)
    turned = only(text(NEWER, LABELS) + late, text(OLDER, LABELS) + early, 10)
    assert (turned.restarted, turned.counts.preemptions) == (True, 9)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-5", "1e308", "37.5"])
def test_shares_that_cannot_be_are_unknown(text: Text, value: str) -> None:
    damaged = text(NEWER, LABELS).replace(" 0.75\n", f" {value}\n")
    assert only(None, damaged).last.usage is None


def test_a_pool_that_is_not_sized_yet_is_said(text: Text) -> None:
    window = only(None, 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n' + text(NEWER, LABELS))
    assert window.limits.pool is None
    assert any("not sized" in note for note in window.notes)


def test_a_scrape_of_nothing_is_refused_and_says_what_it_saw() -> None:
    with pytest.raises(Exception, match="known are vLLM"):
        observation_of(None, "# nothing\nnode_cpu_seconds_total 5\n", source="file.prom")


def test_the_blocks_that_data_parallel_engines_tell_are_those_of_all_of_them() -> None:
    """As vLLM 0.32 told with --data-parallel-size=2 and --num-gpu-blocks-override=65."""
    told = INFO.replace('num_gpu_blocks="65"', 'num_gpu_blocks="130"')
    running = 'vllm:num_requests_running{{model_name="m",engine="{0}"}} 1\n'
    text = told + told.replace('engine="0"', 'engine="1"') + running.format(0) + running.format(1)
    for window in observation_of(None, text).engines:
        pool = window.limits.pool
        assert pool is not None
        assert (pool.num_blocks, pool.usable_blocks, pool.tokens, pool.max_model_len) == (65, 64, 2080, 1024)
        assert pool.single_group
    (alone,) = observation_of(None, told + running.format(0)).engines
    assert alone.limits.pool is not None
    assert alone.limits.pool.num_blocks == 130
