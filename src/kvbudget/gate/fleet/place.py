"""Where a living request is, and what it must not forget on its way from one instance to another."""

from kvbudget.gate.events import Arrived
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.tiers import Able


class Place:
    """`since_ns`: when it arrived first. `avoid`: instances that it must not go to. `event`: as it arrived there."""

    __slots__ = ("_lent_blocks", "_stand_in_blocks", "avoid", "event", "member", "since_ns")

    def __init__(self, member: Member, event: Arrived, since_ns: int, avoid: frozenset[str]) -> None:
        self.member = member
        self.event = event
        self.since_ns = since_ns
        self.avoid = avoid
        self._lent_blocks = self._stand_in_blocks = 0

    def lent_by(self, able: Able) -> None:
        """It arrives at its instance, which may be of another tier or model. That lends it its blocks from now on,
        while it waits as well: whoever waits is let in by the gate alone, which knows of no such share."""
        self._lent_blocks = able.peak_blocks if able.lent else 0
        self._stand_in_blocks = able.peak_blocks if able.stands_in else 0
        self.member.lent_blocks += self._lent_blocks
        self.member.stand_in_blocks += self._stand_in_blocks

    def over(self) -> None:
        """It has ended, is refused, or goes elsewhere."""
        self.member.lent_blocks -= self._lent_blocks
        self.member.stand_in_blocks -= self._stand_in_blocks
