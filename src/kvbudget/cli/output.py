"""Decides what becomes of output that cannot be written: a full disk is an error of use, a reader that left is none."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kvbudget.errors import BadValueError, InputError, printable

ERROR_SCHEMA = "kvbudget.error/1"
_blocks_written: list[None] = []  # one for each block of output that this process has written whole


def times_written() -> int:
    """How many blocks of output were written whole so far: after one of them there is no second document."""
    return len(_blocks_written)


def error_written(code: str, message: str, fix: str) -> None:
    """The one document of a call with --json that ends with 2. What cannot be written is told on stderr already."""
    import json

    document = {
        "schema": ERROR_SCHEMA,
        "error": {"code": code, "message": printable(message), "fix": printable(fix)},
    }
    with suppress(InputError, BrokenPipeError), written_out():
        print(json.dumps(document))


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
        _blocks_written.append(None)
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
