"""Decides how soon one more of a tenant and class may be told to come back: after those of it who are still to come.

Those who come back get PART of what is let in of their tenant and class, in blocks, so that coming back wins nothing
over coming for the first time. Until the overload ends: nobody knows when, and one that has lasted for a while is as
likely as not to last as long again. Afterwards there is room for AFTER times as many. Both together tell how many will
have found room until when, and so when the next one will.

No steady load asks within a second for what takes half a minute: that is a crowd, and behind it half of the engine is
free, as far as anybody knows. So of those who are to come, as many as would in CROWD times as long as the overload has
lasted go by the rule above, and those beyond at CROWD_PART of what is let in. But not where overload was shortly
before: then the next crowd may come as well, and find no room.

Where that told too late, or too early, it is corrected (`gate.refusing.return_hindsight`).

Whoever does not come back takes nobody's room. How many do is learned. Before, most are thought to, as clients do that
honour Retry-After: if all were told to come soon, and did, hardly anybody would find room. The first (PROBES) are told
the wait that is foreseen and no more, so that it is soon known.
"""

from math import exp, log
from typing import Final

from kvbudget.gate.refusing.return_hindsight import ReturnHindsight

PART: Final = 0.06  # of the blocks let in
AFTER: Final = 3.0  # times as much, when the overload has ended
CROWD: Final = 3.0
CROWD_PART: Final = 0.5  # of the blocks let in
ALONE_NS: Final = 120 * 10**9  # without a refusal before: everybody has come who was told a time
QUIET_NS: Final = 10 * 10**9  # without a refusal: it has ended
START_SHARE: Final = 0.8
START_WEIGHT: Final = 0.5  # clients for whom that counts
MEMORY: Final = 16.0  # clients after whom an old one counts little
FEW_SHARE: Final = 0.15  # where fewer come back nobody waits for others, and nothing is kept for them
PROBES: Final = 3  # if none of so many comes back, few do
RATE_NS: Final = 10e9  # the pace is a mean over so long
_YOUNGEST_NS: Final = 1e9
# What is let in at first fills an empty pool, and room does not come back as fast: it counts as if it took so long.
_FIRST_NS: Final = 1.5e9
_STEPS: Final = 4  # of Newton's method, from above: the rest is below a thousandth


class ReturnShare:
    """Of those who were told a time, how many come back at it: `of_all`, after `known` of them."""

    __slots__ = ("known", "of_all")

    def __init__(self, of_all: float = START_SHARE) -> None:
        self.of_all = of_all
        self.known = 0

    def learn(self, came_back: float) -> None:
        """One did (1) or did not (0); below 0 where others than those who were told came."""
        self.known += 1
        self.of_all = max(0.0, self.of_all + (came_back - self.of_all) / min(MEMORY, START_WEIGHT + self.known))

    @property
    def expected(self) -> float:
        """The same; 0 where it is few."""
        return self.of_all if self.of_all >= FEW_SHARE else 0.0


class ReturnPace:
    """What was let in of one tenant and class, and what of it is still to come."""

    __slots__ = (
        "_alone", "_begun_ns", "_let_in", "_let_in_ns", "_refused_ns", "_since_ns", "booked", "coming_blocks",
        "hindsight", "share", "told",
    )  # fmt: skip

    def __init__(self, share: ReturnShare, now_ns: int) -> None:
        self.share = share
        self.hindsight = ReturnHindsight()
        self.booked = 0  # who are expected, later or by now
        self.coming_blocks = 0  # of all who are to come later
        self.told = 0  # clients, so far
        self._let_in = 0.0  # blocks, fading
        self._let_in_ns = self._begun_ns = now_ns
        self._since_ns = now_ns  # the overload
        self._alone = True  # no other one was shortly before it
        self._refused_ns = now_ns

    def let_in(self, blocks: int, now_ns: int) -> None:
        """A request of so many blocks was forwarded."""
        self._let_in = blocks + self._let_in * exp((self._let_in_ns - now_ns) / RATE_NS)
        self._let_in_ns = now_ns

    def blocks_per_ns(self, blocks: int, now_ns: int) -> float:
        """What is let in; at least one of so many `blocks` in RATE_NS."""
        age = max(_FIRST_NS, float(now_ns - self._begun_ns))
        lately = self._let_in * exp((self._let_in_ns - now_ns) / RATE_NS)
        return max(float(blocks), lately) / (RATE_NS * (1.0 - exp(-age / RATE_NS)))

    def refused(self, now_ns: int) -> None:
        """One more is told a time."""
        quiet_ns = now_ns - self._refused_ns
        if quiet_ns > QUIET_NS:
            self._since_ns = now_ns
            self._alone = self.told == 0 or quiet_ns > ALONE_NS
        self._refused_ns = now_ns
        self.told += 1

    def after_others_ns(self, blocks: int, wait_ns: int, now_ns: int) -> float:
        """When those who are to come will have found room, from now; then one more of `blocks` does, for whom a wait of
        `wait_ns` is foreseen."""
        expected = self.share.expected * self.coming_blocks
        if expected <= 0.0 or self.told <= PROBES:
            return 0.0
        whole_ns = expected / self.blocks_per_ns(blocks, now_ns)  # if nobody else were let in
        age_ns = now_ns - self._since_ns
        steady_ns = min(whole_ns, CROWD * max(_YOUNGEST_NS, age_ns)) if self._alone else whole_ns
        crowd_ns = (whole_ns - steady_ns) / CROWD_PART
        return self.hindsight.factor * (_sooner(steady_ns / PART, age_ns + wait_ns) + crowd_ns)


def _sooner(pace_ns: float, age_ns: int) -> float:
    """The time t by which as much found room as would in `pace_ns` if an overload of `age_ns` went on for ever.

    It has ended by t with a chance of t / (age + t), so t + (AFTER - 1) * (t - age * ln(1 + t / age)) = pace.
    """
    age, more = max(_YOUNGEST_NS, float(age_ns)), AFTER - 1.0
    t = pace_ns
    for _ in range(_STEPS):
        found = t + more * (t - age * log(1.0 + t / age))
        t -= (found - pace_ns) / (1.0 + more * t / (age + t))
    return t
