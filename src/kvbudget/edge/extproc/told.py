"""Decides what Envoy is told: every `ProcessingResponse` that we send, as the bytes of one gRPC message."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kvbudget.edge.extproc.wire import OVERWRITE_OR_ADD, ProcessingResponse
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


def _empty(kind: str) -> bytes:
    message = ProcessingResponse()
    getattr(message, kind).SetInParent()
    encoded: bytes = message.SerializeToString()
    return encoded


GO_ON: Final[dict[str, bytes]] = {
    kind: _empty(kind)
    for kind in (
        "request_headers",
        "response_headers",
        "request_body",
        "response_body",
        "request_trailers",
        "response_trailers",
    )
}
"""Kind of what Envoy sent -> that it goes on unchanged."""


def without_body(changes: Changes) -> bytes:
    """The answer to the headers of a request whose body, if it has any, is not changed."""
    message = ProcessingResponse()
    _change(message, message.request_headers.response, changes)
    return _encoded(message)


def with_whole_body(changes: Changes, body: bytes | None) -> bytes:
    """The answer to a body that came whole (BUFFERED): it goes on as `body`; None: as it came."""
    message = ProcessingResponse()
    common = message.request_body.response
    _change(message, common, changes)
    if body is not None:
        # Without it Envoy would take the old length away, and send the body in chunks.
        _set(common.header_mutation, b"content-length", b"%d" % len(body))
        common.body_mutation.body = body
    return _encoded(message)


def with_streamed_body(changes: Changes, body: bytes, *, trailers: bool) -> list[bytes]:
    """The answers to headers and body of which every byte comes from us (FULL_DUPLEX_STREAMED). `trailers`: the request
    has some, so that it ends with those."""
    told = [without_body(changes), *_pieces(body, ends=not trailers)]
    if trailers:
        told.append(GO_ON["request_trailers"])
    return told


def _pieces(body: bytes, *, ends: bool) -> Iterable[bytes]:
    for start in range(0, max(1, len(body)), CHUNK_BYTES):
        message = ProcessingResponse()
        piece = message.request_body.response.body_mutation.streamed_response
        piece.body = body[start : start + CHUNK_BYTES]
        piece.end_of_stream = ends and start + CHUNK_BYTES >= len(body)
        yield _encoded(message)


def passed_on(body: bytes, *, ends: bool) -> bytes:
    """A piece of an answer's body, on to the client as it came (FULL_DUPLEX_STREAMED)."""
    message = ProcessingResponse()
    piece = message.response_body.response.body_mutation.streamed_response
    piece.body, piece.end_of_stream = body, ends
    return _encoded(message)


def answer_headers(own: Headers) -> bytes:
    """The answer's headers go on, with ours."""
    message = ProcessingResponse()
    mutation = message.response_headers.response.header_mutation
    for name, value in own:
        _set(mutation, name, value)
    return _encoded(message)


def refusal(status: int, headers: Headers, body: bytes, details: str) -> bytes:
    """Envoy answers the client itself, with this. `details`: for its access log (%RESPONSE_CODE_DETAILS%)."""
    message = ProcessingResponse()
    answer = message.immediate_response
    answer.status.code = status
    for name, value in headers:
        _set(answer.headers, name, value)
    answer.body = body
    answer.details = details
    return _encoded(message)


def more_time(seconds: float) -> bytes:
    """The answer takes longer than `message_timeout`: wait so long from now. Envoy takes this once for a message, and
    only up to its `max_message_timeout`."""
    message = ProcessingResponse()
    message.override_message_timeout.seconds = int(seconds)
    message.override_message_timeout.nanos = int(seconds % 1 * 1e9)
    return _encoded(message)


def _change(message: Any, common: Any, changes: Changes) -> None:
    mutation = common.header_mutation
    destination = changes.destination
    _set(mutation, _DESTINATION_LINE, destination.encode())
    for name, value in changes.headers:
        _set(mutation, name, value)
    if changes.without:
        mutation.remove_headers.extend([name.decode("latin-1") for name in changes.without])
    common.clear_route_cache = True  # a route may be chosen by the destination
    # Never another one than in the header: which of the two a data plane goes by is not defined.
    entry = message.dynamic_metadata.fields[DESTINATION_NAMESPACE].struct_value
    entry.fields[DESTINATION].string_value = destination


def _set(mutation: Any, name: bytes, value: bytes) -> None:
    option = mutation.set_headers.add()
    option.append_action = OVERWRITE_OR_ADD
    option.header.key = name.decode("latin-1")
    option.header.raw_value = value


def _encoded(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
