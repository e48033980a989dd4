"""Decides what the periodic lines of one engine add up to: looks, and what was counted from the first to the last."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvbudget.engines.logs.periodic.moments import in_order
from kvbudget.engines.logs.receipt import Line
from kvbudget.engines.window import Gauges

MOST_LOOKS = 20_000  # two and a half days of lines every ten seconds


class Entry(NamedTuple):
    """One periodic line. Rates are per second, over the time since the line before; counts are of that time."""

    look: Gauges
    rates: Mapping[str, float] = {}
    counts: Mapping[str, float] = {}


@dataclass(slots=True)
class Tally:
    """The entries of one engine, oldest first, and counts of lines in between that belong to the next entry."""

    entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=MOST_LOOKS))
    pending: dict[str, float] = field(default_factory=dict)
    lines: int = 0

    def add(self, entry: Entry) -> None:
        """The next line."""
        merged = {**entry.counts}
        for name, count in self.pending.items():
            merged[name] = merged.get(name, 0.0) + count
        self.pending = {}
        self.lines += 1
        self.entries.append(entry._replace(counts=merged))

    def note(self, name: str, count: float = 1.0) -> None:
        """Something that happened between two periodic lines."""
        self.pending[name] = self.pending.get(name, 0.0) + count

    def summed(self, window_s: float, usual_s: float) -> "Summed":
        """The last `window_s` seconds. `usual_s` is how far apart lines without time stamps are."""
        entries = list(self.entries)
        if self.pending and entries:
            last = entries[-1]
            counts = {**last.counts}
            for name, count in self.pending.items():
                counts[name] = counts.get(name, 0.0) + count
            entries[-1] = last._replace(counts=counts)
        moments = in_order([entry.look.at_s for entry in entries])
        stamped = all(moment is not None for moment in moments)
        at = [moment if moment is not None and stamped else index * usual_s for index, moment in enumerate(moments)]
        first = len(at) - 1
        while first > 0 and at[-1] - window_s <= at[first - 1] <= at[first]:  # a clock that was set back ends it
            first -= 1
        kept, at = entries[max(0, first) :], at[max(0, first) :]
        sums: dict[str, float] = {}
        for index, entry in enumerate(kept[1:], 1):
            elapsed = at[index] - at[index - 1]
            for name, rate in entry.rates.items():
                sums[name] = sums.get(name, 0.0) + rate * elapsed
            for name, count in entry.counts.items():
                sums[name] = sums.get(name, 0.0) + count
        if len(kept) == 1:  # it tells of the time before it
            sums = {**kept[0].counts, **{name: rate * usual_s for name, rate in kept[0].rates.items()}}
        looks = tuple(entry.look._replace(at_s=moment - at[0]) for entry, moment in zip(kept, at, strict=True))
        alone_s = usual_s if kept and kept[0].rates else None
        return Summed(looks, sums, at[-1] - at[0] if len(at) > 1 else alone_s, stamped)


class Summed(NamedTuple):
    """Looks from 0 s on, sums by name, the time between the first and the last, and whether lines had time stamps."""

    looks: tuple[Gauges, ...]
    sums: dict[str, float]
    window_s: float | None
    stamped: bool


class PeriodicReader(Protocol):
    """What the lines of one kind of engine told so far. `usual_s`: how far apart its lines are, where none is stamped.

    `rates`: newest figures that are no counts. `tallies`: by the name of an engine in the log, "" where there is one.
    """

    engine: str
    usual_s: float
    tallies: dict[str, Tally]
    rates: dict[str, float]

    def read(self, line: Line) -> None:
        """Take one line, in the order of the log."""

    def answered(self, status: str) -> None:
        """Take a line of the access log."""
