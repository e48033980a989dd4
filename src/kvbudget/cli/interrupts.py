"""Decides what Ctrl-C does while modules are imported: the process ends at once, before there is anything to lose."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

INTERRUPTED: Final = 130  # what shells expect after Ctrl-C


@contextmanager
def ending_at_once() -> Iterator[None]:
    """A KeyboardInterrupt inside of an extension that is being imported crashes the interpreter; this raises none."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> NoReturn:
    os._exit(INTERRUPTED)
