"""The budget on disk."""

import os
from pathlib import Path

import pytest

from kvbudget.edge.budget.file import MAX_BUDGET_BYTES, config_fingerprint, read_budget, write_budget
from kvbudget.errors import BadConfigError, BadValueError
from kvbudget.planner.budget.record import SCHEMA, Document

DOCUMENT: Document = {"schema": SCHEMA, "targets": {"concurrency": 3}, "receipts": [{"engine": "vllm"}]}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    write_budget(str(path), DOCUMENT)
    assert read_budget(str(path)) == DOCUMENT
    first = path.read_bytes()
    write_budget(str(path), read_budget(str(path)))
    assert path.read_bytes() == first
    assert os.listdir(tmp_path) == ["kvbudget.toml"]


def test_a_replaced_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    path, link = tmp_path / "real.toml", tmp_path / "kvbudget.toml"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_budget(str(link), DOCUMENT)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_budget(str(path)) == DOCUMENT


def test_a_place_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="cannot be written"):
        write_budget(str(tmp_path / "no" / "kvbudget.toml"), DOCUMENT)
    (tmp_path / "kvbudget.toml").mkdir()
    with pytest.raises(BadValueError, match="cannot be written"):
        write_budget(str(tmp_path / "kvbudget.toml"), DOCUMENT)
    assert os.listdir(tmp_path) == ["kvbudget.toml"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"not toml", "no valid TOML"),
        (b"\xff\xfe", "no valid TOML"),
        (b"a = 1", "does not say schema"),
        (b"schema = 1", 'does not say schema = "kvbudget.budget/1", but 1'),
        (b'schema = "kvbudget.budget/99"', "this version knows"),
        (b"a = " + b"[" * 100_000, "no valid TOML: nested too deeply"),
        (b'schema = "kvbudget.budget/1"\n[' + b"a." * 5000 + b"b]\nc = 1", "nested deeper"),
        (b'schema = "kvbudget.budget/1"\nwritten = 2026-11-29', "x.toml:2: written is a date"),
        (
            b'schema = "kvbudget.budget/1"\n[pool]\nnum_blocks = 0x' + b"f" * 20_000,
            "x.toml:3: pool.num_blocks is beyond",
        ),
        (b'schema = "kvbudget.budget/1"\n[pool]\nnum_blocks = ' + b"9" * 20_000, "no valid TOML"),
        (b'schema = "kvbudget.budget/1"\n[pool]\nnum_blocks = nan', "x.toml:3: pool.num_blocks is nan"),
        (b"#" * (MAX_BUDGET_BYTES + 1), "larger than"),
    ],
)
def test_a_file_that_is_no_budget_is_refused_with_what_to_do(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(BadConfigError, match=told) as caught:
        read_budget(str(path))
    assert caught.value.fix


def test_a_file_by_hand_is_told_the_line_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text("[gate]\npool_blocks = 500\n")
    with pytest.raises(BadConfigError, match="does not say schema") as caught:
        read_budget(str(path))
    assert "first line" in caught.value.fix
    line = caught.value.message.partition("does not say ")[2]
    path.write_text(f"{line}\n{path.read_text()}")
    assert read_budget(str(path))["gate"] == {"pool_blocks": 500}


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    with pytest.raises(BadConfigError, match=r"kvbudget\.toml: pool\.num_blocks is inf"):
        write_budget(str(path), {**DOCUMENT, "pool": {"num_blocks": float("inf")}})
    assert not path.exists()


def test_a_file_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BadConfigError, match="cannot be read") as caught:
        read_budget(str(tmp_path / "none.toml"))
    assert "--write" in caught.value.fix


def test_the_fingerprint_is_of_the_content_not_of_its_spelling() -> None:
    one = config_fingerprint({"a": 1, "b": [1.5, None], "transformers_version": "5.1"})
    assert one == config_fingerprint({"b": [1.5, None], "a": 1, "_name_or_path": "x"})
    assert one != config_fingerprint({"a": 2, "b": [1.5, None]})
    assert len(config_fingerprint({"binary": b"\x00"})) == 64
