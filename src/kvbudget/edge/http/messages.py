"""Decides how heads of HTTP/1.1 messages look on the wire and which headers may cross a proxy."""

import http
from collections.abc import Collection
from typing import Final

Headers = list[tuple[bytes, bytes]]
"""Names lower-cased, values without surrounding blanks, in the order of the wire."""

# RFC 9110, 7.6.1: they speak about one connection. Proxy-Authenticate/-Authorization are meant for the next hop only.
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
DATA_PLANE_CODES: Final[dict[str, int]] = {
    "bad_chunk": 400,
    "bad_framing": 400,
    "bad_host": 400,
    "bad_request": 400,
    "bad_target": 400,
    "body_too_large": 413,
    "duplicate_header": 400,
    "expectation_failed": 417,
    "header_too_large": 431,
    "host_required": 400,
    "http_version_not_supported": 505,
    "internal_error": 500,
    "method_not_implemented": 501,
    "request_cancelled": 503,
    "request_timeout": 400,
    "server_is_overloaded": 503,
    "too_many_connections": 503,
    "upgrade_refused": 400,
    "upstream_failed": 502,
}
"""Every code that the data plane answers by itself -> its HTTP status.

`upstream_failed` and `request_cancelled` come as an SSE error event too, within a stream whose status is sent already.
"""


class OwnLines:
    """Headers of ours, as they stand on the wire: `lines` end with CRLF each, `names` are theirs, lower-cased.

    `plain`: no value in it can hold CR, LF or NUL, whoever sent it: they are numbers, or were looked at before.
    """

    __slots__ = ("lines", "names", "plain")

    def __init__(self, names: frozenset[bytes], lines: bytes, plain: bool = False) -> None:
        self.names = names
        self.lines = lines
        self.plain = plain


class ClientHeaders:
    """The client's own headers, to be forwarded without those named, and with ours behind them."""

    __slots__ = ("own", "without")

    def __init__(self, without: frozenset[bytes], own: OwnLines) -> None:
        self.without = without
        self.own = own


_NEVER_NAMED: Final = frozenset({b"close", b"keep-alive", b"content-length", b"content-type", b"host"})
_NO_OPTIONS: Final[frozenset[bytes]] = frozenset()
_KEEP_ALIVE_OPTION: Final = frozenset({b"keep-alive"})
_join_field = b": ".join
_CR, _LF, _BLANK = b"\r\n "
_PHRASES: Final = {int(status): status.phrase.encode() for status in http.HTTPStatus}
_STATUS_LINES: Final = {code: b"HTTP/1.1 %d %s" % (code, phrase) for code, phrase in _PHRASES.items()}


def status_phrase(status: int) -> bytes:
    """The registered reason phrase, empty for codes that have none."""
    return _PHRASES.get(status, b"")


def has_no_body(status: int) -> bool:
    """True where a response ends with its head whatever its headers say: 1xx, 204 and 304 (RFC 9112, 6.3)."""
    return status in (204, 304) or 100 <= status < 200


def connection_options(headers: Headers) -> frozenset[bytes]:
    """The lower-cased tokens of all Connection headers."""
    values = [field[1] for field in headers if field[0] == b"connection"]
    if not values:
        return _NO_OPTIONS
    joined = b",".join(values).lower()
    if joined == b"keep-alive":
        return _KEEP_ALIVE_OPTION
    return frozenset(option.strip() for option in joined.split(b","))


def end_to_end(headers: Headers, without: Collection[bytes] = ()) -> Headers:
    """`headers` without those of one connection (Connection names some too) and without the names in `without`."""
    kept = []
    options = False
    for field in headers:
        name = field[0]
        if name in HOP_BY_HOP:
            options = options or name == b"connection"
        elif name not in without:
            kept.append(field)
    if options:
        # Content headers stay even when a peer names them: dropping them would change the message itself.
        named = connection_options(headers) - _NEVER_NAMED
        if named:
            return [field for field in kept if field[0] not in named]
    return kept


def serialise_response_head(status: int, headers: Headers) -> bytes:
    """Bytes of a response head. Raises ValueError when a field carries CR, LF or NUL."""
    return _serialise(_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status, headers)


def serialise_request_head(method: bytes, target: bytes, headers: Headers) -> bytes:
    """Bytes of a request head. Raises ValueError when a part carries CR, LF or NUL, or the target a blank."""
    first = b"%s %s HTTP/1.1" % (method, target)
    if first.count(_BLANK) != 2 or not method or not target:
        raise ValueError(f"not a request line: {method[:40]!r} {target[:80]!r}")
    return _serialise(first, headers)


def _serialise(first: bytes, headers: Headers) -> bytes:
    head = b"\r\n".join([first, *map(_join_field, headers), b"", b""])
    ends = len(headers) + 2
    # Every line brings exactly one CR and one LF; any more came inside of a name or a value (response splitting).
    # Looked for as numbers: that takes half the time of looking for bytes.
    if head.count(_LF) != ends or head.count(_CR) != ends or 0 in head:
        raise ValueError("a header holds CR, LF or NUL")
    return head


def fields_of(own: OwnLines) -> Headers:
    """As headers. Raises ValueError as `check_lines`."""
    lines = check_lines(own).split(b"\r\n")
    fields = [line.partition(b": ") for line in lines if line]
    return [(name, value) for name, _, value in fields]


def check_lines(own: OwnLines) -> bytes:
    """Its lines. Raises ValueError unless they are as many as its names: more would come from inside of a value."""
    lines = own.lines
    if own.plain:
        return lines
    ends = len(own.names)
    if lines.count(_LF) != ends or lines.count(_CR) != ends or 0 in lines:
        raise ValueError("a header holds CR, LF or NUL")
    return lines
