"""A file is written whole or not at all."""

import contextlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvbudget.edge import whole_file
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


def test_a_device_is_written_through_and_stays_one(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    for path in ("/dev/null", str(link)):
        write_whole(path, b"data")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert link.is_symlink()
    with pytest.raises(BadValueError, match=r"--html: '/dev/full' cannot be written: No space left"):
        write_whole("/dev/full", b"data", "--html")


def test_a_named_pipe_is_written_through_to_who_reads_it(tmp_path: Path) -> None:
    pipe, data, got = tmp_path / "pipe", os.urandom(300_000), []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_whole(str(pipe), data)
    reader.join(30)
    assert got == [data]
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


def test_a_named_pipe_that_nobody_reads_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_file, "_READER_WAITED_FOR_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadValueError, match="nobody reads this pipe"):
        write_whole(str(tmp_path / "pipe"), b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_folder_a_ring_of_links_a_socket_and_a_zero_byte_are_refused_by_name(tmp_path: Path) -> None:
    import socket

    ring, beside = tmp_path / "ring", tmp_path / "socket"
    ring.symlink_to(ring)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(beside))
        for path, told in (
            (tmp_path, "it is a folder"), (ring, "symbolic links"), (beside, "No such device"), ("a\0b", "null byte")
        ):  # fmt: skip
            with pytest.raises(BadValueError, match=told):
                write_whole(str(path), b"data", "--write")
    assert ring.is_symlink()


def test_a_link_to_what_is_not_there_yet_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("new")
    write_whole(str(link), b"data")
    assert link.is_symlink()
    assert (tmp_path / "new").read_bytes() == b"data"


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "out"])
def test_what_stdout_goes_to_is_written_in_turn_with_what_is_printed(tmp_path: Path, name: str) -> None:
    code = (
        "import sys; from kvbudget.edge.whole_file import write_whole; print('before')\n"
        "write_whole(sys.argv[1], b'report\\n'); print('after')"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code, name], stdout=out, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "out").read_text() == "before\nreport\nafter\n"


def test_an_error_names_a_path_without_signs_that_steer_a_terminal(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path), pytest.raises(BadValueError) as caught:
        write_whole("no/\x1b[31mx", b"data")
    assert "\x1b" not in str(caught.value)
