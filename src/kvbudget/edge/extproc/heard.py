"""Decides what a message of Envoy means: plain values of our own, whatever is missing or odd in it."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from kvbudget.edge.extproc.told import DESTINATION_NAMESPACE
from kvbudget.edge.extproc.wire import BodyMode, ProcessingRequest
from kvbudget.edge.http.messages import Headers

SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
_CODE_DETAILS: Final = "response.code_details"
_SOURCE: Final = "source.address"
_VIA_UPSTREAM: Final = "via_upstream"
_UPSTREAM_TIME: Final = b"x-envoy-upstream-service-time"
_ATTRIBUTES: Final = "envoy.filters.http.ext_proc"  # under which Envoy puts the attributes that it was asked for


class ProtocolError(Exception):
    """The peer does not speak the external processing protocol as we know it; its stream is ended."""


class Start(NamedTuple):
    """Headers of a request, and how its bodies are going to come (`BodyMode`)."""

    method: bytes
    target: bytes
    headers: Headers  # names lower-cased; the authority as `host`
    ends: bool
    request_mode: int
    response_mode: int
    subset: frozenset[str] | None  # endpoints among which one must be picked; None: any
    peer: str


class Answer(NamedTuple):
    """Headers of an answer. `by_engine`: an engine gave it, else Envoy itself did. `served`: the endpoint that Envoy
    reports, empty if it does not."""

    status: int
    headers: Headers
    by_engine: bool
    served: str


def parsed(data: bytes) -> tuple[str, Any]:
    """The kind of a message, and the message. Raises ProtocolError."""
    try:
        message = ProcessingRequest.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"not a ProcessingRequest: {error}") from None
    if message.observability_mode:
        raise ProtocolError("observability_mode only looks on: nothing could be refused, or wait")
    kind = message.WhichOneof("request")
    if kind is None:
        raise ProtocolError("a ProcessingRequest of no kind that is known here")
    return kind, message


def start_of(message: Any) -> Start:
    """Raises ProtocolError where method or path is missing."""
    method = target = b""
    headers: Headers = []
    peer = ""
    for name, value in _fields(message.request_headers.headers):
        if name[:1] != b":":
            headers.append((name, value))
            if name == b"x-forwarded-for":
                peer = value[-64:].rpartition(b",")[2].strip().decode("latin-1")
        elif name == b":method":
            method = value
        elif name == b":path":
            target = value
        elif name == b":authority":
            headers.append((b"host", value))
    if not method or not target:
        raise ProtocolError("request headers without :method or :path")
    # Who does not say how bodies come is an endpoint picker's data plane, which streams them.
    request_mode = response_mode = BodyMode.FULL_DUPLEX
    if message.HasField("protocol_config"):
        request_mode = message.protocol_config.request_body_mode
        response_mode = message.protocol_config.response_body_mode
    return Start(
        method,
        target,
        headers,
        message.request_headers.end_of_stream,
        request_mode,
        response_mode,
        _subset(message.metadata_context.filter_metadata) if message.HasField("metadata_context") else None,
        _attribute(message, _SOURCE) or peer or "-",
    )


def answer_of(message: Any) -> Answer:
    """Raises ProtocolError where the status is missing."""
    status = 0
    headers: Headers = []
    by_engine = False
    for name, value in _fields(message.response_headers.headers):
        if name == b":status":
            status = int(value) if value.isdigit() and len(value) == 3 else 0
        else:
            headers.append((name, value))
            by_engine = by_engine or name == _UPSTREAM_TIME
    if not 100 <= status <= 999:
        raise ProtocolError("response headers without :status")
    details = _attribute(message, _CODE_DETAILS)
    served = ""
    if message.HasField("metadata_context"):
        known = message.metadata_context.filter_metadata
        if DESTINATION_NAMESPACE in known and SERVED in known[DESTINATION_NAMESPACE].fields:
            served = known[DESTINATION_NAMESPACE].fields[SERVED].string_value
    return Answer(status, headers, details == _VIA_UPSTREAM if details else by_engine, served)


def _fields(headers: Any) -> Headers:
    """Newer Envoys fill `raw_value`, other data planes `value`."""
    return [(entry.key.lower().encode(), entry.raw_value or entry.value.encode()) for entry in headers.headers]


def _attribute(message: Any, name: str) -> str:
    attributes: Mapping[str, Any] = message.attributes
    if not attributes or _ATTRIBUTES not in attributes:
        return ""
    fields = attributes[_ATTRIBUTES].fields
    told: str = fields[name].string_value if name in fields else ""
    return told


def _subset(metadata: Mapping[str, Any]) -> frozenset[str] | None:
    """A list of `ip:port`; older data planes say them in one text, with commas between."""
    if SUBSET_NAMESPACE not in metadata:
        return None
    fields = metadata[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    listed = [one.string_value for one in value.list_value.values] or value.string_value.split(",")
    return frozenset(endpoint.strip() for endpoint in listed if endpoint.strip())
