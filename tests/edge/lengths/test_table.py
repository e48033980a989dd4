"""A plain CSV of lengths: columns by name, every row or none."""

from pathlib import Path

import pytest

from kvbudget.edge.lengths.read import read_workload
from kvbudget.edge.lengths.table import is_table, requests_from_table
from kvbudget.errors import BadValueError


@pytest.mark.parametrize(
    "header",
    [
        "prompt_tokens,completion_tokens",
        "prompt,completion",
        "input_tokens,output_tokens",
        "Prompt_Tokens, Completion_Tokens",
        '"prompt_tokens","completion_tokens"',
        "prompt_tokens;completion_tokens",
        "prompt_tokens\tcompletion_tokens",
    ],
)
def test_columns_are_found_by_their_usual_names(header: str, tmp_path: Path) -> None:
    separator = next(mark for mark in ",;\t" if mark in header)
    path = tmp_path / "lengths.csv"
    path.write_text(f"\n{header}\n800{separator}200\n\n4000.0{separator}0\n")
    found = read_workload(path)
    assert found.requests == ((800, 200), (4000, 1))  # an engine always has one token of each
    assert (found.source, found.arrivals_s) == ("trace", ())
    assert read_workload(path, "csv") == found


def test_other_columns_and_any_order_are_no_matter() -> None:
    lines = ["id,output_tokens,model,input_tokens", 'a,7,"x, y",9', "b,1,z,2"]
    assert requests_from_table(lines, "f").requests == ((9, 7), (2, 1))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["prompt,completion", "1,2", "3"], "f:3: 1 fields, the header has 2"),
        (["prompt,completion", "1,x"], "f:2: completion 'x' is not a count"),
        (["", "prompt,completion", "1,2", "-1,2"], "f:4: prompt '-1'"),
        (["prompt,completion", "1.5,2"], "prompt '1.5'"),
        (["prompt,completion", "99999999999,2"], "not a count"),
        (["prompt,completion", '"1,2'], "f:2"),
    ],
)
def test_a_damaged_row_is_named(lines: list[str], said: str) -> None:
    with pytest.raises(BadValueError) as caught:
        requests_from_table(lines, "f")
    assert said in caught.value.message


@pytest.mark.parametrize("text", ["tokens_in,tokens_out\n1,2\n", "1,2\n", ""])
def test_a_csv_without_the_columns_is_told_which_ones_are_wanted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    for form in (None, "csv"):
        with pytest.raises(BadValueError) as caught:
            read_workload(path, form)
        assert "prompt_tokens,completion_tokens" in caught.value.fix


def test_a_header_needs_both_columns() -> None:
    assert is_table("prompt,completion")
    assert not is_table("prompt,answer")
    assert not is_table("TIMESTAMP,ContextTokens,GeneratedTokens")


def test_a_comment_before_the_header_says_nothing() -> None:
    lines = ["# exported", "", "  # on Monday", "prompt_tokens,completion_tokens", "5,6"]
    assert requests_from_table(lines, "t.csv").requests == ((5, 6),)
    with pytest.raises(BadValueError, match=r"t.csv:6: "):
        requests_from_table([*lines, "5,x"], "t.csv")


@pytest.mark.parametrize("row", ["   ", "\t", ",", " , "])
def test_a_row_of_nothing_is_no_request(row: str) -> None:
    assert requests_from_table(["prompt,completion", "5,6", row, "7,8"], "t.csv").requests == ((5, 6), (7, 8))


@pytest.mark.parametrize(
    "header", ["prompt_tokens,completion_tokens,prompt_tokens", "output;input;OUTPUT", 'input,output,"input"']
)
def test_a_column_that_is_there_twice_is_not_guessed(header: str) -> None:
    with pytest.raises(BadValueError, match="two columns are named"):
        requests_from_table([header, "1,2,3"], "t.csv")


def test_other_columns_may_be_there_twice() -> None:
    assert requests_from_table(["id,prompt,completion,id", "a,5,6,b"], "t.csv").requests == ((5, 6),)
