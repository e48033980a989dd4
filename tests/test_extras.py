import sys
import tomllib
from pathlib import Path

import pytest

from kvbudget.cli.main import main
from kvbudget.extras import EXTRAS, install

ROOT = Path(__file__).parents[1]


def test_the_table_is_that_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name: list(libraries) for name, libraries in EXTRAS.items()} == {
        name: libraries for name, libraries in declared.items() if name != "all"
    }


def test_a_shell_takes_the_command_as_it_is() -> None:
    assert install("envoy", "redis") == "pip install 'grpcio>=1.80' 'protobuf>=6.30' 'hiredis>=3.1'"


def test_who_wants_a_shared_ledger_without_its_client_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Installed from wherever: neither an index that has kvbudget nor a checkout need be there."""
    monkeypatch.setitem(sys.modules, "hiredis", None)
    monkeypatch.delitem(sys.modules, "kvbudget.edge.bank.redis_store", raising=False)
    monkeypatch.delitem(sys.modules, "kvbudget.edge.bank.link", raising=False)
    flags = ["--backend", "http://127.0.0.1:1", "--ledger", "redis://127.0.0.1:1", "--port", "0", "--admin-port", "0"]
    assert main(["serve", *flags]) == 2
    told = capsys.readouterr().err
    assert "hiredis is not installed" in told
    assert "pip install 'hiredis>=3.1'" in told


def test_no_message_names_one_way_of_installing_alone() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert path.name == "extras.py" or not ("pip install '." in text or "pip install 'kvbudget" in text), path
