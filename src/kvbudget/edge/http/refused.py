"""Decides how a request is refused that the app never sees: what is known of it, and the answer before the close."""

import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from kvbudget.edge.http.messages import Headers, serialise_response_head

# As far as the path: what stands behind it may be at fault, or not here yet. An absolute form has its path too.
_BEGUN: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) (?:(?i:https?)://[^/?# \r\n]*)?(/[^?# \r\n]*)[?# \r]")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)[ \t]*")
_TYPE_OF_STATUS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_RETRY_AFTER: Final = (b"retry-after", b"1")
_CONTENT_TYPE: Final = (b"content-type", b"application/json")
_HEAD_END: Final = b"\r\n\r\n"


class Asked(NamedTuple):
    """What is known of a request that we answer by ourselves; all empty where nothing is. `headers` as far as they
    came, names lower-cased."""

    method: bytes
    target: bytes
    headers: Headers


NOTHING_ASKED: Final = Asked(b"", b"", [])

ErrorAnswer = Callable[[int, str, str, Asked], tuple[Headers, bytes]]
"""(status, code, message, what was asked) -> headers and body of an error that the data plane answers by itself."""


def begun_request(buffer: bytes) -> Asked:
    """What a head says that is at fault, or not whole: method and path of its first line, and the lines behind it that
    are lawful. For the form of an answer, never for what is done: nothing here was judged as `heads` judges."""
    begun = _BEGUN.match(buffer)
    if begun is None:
        return NOTHING_ASKED
    lines = buffer.partition(_HEAD_END)[0].split(b"\r\n")
    fields = [field for field in map(_FIELD.fullmatch, lines[1:]) if field is not None]
    return Asked(begun[1], begun[2], [(field[1].lower(), field[2]) for field in fields])


def closing_answer(status: int, headers: Headers, body: bytes, method: bytes = b"") -> bytes:
    """A whole answer after which the connection is closed. `method`: of the request, where it is known."""
    own = [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    head = serialise_response_head(status, [*headers, *own])
    return head if method == b"HEAD" else head + body


def openai_answer(status: int, code: str, message: str, asked: Asked) -> tuple[Headers, bytes]:
    """`{"error": {message, type, param, code}}` with a string code, the form that OpenAI's clients read; a 503 says:
    come back in a second."""
    kind = _TYPE_OF_STATUS.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    return [_CONTENT_TYPE, _RETRY_AFTER] if status == 503 else [_CONTENT_TYPE], body
