"""Growth of counters over scrapes, resets included."""

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.engines.metrics.exposition import parsed
from kvbudget.engines.metrics.span import Scrape, Span, identities, told_apart


def span(*texts: str, counters: tuple[str, ...] = ("c_total",)) -> Span:
    return Span([Scrape(parsed(text, lambda _: True).samples) for text in texts], counters)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=5), min_size=1, max_size=4), st.integers(0, 10_000))
def test_growth_is_what_was_counted_whatever_was_counted_before(runs: list[list[int]], before: int) -> None:
    """Each run is one life of a process; the window begins within the first."""
    texts, value, counted = [f"c_total {before}\n"], before, 0
    for life, steps in enumerate(runs):
        if life:
            value, counted = 0, 0  # what a life before counted after its last scrape cannot be known: it is left out
        for step in steps:
            value += step
            counted += step
            texts.append(f"c_total {value}\nprocess_start_time_seconds {1000.0 + 100 * life}\n")
    texts[0] += "process_start_time_seconds 1000\n"
    told = span(*texts)
    assert told.grew("c_total") == counted
    assert told.restarted == (len(runs) > 1)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_one_counter_alone_never_shrinks(first: int, second: int) -> None:
    told = span(f"c_total {first}\n", f"c_total {second}\n")
    assert told.grew("c_total") == (second - first if second >= first else second)
    assert told.restarted == (second < first)


def test_a_later_start_counts_from_zero_though_the_counter_is_higher() -> None:
    told = span("c_total 5\nprocess_start_time_seconds 100\n", "c_total 9\nprocess_start_time_seconds 160\n")
    assert (told.grew("c_total"), told.restarted) == (9, True)


def test_one_counter_among_many_that_fell_is_counted_alone() -> None:
    told = span("a 10\nb 10\nc 10\n", "a 20\nb 20\nc 3\n", counters=("a", "b", "c"))
    assert (told.grew("a"), told.grew("b"), told.grew("c"), told.restarted) == (10, 10, 3, True)


def test_when_most_counters_fell_all_began_anew() -> None:
    told = span("a 10\nb 10\nc 10\n", "a 2\nb 2\nc 12\n", counters=("a", "b", "c"))
    assert (told.grew("a"), told.grew("c"), told.restarted) == (2, 12, True)


def test_a_series_that_is_left_out_of_some_scrapes_is_compared_with_where_it_was() -> None:
    told = span("c_total 10\n", "other 1\n", "c_total 4\n", "c_total 6\n")
    assert (told.grew("c_total"), told.restarted) == (6, True)
    assert span("c_total 10\n", "other 1\n", "c_total 14\n").grew("c_total") == 4


def test_a_series_that_was_not_there_yet_began_at_zero() -> None:
    told = span('c_total{r="a"} 5\n', 'c_total{r="a"} 6\nc_total{r="b"} 2\n')
    assert told.grew_by("c_total", "r") == {"a": 1, "b": 2}
    assert told.grew("c_total", lambda labels: labels["r"] == "b") == 2


def test_counters_are_found_with_and_without_total() -> None:
    assert span("c 1\n", "c 4\n").grew("c_total") == 3
    assert span("c_total 1\n", "c_total 4\n").grew("c") == 3
    assert span("d 1\n").grew("c_total") is None


@pytest.mark.parametrize("value", [nan, inf, -inf, -1.0, 1e300])
def test_a_counter_that_is_no_number_is_unknown(value: float) -> None:
    assert span("c_total 1\n", f"c_total {value}\n").grew("c_total") is None


def histogram(one: float, ten: float, every: float, total: float) -> str:
    return (
        f'h_bucket{{le="1"}} {one}\nh_bucket{{le="10.0"}} {ten}\nh_bucket{{le="+Inf"}} {every}\n'
        f"h_sum {total}\nh_count {every}\n"
    )


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=3, max_size=3), st.lists(st.integers(0, 50), min_size=3, max_size=3))
def test_histograms_are_what_each_bucket_counted(before: list[int], since: list[int]) -> None:
    after = [old + new for old, new in zip(before, since, strict=True)]
    texts = [histogram(x, x + y, x + y + z, 3.0 * (x + y + z)) for x, y, z in (before, after)]
    told = span(*texts).distribution("h")
    assert told is not None
    assert told.counts == tuple(since)
    assert told.bounds == (1.0, 10.0, inf)
    assert told.total == pytest.approx(3.0 * sum(since))


def test_a_histogram_without_buckets_still_has_its_mean() -> None:
    told = span("s_sum 10\ns_count 4\n", "s_sum 40\ns_count 10\n").distribution("missing", "s")
    assert told is not None
    assert (told.bounds, told.counts, told.mean) == ((inf,), (6,), 5)
    assert span("c_total 1\n").distribution("h") is None


def test_a_histogram_that_contradicts_itself_has_no_negative_bucket() -> None:
    told = span(histogram(5, 3, 4, 1), histogram(9, 3, 5, 2)).distribution("h")
    assert told is not None
    assert min(told.counts) >= 0


def test_engines_are_told_apart_by_what_differs() -> None:
    scrape = Scrape(
        parsed(
            'g{engine="0",model="m",pod="a"} 1\ng{engine="1",model="m",pod="a"} 1\nh{model="m"} 2\n', lambda _: True
        ).samples
    )
    found = identities(scrape, ("g", "h"))
    assert told_apart(found) == ["engine=0", "engine=1"]
    assert told_apart(found[:1]) == [""]
    assert identities(scrape, ("g",), within=("engine",)) == [{"model": "m", "pod": "a"}]
