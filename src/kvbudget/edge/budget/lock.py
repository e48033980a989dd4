"""Decides who may change a budget: one at a time, from reading the older file to replacing it."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvbudget.errors import BadValueError, printable

_WAIT_S = 20.0  # a writer holds it for milliseconds
_POLL_S = 0.01


@contextmanager
def changing(path: str, *, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Keep every other change of the budgets in this folder out. Raises BadValueError after `wait_s`.

    The lock is on the folder, so that nothing is left beside the budget; it ends with the process, however that ends.
    A folder that is not there, or a file system without locks, is not locked: writing says what is wrong.
    """
    try:
        handle = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, ValueError):
        yield
        return
    try:
        _wait_for(handle, path, wait_s)
        yield
    finally:
        os.close(handle)  # and with it the lock


def _wait_for(handle: int, path: str, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                shown = printable(path[-200:]).replace("\n", "?")
                raise BadValueError(
                    f"{shown}: another kvbudget has been changing a budget in this folder for {wait_s:g} s",
                    fix="see what holds it (fuser FOLDER), and try again",
                ) from None
            time.sleep(_POLL_S)
        except OSError:
            return None
