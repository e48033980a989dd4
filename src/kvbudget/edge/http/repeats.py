"""Decides whether a head is one that was read before, but for its Content-Length, so that it need not be read again.

A client says the same head with every request, and an engine with every answer; only the length of the body differs
(and a date once a second). The same bytes mean the same, so what was once judged lawful is recognised by comparing:
0.3 us instead of 3, and what was made of it (identity, the head for the other side) is made once as well.
"""

from typing import Final

from kvbudget.edge.http.heads import LENGTH_DIGITS, Framing, RequestHead, ResponseHead
from kvbudget.edge.http.messages import Headers

_CR: Final = 13
_ZERO: Final = 48
_NINE: Final = 57
_LENGTH_LINE: Final = b"\r\ncontent-length:"
_MOST_BYTES: Final = 8192
"""A longer head is not remembered: it would be the odd one, and heads of many clients are kept."""
_MOST_REQUESTS: Final = 256
_MISSES: Final = 64
_EVERY: Final = 64
"""Where heads differ each time (a trace id in them) only one in so many is learned: learning costs 1 us."""
_NONE: Final = Framing.NONE
_LENGTH: Final = Framing.LENGTH


class _Known:
    """A head cut in two around the digits of its Content-Length. `length` is that of the last one recognised."""

    __slots__ = ("_before", "_behind", "_has_length", "length")

    def __init__(self, before: bytes, behind: bytes, has_length: bool, length: int) -> None:
        self._before = before
        self._behind = behind
        self._has_length = has_length
        self.length = length

    def end_in(self, data: bytes) -> int:
        """Where the head that `data` begins with ends, if it is this one; else 0."""
        before = self._before
        if not data.startswith(before):
            return 0
        start = len(before)
        if not self._has_length:
            return start
        # Digit by digit: compiled, this loop takes a tenth of what calls to find, cut and convert them take.
        length, stop, most = 0, start, min(len(data), start + LENGTH_DIGITS)
        while stop < most and _ZERO <= (byte := data[stop]) <= _NINE:
            length = 10 * length + byte - _ZERO
            stop += 1
        # Only as we would write it: an answer without a body is framed otherwise, and 007 is read as it stands there.
        if stop == start or data[start] == _ZERO:
            return 0
        end = stop + len(self._behind)
        if data[stop:end] != self._behind:  # `startswith` from a place on is, compiled, a call into the interpreter
            return 0
        self.length = length
        return end


class KnownRequest(_Known):
    """A request head that was read. `said`: what the app made of it; `forwarded`: the head for each upstream."""

    __slots__ = ("forwarded", "head", "said")

    def __init__(self, before: bytes, behind: bytes, head: RequestHead) -> None:
        super().__init__(before, behind, True, head.length)
        self.head = head
        self.said: object = None
        self.forwarded: dict[object, bytes] = {}

    def headers(self, length: int) -> Headers:
        """The headers of the request that came with that Content-Length."""
        return _with_length(self.head.headers, length)


class KnownAnswer(_Known):
    """A response head that was read. `passed_on`: what the client gets of it, by the names that we say instead.

    `headers` are without the Content-Length, which may be another one each time.
    """

    __slots__ = ("head", "headers", "passed_on")

    def __init__(self, before: bytes, behind: bytes, has_length: bool, head: ResponseHead) -> None:
        super().__init__(before, behind, has_length, head.length)
        self.head = head
        self.headers = without_length(head.headers)
        self.passed_on: dict[frozenset[bytes], bytes] = {}


def without_length(headers: Headers) -> Headers:
    """`headers` without the Content-Length."""
    return [field for field in headers if field[0] != b"content-length"]


def _with_length(headers: Headers, length: int) -> Headers:
    told = (b"content-length", b"%d" % length)
    return [told if field[0] == b"content-length" else field for field in headers]


class KnownRequests:
    """What the clients of one server say. A connection begins with what another one said last."""

    __slots__ = ("_by_bytes", "_misses", "last")

    def __init__(self) -> None:
        self._by_bytes: dict[tuple[bytes, bytes], KnownRequest] = {}
        self._misses = 0
        self.last: KnownRequest | None = None

    def learn(self, raw: bytes, head: RequestHead) -> KnownRequest | None:
        """Remembers a head that was read, from its first byte to the CRLF CRLF that ends it; None where it is not."""
        if head.chunked or head.expects_continue or len(raw) > _MOST_BYTES:
            return None
        before, behind, has_length = _cut(raw)
        if not has_length:
            return None
        known = self._by_bytes.get((before, behind))
        if known is None:
            self._misses += 1
            if self._misses > _MISSES and self._misses % _EVERY:
                return None
            if len(self._by_bytes) >= _MOST_REQUESTS:
                del self._by_bytes[next(iter(self._by_bytes))]
            known = self._by_bytes[before, behind] = KnownRequest(before, behind, head)
        else:
            self._misses = 0
        self.last = known
        return known


class KnownAnswers:
    """What one upstream says to requests other than HEAD: the last plain answer and the last event stream."""

    __slots__ = ("_first", "_misses", "_second")

    def __init__(self) -> None:
        self._first: KnownAnswer | None = None
        self._second: KnownAnswer | None = None
        self._misses = 0

    def find(self, data: bytes) -> tuple[KnownAnswer | None, int]:
        """The known head that `data` begins with, and where it ends."""
        known = self._first
        if known is not None:
            end = known.end_in(data)
            if end:
                self._misses = 0
                return known, end
            known = self._second
            if known is not None:
                end = known.end_in(data)
                if end:
                    self._misses = 0
                    self._first, self._second = known, self._first
                    return known, end
        return None, 0

    def learn(self, raw: bytes, head: ResponseHead) -> KnownAnswer | None:
        """Remembers a head that was read, from its first byte to the CRLF CRLF that ends it; None where it is not."""
        self._misses += 1
        if self._misses > _MISSES and self._misses % _EVERY:
            return None
        if head.status != 200 or head.framing is _NONE or len(raw) > _MOST_BYTES:
            return None
        before, behind, has_length = _cut(raw)
        if not has_length and head.framing is _LENGTH:
            return None
        known = KnownAnswer(before, behind, has_length, head)
        if self._first is not None and self._first.head.event_stream is not head.event_stream:
            self._second = self._first
        self._first = known
        return known


def _cut(raw: bytes) -> tuple[bytes, bytes, bool]:
    """What stands before and behind the digits of the Content-Length, and whether there is one that can be cut out."""
    at = raw.lower().find(_LENGTH_LINE)
    if at < 0:
        return raw, b"", False
    start = at + len(_LENGTH_LINE)
    while raw[start : start + 1] in (b" ", b"\t"):
        start += 1
    stop = raw.find(_CR, start)
    if not raw[start:stop].isdigit():
        return raw, b"", False
    return raw[:start], raw[stop:], True
