"""`kvbudget dashboards` writes whole files, knows its own from yours, and says what it did."""

import json
import os
import re
from pathlib import Path

import pytest

from kvbudget.cli.dashboards import MANIFEST
from kvbudget.cli.main import main
from kvbudget.report.monitoring.files import monitoring_files

ROOT = Path(__file__).resolve().parents[2]


def written(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_everything_is_written_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a" / "monitoring"
    assert main(["dashboards", "--out", str(out)]) == 0
    found = written(out)
    found.pop(MANIFEST)
    assert found == monitoring_files(checkout=str(ROOT))
    listed = capsys.readouterr().out
    assert all(f"{out}/{path}" in listed for path in found)


def test_what_to_do_next_names_files_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--out", str(tmp_path)]) == 0
    steps = capsys.readouterr().out.partition("next:\n")[2]
    named = [Path(name) for name in re.findall(rf"{re.escape(str(tmp_path))}/[\w./-]*\w", steps)]
    assert {path.name for path in named} == {
        "prometheus.yml", "kvbudget.rules.yaml", "kvbudget-gate.json", "README.md",
    }  # fmt: skip
    assert all(path.is_file() for path in named)
    assert [line[:5] for line in steps.splitlines() if line[2:3].isdigit()] == ["  1. ", "  2. ", "  3. "]
    assert "docs/how-to" not in steps


def test_a_readme_of_yours_is_kept_and_the_rest_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("mine\n")
    for _ in range(2):
        assert main(["dashboards", "--out", str(tmp_path)]) == 0
        assert f"kept       {tmp_path}/README.md" in capsys.readouterr().out
        assert (tmp_path / "README.md").read_text() == "mine\n"
    assert main(["dashboards", "--out", str(tmp_path), "--force"]) == 0
    assert (tmp_path / "README.md").read_text() == monitoring_files()["README.md"]


def test_an_installed_kvbudget_knows_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvbudget.cli import dashboards

    monkeypatch.setattr(dashboards, "__file__", str(tmp_path / "lib" / "kvbudget" / "cli" / "dashboards.py"))
    assert main(["dashboards", "--out", str(tmp_path / "out")]) == 0
    assert "${KVBUDGET_SOURCE:?set it" in (tmp_path / "out" / "compose.yaml").read_text()


def test_a_second_run_changes_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--out", str(tmp_path)]) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json") if path.name != MANIFEST}
    capsys.readouterr()
    assert main(["dashboards", "--out", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "kvbudget.dashboards/1"
    assert {file["state"] for file in told["files"]} == {"unchanged"}
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_its_own_files_of_another_time_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--out", str(tmp_path), "--runbooks", "https://a.example/"]) == 0
    assert main(["dashboards", "--out", str(tmp_path), "--runbooks", "https://b.example"]) == 0
    assert "https://b.example/KvbudgetStuck.md" in (tmp_path / "kvbudget.rules.yaml").read_text()
    assert "replaced" in capsys.readouterr().out


@pytest.mark.parametrize("foreign", ["compose.yaml", "dashboards/kvbudget-gate.json"])
def test_a_file_of_yours_stops_it_before_the_first_write(
    tmp_path: Path, foreign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    yours = tmp_path / foreign
    yours.parent.mkdir(exist_ok=True)
    yours.write_text("mine\n")
    assert main(["dashboards", "--out", str(tmp_path)]) == 2
    assert foreign in capsys.readouterr().err
    assert written(tmp_path) == {foreign: "mine\n"}
    assert main(["dashboards", "--out", str(tmp_path), "--force"]) == 0
    assert yours.read_text() == monitoring_files(checkout=str(ROOT))[foreign]


def test_a_file_that_was_changed_by_hand_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--out", str(tmp_path)]) == 0
    rules = tmp_path / "kvbudget.rules.yaml"
    rules.write_text(rules.read_text().replace("> 0.95", "> 0.90"))
    assert main(["dashboards", "--out", str(tmp_path)]) == 2
    assert "kvbudget.rules.yaml" in capsys.readouterr().err
    assert "> 0.90" in rules.read_text()


def test_a_list_that_was_damaged_is_no_leave_to_overwrite(tmp_path: Path) -> None:
    assert main(["dashboards", "--out", str(tmp_path), "--runbooks", "https://a.example"]) == 0
    (tmp_path / MANIFEST).write_text("[")
    assert main(["dashboards", "--out", str(tmp_path)]) == 2


@pytest.mark.parametrize("path", ["kvbudget.rules.yaml", MANIFEST])
def test_a_fifo_in_the_way_is_told_and_not_waited_for(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / path)
    assert main(["dashboards", "--out", str(tmp_path)]) == 2
    assert "is a FIFO, not a regular file" in capsys.readouterr().err


def test_a_list_nested_beyond_reading_knows_nothing(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("[" * 100_000)
    assert main(["dashboards", "--out", str(tmp_path)]) == 0


def test_a_place_that_cannot_be_a_folder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    assert main(["dashboards", "--out", str(tmp_path / "file")]) == 2
    assert "choose another folder" in capsys.readouterr().err
