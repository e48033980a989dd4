"""Request heads read by us and by h11: one meaning, or both refuse, or we are stricter for a reason listed here."""

import random
import re
from collections.abc import Callable

import h11

from kvbudget.edge.http.heads import HeadError, parse_request_head

SEED = 20261129
INPUTS = 6000
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


def test_a_request_head_means_the_same_to_us_and_to_h11_or_is_refused_for_a_listed_reason() -> None:
    chance = random.Random(SEED)
    both, neither, stricter = 0, 0, dict.fromkeys((code for _, code, _ in STRICTER), 0)
    for number in range(INPUTS):
        wire = made(chance)
        stop = wire.find(b"\r\n\r\n")
        if stop < 0 or wire.startswith(b"\r\n"):
            continue  # not a head yet, or not only one; the connection decides before it parses
        raw = wire[:stop]
        told = f"seed {SEED}, input {number}: {raw!r}"
        theirs = read_by_h11(raw)
        ours = read_by_us(raw)
        if isinstance(ours, HeadError):
            if theirs is None:
                neither += 1
                continue
            reasons = [reason for reason, code, holds in STRICTER if code == ours.code and holds(raw + b"\r\n")]
            assert reasons, f"{ours.code} {told}"
            stricter[ours.code] += 1
            continue
        assert theirs is not None, f"h11 refuses, we do not: {told}"
        assert same(ours, theirs), f"{ours}\n{theirs}\n{told}"
        both += 1
    # The inputs must reach every branch, or the comparison says nothing.
    assert both > INPUTS / 20, both
    assert neither > INPUTS / 20, neither
    assert all(count for code, count in stricter.items() if code != "host_required"), stricter
