"""Decides how a file is written: whole or not at all; who reads meanwhile sees the old one or the new one."""

import contextlib
import os
import tempfile

from kvbudget.errors import BadValueError


def write_whole(path: str, data: bytes, what: str = "") -> None:
    """Put `data` at `path`. A link stays a link, and a file keeps its rights. Raises BadValueError, naming `what`."""
    target = os.path.realpath(path)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=".kvbudget-", dir=os.path.dirname(target))
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode_for(target))
        os.replace(temporary, target)
        temporary = ""
    except OSError as error:
        raise BadValueError(
            f"{what or 'file'}: {path[-200:]!r} cannot be written: {error.strerror or error}",
            fix="check folder, rights and free space",
        ) from None
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _mode_for(path: str) -> int:
    """The rights that the file has, or those of a new one."""
    try:
        return os.stat(path).st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
