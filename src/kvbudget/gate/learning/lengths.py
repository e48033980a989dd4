"""Learns, while it happens, how long answers get: the hazard of ending at each length, by who asks for what.

LightLLM's Past-Future scheduler (arXiv 2507.10150) keeps the lengths of the last requests that ended. Lengths of those
that ended are a biased sample: what is cut off by a limit or by its client never enters it, and while lengths grow the
long ones are still running. Here every token that anybody produces counts, at once, as one more chance to end that was
not taken (exposure), and every end as one that was (event). Their quotient, the hazard at each length, is unbiased
whoever is cut off, and follows a drift before the first long answer has ended.

Evidence of one key fades with a weight of 1 - 1/MEMORY per answer that ended. Keys form a chain from coarse to fine:
all, (route, limit), (tenant, route, limit), (tenant, route, limit, prompt length). Each level takes the next coarser
one as if it were PRIOR answers of its own, so a new tenant starts with what is known of others and leaves it as soon as
it shows another habit. Beyond all experience seven of ten (1/sqrt(2)) are thought to double: with one of two as much is
served and more is preempted (docs/adr/0037).

What gates that share a pool have seen is taken in as if it had been told here (`take_in`), and kept apart from what was
seen here (`own`), so that nobody is told his own again (`gate.bank.experience`).

Everything is additions in a fixed order: the same events give the same numbers.
"""

import itertools
from collections.abc import Iterator
from math import sqrt
from typing import Any, Final, NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.pool.survival import BIN_OF, BINS, EDGES, MOST_IN_TABLE, WIDTHS, WIDTHS_FLOAT, Survival, bin_of

MEMORY: Final = 256  # answers
_FRESHER: Final = MEMORY / (MEMORY - 1)  # than the answer before it: so much more each one weighs
LIMIT_SHARE: Final = 0.25  # of its limit, that an answer is thought to take on average before any was seen
USUAL_LIMIT: Final = 2048  # where none is declared: what the gate then promises by default
SURE_BEFORE: Final = 2.0  # answers that the guess before any is worth; the error of a rate by n events is 1/sqrt(n)
PRIOR: Final = 8.0  # answers that a coarser key counts for
MAX_KEYS: Final = 1024  # tenants' names come from outside; the least recently used key is forgotten
STATE_VERSION: Final = 1
_LARGEST_WEIGHT: Final = 1e9
_NOBODY_SEEN: Final = [0.5 * WIDTHS[k] / EDGES[k + 1] if k else 0.0 for k in range(BINS)]  # share that ends in each bin
_LARGEST_SAVED: Final = 1e18

MOST_AT_ONCE: Final = 4.0 * MEMORY  # answers by which what is known fades at one time
_LONGEST_NAME: Final = 512

Key = tuple[str, ...]


class Evidence(NamedTuple):
    """Answers that were seen to their end or limit; in each bin, ends, and tokens that were produced."""

    answers: float
    ends: list[float]
    exposure: list[float]

    def plus(self, more: "Evidence", weight: float = 1.0) -> "Evidence":
        """Both, of which `more` counts so much; below 0 is 0."""
        return Evidence(
            max(0.0, self.answers + weight * more.answers),
            [max(0.0, self.ends[k] + weight * more.ends[k]) for k in range(BINS)],
            [max(0.0, self.exposure[k] + weight * more.exposure[k]) for k in range(BINS)],
        )


class Habit:
    """What is known of one key. Weights grow instead of old evidence being multiplied down at every answer."""

    __slots__ = (
        "_asked_at",
        "_beyond",
        "_beyond_at",
        "_counted",
        "_longest",
        "_parent_revision",
        "_partly",
        "_table",
        "_through",
        "_unread",
        "answered",
        "before_all",
        "ends",
        "faded",
        "others",
        "parent",
        "revision",
        "root",
        "taught",
        "total",
        "weight",
    )

    def __init__(self, parent: "Habit | None", limit: int = 0) -> None:
        self.parent = parent
        self.root: Habit = self if parent is None else parent.root
        self.taught = 0  # of the root: rises with whatever is told to any of its own
        self.answered = 0  # of the root as well: answers of any of its own, at their end or limit
        self._asked_at = -1  # where `taught` stood when it was last asked
        self._beyond: list[float] = []  # what `_ends_beyond` gave, where `answered` stood at `_beyond_at`
        self._beyond_at = -1
        self._longest = 0  # the last bin in which anything ended
        self.before_all = 1.0 / (LIMIT_SHARE * limit) if limit else 0.0  # chance to end with a token, before any answer
        self.ends = [0.0] * BINS
        # Exposure, so that a stretch costs the same however long it is: tokens in bins of which only a part was gone
        # through, and where those that were gone through whole begin (+) and end (-).
        self._partly = [0.0] * BINS
        self._through = [0.0] * BINS
        self.weight = 1.0  # of the newest evidence
        self.total = 0.0  # weighted answers that ended, of themselves or at their limit
        self.faded = 0.0  # answers by which evidence has faded so far
        self.others: Evidence | None = None  # what of all this was seen elsewhere, by the same weights
        self.revision = 0
        self._parent_revision = -1
        self._unread = 0.0  # evidence since the last revision, in answers
        self._counted: list[float] = []  # share that ends in each bin
        self._table: Survival | None = None

    @property
    def answers(self) -> float:
        """Answers seen to their end or limit, old ones counting less."""
        return self.total / self.weight

    @property
    def exposure(self) -> list[float]:
        """Tokens of each bin that were produced."""
        through, exposure = 0.0, []
        for k in range(BINS):
            through += self._through[k]
            exposure.append(max(0.0, self._partly[k] + WIDTHS[k] * through))
        return exposure

    def lived(self, start: int, end: int) -> None:
        """A sequence went from `start` to `end` output tokens."""
        tell_lived((self,), start, end)

    def ended(self, tokens: int) -> None:
        """A sequence ended of itself with its `tokens`-th token, of which `lived` was told."""
        tell_ended((self,), tokens)

    def own(self) -> "Evidence":
        """What was seen here, the newest with a weight of 1."""
        by, exposure, others = 1.0 / self.weight, self.exposure, self.others
        if others is None:
            return Evidence(by * self.total, [by * value for value in self.ends], [by * value for value in exposure])
        return Evidence(
            by * max(0.0, self.total - others.answers),
            [by * max(0.0, self.ends[k] - others.ends[k]) for k in range(BINS)],
            [by * max(0.0, exposure[k] - others.exposure[k]) for k in range(BINS)],
        )

    def take_in(self, seen: "Evidence") -> None:
        """What was seen elsewhere meanwhile: what is known fades by its answers, as if they had ended here."""
        self.faded += min(seen.answers, MOST_AT_ONCE)
        self.weight *= _FRESHER ** min(seen.answers, MOST_AT_ONCE)
        if self.weight > _LARGEST_WEIGHT:
            self._rescale()
        weight = self.weight
        for k in range(BINS):
            self.ends[k] += weight * seen.ends[k]
            self._partly[k] += weight * seen.exposure[k]
        self._longest = BINS - 1
        self.total += weight * seen.answers
        self._unread += seen.answers + 0.03
        self.root.taught += 1
        self.root.answered += 1
        others = self.others or Evidence(0.0, [0.0] * BINS, [0.0] * BINS)
        self.others = others.plus(seen, weight)

    def _rescale(self) -> None:
        by = 1.0 / self.weight
        self.ends = [by * value for value in self.ends]
        self._partly = [by * value for value in self._partly]
        self._through = [by * value for value in self._through]
        self.total *= by
        self.weight = 1.0
        if self.others is not None:
            self.others = Evidence(0.0, [0.0] * BINS, [0.0] * BINS).plus(self.others, by)

    def survival(self) -> Survival:
        """The table, at most a 32nd of what is known behind."""
        table = self._table
        if table is not None and self._asked_at == self.root.taught:
            return table  # nobody was told anything since
        self._asked_at = self.root.taught
        self._revise()
        if self._table is None:
            self._table = Survival(self._counted, [1.0 / sqrt(SURE_BEFORE + ends) for ends in self._ends_beyond()])
        return self._table

    def count_anew(self) -> None:
        """With the next question, whatever has come since."""
        self._parent_revision = self._asked_at = -1

    def _revise(self) -> None:
        """Count anew, if there is enough that was not counted: own evidence, and the parent's as PRIOR answers."""
        parent = self.parent
        parent_revision = 0
        if parent is not None:
            parent._revise()
            parent_revision = parent.revision
        if parent_revision == self._parent_revision and self._unread * 32.0 <= self.total / self.weight:
            return
        self._parent_revision = parent_revision
        self.revision += 1
        self._table = None
        self._unread = 0.0
        coarser, lent = _NOBODY_SEEN, 2.0
        if parent is not None:
            coarser, lent = parent._counted, PRIOR
            if parent.parent is None:
                lent *= parent.answers / (PRIOR + parent.answers)
        before_all = self.before_all
        first = 2.0 if before_all else 0.0
        by, through = 1.0 / self.weight, 0.0
        shares: list[float] = []
        wholes, parts, ends = self._through, self._partly, self.ends
        for k in range(BINS):  # by numbers, of which compiled code makes a plain loop
            width = WIDTHS_FLOAT[k]
            through += wholes[k]
            ended = by * ends[k]
            entered = by * max(parts[k] + width * through, 0.0) / width + 0.5 * ended
            begun = ended + lent * coarser[k]
            if before_all:
                begun += first * min(1.0, width * before_all)
            shares.append(begun / (entered + lent + first + 1e-9))
        self._counted = shares

    def _ends_beyond(self) -> list[float]:
        """Ends seen in each bin or beyond it, own and lent: of so many events is known how whoever stands there goes
        on. Of the longest, where an error costs most, only a few were ever seen."""
        if self._beyond_at == self.root.answered:
            return self._beyond
        self._beyond_at = self.root.answered
        by, seen, found, ends = 1.0 / self.weight, 0.0, [0.0] * BINS, self.ends
        lent, longest = found, self._longest
        if self.parent is not None:
            lent = self.parent._ends_beyond()
            longest = self._longest = max(longest, self.parent._longest)
        for k in range(longest, -1, -1):  # beyond that nothing was seen, nor is lent
            seen += by * ends[k]
            others = lent[k]  # of nobody: 0
            found[k] = seen + PRIOR * others / (PRIOR + others)
        self._beyond = found
        return found


def tell_lived(habits: tuple[Habit, ...], start: int, end: int) -> None:
    """A sequence of whom all these are went from `start` to `end` output tokens."""
    habits[0].root.taught += 1
    first = BIN_OF[start] if start < MOST_IN_TABLE else bin_of(start)
    last = BIN_OF[end] if end < MOST_IN_TABLE else bin_of(end)
    same = first == last
    begun = end - start if same else EDGES[first + 1] - start
    rest = end - EDGES[last]
    for habit in habits:
        weight, partly = habit.weight, habit._partly
        partly[first] = partly[first] + weight * begun
        if not same:
            through = habit._through
            partly[last] = partly[last] + weight * rest
            through[first + 1] = through[first + 1] + weight
            through[last] = through[last] - weight
        habit._unread += 0.03


def tell_ended(habits: tuple[Habit, ...], tokens: int) -> None:
    """A sequence of whom all these are ended of itself with its `tokens`-th token, of which `tell_lived` was told."""
    k = BIN_OF[tokens - 1] if tokens <= MOST_IN_TABLE else bin_of(tokens - 1)
    for habit in habits:
        ends, partly, weight = habit.ends, habit._partly, habit.weight  # compiled, += on an element is not of numbers
        ends[k] = ends[k] + weight
        partly[k] = partly[k] - 0.5 * weight  # it lived through half of the last one
        if k > habit._longest:  # noqa: PLR1730 - a call for each takes longer
            habit._longest = k
    tell_at_limit(habits)


def tell_at_limit(habits: tuple[Habit, ...]) -> None:
    """A sequence of whom all these are may make no more, of which `tell_lived` was told: one answer more is known."""
    root = habits[0].root
    root.taught += 1
    root.answered += 1
    for habit in habits:
        habit.total += habit.weight
        habit._unread += 1.0
        habit.faded += 1.0
        habit.weight *= _FRESHER
        if habit.weight > _LARGEST_WEIGHT:
            habit._rescale()


class Lengths:
    """All habits. `chain(...)` gives those that one request teaches, coarsest first; its last is the one to ask."""

    def __init__(self) -> None:
        self.root = Habit(None)
        self.forgotten = 0  # keys
        self._habits: dict[Key, Habit] = {}
        self._last_asked: tuple[str, str, int | None, int] | None = None
        self._last_chain: tuple[Habit, ...] = ()

    @property
    def answers(self) -> float:
        """Answers seen to their end, of all together; at most MEMORY."""
        return self.root.answers

    def chain(self, tenant: str, route: str, limit: int | None, prompt_tokens: int) -> tuple[Habit, ...]:
        """The habits behind a request that declares `limit` (None: nothing) for a prompt of `prompt_tokens`."""
        asked = (tenant, route, limit, prompt_tokens.bit_length())
        if asked == self._last_asked:  # the same again: they are the most recently used as it is
            return self._last_chain
        declared = "" if limit is None else str(limit.bit_length())
        prompt = str(max(8, prompt_tokens.bit_length()) // 2)
        habits = [self.root]
        for key in ((route, declared), (tenant, route, declared), (tenant, route, declared, prompt)):
            habits.append(self._habit(key, habits[-1], (limit or USUAL_LIMIT) if len(key) == 2 else 0))
        self._last_asked = asked
        self._last_chain = tuple(habits)
        return self._last_chain

    def _habit(self, key: Key, parent: Habit, limit: int) -> Habit:
        habit = self._habits.pop(key, None)
        if habit is None:
            habit = Habit(parent, limit)
            if len(self._habits) >= MAX_KEYS:
                del self._habits[next(iter(self._habits))]
                self.forgotten += 1
        if habit.parent is not parent:
            habit.parent = parent  # the coarser one was forgotten and begun anew
            habit.count_anew()
            self.root.taught += 1
            self.root.answered += 1
        self._habits[key] = habit  # the most recently used is the last
        return habit

    def latest(self, most: int) -> list[tuple[Key, Habit]]:
        """Habits by their keys, the most recently used first; the first of all is the root's, ()."""
        keys: list[tuple[Key, Habit]] = [((), self.root)]
        keys += list(itertools.islice(reversed(self._habits.items()), most))
        return keys

    def habit_of(self, key: Key, limit: int) -> Habit | None:
        """The habit of a key that `latest` gave at another gate, made where there is room for one more; None: there is
        none, or that is no key. `limit`: of which its first guess is made."""
        if not key:
            return self.root
        habit = self._habits.get(key)
        if habit is not None or len(self._habits) >= MAX_KEYS:
            return habit
        if not 2 <= len(key) <= 4 or max([len(part) for part in key]) > _LONGEST_NAME:
            return None
        parent = self._habits.get(_coarser(key), self.root)
        habit = self._habits[key] = Habit(parent, limit if len(key) == 2 else 0)
        return habit

    def state(self) -> dict[str, Any]:
        """Plain data from which `restored` makes the same again: from here on both give the same tables."""
        for habit in (self.root, *self._habits.values()):
            habit.count_anew()
        return {
            "version": STATE_VERSION,
            "root": _plain(self.root),
            "habits": [[list(key), _plain(habit)] for key, habit in self._habits.items()],
        }

    @classmethod
    def restored(cls, state: Any) -> "Lengths":
        """From what `state` gave, out of a file that may hold anything. Raises BadValueError for anything else."""
        lengths = cls()
        try:
            if state["version"] != STATE_VERSION:
                raise BadValueError(f"learned lengths of version {state['version']!r}", fix="start without them")
            _fill(lengths.root, state["root"])
            if len(state["habits"]) > MAX_KEYS:
                raise ValueError(f"{len(state['habits'])} keys")
            for key, plain in state["habits"]:
                name = tuple([str(part) for part in key])
                lengths._habits[name] = habit = Habit(lengths.root)
                _fill(habit, plain)
            for name, habit in lengths._habits.items():
                habit.parent = lengths._habits.get(_coarser(name), lengths.root)
            for habit in (lengths.root, *lengths._habits.values()):
                # Of a life before, and not of this gate alone: several may begin with the same file.
                habit.others = Evidence(habit.total, list(habit.ends), habit.exposure)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise BadValueError(f"learned lengths cannot be read: {error!r}", fix="start without them") from error
        return lengths


def _coarser(key: Key) -> Key:
    return key[:-1] if len(key) == 4 else key[1:]


def _plain(habit: Habit) -> dict[str, Any]:
    return {
        "weight": habit.weight,
        "total": habit.total,
        "before_all": habit.before_all,
        "ends": dict(_filled(habit.ends)),
        "exposure": dict(_filled(habit.exposure)),
    }


def _filled(values: list[float]) -> Iterator[tuple[str, float]]:
    return ((str(EDGES[k]), value) for k, value in enumerate(values) if value)


def _fill(habit: Habit, plain: dict[str, Any]) -> None:
    for name, values in (("ends", habit.ends), ("exposure", habit._partly)):
        for edge, value in plain[name].items():
            values[bin_of(int(edge))] = _checked(name, value)
    habit._longest = BINS - 1
    habit.weight = max(1.0, _checked("weight", plain["weight"]))
    habit.total = _checked("total", plain["total"])
    habit.before_all = _checked("before_all", plain["before_all"])


def _checked(name: str, value: Any) -> float:
    number = float(value)
    if not 0.0 <= number < _LARGEST_SAVED:
        raise ValueError(f"{name} of {value!r}")
    return number
