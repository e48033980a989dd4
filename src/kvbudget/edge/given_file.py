"""Decides which files are read when somebody names one: regular files, and a pipe only where it was surely meant."""

import io
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from kvbudget.errors import BadValueError, printable

MAX_LINE_CHARS = 4 * 1024 * 1024
MAX_CHARS = 1 << 30
MAX_LINES = 2_000_000
_CHUNK_CHARS = 1024 * 1024
_STDIN = "/dev/stdin"
_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")  # what a shell puts for <(command)
_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}  # fmt: skip


def open_given(path: str, *, fix: str) -> BinaryIO:
    """Open `path` for reading; `-` is stdin. It never waits for a FIFO that nobody writes to.

    Raises OSError when it is not there, BadValueError when it is no file that ends (a device, a FIFO in a folder).
    """
    if path == "-":
        path = _STDIN
    meant = path == _STDIN or path.startswith(_DESCRIPTORS)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if meant else os.O_NONBLOCK))
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind != stat.S_IFREG and not (meant and kind in (stat.S_IFIFO, stat.S_IFSOCK)):
            raise BadValueError(f"{printable(path, 200)} is {_KINDS.get(kind, 'no file')}, not a regular file", fix=fix)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def given_lines(path: str, *, fix: str) -> Iterator[Iterator[str]]:
    """The lines of a text file without their ends, within the limits above whatever it is.

    Bytes that are no UTF-8 become lone surrogates, which `utf8_only` refuses: some logs are cut in the middle of a
    letter. Raises BadValueError beyond a limit, and OSError.
    """
    with (
        open_given(path, fix=fix) as raw,
        io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape") as file,
    ):
        yield _bounded(file, printable(path, 200))


def _bounded(file: io.TextIOWrapper, shown: str) -> Iterator[str]:
    """It reads by the mebibyte: a line may be as long as the file."""
    left, number, rest = MAX_CHARS, 0, ""
    while chunk := file.read(_CHUNK_CHARS):
        left -= len(chunk)
        lines = (rest + chunk).split("\n")
        if len(lines[0]) > MAX_LINE_CHARS:
            raise BadValueError(
                f"{shown}: line {number + 1} is longer than {MAX_LINE_CHARS} characters",
                fix="this is no file of requests",
            )
        rest = lines.pop()
        number += len(lines)
        if number > MAX_LINES or left < 0:
            limit = f"{MAX_LINES} lines" if number > MAX_LINES else f"{MAX_CHARS} characters"
            raise BadValueError(f"{shown}: more than {limit}", fix="give a part of it")
        yield from lines
    if rest:
        yield rest


def utf8_only(lines: Iterable[str], path: str) -> Iterator[str]:
    """The same lines. Raises BadValueError at the first that `given_lines` could not decode."""
    for number, line in enumerate(lines, 1):
        if not line.isascii():
            try:
                line.encode("utf-8")
            except UnicodeEncodeError:
                raise BadValueError(
                    f"{printable(path, 200)}: not UTF-8 in line {number}", fix="give a text file"
                ) from None
        yield line
