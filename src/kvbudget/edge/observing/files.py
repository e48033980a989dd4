"""Decides how a saved file is read, plain or gzip, and whether it holds metrics or the log of an engine."""

import os
import stat
import zlib
from typing import NamedTuple

from kvbudget.edge.given_file import open_given
from kvbudget.engines.metrics.exposition import parsed
from kvbudget.engines.metrics.observation import is_wanted
from kvbudget.errors import BadValueError, printable

MAX_TEXT_BYTES = 128 * 1024**2
_HEAD = 256 * 1024
_FIX = "give a saved /metrics, an engine's log, or the URL of an engine, a gate or a Prometheus server"
_GZIP = b"\x1f\x8b"
_PIECE = 16 * 1024


class Saved(NamedTuple):
    """A file's text, and what it is. `shown`: its name as it may be printed."""

    shown: str
    text: str
    is_metrics: bool


def saved(path: str) -> Saved:
    """Read it. Of a longer file than MAX_TEXT_BYTES, the end counts, and the beginning for the lines of a start.

    Raises BadValueError for what cannot be read or is no text.
    """
    shown = "stdin" if path == "-" else printable(path, 200)
    try:
        data = _read(path)
    except (OSError, zlib.error) as error:
        raise BadValueError(f"{shown}: cannot be read: {getattr(error, 'strerror', None) or error}", fix=_FIX) from None
    text = data.decode("utf-8-sig", "replace")
    if not text.strip():
        raise BadValueError(f"{shown} is empty", fix=_FIX)
    if text.count("\ufffd") > len(text) // 4 or "\0" in text[:_HEAD]:
        raise BadValueError(f"{shown} is no text", fix=_FIX)
    return Saved(shown, text, _is_metrics(text))


def _is_metrics(text: str) -> bool:
    head = text[:_HEAD]
    begins = head.lstrip().startswith(("# HELP ", "# TYPE ", "# UNIT "))
    return begins or bool(parsed(head, is_wanted).samples)


def _read(path: str) -> bytes:
    with open_given(path, fix=_FIX) as file:
        start = file.read(len(_GZIP))
        if start == _GZIP:
            return _inflated(start + file.read(MAX_TEXT_BYTES))
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size <= MAX_TEXT_BYTES:
            return start + file.read(MAX_TEXT_BYTES)
        half = MAX_TEXT_BYTES // 2
        head = start + file.read(half)
        file.seek(-half, os.SEEK_END)
        return head + b"\n" + file.read(half)


def _inflated(data: bytes) -> bytes:
    """All members of a gzip file, also of one that is cut off, up to the limit: it may inflate without end."""
    found = bytearray()
    at = 0
    view = memoryview(data)
    while data[at : at + 2] == _GZIP and len(found) < MAX_TEXT_BYTES:
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof and at < len(data) and len(found) < MAX_TEXT_BYTES:
            # A piece at a time: what a member leaves is copied, and a file may be a million tiny members.
            piece = view[at : at + _PIECE]
            found += stream.decompress(piece, MAX_TEXT_BYTES - len(found))
            at += len(piece) - len(stream.unused_data)
    return bytes(found)
