"""A file is written whole or not at all."""

import os
from pathlib import Path

import pytest

from kvbudget.edge.whole_file import write_whole
from kvbudget.errors import BadValueError


def test_a_new_file_has_the_rights_that_any_new_file_has(tmp_path: Path) -> None:
    path, other = tmp_path / "new", tmp_path / "other"
    write_whole(str(path), b"data")
    other.write_bytes(b"")
    assert path.read_bytes() == b"data"
    assert path.stat().st_mode == other.stat().st_mode


def test_an_older_file_keeps_its_rights_and_a_link_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "old", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(str(link), b"new")
    assert link.is_symlink()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)


@pytest.mark.parametrize("where", ["missing/file", ".", ""])
def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path, where: str) -> None:
    with pytest.raises(BadValueError, match=r"--html: .* cannot be written"):
        write_whole(str(tmp_path / where), b"data", "--html")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_midway_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(BadValueError, match="No space left"):
        write_whole(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
