"""Decides how the text of an engine's report is fetched: a log file, stdin, or a /metrics URL, within bounds."""

import http.client
import os
import stat
import urllib.error
import urllib.request

from kvbudget.edge.fetching import Deadline, address_of, opener_until
from kvbudget.edge.given_file import open_given
from kvbudget.errors import BadValueError, printable

MAX_REPORT_BYTES = 64 * 1024**2
TIMEOUT_S = 20.0
_FIX = "give a start-up log, a saved /metrics, its URL, or - for stdin"


def text_of(source: str) -> str:
    """The text behind a path, a URL, or `-` (stdin). Of a longer log than MAX_REPORT_BYTES, beginning and end.

    Raises BadValueError for what cannot be read.
    """
    if source.startswith(("http://", "https://")):
        return _fetched(source)
    try:
        data = _read(source)
    except OSError as error:
        raise BadValueError(f"{printable(source, 200)}: cannot be read: {error.strerror or error}", fix=_FIX) from None
    return _decoded(data, source)


def _read(path: str) -> bytes:
    """The engine starts at the beginning of a log; if it was started again, near the end."""
    with open_given(path, fix=_FIX) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size <= MAX_REPORT_BYTES:
            return file.read(MAX_REPORT_BYTES)
        half = MAX_REPORT_BYTES // 2
        head = file.read(half)
        file.seek(-half, os.SEEK_END)
        return head + b"\n" + file.read(half)


def _decoded(data: bytes, source: str) -> str:
    """A log may be cut in the middle of a letter; what is mostly no letters is something else."""
    text = data.decode("utf-8", "replace")
    if text.count("\ufffd") > len(text) // 4:
        raise BadValueError(f"{printable(source, 200)} is no text", fix=_FIX)
    return text


def _fetched(url: str) -> str:
    shown = printable(url, 120) if "@" not in url else "the URL"
    parts = address_of(url, shown, fix="write http://HOST:PORT/metrics")
    if parts.path in ("", "/"):
        url = f"{parts.scheme}://{parts.netloc}/metrics"
    deadline = Deadline(TIMEOUT_S)
    # An engine stands in one's own network: no proxy of the environment is asked.
    opener = opener_until(deadline, urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=deadline.left_s()) as answer:
            data: bytes = answer.read(MAX_REPORT_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        raise BadValueError(f"{shown} answered {error.code}", fix="give the URL of the engine's /metrics") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = printable(" ".join(str(getattr(error, "reason", error)).split()), 100)
        raise BadValueError(f"{shown}: cannot be reached: {reason}", fix="check that the engine is up") from None
    return _decoded(data, url)
