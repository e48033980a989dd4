"""Decides how a source is asked over HTTP: one deadline, a bounded answer, no redirect, a key from the environment.

KVBUDGET_SOURCE_TOKEN is sent as a bearer token, KVBUDGET_SOURCE_USER and KVBUDGET_SOURCE_PASSWORD as basic
authentication, to the addresses that were given and to no other.
"""

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import IO, NamedTuple
from urllib.parse import urlencode

from kvbudget.edge.fetching import Deadline, opener_until
from kvbudget.errors import BadValueError, printable

TOKEN, USER, PASSWORD = "KVBUDGET_SOURCE_TOKEN", "KVBUDGET_SOURCE_USER", "KVBUDGET_SOURCE_PASSWORD"
MAX_ANSWER_BYTES = 64 * 1024**2
TIMEOUT_S = 15.0


class Answer(NamedTuple):
    """Status 0: it could not be reached, and `text` says why."""

    status: int
    text: str

    @property
    def document(self) -> object:
        """As JSON; None where it is none."""
        try:
            return json.loads(self.text) if self.status == 200 else None
        except (ValueError, RecursionError):
            return None


class Asker:
    """Asks addresses with what the environment says. Safe to be used by several threads."""

    def __init__(self, environment: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
        self._headers = _headers(environment)
        self._timeout_s = timeout_s

    def get(self, url: str, query: Mapping[str, str] | None = None) -> Answer:
        """One GET. It never raises; an answer that is larger than can be read is one that could not be reached."""
        deadline = Deadline(self._timeout_s)
        opener = opener_until(deadline, urllib.request.ProxyHandler({}), _NoRedirect())
        request = urllib.request.Request(  # noqa: S310 - http and https alone are asked
            f"{url}?{urlencode(query)}" if query else url, headers=self._headers
        )
        try:
            with opener.open(request, timeout=deadline.left_s()) as answer:
                data: bytes = answer.read(MAX_ANSWER_BYTES + 1)
                if answer.length and len(data) <= MAX_ANSWER_BYTES:  # a read of so many bytes does not complain itself
                    return Answer(0, f"its answer ended {answer.length:,} bytes too early")
                status: int = answer.status
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _reason(error))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Answer(0, printable(" ".join(str(getattr(error, "reason", error)).split()), 100))
        if len(data) > MAX_ANSWER_BYTES:
            return Answer(0, f"its answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        return Answer(status, data.decode("utf-8", "replace"))


_OF_A_GATE = "metrics and state are on its admin port"  # `edge.request.reception` says so where a path is unknown


def refused(shown: str, answer: Answer) -> BadValueError:
    """The error of an address that did not answer as it should."""
    if not answer.status:
        return BadValueError(f"{shown}: cannot be reached: {answer.text}", fix="check that it is up")
    fix = "give the URL of the engine's /metrics, or of a Prometheus server"
    if _OF_A_GATE in answer.text:
        fix = "this is where a gate takes requests: give its admin port, by default http://HOST:8801/metrics"
    elif answer.status in (401, 403):
        fix = f"set {TOKEN}, or {USER} and {PASSWORD}"
    detail = f": {printable(answer.text, 200).rstrip('.')}" if answer.text else ""
    return BadValueError(f"{shown} answered {answer.status}{detail}", fix=fix)


def _headers(environment: Mapping[str, str]) -> dict[str, str]:
    headers = {"Accept": "text/plain;version=0.0.4, application/json;q=0.9, */*;q=0.1"}
    token, user = environment.get(TOKEN, "").strip(), environment.get(USER, "")
    if token:
        _one_line(token, TOKEN)
        headers["Authorization"] = f"Bearer {token}"
    elif user:
        pair = f"{user}:{environment.get(PASSWORD, '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    return headers


def _one_line(token: str, name: str) -> None:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadValueError(f"{name} is no token", fix="printable ASCII without blanks")


def _reason(error: urllib.error.HTTPError) -> str:
    """What a Prometheus server says of a query that it refuses, or a gate of a path that it has not."""
    try:
        document = json.loads(error.read(100_000))
    except (ValueError, OSError, http.client.HTTPException, RecursionError):
        return ""
    message = document.get("error") if isinstance(document, dict) else None
    if isinstance(message, dict):
        message = message.get("message")
    return message if isinstance(message, str) else ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key must not follow to where an answer points."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None
