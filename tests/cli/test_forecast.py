"""`kvbudget forecast` reads a series, tells what comes, and writes what it would have told before."""

import csv
import json
from pathlib import Path

import pytest

from kvbudget.cli.main import main
from made_demand import made_demand


@pytest.fixture
def demand(tmp_path: Path) -> Path:
    path = tmp_path / "demand.csv"
    lines = [f"{at},{value:.0f}" for at, value in enumerate(made_demand(1, 1.3))]
    path.write_text("\n".join(["minute,kv_tokens", *lines]) + "\n")
    return path


def run(*words: object) -> int:
    return main(["forecast", *[str(word) for word in words]])


def document_of(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    run(*words, "--json")
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_json_is_one_document_with_score_and_interval(demand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, "--series", demand, "--capacity-tokens", "4000000")
    assert document["schema"] == "kvbudget.forecast/1"
    assert (document["minute"], document["horizon_minutes"], document["maturity"]) == (1871, 30, "first week")
    maximum = document["maximum_tokens"]
    assert isinstance(maximum, dict)
    assert maximum["low"] <= maximum["expected"] <= maximum["high"]
    assert maximum["nominal"] == 0.9
    score = document["score"]
    assert isinstance(score, dict)
    assert set(score) == {"forecast", "level_0.75", "level_0.85", "predict_linear_15m", "predict_linear_60m"}


def test_an_alarm_now_is_exit_1_and_calm_is_0(demand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--series", demand, "--capacity-tokens", "90m") == 0
    assert "no alarm: 0% that 95% of capacity is reached within 30 min" in capsys.readouterr().out
    assert run("--series", demand, "--capacity-tokens", "100k") == 1
    assert "at the limit now" in capsys.readouterr().out


def test_the_text_fits_80_columns(demand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--series", demand, "--capacity-tokens", "1500000")
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("note:")) <= 80
    assert any(line.startswith("predict_linear_60m") for line in lines)


def test_a_backtest_has_every_row_and_rests_on_the_past_alone(demand: Path, tmp_path: Path) -> None:
    whole, part, cut = tmp_path / "whole.csv", tmp_path / "part.csv", tmp_path / "cut.csv"
    run("--series", demand, "--capacity-tokens", "2000000", "--backtest", whole)
    cut.write_text("".join(demand.read_text().splitlines(keepends=True)[:1000]))
    run("--series", cut, "--capacity-tokens", "2000000", "--backtest", part)
    rows = list(csv.DictReader(whole.read_text().splitlines()))
    assert list(rows[0]) == ["minute", "alarm", "probability", "low", "high"]
    assert [int(row["minute"]) for row in rows] == list(range(1872))
    assert rows[:999] == list(csv.DictReader(part.read_text().splitlines()))
    for row in rows:
        assert row["alarm"] in ("0", "1")
        assert 0 <= float(row["probability"]) <= 1
        assert 0 <= int(row["low"]) <= int(row["high"])


def test_a_backtest_does_not_overwrite_its_own_series(demand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, link = demand.read_bytes(), demand.parent / "link.csv"
    link.symlink_to(demand)
    for out in (demand, link, demand.parent / "." / "demand.csv"):
        assert run("--series", demand, "--capacity-tokens", 1000, "--backtest", out) == 2
        assert "is the series itself" in capsys.readouterr().err
    assert demand.read_bytes() == before


def test_stamps_come_back_as_they_were_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "d.csv", tmp_path / "o.csv"
    rows = [f"2026-11-30T08:{at:02}:00Z,1000" for at in range(40) if at != 7]
    path.write_text("\n".join(["timestamp,kv_tokens", *rows]))
    document = document_of(capsys, "--series", path, "--capacity-tokens", 5000, "--backtest", out)
    assert (document["at"], document["minutes"]) == (
        "2026-11-30T08:39Z", {"given": 39, "missing": 1, "filled_lately": 0},
    )  # fmt: skip
    assert out.read_text().splitlines()[1].startswith("2026-11-30T08:00:00Z,0,")


def test_rows_before_the_first_value_are_quiet(tmp_path: Path) -> None:
    path, out = tmp_path / "d.csv", tmp_path / "o.csv"
    path.write_text("minute,kv_tokens\n0,\n1,5\n")
    assert run("--series", path, "--capacity-tokens", 5000, "--backtest", out) == 0
    assert out.read_text().splitlines()[1] == "0,0,0,0,0"


def test_usage_is_taken_as_a_share_of_the_pool_and_its_limits_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "d.csv"
    path.write_text("\n".join(["minute,usage", *[f"{at},0.5" for at in range(50)]]))
    document = document_of(capsys, "--series", path, "--column", "usage", "--usage", "--capacity-tokens", 1000)
    assert document["demand_tokens"] == 500
    assert "usage ends at 1 where demand does not" in str(document["notes"])
    document = document_of(capsys, "--series", path, "--column", "usage", "--capacity-tokens", 1000)
    assert "add --usage" in str(document["notes"])


def test_what_is_missing_young_or_coarse_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.csv"
    path.write_text("minute,kv_tokens\n0,5\n5,5\n10,5\n")
    notes = str(document_of(capsys, "--series", path, "--capacity-tokens", 1000)["notes"])
    assert "under 15 minutes were seen" in notes
    assert "rows are 5 minutes apart" in notes
    path.write_text("minute,kv_tokens\n" + "".join(f"{at},5\n" for at in range(60)) + "90,\n")
    notes = str(document_of(capsys, "--series", path, "--capacity-tokens", 1000)["notes"])
    assert "under a day was seen" in notes
    assert "most of the last minutes are missing" in notes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--capacity-tokens", "0"], "a capacity of 0.0 tokens"),
        (["--capacity-tokens", "nan"], "a capacity of nan tokens"),
        (["--capacity-tokens", "lots"], "--capacity-tokens"),
        (["--capacity-tokens", "5", "--horizon", "5m"], "10 to 120"),
        (["--capacity-tokens", "5", "--horizon", "soon"], "--horizon 'soon' is no length of time"),
        (["--capacity-tokens", "5", "--horizon", "-1h"], "--horizon"),
        (["--capacity-tokens", "5", "--column", "nothing"], "no column nothing"),
        (["--capacity-tokens", "5", "--usage"], "--usage: kv_tokens has values above 1"),
    ],
)
def test_what_cannot_be_used_is_exit_2(
    demand: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    try:
        code = run("--series", demand, *words)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    assert code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("text", "minutes"), [("1h", 60), ("45", 45), ("20min", 20)])
def test_horizons_are_written_in_minutes_or_hours(
    demand: Path, capsys: pytest.CaptureFixture[str], text: str, minutes: int
) -> None:
    document = document_of(capsys, "--series", demand, "--capacity-tokens", "9e6", "--horizon", text)
    assert document["horizon_minutes"] == minutes
