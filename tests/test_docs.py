"""Documentation that fails when it drifts."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvbudget.edge.budget.file import read_budget

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_reference_is_what_the_code_says() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "scripts/make_reference.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr


def test_the_reference_shows_no_marker_of_the_parser() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    assert "SUPPRESS" not in text
    assert "refused by name until built" not in text


def test_the_reference_has_every_command_and_finding() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    commands = ("plan", "check", "receipt", "models", "gpus", "serve", "engine", "replay", "forecast")
    assert {name for name in commands if f"### kvbudget {name}\n" not in text} == set()
    codes = ("max_model_len_too_large", "cache_types_differ", "command_unclear", "pool_changed", "tightest_rank")
    assert {code for code in codes if f"| `{code}` |" not in text} == set()


def test_the_lines_of_the_python_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = ROOT / "docs" / "how-to" / "python-api.md"
    options = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    found = doctest.testfile(str(page), module_relative=False, optionflags=options)
    assert (found.failed, found.attempted > 15) == (0, True)


def test_the_examples_are_small() -> None:
    shown = [path for path in (ROOT / "docs").rglob("*") if path.is_file()]
    assert {path.name for path in shown if path.stat().st_size > 300_000} == set()


def test_the_decisions_fit_one_page() -> None:
    for page in (ROOT / "docs" / "adr").glob("*.md"):
        assert len(page.read_text().split()) < 500, page.name


def test_budgets_that_a_page_shows_to_be_copied_are_taken(tmp_path: Path) -> None:
    copied = tmp_path / "kvbudget.toml"
    shown = [text for page in PAGES for text in re.findall(r"```toml\n(schema = .*?)```", page.read_text(), re.DOTALL)]
    for text in shown:
        copied.write_text(text)
        read_budget(str(copied))
    assert len(shown) >= 2


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_anchors_lead_to_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        text = (page.parent / target).read_text() if target else page.read_text()
        assert anchor in {_anchor(line) for line in text.splitlines() if line.startswith("#")}, f"{target}#{anchor}"


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    words = heading.lstrip("#").strip().lower()
    return "".join("-" if c == " " else c for c in words if c.isalnum() or c in " -_")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
