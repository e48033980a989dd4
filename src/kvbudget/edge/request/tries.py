"""Decides whether a request whose engine gave no answer is tried again, and what the end tells of the engine.

Only where nothing was sent to the client. An engine that said that it is overloaded gets it again from our own queue,
later; one that could not be reached or broke off is not asked again, another instance is. A request at which an engine
broke off may be the reason, so it is tried once more and not twice (also where the engine, after a kept connection died
under the request, cannot be reached any more); one at which an engine was silent for too long is not, as the engine may
hold its blocks for minutes (vllm PR #29906).
"""

from enum import Enum

from kvbudget.edge.http.upstream import RelayEnd, RelayOutcome
from kvbudget.gate.fleet.events import Heard

MOST_TRIES = 3
_SHORTEST_NS, _LONGEST_NS = 250_000_000, 4_000_000_000
OVERLOADED = frozenset({429, 503, 529})
# llama.cpp answers 500 where its one pool is used up (tools/server; its words of 2025 and 2026).
_NO_ROOM = (b"context size has been exceeded", b"failed to find free space", b"kv cache is full")
_AT_FAULT = frozenset(
    {
        RelayOutcome.UNREACHABLE,
        RelayOutcome.BROKEN_BEFORE_HEAD,
        RelayOutcome.BROKEN_MIDWAY,
        RelayOutcome.TIMEOUT_BEFORE_HEAD,
        RelayOutcome.TIMEOUT_MIDWAY,
    }
)


class Again(Enum):
    """How it goes on."""

    NO = "no"
    BUSY = "busy"  # later, wherever there is room: its engine is overloaded
    ELSEWHERE = "elsewhere"  # at another instance


def again_after(end: RelayEnd, tries: int, *, alone: bool, recalled: bool) -> Again:
    """Whether to try once more, after `tries` more than the first. `alone`: there is no other instance; `recalled`: we
    ended it ourselves, for want of progress there. BUSY also says that the engine is overloaded, at the last try."""
    if end.outcome is RelayOutcome.WITHHELD:
        return Again.BUSY if _is_overload(end) else Again.NO
    if alone or tries >= MOST_TRIES - 1:
        return Again.NO
    unreachable = end.outcome is RelayOutcome.UNREACHABLE
    if unreachable and not end.sent:
        return Again.ELSEWHERE
    broken = unreachable or end.outcome is RelayOutcome.BROKEN_BEFORE_HEAD
    once = broken or (recalled and end.outcome is RelayOutcome.CANCELLED)
    return Again.ELSEWHERE if once and tries == 0 else Again.NO


def heard_of(end: RelayEnd) -> Heard:
    """What it tells of the engine's health. Overload is none of that."""
    if end.outcome in _AT_FAULT:
        return Heard.FAILED
    if end.outcome in (RelayOutcome.DONE, RelayOutcome.UNSEEN):
        if end.outcome is RelayOutcome.UNSEEN and end.status is None:
            return Heard.NOTHING
        return Heard.FAILED if end.status is not None and end.status >= 500 else Heard.WELL
    return Heard.NOTHING


def busy_ns(end: RelayEnd, times: int) -> int:
    """How long an engine that is overloaded for the n-th time in a row gets nobody: what it says, within bounds."""
    told_ns = min(_LONGEST_NS, _SHORTEST_NS << min(times - 1, 8))
    for name, value in end.headers:
        if name == b"retry-after" and value.isdigit():
            told_ns = max(told_ns, min(_LONGEST_NS, int(value[:9]) * 10**9))
    return told_ns


def _is_overload(end: RelayEnd) -> bool:
    if end.status in OVERLOADED:
        return True
    body = end.body_tail.lower()
    return end.status == 500 and any(words in body for words in _NO_ROOM)
