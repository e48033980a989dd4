"""Decides which of a client's headers an engine gets, and which of ours stand in their place."""

from typing import Final

from kvbudget.edge.http.messages import ClientHeaders, OwnLines

_REQUEST_ID: Final = frozenset({b"x-request-id"})
_TRACEPARENT: Final = frozenset({b"traceparent"})
_NO_TRACE: Final = frozenset({b"traceparent", b"tracestate"})
# A client's word to the gate is none to the engine. Host, Content-Length and Expect are the upstream's own matter.
_NOT_FORWARDED: Final = frozenset(
    {
        b"x-request-id",
        b"x-kvbudget-tenant",
        b"x-kvbudget-priority",
        b"x-kvbudget-deadline-ms",
    }
)
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})


class EngineHeaders:
    """The client's headers as one engine gets them: hop-by-hop ones aside, ours added. `key`: in place of clients'."""

    __slots__ = ("_key_line", "_names", "_names_of_trace", "_plain", "_without", "_without_begun", "_without_trace")

    def __init__(self, key: str | None = None) -> None:
        self._without, self._names, self._key_line = _NOT_FORWARDED, _REQUEST_ID, b""
        if key is not None:
            self._without = _NOT_FORWARDED | _CREDENTIALS
            self._names = _REQUEST_ID | {b"authorization"}
            self._key_line = b"authorization: Bearer %b\r\n" % key.encode()
        self._plain = key is None or key.isprintable()  # a request's id is: `edge.request.identity` has looked at it
        self._names_of_trace = self._names | _TRACEPARENT
        self._without_trace, self._without_begun = self._without | _TRACEPARENT, self._without | _NO_TRACE

    def of(self, request_id: bytes) -> ClientHeaders:
        """Of a request that is part of no trace."""
        lines = b"x-request-id: %b\r\n%b" % (request_id, self._key_line)
        return ClientHeaders(self._without, OwnLines(self._names, lines, self._plain))

    def traced(self, request_id: bytes, parent_line: bytes, *, begins: bool) -> ClientHeaders:
        """The same of a request that is part of a trace: its parent is our span. `begins`: there was no trace before,
        so that what the client says of the state of one is of none."""
        lines = b"x-request-id: %b\r\n%b%b" % (request_id, self._key_line, parent_line)
        without = self._without_begun if begins else self._without_trace
        return ClientHeaders(without, OwnLines(self._names_of_trace, lines))
