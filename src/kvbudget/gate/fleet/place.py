"""Where a living request is, and what it must not forget on its way from one instance to another."""

from kvbudget.gate.events import Arrived
from kvbudget.gate.fleet.tiers import Able


class Place:
    """`event`: as it arrived there. `since_ns`: when it arrived first. `avoid`: instances that it must not go to.

    An instance of another tier or model lends it its blocks from the moment that it waits there: whoever waits is let
    in by the gate alone, which knows of no such share.
    """

    __slots__ = ("_able", "avoid", "event", "member", "since_ns")

    def __init__(self, able: Able, event: Arrived, since_ns: int, avoid: frozenset[str]) -> None:
        self.member = able.member
        self.event = event
        self.since_ns = since_ns
        self.avoid = avoid
        self._able = able
        self._lend(able.peak_blocks)

    def over(self) -> None:
        """It has ended, is refused, or goes elsewhere."""
        self._lend(-self._able.peak_blocks)

    def _lend(self, blocks: int) -> None:
        self.member.lent_blocks += blocks if self._able.lent else 0
        self.member.stand_in_blocks += blocks if self._able.stands_in else 0
