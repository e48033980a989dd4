"""How spans look on the wire: OTLP 1.x in binary protobuf, the encoding that every receiver takes.

Written out here because the few messages that are needed take a tenth of the time that OpenTelemetry's SDK needs for a
request's spans (docs/adr/0031); tests read them with the official opentelemetry-proto package. Field numbers:
opentelemetry-proto v1.5, `trace/v1/trace.proto`, `common/v1/common.proto`, `collector/trace/v1/trace_service.proto`.
"""

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Final

Value = str | int | float | bool
LONGEST_TEXT: Final = 256  # characters of an attribute: names of models come from clients
_U64: Final = (1 << 64) - 1
_BYTES: Final = [bytes((number,)) for number in range(128)]
_times = struct.Struct("<BQBQ").pack  # start_time_unix_nano = 7 and end_time_unix_nano = 8, fixed64
_double = struct.Struct("<Bd").pack
_ERROR: Final = b"\x7a\x02\x18\x02"  # status = 15 { code = 3: STATUS_CODE_ERROR }
_FLAGS: Final = struct.Struct("<HI").pack  # flags = 16, fixed32
_TELLS_ALIKE: Final = frozenset({int, str})  # to a dict 1, 1.0 and True are the same
_HAS_REMOTE, _REMOTE = 0x100, 0x200


class Kind(IntEnum):
    """SpanKind."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


def span(
    trace_id: bytes,
    span_id: bytes,
    parent_id: bytes,
    name: str,
    kind: Kind,
    since_ns: int,
    until_ns: int,
    attributes: bytes = b"",
    *,
    error: bool = False,
    flags: int = 1,
    remote: bool = False,
    state: bytes = b"",
) -> bytes:
    """One entry of `ScopeSpans.spans`. Times are of the wall clock. `remote`: its parent is of another process."""
    named = _told_name(name)
    flags |= _HAS_REMOTE | (_REMOTE if remote else 0)
    body = b"\x0a\x10%b\x12\x08%b%b%b%b\x30%b%b%b%b%b" % (
        trace_id,
        span_id,
        b"\x1a" + _sized(state) if state else b"",
        b"\x22\x08" + parent_id if parent_id else b"",
        named,
        _BYTES[kind],
        _times(0x39, since_ns, 0x41, max(since_ns, until_ns)),
        attributes,
        _ERROR if error else b"",
        _FLAGS(0x0185, flags),
    )
    return b"\x12" + _sized(body)


def attributes(pairs: Iterable[tuple[str, Value | None]]) -> bytes:
    """`Span.attributes`; what is None is not told."""
    return b"".join(
        [
            _told_again(name, value) if type(value) in _TELLS_ALIKE else b"\x4a" + _key_value(name, value)
            for name, value in pairs
            if value is not None
        ]
    )


def resource(told: Mapping[str, str]) -> bytes:
    """`ResourceSpans.resource`."""
    return b"\x0a" + _sized(b"".join([b"\x0a" + _key_value(name, value) for name, value in told.items()]))


def scope(name: str, version: str) -> bytes:
    """`ScopeSpans.scope`."""
    return b"\x0a" + _sized(b"\x0a" + _sized(name.encode()) + b"\x12" + _sized(version.encode()))


def request(resource: bytes, scope: bytes, spans: bytes) -> bytes:
    """An ExportTraceServiceRequest."""
    return b"\x0a" + _sized(resource + b"\x12" + _sized(scope + spans))


def rejected(answer: bytes) -> int:
    """`partial_success.rejected_spans` of an ExportTraceServiceResponse; 0 of what is none."""
    try:
        for number, value in _fields(answer):
            if number == 1 and isinstance(value, bytes):
                return next((value for number, value in _fields(value) if number == 1 and isinstance(value, int)), 0)
    except (IndexError, ValueError):
        pass
    return 0


@lru_cache(4096)
def _told_again(name: str, value: Value) -> bytes:
    """The same models, tenants, instances, outcomes and lengths come again and again."""
    return b"\x4a" + _key_value(name, value)


@lru_cache(1024)
def _told_name(name: str) -> bytes:
    return b"\x2a" + _sized(name[:LONGEST_TEXT].encode("utf-8", "replace"))


def _key_value(name: str, value: Value) -> bytes:
    """A KeyValue, with its length before it."""
    match value:
        case bool():
            told = b"\x10" + _BYTES[value]
        case str():
            told = b"\x0a" + _sized(value[:LONGEST_TEXT].encode("utf-8", "replace"))
        case int():
            told = b"\x18" + _varint(value & _U64)
        case float():
            told = _double(0x21, value)
    return _sized(b"\x0a" + _sized(name.encode()) + b"\x12" + _sized(told))


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    if number < 128:
        return _BYTES[number]
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _fields(data: bytes) -> Iterable[tuple[int, int | bytes]]:
    """(number, value) of a message's varints and strings. Raises IndexError, ValueError for what is none."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError("neither a number nor a string")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError("no 64-bit number")
