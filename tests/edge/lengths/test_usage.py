"""Usage logs in their spellings."""

import json
from typing import Any

import pytest

from kvbudget.edge.lengths.usage import requests_from_usage
from kvbudget.errors import BadValueError


def lines(*rows: Any) -> list[str]:
    return [json.dumps(row) + "\n" for row in rows]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt_tokens": 9, "output_tokens": 4},
        {"input_length": 9, "output_length": 4},
        {"usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}},
        {"response": {"usage": {"input_tokens": 9, "output_tokens": 4}}},
        {"custom_id": "x", "response": {"body": {"usage": {"prompt_tokens": 9, "completion_tokens": 4}}}},
    ],
)  # fmt: skip
def test_counts_are_found_in_the_usual_spellings_and_places(row: Any) -> None:
    assert requests_from_usage(lines(row), "f").requests == ((9, 4),)


def test_lines_in_any_order_are_sorted_by_their_time() -> None:
    rows = [{"ts": t, "prompt_tokens": t, "output_tokens": 1} for t in (30, 10, 20)]
    found = requests_from_usage(lines(*rows), "f")
    assert [prompt for prompt, _ in found.requests] == [10, 20, 30]
    assert found.arrivals_s == (0, 10, 20)


def test_milliseconds_are_told_from_seconds() -> None:
    rows = [{"timestamp": t, "prompt_tokens": 1, "output_tokens": 1} for t in (1_764_000_000_000, 1_764_000_002_500)]
    assert requests_from_usage(lines(*rows), "f").arrivals_s == (0, 2.5)


def test_a_single_line_without_a_time_leaves_all_without() -> None:
    found = requests_from_usage(lines({"ts": 1, "prompt_tokens": 1, "output_tokens": 1},
                                      {"prompt_tokens": 1, "output_tokens": 1}), "f")  # fmt: skip
    assert found.arrivals_s == ()


def test_other_events_are_left_out_but_never_most_of_the_file() -> None:
    event, request = {"event": "start"}, {"prompt_tokens": 1, "output_tokens": 1}
    assert len(requests_from_usage(lines(event, request, request), "f").requests) == 2
    with pytest.raises(BadValueError, match="2 of 3 lines"):
        requests_from_usage(lines(event, event, request), "f")


@pytest.mark.parametrize("value", [-1, 1.5, "7", None, True, 2**40])
def test_what_is_no_count_names_its_line(value: Any) -> None:
    with pytest.raises(BadValueError, match="f:2: prompt_tokens"):
        requests_from_usage(
            lines({"prompt_tokens": 1, "output_tokens": 1}, {"prompt_tokens": value, "output_tokens": 1}), "f"
        )


def test_nothing_is_one_token_at_least() -> None:
    assert requests_from_usage(lines({"prompt_tokens": 0, "output_tokens": 3}), "f").requests == ((1, 3),)
    assert requests_from_usage(lines({"prompt_tokens": 0, "output_tokens": 3}), "f").requests == ((1, 3),)


def test_deep_nesting_ends() -> None:
    row: Any = {"prompt_tokens": 1, "output_tokens": 1}
    for _ in range(20):
        row = {"data": row}
    with pytest.raises(BadValueError, match="hold no token counts"):
        requests_from_usage(lines(row), "f")
