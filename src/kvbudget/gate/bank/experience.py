"""Decides what gates that share a ledger tell each other of the lengths of answers, and what they make of it.

A gate tells what it has seen itself, never what it was told: for each habit (`gate.learning.lengths`) all of its own
evidence as it has faded so far, and by how many answers it has faded. Whoever hears that again takes what has come
since: the difference to what he was told before, after that has faded as much. So a statement may be lost, come twice,
or be the first that is heard of a gate, and evidence counts once and is as old as it is.

Amounts are whole numbers of hundredths: of answers that ended in a bin, and of sequences that went through it. Sums are
of what was told, so that nothing is lost by rounding but the last hundredth.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kvbudget.gate.learning.lengths import LIMIT_SHARE, MEMORY, Evidence, Key, Lengths
from kvbudget.pool.survival import BINS, WIDTHS_FLOAT

MOST_HABITS: Final = 64  # in one statement
MOST_HEARD: Final = 512  # of one gate, whose last evidence is remembered
MOST_LIVES: Final = 128  # whose last statements are remembered; more than a board keeps
_FADES: Final = 1.0 - 1.0 / MEMORY
_HUNDRED: Final = 100.0
_LEAST: Final = 0.02  # two roundings, of an answer or a sequence


class Told(NamedTuple):
    """One habit in a statement. `faded`: answers since whose end its evidence has faded. `limit`: tokens, of which the
    first guess was made; 0: none. `bins`: (bin, hundredths of ends in it, hundredths of sequences through it)."""

    key: Key
    faded: float
    limit: int
    hundredths: int  # of answers
    bins: tuple[tuple[int, int, int], ...]


class Experience:
    """What one gate has told and heard.

    Habits are many and each takes a tenth of a millisecond, so both ways go step by step, between which requests may
    come and end.
    """

    def __init__(self) -> None:
        self._heard: OrderedDict[str, OrderedDict[Key, Told]] = OrderedDict()
        self._forgot: set[str] = set()  # lives of which habits were forgotten

    def told(self, lengths: Lengths, most: int = MOST_HABITS) -> Iterator[Told]:
        """What was seen here: of `most` habits, those that were in use last."""
        for key, habit in lengths.latest(most - 1):
            own = habit.own()
            bins = [
                (k, round(_HUNDRED * own.ends[k]), round(_HUNDRED * own.exposure[k] / WIDTHS_FLOAT[k]))
                for k in range(BINS)
                if own.exposure[k] or own.ends[k]
            ]
            bins = [one for one in bins if one[1] or one[2]]
            if bins:
                limit = round(1.0 / (LIMIT_SHARE * habit.before_all)) if habit.before_all else 0
                yield Told(key, habit.faded, limit, round(_HUNDRED * own.answers), tuple(bins))

    def take(self, lengths: Lengths, statements: Mapping[str, list[Told]]) -> Iterator[float]:
        """Add what is new in the statements of other gates, by their lives; gives how many answers that is, of all
        habits together, step by step.

        What was known fades by the answers of all of them together: they ended at the same time.
        """
        news: dict[Key, tuple[int, Evidence]] = {}
        for life, statement in statements.items():
            heard = self._heard.setdefault(life, OrderedDict())
            self._heard.move_to_end(life)
            for told in statement:
                known = heard.get(told.key)
                # Of one that was forgotten nobody knows what was taken before: too little is learned rather than twice.
                more = _NOTHING if known is None and life in self._forgot else _since(told, known)
                is_news = _is_news(more)
                if is_news:
                    limit, before = news.get(told.key, (told.limit, _NOTHING))
                    news[told.key] = limit, before.plus(more)
                if is_news or known is None:
                    heard[told.key] = told
                heard.move_to_end(told.key)
                if len(heard) > MOST_HEARD:
                    heard.popitem(last=False)
                    self._forgot.add(life)
                yield 0.0
        while len(self._heard) > MOST_LIVES:
            self._forgot.discard(self._heard.popitem(last=False)[0])
        for key in sorted(news, key=len):  # the coarser ones come first, so that others find theirs
            limit, seen = news[key]
            habit = lengths.habit_of(key, limit)
            if habit is not None:
                habit.take_in(seen)
            yield 0.0 if key else seen.answers


def _since(told: Told, before: Told | None) -> Evidence:
    """What is in it that was not in the statement before."""
    ends, exposure = [0.0] * BINS, [0.0] * BINS
    for k, ended, entered in told.bins:
        ends[k] = ended / _HUNDRED
        exposure[k] = entered / _HUNDRED * WIDTHS_FLOAT[k]
    now = Evidence(told.hundredths / _HUNDRED, ends, exposure)
    if before is None or before.faded > told.faded:  # the gate had forgotten it, and begun anew
        return now
    return now.plus(_since(before, None), -(_FADES ** (told.faded - before.faded)))


def _is_news(seen: Evidence) -> bool:
    """Whether it is more than what rounding makes: otherwise gates would tell each other of that for ever."""
    return seen.answers >= _LEAST or any(seen.exposure[k] >= _LEAST * WIDTHS_FLOAT[k] for k in range(BINS))


_NOTHING: Final = Evidence(0.0, [0.0] * BINS, [0.0] * BINS)
