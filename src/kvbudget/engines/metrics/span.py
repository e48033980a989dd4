"""Decides what several scrapes of one engine tell together: looks, growth of counters, histograms, and restarts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isfinite, isnan
from typing import NamedTuple

from kvbudget.engines.readings import Sample, Sums, plain_name
from kvbudget.engines.window import Distribution
from kvbudget.errors import BadValueError

STARTED = "process_start_time_seconds"  # of prometheus_client, wherever it runs on Linux
_LARGEST = 1e15
ROUNDING = 1e-6  # a share that was computed may be a little above 1
_SAME_START_S = 2.0  # Prometheus and prometheus_client round it
MAX_ENGINES = 256
_NOT_IDENTITY = ("le", "quantile", "pid")
Labels = tuple[tuple[str, str], ...]


class Scrape(NamedTuple):
    """All samples of one moment, by their plain names. `at_s` is on one clock with the other scrapes, or None.

    `stamp_s`: the newest time stamp in the text itself, Unix seconds.
    """

    samples: tuple[Sample, ...]
    at_s: float | None = None
    helps: Mapping[str, str] = {}
    stamp_s: float | None = None


class Span:
    """Scrapes of one engine, oldest first, at least one. With one alone, counters tell of all time since its start.

    `counters` are its names that only grow. A counter that fell began anew: it counts from 0. When most of those that
    had counted anything fell, or the process began later, all count from 0 at that scrape. Labels of `identity` tell
    this engine from others, not one of its series from another: a collector that adds one in between does not make all
    of them new. `siblings`: how many data-parallel engines its server has, this one too.
    """

    def __init__(
        self, scrapes: Sequence[Scrape], counters: Iterable[str], identity: Iterable[str] = (), siblings: int = 1
    ) -> None:
        self.siblings = siblings
        self.scrapes = scrapes
        self.sums = [Sums(scrape.samples) for scrape in scrapes]
        self.helps = scrapes[-1].helps
        self.alone = len(scrapes) == 1
        self.fell: list[str] = []
        self._counters = frozenset(spelling for name in counters for spelling in _spellings(plain_name(name)))
        self._from = 0  # the first scrape after the last restart
        self._anew = self.alone
        self._values = [_by_series(scrape.samples, frozenset(identity)) for scrape in scrapes]
        before = dict(self._values[0])
        for index in range(1, len(scrapes)):
            self._compare(before, index)
            before.update(self._values[index])  # a series may be left out of some scrapes

    @property
    def restarted(self) -> bool:
        """Whether any counter began anew."""
        return not self.alone and (self._anew or bool(self.fell))

    def _compare(self, before: Mapping[tuple[str, Labels], float], index: int) -> None:
        now = self._values[index]
        counted = [
            (before.get(series, 0.0), value, series[0]) for series, value in now.items() if self._counts(series[0])
        ]
        fell = [name for was, value, name in counted if value < was]
        held = sum(value >= was > 0 for was, value, _ in counted)
        starts = [self.sums[at].most(STARTED) for at in (index - 1, index)]
        later = starts[0] is not None and starts[1] is not None and starts[1] > starts[0] + _SAME_START_S
        if later or len(fell) > held:
            self._from, self._anew = index, True
        self.fell += [name for name in fell if name not in self.fell]

    def _counts(self, name: str) -> bool:
        return name in self._counters or name.endswith(("_bucket", "_count"))

    def latest(self, name: str, most: float = _LARGEST) -> float | None:
        """A gauge at the newest scrape, summed over its series."""
        return self.sums[-1].total(plain_name(name), most)

    def grew(self, name: str, wanted: Callable[[Mapping[str, str]], bool] = lambda _: True) -> float | None:
        """By how much a counter grew, over all its series that are wanted; None when it is not exported."""
        grown = [amount for labels, amount in self._growths(name).items() if wanted(dict(labels))]
        return sum(grown) if grown else None

    def grew_by(self, name: str, label: str) -> dict[str, float]:
        """The same for each value of a label."""
        found: dict[str, float] = {}
        for labels, amount in self._growths(name).items():
            value = dict(labels).get(label, "")
            found[value] = found.get(value, 0.0) + amount
        return found

    def _growths(self, name: str) -> dict[Labels, float]:
        """Of each series of the newest scrape; the spelling with `_total` wins where both are there."""
        for spelling in _spellings(plain_name(name)):
            found = {labels: self._growth((spelling, labels)) for told, labels in self._values[-1] if told == spelling}
            known = {labels: amount for labels, amount in found.items() if amount is not None}
            if known:
                return known
        return {}

    def _growth(self, series: tuple[str, Labels]) -> float | None:
        """From where the engine began anew, or from the oldest scrape; a series that was not there yet began at 0."""
        last: float | None = 0.0 if self._anew or series not in self._values[self._from] else None
        total = 0.0
        for values in self._values[self._from :]:
            value = values.get(series)
            if value is None:
                continue
            if not 0 <= value <= _LARGEST:
                return None
            total += 0.0 if last is None else value - last if value >= last else value
            last = value
        return total

    def distribution(self, *names: str) -> Distribution | None:
        """What the first of these histograms that is exported counted within the window, over all its series."""
        for name in map(plain_name, names):
            found = self._distribution(name)
            if found is not None:
                return found
        return None

    def _distribution(self, name: str) -> Distribution | None:
        count, total = self.grew(f"{name}_count"), self.grew(f"{name}_sum")
        until: dict[float, float] = {}
        for le, amount in self.grew_by(f"{name}_bucket", "le").items():
            upper = _bound(le)
            if upper is not None:
                until[upper] = until.get(upper, 0.0) + amount
        if not until and count is None:
            return None
        most = max(until.values(), default=0.0)
        until[inf] = max(until.get(inf, 0.0), count or 0.0, most)
        bounds = tuple(sorted(until))
        counts, below = [], 0.0
        for bound in bounds:
            counts.append(max(0.0, until[bound] - below))
            below = max(below, until[bound])
        return Distribution(bounds, tuple(counts), total or 0.0)


def share(value: float | None) -> float | None:
    """A share of 0 to 1; anything else, such as a percentage, is not known."""
    return None if value is None or not 0 <= value <= 1.0 + ROUNDING else min(1.0, value)


def _spellings(name: str) -> tuple[str, ...]:
    """OpenMetrics puts `_total` behind a counter's name, and some collectors take it away."""
    base = name.removesuffix("_total")
    return (f"{base}_total", base)


def _by_series(samples: Iterable[Sample], unused: frozenset[str]) -> dict[tuple[str, Labels], float]:
    found: dict[tuple[str, Labels], float] = {}
    for sample in samples:
        if isfinite(sample.value):
            labels = sorted(pair for pair in sample.labels.items() if pair[0] not in unused)
            found[sample.name, tuple(labels)] = sample.value
    return found


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if isnan(bound) else bound


def identities(scrape: Scrape, core: Iterable[str], within: Iterable[str] = ()) -> list[dict[str, str]]:
    """Which engines a scrape tells of: the label sets of their core gauges, one that is part of another left out.

    Labels `within` one engine do not tell it from another. Raises BadValueError for more than can be told apart.
    """
    unused = {*_NOT_IDENTITY, *within}
    names = frozenset(map(plain_name, core))
    found: dict[Labels, dict[str, str]] = {}
    for sample in scrape.samples:
        if sample.name in names:
            labels = {name: value for name, value in sample.labels.items() if name not in unused}
            found.setdefault(tuple(sorted(labels.items())), labels)
            if len(found) > MAX_ENGINES:
                raise BadValueError(
                    f"more than {MAX_ENGINES} engines in one scrape", fix="give them in parts, or ask for fewer"
                )
    return [one for one in found.values() if not any(one.items() < other.items() for other in found.values())]


def agrees(labels: Mapping[str, str], identity: Mapping[str, str]) -> bool:
    """Whether a sample may be of this engine: no label that both have differs."""
    return all(labels.get(name, value) == value for name, value in identity.items())


class Parted:
    """A scrape by the labels that tell engines apart: all samples of one part go to the same engines."""

    def __init__(self, scrape: Scrape, names: Iterable[str]) -> None:
        self._scrape = scrape
        self._parts: dict[Labels, list[Sample]] = {}
        wanted = frozenset(names)
        for sample in scrape.samples:
            labels = tuple(sorted(pair for pair in sample.labels.items() if pair[0] in wanted))
            self._parts.setdefault(labels, []).append(sample)

    def of(self, identity: Mapping[str, str]) -> Scrape:
        """The samples that may be of this engine."""
        parts = [part for labels, part in self._parts.items() if agrees(dict(labels), identity)]
        return self._scrape._replace(samples=tuple(sample for part in parts for sample in part))


def told_apart(found: Sequence[Mapping[str, str]]) -> list[str]:
    """In words, what tells each from the others: "engine=1"; "" for one alone."""
    names = [
        name
        for name in dict.fromkeys(name for one in found for name in one)
        if len({one.get(name) for one in found}) > 1
    ]
    return [",".join(f"{name}={one[name]}" for name in names if name in one) for one in found]
