"""Commands that the documentation shows are run, and print what it says."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if "```console" in path.read_text()
)


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    """scripts/run_docs.py, which is no package."""
    spec = importlib.util.spec_from_file_location("run_docs", ROOT / "scripts" / "run_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_command_prints_what_the_page_says(docs: ModuleType, page: Path) -> None:
    wrong = [f"line {drift.line}: {drift.text.strip()}: {drift.told}" for drift in docs.check(page)]
    assert wrong == [], "python scripts/run_docs.py --update corrects lines of which only numbers changed"


def test_the_how_tos_have_commands(docs: ModuleType) -> None:
    names = {page.stem for page in PAGES}
    assert names >= {
        "plan", "plan-one-gpu", "plan-eight-gpus-mla", "plan-hybrid-mamba", "plan-one-million", "plan-from-compose",
        "plan-in-ci", "workload-and-advice", "engines", "budget",
    }  # fmt: skip
    for page in PAGES:
        assert docs.shown_in(page.read_text()), page


PLAN = "kvbudget plan docs/examples/llama-3.1-8b --kv-cache-memory-bytes 24GiB --max-model-len 8k"


@pytest.mark.parametrize(
    ("block", "told"),
    [
        (f"$ {PLAN}\nFITS  llama-3.1-8b on 1 x GPU\n...\n23 requests\n", ""),
        (f"$ {PLAN}\nFITS  llama-3.1-8b on 1 x GPU\n...\n25 requests\n", "it prints: 23 requests"),
        (f"$ {PLAN}\nDOES NOT FIT\n", "not in what is printed"),
        (f"$ {PLAN}\n23 requests ... FITS\n", "not in what is printed"),
        (f"$ {PLAN}\nFITS\n$ echo $?\n1\n", "exit code 0, the page says 1"),
        (f"$ {PLAN} --target-concurrency 99\nDOES NOT FIT\n$ echo $?\n1\n", ""),
        (f"$ {PLAN} \\\n  --block-size 32\n6,144 blocks\n", ""),
        (f"$ NO_COLOR=1 {PLAN} --json | python -m json.tool\nanything\n", ""),
        ("$ kvbudget serve --config kvbudget.toml --backend http://127.0.0.1:8000\n", ""),
        ("$ kvbudget serve --no-such-flag\n", "unrecognized arguments"),
        ("$ cat nothing\nanything\n", ""),
    ],
)
def test_what_is_shown_and_untrue_is_told(docs: ModuleType, tmp_path: Path, block: str, told: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Words.\n\n```console\n{block}```\n")
    found = [drift.told for drift in docs.check(page)]
    assert len(found) == (1 if told else 0), found
    assert told in "".join(found)


def test_numbers_are_corrected_in_place(docs: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```console\n$ {PLAN}\nfull length       24 requests of 8,192 tokens\n```\n24 requests\n")
    assert docs.check(page, update=True) == []
    assert (
        page.read_text() == f"```console\n$ {PLAN}\nfull length       23 requests of 8,192 tokens\n```\n24 requests\n"
    )
    assert docs.check(page) == []
