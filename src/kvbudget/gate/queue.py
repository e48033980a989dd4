"""Who waits, in which order: by priority (smaller first), then by arrival. Bounded by requests and by tokens."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvbudget.gate.events import Arrived
from kvbudget.pool.footprint import Footprint
from kvbudget.units import Blocks


@dataclass(frozen=True, slots=True)
class Waiting:
    """One parked request with its resolved lengths."""

    arrived: Arrived
    footprint: Footprint
    peak_blocks: Blocks
    since_ns: int
    deadline_ns: int
    key: tuple[int, int]  # (priority, arrival number)


@dataclass(slots=True)
class Queue:
    """Parked requests. `tokens` is the sum of their footprints' total tokens."""

    tokens: int = 0
    _by_key: dict[tuple[int, int], Waiting] = field(default_factory=dict)
    _key_of: dict[str, tuple[int, int]] = field(default_factory=dict)
    _order: list[tuple[int, int]] = field(default_factory=list)
    _deadlines: list[tuple[int, tuple[int, int]]] = field(default_factory=list)
    _sums: dict[int, tuple[int, int]] = field(default_factory=dict)  # priority -> (peak blocks, sequences)

    def push(self, waiting: Waiting) -> int:
        """Park it; returns its place (1 = next)."""
        insort(self._order, waiting.key)
        self._by_key[waiting.key] = waiting
        self._key_of[waiting.arrived.request_id] = waiting.key
        heapq.heappush(self._deadlines, (waiting.deadline_ns, waiting.key))
        self._count(waiting, +1)
        return bisect_left(self._order, waiting.key) + 1

    def head(self) -> Waiting | None:
        """Who is next."""
        return self._by_key[self._order[0]] if self._order else None

    def place_for(self, priority: int) -> int:
        """The place that a request of this priority would get if it came now (1 = next)."""
        return bisect_left(self._order, (priority + 1, -1)) + 1 if self._order else 1

    def remove(self, request_id: str) -> Waiting | None:
        """Take it out, wherever it stands; None if it does not wait."""
        key = self._key_of.pop(request_id, None)
        if key is None:
            return None
        self._order.pop(bisect_left(self._order, key))
        waiting = self._by_key.pop(key)
        self._count(waiting, -1)
        if len(self._deadlines) > 2 * len(self._order) + 64:  # the heap forgets lazily; do not let it outgrow the queue
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._by_key]
            heapq.heapify(self._deadlines)
        return waiting

    def replace(self, waiting: Waiting, footprint: Footprint, peak_blocks: Blocks) -> None:
        """Give one who waits other lengths; it keeps its place and deadline."""
        self._count(waiting, -1)
        resized = replace(waiting, footprint=footprint, peak_blocks=peak_blocks)
        self._by_key[waiting.key] = resized
        self._count(resized, +1)

    def before(self, priority: int) -> tuple[int, int]:
        """(peak blocks, sequences) of all that a newcomer of this priority would wait for."""
        ahead = [sums for waiting_priority, sums in self._sums.items() if waiting_priority <= priority]
        return sum(blocks for blocks, _ in ahead), sum(sequences for _, sequences in ahead)

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of all that wait."""
        while self._deadlines and self._deadlines[0][1] not in self._by_key:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now_ns: int) -> Iterator[Waiting]:
        """Take out everybody whose deadline has passed, earliest deadline first."""
        while (deadline := self.next_deadline_ns()) is not None and deadline <= now_ns:
            waiting = self._by_key[self._deadlines[0][1]]
            self.remove(waiting.arrived.request_id)
            yield waiting

    def _count(self, waiting: Waiting, sign: int) -> None:
        self.tokens += sign * waiting.footprint.total_tokens
        priority = waiting.arrived.priority
        blocks, sequences = self._sums.get(priority, (0, 0))
        blocks += sign * waiting.peak_blocks
        sequences += sign * waiting.footprint.total_sequences
        if sequences:
            self._sums[priority] = (blocks, sequences)
        else:
            del self._sums[priority]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._key_of

    def __iter__(self) -> Iterator[Waiting]:
        return (self._by_key[key] for key in self._order)

    def __bool__(self) -> bool:
        return bool(self._order)

    def __len__(self) -> int:
        return len(self._order)
