"""What may be read when somebody names a file: it ends, or it is a pipe that was meant."""

import os
from pathlib import Path

import pytest

from kvbudget.edge import given_file
from kvbudget.edge.given_file import given_lines, open_given, utf8_only
from kvbudget.errors import BadValueError


def lines(path: Path) -> list[str]:
    with given_lines(str(path), fix="give another") as found:
        return list(found)


def test_lines_come_without_their_ends_and_the_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\xef\xbb\xbfa\r\n\nb\xc3\xa9\nlast")
    assert lines(path) == ["a", "", "b\u00e9", "last"]


def test_lines_longer_than_what_is_read_at_once_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_file, "_CHUNK_CHARS", 3)
    path = tmp_path / "lines"
    path.write_text("abcdefgh\nij\n\nk")
    assert lines(path) == ["abcdefgh", "ij", "", "k"]


def test_a_fifo_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BadValueError, match="is a FIFO, not a regular file"):
        open_given(str(tmp_path / "fifo"), fix="give another")


@pytest.mark.parametrize(("path", "kind"), [("/dev/zero", "a device"), ("/", "a folder")])
def test_what_does_not_end_or_holds_no_lines_is_refused(path: str, kind: str) -> None:
    with pytest.raises(BadValueError, match=f"is {kind}, not a regular file"):
        open_given(path, fix="give another")


def test_a_pipe_that_a_shell_made_is_read() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"a\nb\n")
        os.close(writing)
        assert lines(Path(f"/dev/fd/{reading}")) == ["a", "b"]
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [("MAX_LINES", 2, "more than 2 lines"), ("MAX_CHARS", 5, "more than 5 characters"),
     ("MAX_LINE_CHARS", 3, "line 2 is longer than 3 characters")],
)  # fmt: skip
def test_limits_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, why: str) -> None:
    monkeypatch.setattr(given_file, limit, value)
    monkeypatch.setattr(given_file, "_CHUNK_CHARS", 4)
    path = tmp_path / "lines"
    path.write_text("ab\nabcdef\nc\n")
    with pytest.raises(BadValueError, match=why):
        lines(path)


def test_bytes_that_are_no_utf8_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\xc3\xa9\n\xff\n")
    with pytest.raises(BadValueError, match="not UTF-8 in line 2"), given_lines(str(path), fix="") as found:
        list(utf8_only(found, str(path)))
