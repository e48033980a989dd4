"""Who waits, in which order: by priority (smaller first), then by arrival. Bounded by requests and by tokens."""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kvbudget.gate.events import Arrived
from kvbudget.gate.tenants.settings import account_name
from kvbudget.gate.tenants.turns import Turns
from kvbudget.gate.waiting.why import Why
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.share import GRID
from kvbudget.units import Blocks


class Demand:
    """What one who waits, or several, will take at the moments of `pool.share.GRID` ahead, if let in some time before.

    `tokens`: expected to be held at the end; `prompt_tokens`: of them, what has to be read.
    """

    __slots__ = ("blocks", "prompt_tokens", "sequences", "tokens")

    def __init__(self, tokens: int, prompt_tokens: int) -> None:
        self.tokens = tokens
        self.prompt_tokens = prompt_tokens
        self.blocks = [0.0] * len(GRID)
        self.sequences = [0.0] * len(GRID)

    def add(self, other: "Demand", sign: float) -> None:
        """Sum over several, or over a part of it."""
        self.tokens += int(sign * other.tokens)
        self.prompt_tokens += int(sign * other.prompt_tokens)
        blocks, sequences = self.blocks, self.sequences
        more_blocks, more_sequences = other.blocks, other.sequences
        for g in range(len(GRID)):  # compiled, += on an element is not one of numbers
            blocks[g] = blocks[g] + sign * more_blocks[g]
            sequences[g] = sequences[g] + sign * more_sequences[g]


class Part:
    """What one tenant has waiting in one class."""

    __slots__ = ("demand", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.demand: Demand | None = None  # of those that have one


class Waiting:
    """One parked request with its resolved lengths. Not to be changed; by hand, as `Reservation` is."""

    __slots__ = (
        "arrived", "booked", "deadline_ns", "demand", "expected_ns", "footprint", "key", "peak_blocks", "room_ns",
        "since_ns",
    )  # fmt: skip

    def __init__(
        self,
        arrived: Arrived,
        footprint: Footprint,
        peak_blocks: Blocks,
        since_ns: int,
        deadline_ns: int,
        key: tuple[int, int],
        demand: Demand | None = None,
        expected_ns: int = 0,
        booked: bool = False,
        room_ns: int = 0,
    ) -> None:
        self.arrived: Final = arrived
        self.footprint: Final = footprint
        self.peak_blocks: Final = peak_blocks
        self.since_ns: Final = since_ns
        self.deadline_ns: Final = deadline_ns
        self.key: Final = key  # (priority, arrival number)
        self.demand: Final = demand  # of the learned policy
        self.expected_ns: Final = expected_ns  # the wait that was foreseen; 0: none was
        self.booked: Final = booked  # it came back when it was told to
        self.room_ns: Final = room_ns  # the same if that is for room in the pool, else 0

    @property
    def tokens(self) -> int:
        """What it counts for in the queue: expected tokens where lengths are learned, otherwise its total."""
        return self.footprint.total_tokens if self.demand is None else self.demand.tokens

    def resolved_as(
        self, arrived: Arrived, footprint: Footprint, peak_blocks: Blocks, demand: Demand | None
    ) -> "Waiting":
        """The same one at the same place, of other lengths."""
        return Waiting(
            arrived, footprint, peak_blocks, self.since_ns, self.deadline_ns, self.key, demand, self.expected_ns,
            self.booked, self.room_ns,
        )  # fmt: skip


def _nobody_served(tenant: str) -> float:
    return 0.0


@dataclass(slots=True)
class Queue:
    """Parked requests. `tokens` is the sum of theirs; `whys`: what the last look said of those that it tried."""

    tokens: int = 0
    whys: dict[tuple[int, int], Why] = field(default_factory=dict)
    changes: int = 0  # rises with whoever comes or goes
    turns: Turns = field(default_factory=lambda: Turns(_nobody_served))
    _numbers: int = 0
    _by_key: dict[tuple[int, int], Waiting] = field(default_factory=dict)
    _key_of: dict[str, tuple[int, int]] = field(default_factory=dict)
    _order: list[tuple[int, int]] = field(default_factory=list)
    in_order: list[Waiting] = field(default_factory=list)  # by class, in it by arrival: whose keys `_order` has
    _deadlines: list[tuple[int, tuple[int, int]]] = field(default_factory=list)
    _deadline: tuple[int, int | None] = (0, None)  # what `changes` was, and what was the earliest then
    _sums: dict[int, tuple[int, int]] = field(default_factory=dict)  # priority -> (peak blocks, sequences)
    _parts: dict[tuple[int, str], Part] = field(default_factory=dict)  # by (priority, tenant)

    def next_number(self) -> int:
        """The next place in the order of arrival, for who waits here or elsewhere."""
        self._numbers += 1
        return self._numbers

    def push(self, waiting: Waiting) -> int:
        """Park it; returns its place (1 = next)."""
        place = bisect_left(self._order, waiting.key)
        self._order.insert(place, waiting.key)
        self.in_order.insert(place, waiting)
        self._by_key[waiting.key] = waiting
        self._key_of[waiting.arrived.request_id] = waiting.key
        heapq.heappush(self._deadlines, (waiting.deadline_ns, waiting.key))
        self.turns.push(waiting.key, account_name(waiting.arrived.tenant, waiting.key[0]), waiting.since_ns)
        self._count(waiting, +1)
        return place + 1

    def head(self) -> Waiting | None:
        """The first of the most urgent class."""
        return self.in_order[0] if self.in_order else None

    def at(self, key: tuple[int, int]) -> Waiting:
        """Who has this key. Raises KeyError if nobody has."""
        return self._by_key[key]

    def tokens_of(self, priority: int, tenant: str) -> int:
        """What one tenant has waiting in one class."""
        part = self._parts.get((priority, tenant))
        return 0 if part is None else part.tokens

    def parts(self) -> Iterator[tuple[tuple[int, str], int]]:
        """((class, tenant), tokens that wait) of all."""
        return ((key, part.tokens) for key, part in self._parts.items())

    def place_for(self, priority: int) -> int:
        """The place that a request of this priority would get if it came now (1 = next)."""
        return bisect_left(self._order, (priority + 1, -1)) + 1 if self._order else 1

    def remove(self, request_id: str) -> Waiting | None:
        """Take it out, wherever it stands; None if it does not wait."""
        key = self._key_of.pop(request_id, None)
        if key is None:
            return None
        place = bisect_left(self._order, key)
        self._order.pop(place)
        self.in_order.pop(place)
        waiting = self._by_key.pop(key)
        self.turns.remove(key)
        self.whys.pop(key, None)
        self._count(waiting, -1)
        if len(self._deadlines) > 2 * len(self._order) + 64:  # the heap forgets lazily; do not let it outgrow the queue
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._by_key]
            heapq.heapify(self._deadlines)
        return waiting

    def replace(self, waiting: Waiting, resized: Waiting) -> None:
        """Give one who waits other lengths; it keeps its place and deadline."""
        self._count(waiting, -1)
        self._by_key[waiting.key] = resized
        self.in_order[bisect_left(self._order, waiting.key)] = resized
        self._count(resized, +1)

    def before(self, priority: int) -> tuple[int, int]:
        """(peak blocks, sequences) of all that a newcomer of this priority would wait for."""
        ahead = [sums for waiting_priority, sums in self._sums.items() if waiting_priority <= priority]
        return sum(blocks for blocks, _ in ahead), sum(sequences for _, sequences in ahead)

    def demand_before(self, priority: int, part_before: Callable[[int, str, int], float]) -> Demand | None:
        """The demand of all that a newcomer of this priority would wait for; None if nobody's is known. `part_before`
        tells how much of it, by class, tenant and tokens."""
        ahead: list[tuple[Demand, float]] = []
        for (waiting_priority, tenant), part in self._parts.items():
            if waiting_priority <= priority and part.demand is not None:
                before = part_before(waiting_priority, tenant, part.tokens)
                if before > 0.0:
                    ahead.append((part.demand, before))
        if len(ahead) <= 1 and all(before == 1.0 for _, before in ahead):
            return ahead[0][0] if ahead else None
        total = Demand(0, 0)
        for demand, before in ahead:
            total.add(demand, before)
        return total

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of all that wait."""
        at, first_ns = self._deadline
        if at != self.changes:
            while self._deadlines and self._deadlines[0][1] not in self._by_key:
                heapq.heappop(self._deadlines)
            first_ns = self._deadlines[0][0] if self._deadlines else None
            self._deadline = self.changes, first_ns
        return first_ns

    def expired(self, now_ns: int) -> Iterator[tuple[Waiting, Why | None]]:
        """Take out everybody whose deadline has passed, earliest deadline first; with what was in the way."""
        while (deadline := self.next_deadline_ns()) is not None and deadline <= now_ns:
            key = self._deadlines[0][1]
            waiting, why = self._by_key[key], self.whys.get(key)
            self.remove(waiting.arrived.request_id)
            yield waiting, why

    def _count(self, waiting: Waiting, sign: int) -> None:
        self.changes += 1
        self.tokens += sign * waiting.tokens
        priority = waiting.arrived.priority
        key = (priority, waiting.arrived.tenant)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = Part()
        part.requests += sign
        part.tokens += sign * waiting.tokens
        if waiting.demand is not None:
            if part.demand is None:
                part.demand = Demand(0, 0)
            part.demand.add(waiting.demand, sign)
        if not part.requests:
            del self._parts[key]  # and with it what floats left over
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
        return iter(self.in_order)

    def __bool__(self) -> bool:
        return bool(self._order)

    def __len__(self) -> int:
        return len(self._order)
