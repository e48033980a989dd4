"""A diagnosis is told in lines that fit, with units at its figures."""

import pytest

from kvbudget.diagnose.verdict import diagnose
from kvbudget.engines.window import Observation
from kvbudget.report.diagnosed import diagnosis_lines
from windows import pool_of, window

FULL = window(
    usage=0.99, running=40, waiting=(20, 40), preemptions=12_345.0, pool=pool_of(40_000), window_s=30.0,
    notes=("a name: read by the name of an older engine",), where="engine=1",
)  # fmt: skip


@pytest.mark.parametrize("width", [50, 80, 120])
def test_no_line_is_wider_than_asked(width: int) -> None:
    found = diagnose(Observation((FULL,), sources=("http://127.0.0.1:8000/metrics",), problems=("b: away",)))
    assert max(map(len, diagnosis_lines(found, width))) <= width


def test_figures_have_their_units_and_shares_are_told_in_hundredths() -> None:
    lines = diagnosis_lines(diagnose(Observation((FULL,))))
    told = {line[:34].strip(): line[34:] for line in lines if line.startswith("  ")}
    assert told["usage"] == "99.0 %"
    assert told["running"] == "40 requests"
    assert told["pool"] == "40,000 tokens"
    assert told["preemptions"] == "12,345"
    assert told["window"] == "30 s"


def test_where_it_holds_and_how_it_was_read_are_told() -> None:
    text = "\n".join(diagnosis_lines(diagnose(Observation((FULL,)))))
    assert "engine=1" in text
    assert "to know beside it" in text
    assert "arrivals_exceed_service" in text


def test_too_little_asks_for_what_is_missing_instead_of_telling_what_to_do() -> None:
    lines = diagnosis_lines(diagnose(Observation()))
    assert "collect" in lines
    assert "what to do, cheapest first" not in lines
