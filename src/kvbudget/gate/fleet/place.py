"""Where a living request is, and what it must not forget on its way from one instance to another."""

from kvbudget.gate.events import Arrived
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.tiers import Able


class Place:
    """`since_ns`: when it arrived first. `avoid`: instances that it must not go to. `event`: as it arrived there."""

    __slots__ = ("_able", "avoid", "event", "member", "since_ns")

    def __init__(self, member: Member, event: Arrived, since_ns: int, avoid: frozenset[str]) -> None:
        self.member = member
        self.event = event
        self.since_ns = since_ns
        self.avoid = avoid
        self._able: Able | None = None  # once it was lent its blocks

    def lent_by(self, able: Able) -> None:
        """It arrives at its instance, which may be of another tier or model. That lends it its blocks from now on,
        while it waits as well: whoever waits is let in by the gate alone, which knows of no such share."""
        self._able = able
        self._lend(able, able.peak_blocks)

    def over(self) -> None:
        """It has ended, is refused, or goes elsewhere."""
        if self._able is not None:
            self._lend(self._able, -self._able.peak_blocks)

    def _lend(self, able: Able, blocks: int) -> None:
        self.member.lent_blocks += blocks if able.lent else 0
        self.member.stand_in_blocks += blocks if able.stands_in else 0
