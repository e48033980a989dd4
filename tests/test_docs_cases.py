"""The tables of field reports name tests that exist, and every case once."""

import re
from pathlib import Path

from kvbudget.diagnose.verdict import CODES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gate-cases.md"
NUMBERS = (1, 2, 3, 6, 7, 11, 12, 13, 14, 15, 16, 17, 19, 21, 22, 23, 25, 26, 27, 29, 30, 33, 34, 36, 37, 41, 42, 44,
           46, 48, 50, 51)  # fmt: skip
CASES = [f"G{number:02}" for number in NUMBERS]


def rows() -> dict[str, str]:
    lines = re.findall(r"^\| (G\d\d) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == len(dict(lines)), "a case stands twice"
    return dict(lines)


def test_every_case_has_a_row() -> None:
    assert list(rows()) == CASES


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE.read_text())
    assert len(named) > 30
    for path, name in named:
        file = ROOT / path
        assert file.is_file(), path
        assert re.search(rf"^def {name}\(", file.read_text(), re.MULTILINE), f"{path}::{name}"


def test_nothing_is_missing() -> None:
    assert [case for case, row in rows().items() if "not built yet" in row] == []


def test_every_case_has_a_test_of_what_is_done_or_refused() -> None:
    for case, row in rows().items():
        assert "::test_" in row, case


# Of engines in trouble

DIAGNOSED = ROOT / "docs" / "diagnose-cases.md"
DIAGNOSED_NUMBERS = (5, 9, 10, 11, 12, 15, 16, 17, 18, 19, 21, 22, 23, 24, 25, 27, 29, 30)


def test_every_report_of_an_engine_in_trouble_has_a_row_with_a_verdict_and_a_test() -> None:
    lines = re.findall(r"^\| (D\d\d) \|(.*)\|$", DIAGNOSED.read_text(), re.MULTILINE)
    assert [name for name, _ in lines] == [f"D{number:02}" for number in DIAGNOSED_NUMBERS]
    for name, row in lines:
        assert "::test_" in row or name == "D29", name
        assert any(f"`{code}`" in row for code in CODES) or name in ("D17", "D29"), name


def test_every_test_that_is_named_of_them_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", DIAGNOSED.read_text())
    assert len(named) >= 18
    for path, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"


def test_every_code_is_told_on_the_page_and_in_the_reference() -> None:
    page, reference = (ROOT / "docs" / name for name in ("how-to/diagnose.md", "reference.md"))
    assert {code for code in CODES if f"`{code}`" not in page.read_text()} == set()
    assert {code for code in CODES if f"| `{code}` |" not in reference.read_text()} == set()
