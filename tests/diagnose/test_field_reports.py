"""What people reported of engines in trouble (docs/diagnose-cases.md), in figures of our own, comes out as it was."""

from math import inf
from typing import Any

import pytest

from kvbudget.diagnose.verdict import diagnose
from kvbudget.engines.window import EngineWindow, Observation
from windows import histogram, pool_of, window

FAST_AND_SLOW = {
    "ttft_s": histogram({0.8: 5.0, 5.5: 5.0, inf: 0.0}, 31.5),
    "prompt_lengths": histogram({10_000.0: 10.0, inf: 0.0}, 80_000.0),
    "queue_s": histogram({0.3: 10.0, inf: 0.0}, 0.1),
}
SMALL = {
    "prompt_lengths": histogram({20.0: 6.0, inf: 0.0}, 80.0),
    "output_lengths": histogram({500.0: 6.0, inf: 0.0}, 1_200.0),
}
# id: what was seen, the codes in order. The first is the verdict.
REPORTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "D05: four times the clients that fit": (
        {"usage": 1.0, "running": 70, "waiting": 190, "preemptions": 500, "pool": pool_of(80_000)}, ("pool_full",)),
    "D09: stuck for minutes, health 200": (
        {"usage": 0.0, "running": 0, "waiting": (5, 6), "generation_tokens": 0.0, "window_s": 540.0}, ("stuck",)),
    "D10: stuck, labelled capacity": (
        {"usage": 0.0, "running": 0, "waiting": 6, "deferred": 0, "max_num_seqs": 12, "window_s": 3600.0}, ("stuck",)),
    "D11: states kept at the end of a chunk": (
        {"usage": 0.2, "running": 1, "waiting": 0, "prefix_hits": 0.0, "prefix_queries": 280_000.0,
         "finished": {"stop": 6.0}, "prompt_tokens": 280_000.0, "largest_block": 1600}, ("prefix_cache_below_block",)),
    "D12: max_model_len under a block": (
        {"prefix_hits": 0.0, "prefix_queries": 10_000.0, "largest_block": 8320, "max_model_len": 4096},
        ("prefix_cache_below_block", "insufficient_data")),
    "D15: prefix under a block, and arrivals beyond service": (
        {"usage": 0.4, "running": (30, 34), "waiting": (16, 320), "prefix_hits": 0.0, "prefix_queries": 800_000.0,
         "largest_block": 1568}, ("compute_bound", "prefix_cache_below_block", "arrivals_exceed_service")),
    "D11: the same, and the use of the pool is not told": (
        {"running": 1, "waiting": 0, "prefix_hits": 0.0, "prefix_queries": 280_000.0, "finished": {"stop": 6.0},
         "prompt_tokens": 280_000.0, "largest_block": 1600}, ("prefix_cache_below_block", "insufficient_data")),
    "D15: the same, and only the queue is told": (
        {"waiting": (0, 320), "prefix_hits": 0.0, "prefix_queries": 801_000.0, "largest_block": 1568},
        ("prefix_cache_below_block", "insufficient_data", "arrivals_exceed_service")),
    "D15: too few were asked to call it structural": (
        {"waiting": (0, 320), "prefix_hits": 0.0, "prefix_queries": 100_000.0, "largest_block": 1568},
        ("insufficient_data", "prefix_cache_below_block", "arrivals_exceed_service")),
    "D16: hits are not counted": (
        {"usage": 0.1, "running": 1, "waiting": 0, "prefix_hits": 0.0, "prefix_queries": 80_000.0, "largest_block": 128,
         **FAST_AND_SLOW}, ("healthy", "counter_unwired")),
    "D18: three tiny requests": (
        {"usage": 0.987, "running": 3, "waiting": 3, "pool": pool_of(460_000, 7808), "largest_block": 7808, **SMALL},
        ("pool_full", "fixed_footprint")),
    "D19: two long answers beside the weights": (
        {"usage": 1.0, "running": 2, "waiting": 0, "pool": pool_of(40_000), "max_num_seqs": 20}, ("runaway_output",)),
    "D21: reservation too conservative": (
        {"engine": "sglang", "usage": 0.85, "running": 20, "waiting": 12}, ("budget_full",)),
    "D21: reservation too optimistic": (
        {"engine": "sglang", "usage": 0.97, "running": 20, "waiting": 12, "preemptions": 40.0}, ("pool_full",)),
    "D23: slots that share a pool": (
        {"engine": "llamacpp", "running": 4, "failed": 50.0, "max_num_seqs": 4, "extra": {"no_room": 190.0}},
        ("pool_full", "engine_rejecting")),
    "D24: clients time out": (
        {"usage": 0.6, "running": 200, "waiting": 0, "aborted": 1000.0, "finished": {"abort": 1000.0, "stop": 30.0},
         "generation_tokens": 3e7, "window_s": 300.0}, ("client_timeouts",)),
    "D27: n answers a request": (
        {"usage": (0.74, 0.86), "running": 2, "waiting": 98, "extra": {"n_mean": 8.0}}, ("pool_full",)),
    "D30: a storm": (
        {"usage": 0.98, "running": 4, "waiting": 60, "preemptions": 437.0, "finished": {"stop": 0.0}}, ("pool_full",)),
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_comes_out_as_it_was(name: str) -> None:
    seen, codes = REPORTS[name]
    found = diagnose(Observation((window(**seen),)))
    assert tuple(finding.code for finding in found.findings) == codes
    assert found.verdict == codes[0]


def test_a_jump_of_tokens_between_versions_is_no_alarm() -> None:
    """D25."""

    def at(version: str, tokens: int) -> EngineWindow:
        pool = pool_of(55_000)._replace(tokens=tokens)
        return window(usage=0.3, running=4, waiting=0, version=version, pool=pool)

    found = diagnose(Observation((at("0.20", 55_000), at("0.21", 525_000))))
    assert [finding.code for finding in found.findings] == ["healthy", "reporting_change"]
