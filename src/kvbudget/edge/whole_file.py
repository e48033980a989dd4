"""Decides how a file is written: whole or not at all; who reads meanwhile sees the old one or the new one.

Only what is a file, or nothing yet, can be replaced. A device or a pipe is written through, as any program would: a
file in its place would break the machine for everybody else. Folders and disks are refused.
"""

import contextlib
import errno
import os
import stat
import sys
import tempfile
import time

from kvbudget.errors import BadValueError, printable

_READER_WAITED_FOR_S = 5.0  # that a named pipe is opened at its other end


def write_whole(path: str, data: bytes, what: str = "") -> None:
    """Put `data` at `path`. A link stays a link, and a file keeps its rights. Raises BadValueError, naming `what`."""
    try:
        mode = _mode_of(path)
        if mode is None or (stat.S_ISREG(mode) and _standard_stream(path) is None):
            _replace(os.path.realpath(path), data)
        else:
            _write_through(path, mode, data)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        shown = printable(path[-200:]).replace("\n", "?")
        told = getattr(error, "strerror", None) or error
        raise BadValueError(
            f"{what or 'file'}: {shown!r} cannot be written: {told}", fix="check folder, rights and free space"
        ) from None


def _mode_of(path: str) -> int | None:
    """Kind and rights of what is there, links followed; None where nothing is. Raises OSError for a ring of links."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _standard_stream(path: str) -> int | None:
    """1 or 2 where `path` is what stdout or stderr goes to (/dev/stdout, or its file by name)."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(OSError):
            if stream is not None and os.path.samestat(os.stat(path), os.fstat(number)):
                return number
    return None


def _replace(target: str, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".kvbudget-", dir=os.path.dirname(target))
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _rights_for(target))
        os.replace(temporary, target)
        temporary = ""
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _write_through(path: str, mode: int, data: bytes) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if stat.S_ISBLK(mode):
        raise OSError(errno.EPERM, "it is a disk")
    stream = _standard_stream(path)
    if stream is not None:  # opened anew, a file would be written from its beginning, over what was printed
        (sys.stdout if stream == 1 else sys.stderr).flush()
        _write_all(stream, data)
        return
    handle = _opened_pipe(path) if stat.S_ISFIFO(mode) else os.open(path, os.O_WRONLY | os.O_NOCTTY)
    try:
        _write_all(handle, data)
    finally:
        os.close(handle)


def _opened_pipe(path: str) -> int:
    """A named pipe, opened once somebody reads it; nobody is waited for without end."""
    until = time.monotonic() + _READER_WAITED_FOR_S
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > until:
                raise OSError(
                    error.errno, "nobody reads this pipe" if error.errno == errno.ENXIO else error.strerror
                ) from None
            time.sleep(0.02)
        else:
            os.set_blocking(handle, True)
            return handle


def _write_all(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def _rights_for(path: str) -> int:
    """The rights that the file has, or those of a new one."""
    try:
        return os.stat(path).st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
