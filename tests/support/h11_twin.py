"""What a request means to us and to h11: heads alone, and whole connections in arbitrary pieces."""

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import h11

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.heads import HeadError, parse_request_head
from kvbudget.edge.http.limits import ServerLimits
from kvbudget.edge.http.refused import openai_answer
from kvbudget.edge.http.server import HttpServer

BODY = b"5\r\nhello\r\n0\r\n\r\n"
Meaning = tuple[bytes, bytes, bool, list[tuple[bytes, bytes]], bytes]

METHODS = [b"GET", b"POST", b"POST", b"PUT", b"OPTIONS", b"get", b"CONNECT", b"BREW", b"G(T"]
TARGETS = [b"/", b"/v1/x?a=%20b", b"*", b"http://b:81/x", b"/a#b", b"/\x80", b"x", b"/ y", b""]
VERSIONS = [b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.10", b"http/1.1", b"HTTP/0.9"]
LINES = [
    b"Host: a",
    b"host:b:80",
    b"Host: a/b",
    b"Content-Length: 3",
    b"content-length:3",
    b"Content-Length: 0",
    b"Content-Length: +3",
    b"Content-Length: 3, 3",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: Chunked",
    b"transfer-encoding: gzip, chunked",
    b"Transfer-Encoding : chunked",
    b"Expect: 100-continue",
    b"Expect: magic",
    b"Connection: close",
    b"Connection: keep-alive, Upgrade",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"X-Tab:\ta\tb\t",
    b"X-Empty:",
    b"X-Colon: a:b: c",
    b"X-High: \xe9\xff",
    b"X-Control: a\x01b",
    b"X-Folded: a\r\n b",
    b"X_~!#$%&'*+-.^`|9: odd but lawful",
    b"no colon",
    b": no name",
    b"(x): y",
]
PIECES = [b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\x7f", b"\x0b", b"\xff", b",", b"chunked", b"\r\n "]

CONTROL = re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]")
OUR_METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE")


def fields(raw: bytes, name: bytes) -> list[bytes]:
    return re.findall(rb"(?im)^" + name + rb":[ \t]*([^\r\n]*?)[ \t]*\r?$", raw)


# Where h11 reads a head and we refuse it: our code, and what must then be in the head.
STRICTER: list[tuple[str, str, Callable[[bytes], object]]] = [
    (
        "a bare LF as the end of a line (RFC 9112, 2.2 allows to refuse it)",
        "bad_request",
        re.compile(rb"(?<!\r)\n").search,
    ),
    ("a header continued on the next line (RFC 9112, 5.2: obsolete)", "bad_request", re.compile(rb"\n[ \t]").search),
    ("control bytes in a value (RFC 9110, 5.5)", "bad_request", CONTROL.search),
    (
        "a begun head whose first bytes are no method of ours: refused before it is whole",
        "bad_request",
        lambda raw: raw.split(b" ")[0] not in OUR_METHODS,
    ),
    ("a CR that no LF follows", "bad_request", re.compile(rb"\r(?!\n)").search),
    (
        "a method that API clients do not use",
        "method_not_implemented",
        lambda raw: raw.split(b" ")[0] not in OUR_METHODS,
    ),
    ("another version", "http_version_not_supported", re.compile(rb"^[^\r\n]* HTTP/(?!1\.[01]\r?\n)").search),
    (
        "a fragment, or a target that is neither path nor address",
        "bad_target",
        re.compile(rb"^\S+ (?!/[^#\s]* )").search,
    ),
    ("a Host that is no host", "bad_host", lambda raw: fields(raw, b"host") or b"://" in raw),
    ("no Host", "host_required", lambda raw: not fields(raw, b"host")),
    (
        "a header twice that would have two meanings",
        "duplicate_header",
        lambda raw: any(
            len(fields(raw, name)) > 1
            for name in (b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade")
        ),
    ),
    (
        "two framings, a list of lengths, chunked in HTTP/1.0, or more than 18 digits (RFC 9112, 6.3 and 11.2)",
        "bad_framing",
        lambda raw: (
            (fields(raw, b"transfer-encoding") and (fields(raw, b"content-length") or b" HTTP/1.0" in raw))
            or any(b"," in value or len(value) > 18 for value in fields(raw, b"content-length"))
        ),
    ),
    ("another protocol", "upgrade_refused", lambda raw: fields(raw, b"upgrade")),
    ("an expectation nobody knows", "expectation_failed", lambda raw: fields(raw, b"expect")),
]


def made(chance: random.Random) -> bytes:
    first = b" ".join([chance.choice(METHODS[:5]), chance.choice(TARGETS[:4]), b"HTTP/1.1"])
    if chance.random() < 0.3:
        first = b" ".join([chance.choice(METHODS), chance.choice(TARGETS), chance.choice(VERSIONS)])
    lines = chance.choices(LINES, k=chance.randint(0, 5))
    if chance.random() < 0.8:
        lines = [b"Host: a", *(line for line in lines if not line.lower().startswith(b"host"))]
    wire = bytearray(b"\r\n".join([first, *lines, b"", b""]))
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        at = chance.randrange(len(wire))
        kind = chance.randrange(4)
        if kind == 0:
            wire[at:at] = chance.choice(PIECES)
        elif kind == 1:
            del wire[at : at + chance.randint(1, 6)]
        elif kind == 2:
            wire[at] = chance.randrange(256)
        else:
            wire[at:at] = wire[at : at + chance.randint(1, 30)]
    return bytes(wire)


def read_by_us(raw: bytes) -> Meaning | HeadError:
    try:
        head = parse_request_head(raw)
    except HeadError as error:
        return error
    body = b"hello" if head.chunked else BODY[: head.length]
    return head.method, head.target, head.http_1_1, head.headers, body


def read_by_h11(raw: bytes) -> Meaning | None:
    server = h11.Connection(h11.SERVER)
    server.receive_data(raw + b"\r\n\r\n" + BODY)
    try:
        request = server.next_event()
        if not isinstance(request, h11.Request):
            return None
        body = b""
        while isinstance(event := server.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return None
    assert isinstance(event, h11.EndOfMessage) or event in (h11.NEED_DATA, h11.PAUSED)
    headers = [(bytes(name), bytes(value)) for name, value in request.headers]
    return bytes(request.method), bytes(request.target), request.http_version == b"1.1", headers, body


def same(ours: Meaning, theirs: Meaning) -> bool:
    def settled(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        # h11 gives the one coding that there is in lower case.
        return [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in headers]

    method, target, http_1_1, headers, body = theirs
    if not target.startswith(b"/") and target != b"*":  # an address: its host counts, not the header's
        rest = target.split(b"://", 1)[1]
        host = re.split(rb"[/?]", rest)[0]
        path = rest[len(host) :]
        target = path if path.startswith(b"/") else b"/" + path
        headers = [(b"host", host), *(field for field in headers if field[0] != b"host")]
    return (*ours[:3], settled(ours[3]), ours[4]) == (method, target, http_1_1, settled(headers), body)


def stricter_reasons(code: str, raw: bytes) -> list[str]:
    """Why we may refuse with `code` a head that h11 reads."""
    return [reason for reason, known, holds in STRICTER if known == code and holds(raw + b"\r\n")]


# Whole connections

BODIES = [
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;ext=1\r\nhello\r\n3\r\nabc\r\n0\r\nx-trailer: 1\r\n\r\n",
    b'A;a="b;c"\r\n0123456789\r\n00\r\n\r\n',
    b"fffffffffffffff\r\n",
    b"5\r\nhell\r\n0\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"-1\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"0\r\ncontent-length: 9\r\n\r\n",
]
# RFC 9112, 7.1.1 allows it, as 2.2 does empty lines before a request; h11 takes neither.
_BLANK_BEFORE_EXTENSION = re.compile(rb"\n[0-9A-Fa-f]+[ \t]+;")
# Where h11 reads a body and we refuse it.
STRICTER_BODY = (
    re.compile(rb"[;][^\r\n]*[\r\n\0]"),  # a bare CR, LF or NUL in an extension
    re.compile(rb"(?<!\r)\n|\r(?!\n)"),
    re.compile(rb"[0-9A-Fa-f]{16}"),  # a size of more than 15 digits
    re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\xff]"),
    re.compile(rb"[ \t]"),
    re.compile(rb"(?i)\n(content-length|transfer-encoding|host)[ \t]*:"),  # as a trailer
)


class Read(NamedTuple):
    """Requests in order, and the code by which the connection was refused after them (ours), or "refused" (h11's)."""

    requests: list[Meaning]
    refused: str
    starts: list[int]  # of h11: where each request begins


def made_connection(chance: random.Random) -> bytes:
    """One to three requests with bodies, some damaged."""
    wire = bytearray()
    for _ in range(chance.choice((1, 1, 2, 3))):
        if chance.random() < 0.5:
            body = chance.choice(BODIES)
            wire += b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body
        elif chance.random() < 0.7:
            body = chance.choice((b"", b"x", b"hello", b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"))
            length = len(body) + chance.choice((0, 0, 0, 0, 1, -1))
            wire += b"POST /p HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % max(0, length) + body
        else:
            wire += made(chance)
    for _ in range(chance.choice((0, 0, 1))):
        at = chance.randrange(len(wire))
        if chance.random() < 0.5:
            wire[at:at] = chance.choice(PIECES)
        else:
            del wire[at : at + chance.randint(1, 4)]
    return bytes(wire)


class _Wire(asyncio.Transport):
    """Takes what the connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.over = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.over

    def pause_reading(self) -> None:
        """Everything is given at once anyway."""

    def resume_reading(self) -> None:
        """As above."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It never fills."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class _Loop:
    """As much of a loop as a connection needs between two reads."""

    def __init__(self) -> None:
        self.soon: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, what: Callable[..., object], *args: object) -> None:
        self.soon.append((what, args))

    def run(self) -> None:
        while self.soon:
            what, args = self.soon.pop(0)
            what(*args)


def connection_by_us(wire: bytes, cuts: list[int]) -> Read:
    """The requests that our server reads from these bytes, which come in pieces that end at `cuts`."""
    loop, requests = _Loop(), list[Meaning]()

    def app(exchange: Exchange) -> None:
        requests.append((exchange.method, exchange.target, exchange.http_1_1, exchange.headers, exchange.body))
        exchange.respond(200, [], b"")

    server = HttpServer(app, ServerLimits(), openai_answer, cast(asyncio.AbstractEventLoop, loop))
    connection, transport = server.new_connection(), _Wire()
    connection.connection_made(transport)
    start = 0
    for stop in [*cuts, len(wire)]:
        if start < stop and not transport.over:
            connection.data_received(wire[start:stop])
            loop.run()
        start = stop
    code = re.search(rb'"code": ?"([a-z0-9_]+)"', transport.sent)
    connection.connection_lost(None)
    return Read(requests, code[1].decode() if code else "", [])


def connection_by_h11(wire: bytes) -> Read:
    """The requests that h11 reads, each answered at once."""
    server, requests, starts = h11.Connection(h11.SERVER), list[Meaning](), [0]
    server.receive_data(wire)
    refused = ""
    try:
        while isinstance(request := server.next_event(), h11.Request):
            body = b""
            while isinstance(event := server.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage) or request.method == b"CONNECT":  # no requests follow one
                break
            headers = [(bytes(name), bytes(value)) for name, value in request.headers]
            meaning = bytes(request.method), bytes(request.target), request.http_version == b"1.1", headers, body
            requests.append(meaning)
            starts.append(len(wire) - len(server.trailing_data[0]))
            server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            server.send(h11.EndOfMessage())
            if server.our_state is h11.MUST_CLOSE:
                break
            server.start_next_cycle()
    except h11.RemoteProtocolError:
        refused = "refused"
    return Read(requests, refused, starts)


def difference(wire: bytes, cuts: list[int]) -> str:
    """What the two read differently, for no reason that is listed; empty if there is nothing."""
    ours, theirs = connection_by_us(wire, cuts), connection_by_h11(wire)
    for mine, other in zip(ours.requests, theirs.requests, strict=False):
        if not same(mine, other):
            return f"another meaning: {mine} and {other}"
    if len(ours.requests) > len(theirs.requests):
        rest = wire[theirs.starts[len(theirs.requests)] :]
        if rest.startswith(b"\r\n") or _BLANK_BEFORE_EXTENSION.search(rest):
            return ""
        if theirs.requests and not theirs.requests[-1][2]:
            return ""  # it closes after every HTTP/1.0 request, also where keep-alive is asked for
        return f"we read {len(ours.requests)} requests, h11 {len(theirs.requests)}"
    if len(ours.requests) < len(theirs.requests):
        if not ours.refused:
            after = ours.requests[-1][3] if ours.requests else []
            closing = any(name == b"connection" for name, _ in after) or any(not r[2] for r in ours.requests)
            return "" if closing else f"we wait where h11 has read {theirs.requests[len(ours.requests)]}"
        if ours.refused == "bad_chunk":
            return "" if any(rule.search(wire) for rule in STRICTER_BODY) else "we refuse a chunked body that h11 reads"
        start = theirs.starts[len(ours.requests)]
        if not stricter_reasons(ours.refused, wire[start:].lstrip(b"\r\n").partition(b"\r\n\r\n")[0]):
            return f"we refuse with {ours.refused} what h11 reads"
    return ""
