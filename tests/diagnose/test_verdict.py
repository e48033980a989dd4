"""Of all that holds the most causal is the verdict; nothing that an engine tells makes it fail."""

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.diagnose.finding import Diagnosis, Severity, document
from kvbudget.diagnose.verdict import CODES, OF_A_GATE, OF_ONE, OF_SEVERAL, diagnose
from kvbudget.engines.window import Counts, Distribution, EngineWindow, GateWindow, Gauges, Limits, Observation
from kvbudget.report.diagnosed import diagnosis_lines
from windows import histogram, pool_of, window


def of(*windows: EngineWindow, gates: tuple[GateWindow, ...] = (), limit: int | None = None) -> Diagnosis:
    return diagnose(Observation(windows, gates), limit)


def codes(found: Diagnosis) -> list[str]:
    return [finding.code for finding in found.findings]


def test_preemptions_and_a_queue_belong_to_the_full_pool() -> None:
    full = window(usage=0.99, running=(40, 40), waiting=(25, 60), preemptions=90, rejected={"x": 5.0}, aborted=50.0,
                  finished={"abort": 50.0})  # fmt: skip
    assert codes(of(full)) == ["pool_full", "engine_rejecting", "client_timeouts", "arrivals_exceed_service"]


def test_what_stands_still_goes_before_what_is_full() -> None:
    still = window(usage=0.99, running=0, waiting=9, prompt_tokens=0, generation_tokens=0)
    assert codes(of(still))[0] == "stuck"


def test_refusals_go_before_an_inferred_limit_and_behind_a_told_one() -> None:
    figures: dict[str, Any] = {"usage": 0.4, "running": 64, "waiting": 30, "rejected": {"queue": 9.0}}
    assert codes(of(window(**figures))) == ["engine_rejecting", "seqs_full"]
    assert codes(of(window(**figures), limit=64)) == ["seqs_full", "engine_rejecting"]


def test_the_cache_is_the_verdict_only_where_nothing_of_weight_is_there() -> None:
    cold: dict[str, Any] = {"prefix_hits": 0.0, "prefix_queries": 10_000.0, "pool": pool_of(40_000)}
    assert of(window(usage=0.3, running=8, waiting=0, **cold)).verdict == "prefix_cache_no_sharing"
    weightier: tuple[tuple[dict[str, Any], str], ...] = (
        ({"usage": 0.99, "running": 40, "waiting": 9}, "pool_full"),
        ({"usage": 0.4, "running": 64, "waiting": 9}, "seqs_full"),
        ({"usage": None, "running": 64, "waiting": 9}, "insufficient_data"),
    )
    for more, verdict in weightier:
        found = of(window(**cold, **more))
        assert found.verdict == verdict
        assert ("prefix_cache_no_sharing" in codes(found)) is (verdict != "pool_full")


def test_a_cause_that_is_certain_needs_no_gauges() -> None:
    blind = window(prefix_hits=0.0, prefix_queries=10_608.0, max_model_len=4096, largest_block=8320)
    assert codes(of(blind)) == ["prefix_cache_below_block", "insufficient_data"]


def test_what_is_only_worth_knowing_leaves_an_engine_healthy() -> None:
    well = window(usage=0.3, running=8, waiting=0, notes=("old:name: read by the older name",))
    found = of(well)
    assert found.verdict == "healthy"
    assert codes(found) == ["healthy", "reporting_change"]


def test_a_cache_that_is_off_is_the_verdict_where_prompts_are_worth_caching() -> None:
    long: dict[str, Any] = {
        "usage": 0.3, "running": 8, "waiting": 0, "prefix_caching": False, "pool": pool_of(40_000),
        "prompt_tokens": 30_000.0, "finished": {"stop": 75.0},
    }  # fmt: skip
    assert codes(of(window(**long))) == ["prefix_cache_off"]
    for changes in (
        {"prefix_caching": True},
        {"prefix_caching": None},
    ):
        assert codes(of(window(**{**long, **changes}))) == ["healthy"]


@pytest.mark.parametrize(
    "changes",
    [
        {"finished": {"stop": 600.0}},  # 50 tokens each: three blocks
        {"prompt_tokens": 0.0},  # nobody asks
        {"prompt_tokens": 400.0, "finished": {"stop": 1.0}},  # a single prompt
        {"since_start": True, "looks": 1},  # old news
    ],
)
def test_a_cache_that_is_off_is_a_note_where_little_is_lost(changes: dict[str, Any]) -> None:
    long: dict[str, Any] = {
        "usage": 0.3, "running": 8, "waiting": 0, "prefix_caching": False, "pool": pool_of(40_000),
        "prompt_tokens": 30_000.0, "finished": {"stop": 75.0},
    }  # fmt: skip
    assert codes(of(window(**{**long, **changes}))) == ["healthy", "prefix_cache_off"]


def test_a_cache_that_is_off_hides_nothing_of_weight() -> None:
    off: dict[str, Any] = {"prefix_caching": False, "prompt_tokens": 30_000.0, "finished": {"stop": 75.0},
                           "pool": pool_of(40_000)}  # fmt: skip
    assert codes(of(window(usage=0.99, running=40, waiting=9, preemptions=5, **off)))[0] == "pool_full"
    assert codes(of(window(usage=None, running=64, waiting=9, **off)))[0] == "insufficient_data"


@pytest.mark.parametrize("usage", [(0.88, 0.91), (0.90, 0.92), (0.93, 0.97)])
def test_a_pool_that_fills_with_nobody_waiting_is_a_note_on_a_healthy_engine(usage: tuple[float, float]) -> None:
    found = of(window(usage=usage, running=38, waiting=0))
    assert codes(found) == ["healthy", "pool_filling"]
    assert found.findings[1].severity is Severity.INFO


def test_a_pool_that_fills_hides_no_cause() -> None:
    fell = Counts(prefix_hits=61_000.0, prefix_queries=200_000.0)
    cache: dict[str, Any] = {
        "prefix_hits": 1_000.0,
        "prefix_queries": 100_000.0,
        "totals": fell,
        "pool": pool_of(40_000),
    }
    found = of(window(usage=(0.90, 0.92), running=38, waiting=0, **cache))
    assert codes(found) == ["prefix_cache_too_small", "pool_filling"]


def test_one_that_is_well_hides_no_other_that_is_not() -> None:
    well, full = window(usage=0.3, running=8, waiting=0), window(usage=0.99, running=40, waiting=9, where="engine=1")
    found = of(well, full)
    assert (found.verdict, found.first.where) == ("pool_full", ("engine=1",))
    assert "healthy" not in codes(found)


def test_one_that_cannot_be_seen_keeps_the_others_from_being_called_healthy() -> None:
    assert of(window(usage=0.3, running=8, waiting=0), window(running=1, waiting=0)).verdict == "insufficient_data"


def test_work_shared_out_badly_is_told_beside_the_full_one() -> None:
    full = window(usage=0.99, running=40, waiting=9, where="engine=0", model="m")
    idle = window(usage=0.2, running=2, waiting=0, where="engine=1", model="m")
    assert codes(of(full, idle)) == ["pool_full", "rank_imbalance"]
    other = window(usage=0.2, running=2, waiting=0, where="engine=1", model="another")
    assert codes(of(full, other)) == ["pool_full"]
    near = window(usage=0.7, running=30, waiting=0, where="engine=1", model="m")
    assert codes(of(full, near)) == ["pool_full"]


def test_ranks_that_one_server_tells_together_count_by_the_fullest() -> None:
    ranks = window(engine="sglang", usage=0.6, usage_by_rank={"0": 0.99, "1": 0.21}, running=40, waiting=9)
    assert of(ranks).verdict == "pool_full"
    assert "rank_imbalance" in codes(of(ranks))


def test_the_same_pool_told_in_other_tokens_is_a_change_of_the_figure() -> None:
    old = window(usage=0.3, running=8, waiting=0, version="0.20", pool=pool_of(55_000))
    new = window(usage=0.3, running=8, waiting=0, version="0.21", pool=pool_of(55_000)._replace(tokens=525_000))
    assert codes(of(old, new)) == ["healthy", "reporting_change"]
    larger = window(usage=0.3, running=8, waiting=0, version="0.21", pool=pool_of(525_000))
    assert codes(of(old, larger)) == ["healthy"]


def test_the_gate_and_its_engine_are_judged_together() -> None:
    gate = GateWindow("a", 30.0, 1000, 960, 300, 0, 20, 7, 9_000)
    assert of(window(usage=0.3, running=8, waiting=0), gates=(gate,)).verdict == "budget_full"
    full = window(usage=0.99, running=40, waiting=9)
    assert of(full, gates=(gate,)).verdict == "pool_full"


def test_a_queue_behind_a_gate_has_one_name_and_not_two_that_contradict() -> None:
    """73 % in use, and the next is large: the gate says that its promises are what is used up, and has the figures."""
    seen = window(usage=0.73, running=2, waiting=3)
    assert codes(of(seen))[0] == "pool_full"
    assert "is full" not in of(seen).first.message
    assert "no room for one more like those that run: 73.0 % in use" in of(seen).first.message
    gate = GateWindow("a", 30.0, 1000, 960, 730, 0, 0, 7, 9_000, policy="learned")
    both = of(seen, gates=(gate,))
    assert (both.verdict, "pool_full" in codes(both)) == ("budget_full", False)
    idle = GateWindow("a", 30.0, 1000, 500, 730, 0, 0, 0, 0)
    assert of(seen, gates=(idle,)).verdict == "pool_full"
    preempted = window(usage=0.73, running=2, waiting=3, preemptions=9)
    assert of(preempted, gates=(gate,)).verdict == "pool_full"
    told = [action.what for finding in of(preempted, gates=(gate,)).findings for action in finding.actions]
    assert not [what for what in told if "put the gate in front" in what]


def test_a_gate_alone_is_enough() -> None:
    assert of(gates=(GateWindow("a", 30.0, 1000, 100, 90, 0, 20, 0, 0),)).verdict == "healthy"
    assert of(gates=(GateWindow("a", 30.0),)).verdict == "insufficient_data"


def test_what_could_not_be_read_keeps_the_rest_from_being_called_healthy() -> None:
    idle = window(usage=0.2, running=1, waiting=0)
    found = diagnose(Observation((idle,), problems=("http://b/metrics: cannot be reached",)))
    assert found.verdict == "insufficient_data"
    assert found.findings[0].collect == ("http://b/metrics: cannot be reached",)
    full = window(usage=0.99, running=40, waiting=30, preemptions=90)
    assert diagnose(Observation((full,), problems=("another",))).verdict == "pool_full"


def test_nothing_seen_is_not_enough() -> None:
    found = diagnose(Observation(problems=("a: cannot be reached",)))
    assert (found.verdict, found.problems) == ("insufficient_data", ("a: cannot be reached",))
    assert found.first.collect


def test_a_queue_that_nothing_explains_asks_for_what_would() -> None:
    found = of(window(looks=1, usage=0.3, running=37, waiting=20))
    assert found.verdict == "insufficient_data"
    assert any("--max-num-seqs" in what for what in found.first.collect) or any(
        "second scrape" in what for what in found.first.collect
    )
    assert any("/slots" in what for what in of(window(engine="llamacpp", running=(3, 4), waiting=9)).first.collect)


def test_an_engine_that_was_just_restarted_has_shown_nothing_yet() -> None:
    fresh = window(usage=0.0, running=0, waiting=0, restarted=True, generation_tokens=0.0, prompt_tokens=0.0)
    assert of(fresh).verdict == "insufficient_data"


def test_every_rule_has_a_line_in_the_table_and_every_line_a_meaning() -> None:
    rules = {rule.__name__.removeprefix("gate_") for rule in (*OF_ONE, *OF_SEVERAL, *OF_A_GATE)} - {"places_full"}
    assert rules | {"healthy", "insufficient_data"} == set(CODES)
    assert all(code.means.endswith(".") for code in CODES.values())


# Anything that may stand in a window

_numbers = st.one_of(st.none(), st.sampled_from([nan, inf, -inf, -1.0, 0.0, 1e300]), st.floats(0, 1e6))
_counts = st.one_of(st.none(), st.integers(-5, 2**40), st.sampled_from([nan, inf]))
_maps = st.dictionaries(st.sampled_from(["stop", "abort", "x", ""]), st.floats(allow_nan=True, allow_infinity=True))
_gauges = st.builds(
    Gauges,
    at_s=_numbers,
    usage=st.one_of(st.none(), st.floats(0, 1), st.sampled_from([nan, inf, -1.0, 2.0])),
    usage_by_kind=st.dictionaries(st.sampled_from(["full", "sliding"]), st.floats(allow_nan=True), max_size=2),
    running=_counts,
    waiting=_counts,
    deferred=_counts,
    swapped=_counts,
    usage_by_rank=st.dictionaries(st.sampled_from(["0", "1"]), st.floats(allow_nan=True), max_size=2),
)
_growth = st.builds(
    Counts,
    prompt_tokens=_numbers, generation_tokens=_numbers, prefix_queries=_numbers, prefix_hits=_numbers,
    preemptions=_numbers, recomputed_tokens=_numbers, finished=_maps, rejected=_maps, failed=_numbers, aborted=_numbers,
)  # fmt: skip
_distributions = st.one_of(
    st.none(),
    st.builds(
        lambda counts, total: Distribution((1.0, 100.0, inf), counts, total),
        st.tuples(*[st.floats(allow_nan=True)] * 3),
        st.floats(allow_nan=True),
    ),
)
_pools = st.one_of(st.none(), st.builds(pool_of, st.integers(16, 10**7)), st.just(pool_of(16)._replace(tokens=None)))
_limits = st.builds(
    Limits, pool=_pools, max_num_seqs=_counts, max_num_batched_tokens=_counts, max_model_len=_counts,
    prefix_caching=st.one_of(st.none(), st.booleans()), smallest_block=_counts, largest_block=_counts,
)  # fmt: skip
_windows = st.builds(
    EngineWindow,
    engine=st.sampled_from(["vllm", "sglang", "tgi", "llamacpp", "trtllm", "lmdeploy", "dynamo", ""]),
    where=st.sampled_from(["", "engine=0", "engine=1"]),
    window_s=_numbers,
    since_start=st.booleans(),
    restarted=st.booleans(),
    looks=st.lists(_gauges, min_size=1, max_size=4).map(tuple),
    counts=_growth,
    limits=_limits,
    queue_s=_distributions, ttft_s=_distributions, prompt_lengths=_distributions, output_lengths=_distributions,
    max_tokens=_distributions, step_tokens=_distributions,
    notes=st.lists(st.sampled_from(["a: older", "b"]), max_size=2).map(tuple),
    extra=st.dictionaries(st.sampled_from(["n_mean", "no_room", "prompt_tokens_cached"]), _numbers),
    totals=_growth,
)  # fmt: skip
_gates = st.builds(
    GateWindow, instance=st.sampled_from(["", "a"]), window_s=_numbers, pool_blocks=_counts, promised_blocks=_counts,
    held_blocks=_counts, elsewhere_blocks=_counts, margin_blocks=_counts, queue_requests=_counts, queue_tokens=_counts,
    refusals=_maps,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(_windows, max_size=3), st.lists(_gates, max_size=2), _counts)
def test_whatever_is_told_gives_a_verdict_that_can_be_written(
    windows: list[EngineWindow], gates: list[GateWindow], limit: Any
) -> None:
    found = diagnose(Observation(tuple(windows), tuple(gates)), limit)
    assert CODES[found.verdict].verdict
    assert found.verdict == found.first.code
    assert (found.verdict == "healthy") == (not any(CODES[code].verdict for code in codes(found) if code != "healthy"))
    told = document(found)
    assert_plain(told)
    assert diagnosis_lines(found)
    for finding in found.findings:
        assert finding.severity in Severity
        assert finding.actions
        assert finding.refuted_by


def assert_plain(value: object) -> None:
    """What JSON can hold, without NaN."""
    if isinstance(value, dict):
        for inner in value.values():
            assert_plain(inner)
    elif isinstance(value, list):
        for inner in value:
            assert_plain(inner)
    else:
        assert value is None or isinstance(value, str | int) or (isinstance(value, float) and abs(value) < inf)


def test_a_histogram_of_nothing_has_no_mean() -> None:
    empty = histogram({1.0: 0.0, inf: 0.0}, 0.0)
    assert of(window(usage=0.5, running=3, waiting=0, prompt_lengths=empty, step_tokens=empty)).verdict == "healthy"


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_is_a_word_that_a_metric_label_can_be(code: str) -> None:
    assert code.isascii()
    assert code.replace("_", "").isalpha()
    assert code == code.lower()
