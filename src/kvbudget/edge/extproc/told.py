"""Decides what Envoy is told: every `ProcessingResponse` that we send, as the bytes of one gRPC message.

Written by hand, as tag, length and bytes: objects of protobuf that are filled field by field take more than twice as
long, and a request has nine headers of ours in two messages. Field numbers as in `wire`; tests read it with protobuf.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from kvbudget.edge.http.messages import Headers

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Header, and key of the dynamic metadata, by which Envoy is told the endpoint (endpoint picker protocol, 004)."""
DESTINATION_NAMESPACE: Final = "envoy.lb"
CHUNK_BYTES: Final = 60_000
"""Of a body that is sent in pieces: below 64 KiB, at which Envoy would hold back (FULL_DUPLEX_STREAMED)."""
_DESTINATION_LINE: Final = DESTINATION.encode()


class Changes(NamedTuple):
    """What becomes of a request on its way to `destination` (`ip:port`, `[ip]:port`)."""

    destination: str
    headers: Headers  # put in place of those of the same name
    without: list[bytes]  # names of headers that go


_BYTE: Final = tuple([bytes([value]) for value in range(128)])


def _part(number: int, data: bytes) -> bytes:
    """A field that is a message, text or bytes."""
    size = len(data)
    return _BYTE[number << 3 | 2] + (_BYTE[size] if size < 128 else _varint(size)) + data


def _number(number: int, value: int) -> bytes:
    """A field that is an integer, not negative."""
    return _BYTE[number << 3] + _varint(value)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


# What Envoy sent -> the field of ProcessingResponse that answers it.
_REQUEST_HEADERS, _RESPONSE_HEADERS, _REQUEST_BODY, _RESPONSE_BODY, _REQUEST_TRAILERS, _RESPONSE_TRAILERS = range(1, 7)
_IMMEDIATE, _DYNAMIC_METADATA, _OVERRIDE_TIMEOUT = 7, 8, 10
# HeaderValueOption.append_action: OVERWRITE_IF_EXISTS_OR_ADD
_OVERWRITE: Final = _number(3, 2)
# CommonResponse.clear_route_cache: a route may be chosen by the destination
_NEW_ROUTE: Final = _number(5, 1)

GO_ON: Final[dict[str, bytes]] = {
    "request_headers": _part(_REQUEST_HEADERS, b""),
    "response_headers": _part(_RESPONSE_HEADERS, b""),
    "request_body": _part(_REQUEST_BODY, b""),
    "response_body": _part(_RESPONSE_BODY, b""),
    "request_trailers": _part(_REQUEST_TRAILERS, b""),
    "response_trailers": _part(_RESPONSE_TRAILERS, b""),
}
"""Kind of what Envoy sent -> that it goes on unchanged."""


def without_body(changes: Changes) -> bytes:
    """The answer to the headers of a request whose body, if it has any, is not changed."""
    return _changing(_REQUEST_HEADERS, changes, b"", b"")


def with_whole_body(changes: Changes, body: bytes | None) -> bytes:
    """The answer to a body that came whole (BUFFERED): it goes on as `body`; None: as it came."""
    if body is None:
        return _changing(_REQUEST_BODY, changes, b"", b"")
    # Without the length Envoy would take the old one away, and send the body in chunks.
    length = _set(b"content-length", b"%d" % len(body))
    return _changing(_REQUEST_BODY, changes, length, _part(3, _part(1, body)))


def with_streamed_body(changes: Changes, body: bytes, *, trailers: bool) -> list[bytes]:
    """The answers to headers and body of which every byte comes from us (FULL_DUPLEX_STREAMED). `trailers`: the request
    has some, so that it ends with those."""
    told = [without_body(changes)]
    for start in range(0, max(1, len(body)), CHUNK_BYTES):
        ends = not trailers and start + CHUNK_BYTES >= len(body)
        told.append(_piece(_REQUEST_BODY, body[start : start + CHUNK_BYTES], ends))
    if trailers:
        told.append(GO_ON["request_trailers"])
    return told


def passed_on(body: bytes, *, ends: bool) -> bytes:
    """A piece of an answer's body, on to the client as it came (FULL_DUPLEX_STREAMED)."""
    return _piece(_RESPONSE_BODY, body, ends)


def answer_headers(own: Headers) -> bytes:
    """The answer's headers go on, with ours."""
    mutation = b"".join([_set(name, value) for name, value in own])
    return _part(_RESPONSE_HEADERS, _part(1, _part(2, mutation)))


def refusal(status: int, headers: Headers, body: bytes, details: str) -> bytes:
    """Envoy answers the client itself, with this. `details`: for its access log (%RESPONSE_CODE_DETAILS%)."""
    mutation = b"".join([_set(name, value) for name, value in headers])
    parts = (_part(1, _number(1, status)), _part(2, mutation), _part(3, body), _part(5, details.encode()))
    return _part(_IMMEDIATE, b"".join(parts))


def more_time(seconds: float) -> bytes:
    """The answer takes longer than `message_timeout`: wait so long from now. Envoy takes this once for a message, and
    only up to its `max_message_timeout`."""
    return _part(_OVERRIDE_TIMEOUT, _number(1, int(seconds)) + _number(2, int(seconds % 1 * 1e9)))


def _changing(kind: int, changes: Changes, more: bytes, body: bytes) -> bytes:
    """Headers, and where it goes: never another endpoint in the metadata than in the header, as it is not defined by
    which of them a data plane goes."""
    header, metadata = _where(changes.destination)
    mutation = [header, *[_set(name, value) for name, value in changes.headers], more]
    if changes.without:
        mutation += [_part(2, name) for name in changes.without]
    return _part(kind, _part(1, _part(2, b"".join(mutation)) + body + _NEW_ROUTE)) + metadata


@lru_cache(maxsize=1024)
def _where(destination: str) -> tuple[bytes, bytes]:
    """An endpoint as a header, and as dynamic metadata; there are few of them."""
    told = destination.encode()
    namespace = _entry(DESTINATION_NAMESPACE.encode(), _part(5, _entry(_DESTINATION_LINE, _part(3, told))))
    return _set(_DESTINATION_LINE, told), _part(_DYNAMIC_METADATA, namespace)


def _entry(key: bytes, value: bytes) -> bytes:
    """A field of a Struct."""
    return _part(1, _part(1, key) + _part(2, value))


def _set(name: bytes, value: bytes) -> bytes:
    """An entry of HeaderMutation.set_headers: a HeaderValueOption with a HeaderValue."""
    names, values = len(name), len(value)
    size = names + values + 4
    if size + 4 < 128:  # as nearly all are: every length is one byte
        return b"".join(
            (
                b"\n",
                _BYTE[size + 4],
                b"\n",
                _BYTE[size],
                b"\n",
                _BYTE[names],
                name,
                b"\x1a",
                _BYTE[values],
                value,
                _OVERWRITE,
            )
        )
    return _part(1, _part(1, _part(1, name) + _part(3, value)) + _OVERWRITE)


def _piece(kind: int, body: bytes, ends: bool) -> bytes:
    streamed = _part(1, body) + _number(2, ends)
    return _part(kind, _part(1, _part(3, _part(3, streamed))))
