"""What stands beside the package (benchmarks, scripts) names only what the package has: nothing type-checks it."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BESIDE = [path for folder in ("bench", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]


def names_of_ours(path: Path) -> Iterator[tuple[str, str | None]]:
    """Modules of the package that a file imports, each with the name it takes out of it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "kvbudget")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kvbudget":
            yield from ((node.module or "", alias.name) for alias in node.names)


def has(module: str, name: str | None) -> bool:
    try:
        found = importlib.import_module(module)
        if name is not None and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "kvbudget":
            raise
        return False
    return True


@pytest.mark.parametrize("path", BESIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_beside_the_package_names_what_the_package_has(path: Path) -> None:
    assert [f"{module}: {name}" for module, name in names_of_ours(path) if not has(module, name)] == []


def test_there_are_files_and_names_and_a_wrong_one_is_seen(tmp_path: Path) -> None:
    assert len(BESIDE) > 40
    assert any(list(names_of_ours(path)) for path in BESIDE)
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from kvbudget.units import Tokens, Tokenz\nimport kvbudget.unit\nimport os\n")
    assert [found for found in names_of_ours(wrong) if not has(*found)] == [
        ("kvbudget.units", "Tokenz"), ("kvbudget.unit", None),
    ]  # fmt: skip
