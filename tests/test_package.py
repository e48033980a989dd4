"""The wheel and the sdist: whole, small, and `plan` runs from the wheel alone."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
 "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
 "max_position_embeddings": 8192}"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(wheel, sdist), made without network by the backend that is installed."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_the_wheel_has_the_pages_the_catalogue_the_man_page_and_completions_and_no_tests(
    built: tuple[Path, Path],
) -> None:
    names = zipfile.ZipFile(built[0]).namelist()
    package = {name for name in names if name.startswith("kvbudget/")}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "kvbudget").rglob("*.py")}
    assert sources <= package
    for name in ("ledger.html", "ledger.js", "style.css", "words.js"):
        assert f"kvbudget/edge/web/static/{name}" in package
    assert {"kvbudget/edge/web/catalogue.json", "kvbudget/edge/bank/bank.lua", "kvbudget/py.typed"} <= package
    shared = {name.partition("/data/")[2] for name in names if "/data/" in name}
    assert {"share/man/man1/kvbudget.1", "share/bash-completion/completions/kvbudget"} <= shared
    assert not [name for name in names if name.startswith(("tests", "bench", "scripts"))]
    assert built[0].stat().st_size < 1_700_000  # 470 modules, hardly any data: a stray vocabulary or picture would show


def test_the_sdist_has_what_a_test_run_needs_and_nothing_that_was_made(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", ".cache", "dist"))]


def test_plan_runs_from_the_wheel_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    zipfile.ZipFile(built[0]).extractall(tmp_path / "lib")
    (tmp_path / "config.json").write_text(CONFIG)
    command = [sys.executable, "-S", "-m", "kvbudget", "plan", str(tmp_path / "config.json")]
    done = subprocess.run(
        [*command, "--kv-cache-memory-bytes", "6GiB", "--json"],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert '"tokens": 49152' in done.stdout


def test_man_page_and_completions_are_those_of_the_flags() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_shell_files.py"), "--check"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("words", "offered"), [("pl", "plan"), ("plan --max-mo", "--max-model-len")])
def test_bash_completes_commands_and_flags(words: str, offered: str) -> None:
    script = f"""
source {ROOT / "packaging" / "kvbudget.bash"}
COMP_WORDS=(kvbudget {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_kvbudget kvbudget "${{COMP_WORDS[$COMP_CWORD]}}" "${{COMP_WORDS[$((COMP_CWORD - 1))]}}"
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert offered in done.stdout.split()
