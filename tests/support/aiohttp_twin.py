"""What the bytes of a connection mean to us and to aiohttp's server, and where it differs for reasons of its own.

A second reader beside h11: aiohttp reads with llhttp, as most of the world behind Node and Python does, and is more
lenient than h11 in other places. Both must be read alike by us, or refused for a reason that is listed.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser

from h11_twin import STRICTER_BODY, Meaning, Read, connection_by_us, same, stricter_reasons

Rule = tuple[str, Callable[[bytes], object]]
_EXTENDED = re.compile(rb"\n[0-9A-Fa-f]+([ \t]*;[^\r\n]*)\r\n")
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_LAWFUL_EXTENSIONS = re.compile(
    rb'(?:;' + _TOKEN + rb'(?:=(?:' + _TOKEN + rb'|"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e])*"))?)+'
)  # fmt: skip


def _odd_extension(rest: bytes) -> bool:
    """Whether a chunk has extensions other than names with values, without blanks between."""
    return any(_LAWFUL_EXTENSIONS.fullmatch(found) is None for found in _EXTENDED.findall(rest))


# Where aiohttp refuses, or waits on, what we read; looked for in the bytes from that request on.
ITS_OWN: list[Rule] = [
    ("blanks behind the size of a chunk that has no extension (h11 takes them as well)",
     re.compile(rb"\n[0-9A-Fa-f]+[ \t]+\r\n").search),
    ("extensions of chunks that are no names with values: nobody acts on any", _odd_extension),
    ("a tab behind the coding", re.compile(rb"(?i)\ntransfer-encoding:[^\r\n]*\t\r\n").search),
]  # fmt: skip
# Where aiohttp reads what we refuse, beyond what h11 does.
LENIENT: list[Rule] = [
    ("a CR or LF alone before the request line", re.compile(rb"^(?:\r\n)*(?:\n|\r(?!\n))").match),
    ("several blanks in the request line", re.compile(rb"^(?:\r\n)*[^\r\n]*(?: {2}| HTTP/1\.[01] )").match),
    ("an empty element in the list of codings", re.compile(rb"(?i)\ntransfer-encoding:[^\r\n]*,").search),
    (
        "an unknown coding beside an offer of another protocol: taken for no body",
        re.compile(rb"(?i)\ntransfer-encoding:(?![ \t]*chunked[ \t]*\r)[^\0]*\nupgrade:").search,
    ),
    ("a request line of two words, as HTTP/0.9", re.compile(rb"^(?:\r\n)*[A-Z]+ [^ \r\n]+\r?\n").match),
]
# Its reader puts the trailers of a body before the headers of the request behind it.
_TRAILERS = re.compile(rb"\n0+[^\r\n]*\r\n[^\r\n:]+:")


class _Loop:
    """As much of a loop as its payloads ask for."""

    def create_future(self) -> Any:
        raise AssertionError("nothing is awaited here")

    def get_debug(self) -> bool:
        return False

    def time(self) -> float:
        return 0.0


def connection_by_aiohttp(wire: bytes) -> Read:
    """The requests that aiohttp reads whole. Byte by byte: what it had read of a feed that fails in its end is lost."""
    loop = cast(asyncio.AbstractEventLoop, _Loop())
    protocol = BaseProtocol(loop)
    parser = HttpRequestParser(protocol, loop, 2**16, auto_decompress=False)
    messages: list[Any] = []
    starts, refused, ended = [0], "", False
    for at in range(len(wire)):
        try:
            found, upgraded, _ = parser.feed_data(wire[at : at + 1])
        except HttpProcessingError:
            refused = "refused"
            break
        messages += found
        whole = [message for message in messages if message[1].is_eof() and message[1].exception() is None]
        if len(whole) >= len(starts):
            starts.append(at + 1)
        if messages and messages[-1][1].exception() is not None:
            refused = "refused"
            break
        if upgraded or any(message[0].should_close for message in whole):
            ended = True
            break
    requests = [_meaning(head, payload) for head, payload in messages if _is_whole(payload)]
    return Read(requests, "closed" if ended and not refused else refused, starts)


def _is_whole(payload: Any) -> bool:
    return payload.is_eof() and payload.exception() is None


def _meaning(head: Any, payload: Any) -> Meaning:
    body = b"".join(bytes(part) for part in getattr(payload, "_buffer", ()))
    headers = [(bytes(name).lower(), bytes(value).strip(b" \t")) for name, value in head.raw_headers]
    target = head.path.encode("utf-8", "surrogateescape")
    return head.method.encode(), target, tuple(head.version) == (1, 1), headers, body


def difference(wire: bytes, cuts: list[int]) -> str:
    """What the two read differently, for no reason that is listed; empty if there is nothing."""
    ours, theirs = connection_by_us(wire, cuts), connection_by_aiohttp(wire)
    for mine, other in zip(ours.requests, theirs.requests, strict=False):
        if not same(mine, _without_trailers(other, mine, wire)):
            return f"another meaning: {mine} and {other}"
    read = len(theirs.requests)
    if len(ours.requests) > read:
        if theirs.refused == "closed":
            return f"we read on where it closes: {ours.requests[read]}"
        rest = wire[theirs.starts[read] :]
        if any(holds(rest) for _, holds in ITS_OWN):
            return ""
        return f"we read {len(ours.requests)} requests, aiohttp {read} ({theirs.refused})"
    if len(ours.requests) < read:
        if not ours.refused:
            return "" if _closes(ours.requests) else f"we wait where it has read {theirs.requests[len(ours.requests)]}"
        if ours.refused == "bad_chunk":
            return "" if any(rule.search(wire) for rule in STRICTER_BODY) else "we refuse a chunked body that it reads"
        start = theirs.starts[len(ours.requests)]
        if any(holds(wire[start:]) for _, holds in LENIENT):
            return ""
        if not stricter_reasons(ours.refused, wire[start:].lstrip(b"\r\n").partition(b"\r\n\r\n")[0]):
            return f"we refuse with {ours.refused} what it reads"
    return ""


def _without_trailers(theirs: Meaning, ours: Meaning, wire: bytes) -> Meaning:
    method, target, http_1_1, headers, body = theirs
    if _TRAILERS.search(wire) and len(ours[3]) < len(headers):
        headers = headers[len(headers) - len(ours[3]) :]
    return method, target, http_1_1, headers, body


def _closes(requests: list[Meaning]) -> bool:
    """Whether we closed after the last one."""
    if not requests:
        return False
    _, _, http_1_1, headers, _ = requests[-1]
    return not http_1_1 or any(name == b"connection" for name, _ in headers)
