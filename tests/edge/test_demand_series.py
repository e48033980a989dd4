"""A CSV of demand is read as it stands, and damage is refused with its line."""

from pathlib import Path

import pytest

from kvbudget.edge.demand_series import DemandSeries, demand_of, read_demand
from kvbudget.errors import BadValueError


def series(*lines: str, column: str = "kv_tokens") -> DemandSeries:
    return demand_of(lines, "x.csv", column)


def test_minutes_and_tokens_are_found_by_name_in_any_order() -> None:
    found = series("requests,kv_tokens,minute", "9,1.5,3", "9, 2 ,4")
    assert found.rows == ((3, 1.5), (4, 2.0))
    assert (found.written, found.stamped, found.missing) == (("3", "4"), False, 0)


def test_stamps_count_from_1970_and_are_kept_as_written() -> None:
    found = series("timestamp,kv_tokens", "1970-01-01T00:05,1", "1970-01-01 02:07:59+02:00,2", "1970-01-01T00:08Z,3")
    assert [minute for minute, _ in found.rows] == [5, 7, 8]
    assert found.stamped
    assert found.written[1] == "1970-01-01 02:07:59+02:00"


def test_empty_cells_and_left_out_minutes_are_missing() -> None:
    found = series("minute,kv_tokens", "0,1", "1,", "", "4,1")
    assert found.rows == ((0, 1.0), (1, None), (4, 1.0))
    assert found.missing == 3


def test_other_columns_can_be_asked_for() -> None:
    assert series("minute,usage", "0,0.5", column="usage").looks_like_usage
    assert not series("minute,usage", "0,1.5", column="usage").looks_like_usage


@pytest.mark.parametrize(("step", "spacing"), [(1, 1), (5, 5)])
def test_coarse_rows_are_seen(step: int, spacing: int) -> None:
    assert series("minute,kv_tokens", *[f"{at * step},1" for at in range(9)]).spacing_minutes() == spacing
    assert series("minute,kv_tokens", "0,1").spacing_minutes() == 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["kv_tokens"], "x.csv:1: no column minute"),
        (["minute,tokens", "0,1"], "x.csv:1: no column kv_tokens; --column one of: minute, tokens"),
        (["minute,kv_tokens,kv_tokens", "0,1,2"], "x.csv:1: two columns are named kv_tokens"),
        (["minute,kv_tokens", "0,1", "0,2"], "x.csv:3: minute 0 comes twice"),
        (["minute,kv_tokens", "5,1", "4,2"], "x.csv:3: minute 4 comes after 5"),
        (["minute,kv_tokens", "0,nan"], "x.csv:2: kv_tokens 'nan' is no amount"),
        (["minute,kv_tokens", "0,-1"], "x.csv:2: kv_tokens '-1' is no amount"),
        (["minute,kv_tokens", "0,1e99"], "x.csv:2: kv_tokens '1e99' is no amount"),
        (["minute,kv_tokens", "0,many"], "x.csv:2: kv_tokens 'many' is no amount"),
        (["minute,kv_tokens", "soon,1"], "x.csv:2: 'soon' is neither the number of a minute nor"),
        (["minute,kv_tokens", "-3,1"], "x.csv:2: '-3' is neither"),
        (["minute,kv_tokens", "0001-01-01T00:00+14:00,1"], "x.csv:2: 0001-01-01T00:00+14:00 is out of range"),
        (["minute,kv_tokens", "9999-12-31T23:59-12:00,1"], "x.csv:2: 9999-12-31T23:59-12:00 is out of range"),
        (["minute,kv_tokens", "99999999999,1"], "x.csv:2: minute 99999999999 is out of range"),
        (["minute,kv_tokens", "0,1", "1970-01-01T00:05,1"], "x.csv:3: minutes are numbers in some rows"),
        (["minute,kv_tokens", "0,1,2"], "x.csv:2: 3 fields, the header has 2"),
        (["minute,kv_tokens", "0,"], "x.csv: no row with a value"),
        (["minute,kv_tokens"], "x.csv: no row with a value"),
        ([], "x.csv:1: no column minute"),
        (["minute,kv_tokens", '0,"1'], "x.csv:2: unexpected end of data"),
    ],
)
def test_damage_is_refused_with_its_line(lines: list[str], told: str) -> None:
    with pytest.raises(BadValueError) as refused:
        series(*lines)
    assert told in str(refused.value)


def test_a_file_is_read_and_one_that_is_not_there_is_said(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(b"\xef\xbb\xbfminute,kv_tokens\r\n0,5\r\n1,6\r\n")
    assert read_demand(str(path), "kv_tokens").rows == ((0, 5.0), (1, 6.0))
    with pytest.raises(BadValueError, match="cannot be read: No such file"):
        read_demand(str(tmp_path / "none.csv"), "kv_tokens")
