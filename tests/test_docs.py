"""Documentation that fails when it drifts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert "Known, and refused by name until built: `--decode-context-parallel-size`" in text


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
