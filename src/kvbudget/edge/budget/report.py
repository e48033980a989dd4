"""Decides how the text of an engine's report is fetched: a log file, stdin, or a /metrics URL, within bounds."""

import http.client
import os
import sys
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from kvbudget.errors import BadValueError

MAX_REPORT_BYTES = 64 * 1024**2
TIMEOUT_S = 10.0


def text_of(source: str) -> str:
    """The text behind a path, a URL, or `-` (stdin). Of a longer log than MAX_REPORT_BYTES, beginning and end.

    Raises BadValueError for what cannot be read.
    """
    if source.startswith(("http://", "https://")):
        return _fetched(source)
    try:
        data = sys.stdin.buffer.read(MAX_REPORT_BYTES) if source == "-" else _read(source)
    except OSError as error:
        raise BadValueError(
            f"{source[:200]}: cannot be read: {error.strerror or error}",
            fix="give a start-up log, a saved /metrics, its URL, or - for stdin",
        ) from None
    return data.decode("utf-8", "replace")


def _read(path: str) -> bytes:
    """The engine starts at the beginning of a log; if it was started again, near the end."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= MAX_REPORT_BYTES:
            return file.read(MAX_REPORT_BYTES)
        half = MAX_REPORT_BYTES // 2
        head = file.read(half)
        file.seek(-half, os.SEEK_END)
        return head + b"\n" + file.read(half)


def _fetched(url: str) -> str:
    parts = urlsplit(url)
    if not parts.hostname or parts.username:
        raise BadValueError(f"{url[:80]}: not a plain http://HOST:PORT/metrics", fix="leave credentials away")
    if parts.path in ("", "/"):
        url = f"{parts.scheme}://{parts.netloc}/metrics"
    # An engine stands in one's own network: no proxy of the environment is asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            data: bytes = answer.read(MAX_REPORT_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        raise BadValueError(f"{url[:120]} answered {error.code}", fix="give the URL of the engine's /metrics") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise BadValueError(f"{url[:120]}: cannot be reached: {reason}", fix="check that the engine is up") from None
    return data.decode("utf-8", "replace")
