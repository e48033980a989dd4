"""Decides how much shorter told times have to be than their pace says: by what those found who came unannounced.

An overload that comes in waves leaves room between them, and whoever happens to come then is let in at once. Somebody
who was refused before, and needs no more, could have had that room: if it was told to come much later, what is told
from now on is shortened. Whoever comes when it was told and finds no room makes it longer again. So both what newcomers
find and what is promised to those who return decide, and where an overload is steady, as nobody finds room
unannounced, told times stay what the pace makes of them.
"""

from collections import deque
from typing import Final, NamedTuple

SHORTER, LONGER = 0.75, 1.65  # for each that was told too late, or too early
# Of what the pace says. At 0.3 told times were too long (1.62 times hindsight) in a load that alternates, at 0.2 more
# goodput goes to those who come back, whose first token is late by then (docs/adr/0018).
LEAST: Final = 0.25
TOO_LATE: Final = 1.25  # times the right time
MOST_OPEN: Final = 64  # refusals whose right time is looked for; older ones are forgotten
_LEAST_NS: Final = 10**9  # Retry-After is in whole seconds: nothing sooner could have been told


class Refused(NamedTuple):
    """One who was told to come back `told_ns` after `at_ns`."""

    blocks: int
    at_ns: int
    told_ns: int


class ReturnHindsight:
    """`factor` for what one tenant and class are told, 1 as long as nothing is known."""

    __slots__ = ("_open", "factor")

    def __init__(self) -> None:
        self.factor = 1.0
        self._open: deque[Refused] = deque()  # oldest first

    def told(self, blocks: int, told_ns: int, now_ns: int) -> None:
        """One who needs so many blocks was told a time."""
        self._open.append(Refused(blocks, now_ns, told_ns))
        if len(self._open) > MOST_OPEN:
            self._open.popleft()

    def newcomer(self, blocks: int, now_ns: int) -> None:
        """One who needs so many blocks came unannounced and was let in at once: instead of one who was refused."""
        refused = self._open
        while refused and refused[0].at_ns + refused[0].told_ns <= now_ns:
            refused.popleft()  # it was time for it
        for number, one in enumerate(refused):
            if one.blocks <= blocks and now_ns < one.at_ns + one.told_ns:
                del refused[number]
                after_ns = now_ns - one.at_ns
                if after_ns > _LEAST_NS and one.told_ns > TOO_LATE * after_ns:
                    self.factor = max(LEAST, SHORTER * self.factor)
                return

    def found_no_room(self) -> None:
        """One came when it was told to, and was not let in at once."""
        self.factor = min(1.0, LONGER * self.factor)
