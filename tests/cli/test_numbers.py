"""A number in a flag, an address or a file is written in digits: nothing that only Python takes for one."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbudget.cli.main import COMMANDS, main, parser_of
from kvbudget.edge.bank.urls import store_from_url
from kvbudget.edge.demand_series import demand_of
from kvbudget.edge.discovery.sources import source_of
from kvbudget.edge.web.asked import asked_in
from kvbudget.errors import BadConfigError, BadValueError
from kvbudget.planner.advice.heads import parse_needs
from kvbudget.planner.budget.drift import tolerance_of
from kvbudget.units import decimal_number, is_digits, whole_number

ODD = ["1_000", "+1", "nan", "inf", "-inf", "Infinity", "١٢", "²", "0x10", "1e999", "1 000", "", "1,5", "9" * 400]


def _numbers() -> Iterator[tuple[str, argparse.Action]]:
    for name in COMMANDS:
        for action in parser_of(name)._actions:
            kind = getattr(action.type, "__name__", "")
            if action.type in (int, float) or kind in ("_whole", "_number"):
                yield name, action


def test_no_flag_takes_what_only_python_takes_for_a_number() -> None:
    seen = 0
    for name, action in _numbers():
        parser = parser_of(name)
        for odd in ODD:
            if odd in ("", "-inf") or (odd in ("nan", "inf") and action.type is not int):
                continue  # an option to argparse; refused by each command, with a word about the flag
            with pytest.raises(argparse.ArgumentError):
                parser._get_values(action, [odd])
        assert parser._get_values(action, ["7"]) == 7
        seen += 1
    assert seen > 80


def test_a_price_with_an_underscore_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", "docs/examples/gemma-3-27b", "--gpu", "h100", "--price-per-hour", "1_000"])
    assert left.value.code == 2
    assert "--price-per-hour: '1_000' is not a number" in capsys.readouterr().err


@pytest.mark.parametrize("odd", ODD)
def test_what_a_number_is(odd: str) -> None:
    assert not is_digits(odd) or odd == "9" * 400
    with pytest.raises(ValueError, match=r"no whole number|no number"):
        whole_number(odd)
    with pytest.raises(ValueError, match="no number"):
        decimal_number(odd)


def test_what_people_write_is_one() -> None:
    assert [whole_number(text) for text in ("0", "-5", "8192")] == [0, -5, 8192]
    assert [decimal_number(text) for text in ("0.5", ".5", "2.", "-1", "1e3", "1E-3")] == [0.5, 0.5, 2, -1, 1000, 0.001]


@pytest.mark.parametrize("odd", ODD[:9])
@pytest.mark.parametrize("field", ["price_per_hour", "utilization", "layers", "gpu_memory", "context"])
def test_no_field_of_an_address_takes_it(field: str, odd: str) -> None:
    with pytest.raises(BadValueError):
        asked_in({field: odd}) if field not in ("utilization", "gpu_memory") else _planned(field, odd)


def _planned(field: str, odd: str) -> None:
    from kvbudget.edge.web.asked import plan_asked

    plan_asked(asked_in({"gpu": "h100", field: odd}))


@pytest.mark.parametrize("odd", ["1_0", "+1", "nan", "١", "²"])
def test_no_other_text_takes_it(odd: str) -> None:
    for refused in (
        lambda: parse_needs(f"8,{odd}"),
        lambda: tolerance_of({"tolerance": {"pool": odd}}, "pool"),
        lambda: tolerance_of({"tolerance": {"pool": f"{odd}%"}}, "pool"),
        lambda: source_of(f"dns://name:{odd}"),
        lambda: store_from_url(f"redis://host:6379/{odd}", lease_ns=10**9, environment={}),
        lambda: store_from_url(f"redis://host:{odd}", lease_ns=10**9, environment={}),
        lambda: demand_of(f"minute,kv_tokens\n0,{odd}\n".splitlines(), "f", "kv_tokens"),
        lambda: demand_of(f"minute,kv_tokens\n{odd},1\n".splitlines(), "f", "kv_tokens"),
    ):
        with pytest.raises((BadValueError, BadConfigError)):
            refused()


def test_the_latency_of_a_made_ledger_is_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    for odd in ("nan", "inf", "-1"):
        for gates in ("1", "2"):
            assert main(["simulate", "--scenario", "steady", "--gates", gates, f"--ledger-rtt={odd}"]) == 2
            assert "ledger-rtt" in capsys.readouterr().err


def test_a_capacity_is_a_length_or_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    series = tmp_path / "s.csv"
    series.write_text("minute,kv_tokens\n" + "".join(f"{m},{m}\n" for m in range(60)))
    for odd in ("1_000", "+5", "١٢"):
        assert main(["forecast", "--series", str(series), "--capacity-tokens", odd, "--horizon", "30m"]) == 2
        assert "is not a length in tokens" in capsys.readouterr().err
