"""Decides what the figures of one window come to: which of its looks count, what grew, what a request takes.

Everything that is no finite number of 0 or more is "not told", so that no rule has to think of it.
"""

from collections.abc import Callable
from math import isfinite
from typing import NamedTuple

from kvbudget.engines.window import Counts, Distribution, EngineWindow, Gauges

# Of more looks than two, the share in which something has to be seen, or the last: what was over before is over.
_OFTEN = 1 / 3
_FEW_LOOKS = 2
# The same of a number that stands: the share of looks at it, where there are enough of them for one to be by chance.
_NEARLY_ALL = 3 / 4
_FEW_PINNED = 3
# Less is 0: what is divided by it would be no number any more.
_NO_SHARE, _NO_TIME_S = 1e-9, 1e-3


class Seen(NamedTuple):
    """One look with what can be no number taken away. `usage`: of the fullest part, where one pool has several; the
    mean of them hides the one that requests wait for (sglang#26248)."""

    usage: float | None
    running: int | None
    waiting: int | None
    deferred: int | None
    swapped: int | None

    @property
    def for_room(self) -> int | None:
        """Those that wait for room, not for something else."""
        return None if self.waiting is None else max(0, self.waiting - (self.deferred or 0))


class Symptoms:
    """Figures of one `EngineWindow` that several rules ask for. None: not told."""

    __slots__ = ("counts", "looks", "max_num_seqs", "totals", "window")

    def __init__(self, window: EngineWindow, max_num_seqs: int | None = None) -> None:
        """`max_num_seqs`: told by a person; the engine's own word is taken where there is none."""
        self.window = window
        self.looks = tuple(_seen(look) for look in window.looks) or (Seen(None, None, None, None, None),)
        self.counts = window.counts
        self.totals: Counts = window.counts if window.since_start else window.totals
        told = _count(max_num_seqs if max_num_seqs is not None else window.limits.max_num_seqs)
        self.max_num_seqs = told or None

    # Gauges

    @property
    def last(self) -> Seen:
        """The newest look."""
        return self.looks[-1]

    @property
    def several(self) -> bool:
        """Whether there is more than one look: only then can something be seen to stand still, or to grow."""
        return len(self.looks) > 1

    def holds(self, what: Callable[[Seen], bool]) -> bool:
        """Whether it is so now or, of many looks, was in a third of them."""
        return what(self.last) or (
            len(self.looks) > _FEW_LOOKS and sum(map(what, self.looks)) >= _OFTEN * len(self.looks)
        )

    def always(self, what: Callable[[Seen], bool]) -> bool:
        """Whether it is so in every look."""
        return all(map(what, self.looks))

    @property
    def usage_high(self) -> float | None:
        """The most of the pool that was in use at a look."""
        return max((look.usage for look in self.looks if look.usage is not None), default=None)

    @property
    def usage_rise(self) -> float:
        """From the first look that tells it to the last, in shares of the pool; below 0 where it fell."""
        told = [look.usage for look in self.looks if look.usage is not None]
        return told[-1] - told[0] if len(told) > 1 else 0.0

    @property
    def running_high(self) -> int | None:
        """The most that ran at a look."""
        return max((look.running for look in self.looks if look.running is not None), default=None)

    @property
    def running_low(self) -> int | None:
        """The fewest that ran at a look."""
        return min((look.running for look in self.looks if look.running is not None), default=None)

    @property
    def pinned(self) -> bool:
        """Whether the most that ran did so at every look, of several; of more than three at three quarters of them.

        A look may fall between the step that ends a request and the one that gives its place to the next.
        """
        high = self.running_high
        if not high or not self.several:
            return False
        at_high = sum(look.running == high for look in self.looks)
        return at_high >= (_NEARLY_ALL * len(self.looks) if len(self.looks) > _FEW_PINNED else len(self.looks))

    @property
    def still(self) -> bool:
        """Whether the same number ran at every look, of several, and it was not none."""
        return self.pinned and self.running_high == self.running_low

    @property
    def waiting_rise(self) -> int:
        """How many more wait than at the first look."""
        told = [look.waiting for look in self.looks if look.waiting is not None]
        return told[-1] - told[0] if len(told) > 1 else 0

    # Counters: only those of a window, for what happened before it is no news

    def grew(self, name: str) -> float | None:
        """By how much a counter grew within the window."""
        return None if self.window.since_start else number(getattr(self.counts, name))

    def happened(self, name: str) -> float:
        """The same; 0 where it is not told."""
        return self.grew(name) or 0.0

    def by_reason(self, name: str) -> dict[str, float]:
        """What grew of a counter that has reasons."""
        if self.window.since_start:
            return {}
        told = {reason: number(value) for reason, value in getattr(self.counts, name).items()}
        return {reason: value for reason, value in told.items() if value}

    @property
    def finished(self) -> float | None:
        """Requests that ended within the window, however they did."""
        if self.window.since_start or not self.counts.finished:
            return None
        return sum([number(value) or 0.0 for value in self.counts.finished.values()])

    @property
    def vanished(self) -> float:
        """Requests that began to answer within the window and neither ended nor run: their clients left.

        vLLM 0.32 counts no abort for a client that hangs up (only what it finished itself), but each first token.
        """
        began, ended = self.window.ttft_s, self.finished
        told = [look.running for look in self.looks if look.running is not None]
        if (
            self.window.since_start
            or self.window.restarted
            or began is None
            or ended is None
            or len(told) < len(self.looks)
        ):
            return 0.0
        return max(0.0, (number(began.count) or 0.0) - ended - (told[-1] - told[0]))

    @property
    def progress(self) -> float | None:
        """Tokens computed and requests ended within the window; None where no counter tells it."""
        told = [
            self.grew("prompt_tokens"),
            self.grew("generation_tokens"),
            self.finished,
            self.figure("progress_tokens"),
        ]
        known = [value for value in told if value is not None]
        return sum(known) if known and not self.window.since_start else None

    def figure(self, name: str) -> float | None:
        """A figure of one engine."""
        return number(self.window.extra.get(name))

    @property
    def window_s(self) -> float | None:
        """How long it was looked at."""
        told = number(self.window.window_s)
        return told if told is not None and told >= _NO_TIME_S else None

    # What a request takes

    @property
    def pool_tokens(self) -> float | None:
        """Tokens that the pool holds, by the engine's word; only of one group is it blocks times block size."""
        pool = self.window.limits.pool
        if pool is None:
            return None
        told = number(pool.tokens)
        if told:
            return told
        blocks, size = number(pool.usable_blocks), number(pool.block_size)
        return blocks * size if blocks and size and pool.single_group is not False else None

    @property
    def share_each(self) -> float | None:
        """Share of the pool that one running request holds, by the newest look."""
        return self.last.usage / self.last.running if self.last.usage and self.last.running else None

    @property
    def held_tokens_each(self) -> float | None:
        """The same in tokens."""
        pool, share = self.pool_tokens, self.share_each
        return pool * share if pool and share else None

    @property
    def prompt_mean(self) -> float | None:
        """Tokens of a prompt: of the window, or since the engine's start where nobody ended in it."""
        mean = mean_of(self.window.prompt_lengths)
        if mean is not None:
            return mean
        for counts in (self.counts, self.totals):
            ended = sum([number(value) or 0.0 for value in counts.finished.values()])
            tokens = number(counts.prompt_tokens) or number(counts.prefix_queries)
            if ended and tokens:
                return tokens / ended
        return None

    @property
    def output_mean(self) -> float | None:
        """Tokens of an answer, likewise."""
        mean = mean_of(self.window.output_lengths)
        if mean is not None:
            return mean
        for counts in (self.counts, self.totals):
            ended = sum([number(value) or 0.0 for value in counts.finished.values()])
            tokens = number(counts.generation_tokens)
            if ended and tokens:
                return tokens / ended
        return None

    def evidence(self, **more: float | str | None) -> dict[str, float | str | None]:
        """Gauges of the newest look and what a finding adds; the unit is last in every name."""
        last = self.last
        told: dict[str, float | str | None] = {
            "usage_share": last.usage,
            "running_requests": last.running,
            "waiting_requests": last.waiting,
        }
        told |= {name: value if isinstance(value, str) else number(value) for name, value in more.items()}
        told |= {"window_s": self.window_s, "looks": len(self.looks)}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in told.items()}


def number(value: float | None) -> float | None:
    """A finite number of 0 or more, or None."""
    return value if value is not None and isfinite(value) and value >= 0 else None


def mean_of(told: Distribution | None) -> float | None:
    """The mean of a histogram; None where nothing was observed."""
    if told is None:
        return None
    count, total = number(told.count), number(told.total)
    return total / count if count and total is not None else None


def _seen(look: Gauges) -> Seen:
    parts = (look.usage, *look.usage_by_kind.values(), *look.usage_by_rank.values())
    told = [share for part in parts if (share := number(part)) is not None and share <= 1]
    shares = [share if share >= _NO_SHARE else 0.0 for share in told]
    return Seen(
        max(shares, default=None),
        _count(look.running),
        _count(look.waiting),
        _count(look.deferred),
        _count(look.swapped),
    )


def _count(value: float | None) -> int | None:
    told = number(value)
    return None if told is None else int(told)
