import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.limits import check_text, has_long_run


def _class(char: str) -> str:
    if char.isspace():
        return "blank"
    if char == "_" or char.isdecimal():
        return "digit"
    return "letter" if char.isalnum() else "sign"


def _longest_run(text: str) -> int:
    longest = current = 0
    for index, char in enumerate(text):
        current = current + 1 if index and _class(text[index - 1]) == _class(char) else 1
        longest = max(longest, current)
    return longest


@given(st.lists(st.tuples(st.sampled_from("aé字 \n.-1_²"), st.integers(1, 300)), max_size=8), st.integers(1, 200))
@example([("a", 7), (" ", 1), ("a", 5)], 6)
@settings(max_examples=300, deadline=None)
def test_a_long_run_is_found_exactly_when_there_is_one(pieces: list[tuple[str, int]], limit: int) -> None:
    text = "".join(char * times for char, times in pieces)
    assert has_long_run(text, limit) is (_longest_run(text) > limit)


def test_the_worst_text_costs_about_as_much_as_reading_it() -> None:
    limit = 65_536
    text = ("a" * limit + " ") * 60
    begun = time.process_time()
    assert not has_long_run(text, limit)
    assert time.process_time() - begun < 2.0


def test_bytes_are_counted_over_all_texts() -> None:
    check_text(["aé", "b"], 4, 10)
    with pytest.raises(BadRequestError, match="at most 3"):
        check_text(["aé", "b"], 3, 10)
