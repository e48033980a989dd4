"""Decides where one request to the upstream stands: sent, head read, body read, ended; and when it is too late.

Base of the relay (answers a client) and of the call (answers the gate itself). It ends exactly once: complete, failed
or cancelled.
"""

import asyncio
import enum
import math
from typing import TYPE_CHECKING, Final

from kvbudget.edge.http.chunked import ChunkedDecoder, ChunkedError
from kvbudget.edge.http.heads import HEAD_END, Framing, HeadError, ResponseHead, parse_response_head
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.repeats import KnownAnswer, KnownAnswers

if TYPE_CHECKING:
    from kvbudget.edge.http.upstream_pool import UpstreamConnection

# Read with every answer; a member by its class is a slow look-up before Python 3.12.
_NONE: Final = Framing.NONE
_CHUNKED: Final = Framing.CHUNKED
HEAD_BYTES: Final = 65536
"""Largest head of an upstream's answer, interim (1xx) heads included."""
_END_BYTES: Final = len(HEAD_END)
_NEVER_S: Final = math.inf


class Failure(enum.Enum):
    """Why a transfer failed."""

    UNREACHABLE = enum.auto()
    NO_CONNECTION = enum.auto()  # for want of a connection or a descriptor on our side: says nothing about the origin
    BROKEN = enum.auto()
    TIMEOUT = enum.auto()


class Claim(enum.Enum):
    """On whose share of the connections a transfer goes."""

    CHARGED = enum.auto()
    UNCHARGED = enum.auto()
    OWN = enum.auto()  # by the gate itself


class Origin:
    """What all transfers to one origin share: limits, clock, and the heads that it says again and again."""

    __slots__ = ("answers", "limits", "read_stall_s", "response_s", "time")

    def __init__(self, limits: UpstreamLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = limits
        self.time = loop.time
        self.response_s = _NEVER_S if limits.response_s is None else limits.response_s
        self.read_stall_s = _NEVER_S if limits.read_stall_s is None else limits.read_stall_s
        self.answers = KnownAnswers()


class Transfer:
    """One request to the upstream and the reading of its answer."""

    __slots__ = (
        "_buffer",
        "_head_bytes",
        "_missing_bytes",
        "_origin",
        "_request",
        "claim",
        "connecting",
        "deadline_s",
        "decoder",
        "ended",
        "head",
        "known",
        "lane",
        "method",
        "sent_s",
        "started",
    )

    def __init__(
        self,
        method: bytes,
        request: tuple[bytes, ...],
        claim: Claim,
        origin: Origin,
    ) -> None:
        self.method = method
        self.claim = claim
        self._request = request
        self._origin = origin
        self.lane: UpstreamConnection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.sent_s = 0.0  # by the loop's clock, when the request was written
        self.started = False  # a byte of the answer has come: no retry any more
        self.ended = False
        self.head: ResponseHead | None = None  # its length is that of a head like it where it is known
        self.known: KnownAnswer | None = None
        self.decoder: ChunkedDecoder | None = None
        self.deadline_s: float | None = None  # set by the pool; none runs while the client does not keep up
        self._buffer = b""
        self._head_bytes = 0
        self._missing_bytes = 0

    # What subclasses decide.

    def on_head(self, head: ResponseHead, *, alone: bool) -> None:
        """The final head is here; `alone`: and nothing of a body yet."""
        raise NotImplementedError

    def on_body(self, raw: bytes, body: bytes) -> None:
        """One read of the body, as it came and without chunk framing (which may be empty)."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """The answer is complete. Last call."""
        raise NotImplementedError

    def on_failure(self, failure: Failure, message: str) -> None:
        """No more will come. Last call."""
        raise NotImplementedError

    def on_cancelled(self) -> None:
        """`cancel` was called in time. Last call."""
        raise NotImplementedError

    # The pool and its connections call these.

    def attach(self, lane: "UpstreamConnection") -> None:
        """Sends the request on a connection."""
        self.lane = lane
        origin = self._origin
        self.sent_s = now_s = origin.time()
        self.deadline_s = now_s + origin.response_s
        for part in self._request:
            lane.write(part)

    def received(self, data: bytes) -> None:
        """One read from the upstream."""
        try:
            decoder = self.decoder
            if decoder is not None:  # in here and not in a method of its own: every event of a stream passes
                body = decoder.feed(data)
                if decoder.done:
                    self._last_chunk(decoder, data, body)
                else:
                    self.on_body(data, body)
            elif self.head is None:
                self._read_head(data)
            else:
                self._read_plain(data)
        except (HeadError, ChunkedError) as error:
            self.fail(Failure.BROKEN, f"malformed answer: {error}")
        if not self.ended and self.deadline_s is not None:  # most answers are whole by now
            origin = self._origin
            self.deadline_s = origin.time() + origin.read_stall_s

    @property
    def waiting(self) -> bool:
        """True while it has no connection, nor one that is being opened."""
        return self.lane is None and self.connecting is None and not self.ended

    def upstream_closed(self, error: Exception | None) -> None:
        """The upstream closed its side (None) or the connection broke."""
        if error is None and self.head is not None and self.head.framing is Framing.EOF:
            self._complete(reusable=False)
        else:
            self.fail(Failure.BROKEN, f"the connection broke: {error}" if error else "the upstream closed early")

    def expire(self) -> None:
        """The deadline has passed."""
        if self.waiting:
            self.fail(Failure.NO_CONNECTION, f"no connection got free within {self._origin.limits.connect_s:g} s")
        elif self.lane is None:
            self.fail(Failure.UNREACHABLE, f"no connection within {self._origin.limits.connect_s:g} s")
        elif not self.started:
            self.fail(Failure.TIMEOUT, f"no answer within {self._origin.limits.response_s:g} s")
        else:
            self.fail(Failure.TIMEOUT, f"nothing came for {self._origin.limits.read_stall_s:g} s")

    def fail(self, failure: Failure, message: str) -> None:
        """Ends the transfer unless it has ended."""
        if self._let_go():
            self.on_failure(failure, message)

    def cancel(self) -> None:
        """Ends the transfer and closes its connection to the upstream at once; nothing when it has ended."""
        if self._let_go():
            self.on_cancelled()

    # Reading the answer.

    def _read_head(self, data: bytes) -> None:
        """Reads on in the head, and in what has come behind it. Raises HeadError, ChunkedError."""
        if not self.started:
            self.started = True
            self._request = ()  # no retry from here on, and a stream may live long; its prompt need not
        if self._buffer:
            data = self._buffer + data
        elif self.method != b"HEAD" and not self._head_bytes:
            known, end = self._origin.answers.find(data)
            if known is not None:
                self.known = known
                self._missing_bytes = known.length
                self._begin_body(known.head, data[end:])
                return
        while True:
            end = data.find(HEAD_END)
            size = end + _END_BYTES if end >= 0 else len(data)
            if self._head_bytes + size > HEAD_BYTES:
                raise HeadError(502, "upstream_failed", f"a head over the limit of {HEAD_BYTES} bytes")
            if end < 0:
                if data.count(b"\n") != data.count(b"\r\n"):
                    raise HeadError(502, "upstream_failed", "bare LF in the head")
                self._buffer = data
                return
            self._head_bytes += size
            head = parse_response_head(data[:end], self.method)
            if head.status == 200 and self.method != b"HEAD":
                self.known = self._origin.answers.learn(data[:size], head)
            data = data[size:]
            if head.status >= 200:
                break
        self._buffer = b""
        self._missing_bytes = head.length
        self._begin_body(head, data)

    def _begin_body(self, head: ResponseHead, data: bytes) -> None:
        """The head is read, `data` is what came behind it."""
        self.head = head
        framing = head.framing
        if framing is _CHUNKED:
            self.decoder = ChunkedDecoder()
        self.on_head(head, alone=not data)
        if self.ended:
            return
        if framing is _NONE:
            self._complete(reusable=not data)
        elif not data:
            return
        elif framing is _CHUNKED:
            self.received(data)
        elif len(data) == self._missing_bytes:  # whole in one read: what nearly every answer is that is no stream
            self.on_body(data, data)
            self._complete(reusable=True)
        else:
            self._read_plain(data)

    def _last_chunk(self, decoder: ChunkedDecoder, data: bytes, body: bytes) -> None:
        excess = decoder.excess
        self.on_body(data[:-excess] if excess else data, body)
        self._complete(reusable=not excess)

    def _read_plain(self, data: bytes) -> None:
        missing = self._missing_bytes
        if not missing:  # it ends with the connection
            self.on_body(data, data)
            return
        size = len(data)
        body = data if size <= missing else data[:missing]
        self._missing_bytes = missing = max(0, missing - size)
        self.on_body(body, body)
        if not missing:
            self._complete(reusable=len(body) == size)

    def _complete(self, *, reusable: bool) -> None:
        if self.ended:  # a watcher may cancel from within a call
            return
        self.ended = True
        lane, self.lane = self.lane, None
        if lane is not None:
            lane.release(reusable=reusable and self.head is not None and self.head.keep_alive)
        self.on_complete()

    def _let_go(self) -> bool:
        if self.ended:
            return False
        self.ended = True
        lane, self.lane = self.lane, None
        if lane is not None:
            lane.abort()
        if self.connecting is not None:
            self.connecting.cancel()
        return True
