"""Decides what becomes of output that cannot be written: a full disk is an error of use, a reader that left is none."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kvbudget.errors import BadValueError


@contextmanager
def written_out() -> Iterator[None]:
    """Replaces characters that stdout cannot show, and flushes it at the end of the block.

    Raises BadValueError where it cannot be written. BrokenPipeError passes: the reader (head, less) has seen enough.
    """
    if sys.stdout is None:  # closed by who started us; print() would drop everything without a word
        raise BadValueError("stdout: is closed", fix="send the output somewhere, /dev/null if nowhere")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that a terminal cannot show is no reason to fail
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
        raise
    except OSError as error:
        _drop_the_rest()
        raise BadValueError(
            f"stdout: cannot be written: {error.strerror or error}", fix="free space, or send the output elsewhere"
        ) from None


def _drop_the_rest() -> None:
    """What is still buffered would fail once more when the interpreter ends, with a message and a code of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    finally:
        os.close(nowhere)
