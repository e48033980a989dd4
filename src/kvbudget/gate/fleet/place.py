"""Where a living request is, and what it must not forget on its way from one instance to another."""

from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.tiers import Able


class Place:
    """`since_ns`: when it arrived first. `avoid`: instances that it must not go to. `able` and `blocks`: once it is
    forwarded to an instance of another tier or model, what of it that lent."""

    __slots__ = ("able", "avoid", "blocks", "member", "since_ns")

    def __init__(self, member: Member, since_ns: int, avoid: frozenset[str]) -> None:
        self.member = member
        self.since_ns = since_ns
        self.avoid = avoid
        self.able: Able | None = None
        self.blocks = 0

    def forwarded(self, able: Able) -> None:
        """It goes to its instance."""
        if able.lent or able.stands_in:
            self.able, self.blocks = able, able.peak_blocks
            self._lend(able, able.peak_blocks)

    def over(self) -> None:
        """It has ended."""
        if self.able is not None:
            self._lend(self.able, -self.blocks)

    def _lend(self, able: Able, blocks: int) -> None:
        self.member.lent_blocks += blocks if able.lent else 0
        self.member.stand_in_blocks += blocks if able.stands_in else 0
