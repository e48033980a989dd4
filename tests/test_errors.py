"""What of other people's text may reach a terminal."""

import pytest

from kvbudget.errors import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ü 漢", "plain, ü 漢"),
        ("two\nlines", "two\nlines"),
        ("\x1b[31mred\x07", "?[31mred?"),
        ("a\r\tb\x7f\x9b", "a??b??"),
        ("turned \u202eround", "turned ?round"),
        ("half \ud800", "half ?"),
    ],
)
def test_signs_that_steer_a_terminal_are_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    assert printable("x" * 100, 10) == "xxxxxxx..."
    assert printable("x" * 10, 10) == "x" * 10
