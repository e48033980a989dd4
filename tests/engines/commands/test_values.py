"""Values of flags mean what the engine that reads them means by them."""

import pytest

from kvbudget.engines.commands import values
from kvbudget.errors import BadValueError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8192", 8192),
        ("8k", 8000),
        ("8K", 8192),
        ("25.6k", 25_600),
        ("1m", 10**6),
        ("1M", 2**20),
        ("2g", 2 * 10**9),
        ("24G", 24 * 2**30),
        (" 16K ", 16_384),
        ("0.5k", 500),
    ],
)
def test_small_suffixes_are_decimal_and_capitals_binary(text: str, number: int) -> None:
    assert values.human("--max-model-len", text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5K", "8kk", "-8k", "0", "0k", "1e3", "8 k", "9" * 30, "٣"])
def test_what_vllm_would_refuse_names_the_flag(text: str) -> None:
    with pytest.raises(BadValueError, match="--max-model-len"):
        values.human("--max-model-len", text)


def test_auto_and_minus_one_ask_for_the_largest_that_fits() -> None:
    assert [values.human_or_auto("-", text) for text in ("auto", "AUTO", "-1", "4K")] == [-1, -1, -1, 4096]


def test_zero_and_below_leave_a_count_to_the_engine() -> None:
    assert [values.positive_or_default("-c", text) for text in ("0", "-1", "5")] == [None, None, 5]
    with pytest.raises(BadValueError, match="-c"):
        values.positive_or_default("-c", "-x")


@pytest.mark.parametrize("text", ["0", "1.5", "-0.5", "nan", "inf", "x", ""])
def test_a_share_lies_above_zero_and_up_to_one(text: str) -> None:
    assert values.fraction("--u", "0.92") == 0.92
    with pytest.raises(BadValueError, match="--u"):
        values.fraction("--u", text)


def test_booleans_come_in_all_their_spellings() -> None:
    assert [values.yes_or_no("-", text) for text in ("true", "1", "YES", "on")] == [True] * 4
    assert [values.opposite("-", text) for text in ("false", "0", "No", "disabled")] == [True] * 4
    with pytest.raises(BadValueError, match="neither"):
        values.yes_or_no("--x", "maybe")


def test_json_objects_may_hold_numbers_with_suffixes_outside_of_strings() -> None:
    text = '{"method": "eagle3", "model": "org/8k-draft", "limit": 80m, "n": 3}'
    assert values.json_object("--sc", text) == {
        "method": "eagle3",
        "model": "org/8k-draft",
        "limit": 80_000_000,
        "n": 3,
    }


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "'{}'", "[" * 50_000, "{" * 200_000])
def test_what_is_no_json_object_is_a_clear_error(text: str) -> None:
    with pytest.raises(BadValueError, match="--sc"):
        values.json_object("--sc", text)


def test_a_dotted_value_is_json_a_number_or_the_text_itself() -> None:
    given = ["3", "true", '"x"', "mtp", "4K", "1.5K", "[1, 2]"]
    assert [values.json_value(text) for text in given] == [3, True, "x", "mtp", 4096, "1.5K", [1, 2]]
