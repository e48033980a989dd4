"""Decides how an address is asked over http: it is parsed once, and one deadline bounds all that comes back."""

import io
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from socket import socket
from typing import Any
from urllib.parse import SplitResult, urlsplit

from kvbudget.errors import BadValueError, printable

SOCKET_TIMEOUT_S = 10.0
_LONGEST = 2048


def address_of(url: str, what: str, *, fix: str) -> SplitResult:
    """The parts of an http or https address that names a host. Raises BadValueError, with `what` before the reason."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        reason = "no valid port" if "@" in url else printable(str(error), 80)  # it quotes what may be a password
        raise BadValueError(f"{what}: {reason}", fix=fix) from None
    if len(url) > _LONGEST or not url.isascii() or not url.isprintable() or " " in url:
        raise BadValueError(f"{what}: an address is printable ASCII without blanks, at most {_LONGEST}", fix=fix)
    if parts.scheme not in ("http", "https"):
        raise BadValueError(f"{what} is no http or https address", fix=fix)
    if not parts.hostname:
        raise BadValueError(f"{what}: it names no host", fix=fix)
    if "@" in parts.netloc:
        raise BadValueError(f"{what}: not a plain address, it holds credentials", fix="leave them away")
    return parts


class Deadline:
    """One moment by which all that is asked has to be answered."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    def left_s(self) -> float:
        """What may still be waited for one read. Raises TimeoutError once the moment is past."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer within {self._seconds:g} s")
        return min(SOCKET_TIMEOUT_S, left)


def opener_until(deadline: Deadline, *handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """An opener none of whose answers, head or body, is waited for beyond `deadline`, however slowly it drips."""
    return urllib.request.build_opener(_TimedHttp(deadline), _TimedHttps(deadline), *handlers)


class _TimedHttp(urllib.request.HTTPHandler):
    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def do_open(self, http_class: Any, req: urllib.request.Request, **given: Any) -> HTTPResponse:
        return super().do_open(_timed(http_class, self._deadline), req, **given)


class _TimedHttps(urllib.request.HTTPSHandler):
    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def do_open(self, http_class: Any, req: urllib.request.Request, **given: Any) -> HTTPResponse:
        return super().do_open(_timed(http_class, self._deadline), req, **given)


def _timed(http_class: Callable[..., HTTPConnection], deadline: Deadline) -> Any:
    def connection(*args: Any, **given: Any) -> HTTPConnection:
        made = http_class(*args, **given)

        def response(sock: socket, *args: Any, **given: Any) -> HTTPResponse:
            answer = HTTPResponse(sock, *args, **given)
            answer.fp = io.BufferedReader(_TimedReader(answer.fp.detach(), sock, deadline))
            return answer

        made.response_class = response  # type: ignore[assignment] # it is only ever called
        return made

    return connection


class _TimedReader(io.RawIOBase):
    """A socket's own timeout bounds one receive, and a line or a body is many of them."""

    def __init__(self, raw: io.RawIOBase, sock: socket, deadline: Deadline) -> None:
        self._raw, self._sock, self._deadline = raw, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left_s())
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
