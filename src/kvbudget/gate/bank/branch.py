"""One gate's part of a shared pool: what it may promise now by the bank's word, and what it tells the bank next.

A slice is lowered before the bank is told, and raised only by the answer to the last call, within the lease that this
call began: by the clock of this gate, from when the call was made. When the lease is over, the slice is nothing, and
what was promised out of it is claimed again; so is what was kept in common and is promised here after all.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kvbudget.gate.bank.terms import Answer, Call, Line, Reading

# A lease ends for a branch so much sooner than for the bank: clocks that go faster or slower than each other by less
# than that (a computer's drift by 0.01 % at most) are no danger.
DRIFT: Final = 0.01
_NEVER_NS: Final = -(1 << 62)


class Stand(NamedTuple):
    """One account, as the gate stands. `limit`: what there is for all gates. `promised`: now. `needs`: with the first
    that waits, at least `promised`. `reserve`: what it would like to have beside that for those who come next.
    `told_only`: it is told what is promised, and nothing is asked for. `claims`: of what it kept under other accounts
    until now, so much is to be its slice again, as far as it is promised."""

    account: str
    limit: int
    promised: int
    needs: int
    reserve: int
    told_only: bool = False
    claims: int = 0


class Branch:
    """State of one life of one gate towards one bank."""

    __slots__ = (
        "_number",
        "branches",
        "elsewhere",
        "lease_ns",
        "missing",
        "name",
        "opens_ns",
        "settling",
        "short",
        "slices",
        "until_ns",
        "waits_since_ns",
        "yields_to",
    )

    def __init__(self, name: str, lease_ns: int) -> None:
        """`name` must be new with every life; `lease_ns` is how long its slices last after it was last heard of."""
        self.name = name
        self.lease_ns = lease_ns
        self.slices: dict[str, int] = {}
        self.elsewhere: dict[str, int] = {}  # promised by all others
        self.until_ns = _NEVER_NS  # its slices are nothing from then on
        self.short = False  # somebody else lacks something
        self.yields_to: int | None = None  # the class of one elsewhere who has waited much longer than all here
        self.settling = False
        self.opens_ns = 0  # while it settles: when the leases of before are over at the latest
        self.missing = False  # of gates whose lease ran out something may still be in the engine
        self.branches = 1
        self._number = 0
        self.waits_since_ns: int | None = None  # when the call was made that is not answered yet

    def is_lost(self, now_ns: int) -> bool:
        """Whether it may promise nothing: it was not heard of for a lease, or never."""
        return now_ns >= self.until_ns

    def call(
        self,
        stands: Sequence[Stand],
        now_ns: int,
        *,
        priority: int = 0,
        waited_ns: int = 0,
        reading: Reading | None = None,
    ) -> Call:
        """What to tell the bank now; the slices are lowered to it. An answer to any earlier call counts no more."""
        lost = self.is_lost(now_ns)
        lines: list[Line] = []
        slices: dict[str, int] = {}
        for stand in stands:
            if stand.told_only:
                lines.append(Line(stand.account, stand.limit, stand.promised, 0, 0, stand.promised))
                continue
            keeps = stand.promised if lost else self._keeps(stand)
            if not lost:
                slices[stand.account] = keeps
                keeps = max(keeps, min(stand.promised, keeps + stand.claims))
            wants = stand.needs if self.short else stand.needs + stand.reserve
            lines.append(Line(stand.account, stand.limit, keeps, max(stand.needs, stand.promised), max(wants, keeps),
                              stand.promised))  # fmt: skip
        self.slices = slices
        self._number += 1
        self.waits_since_ns = now_ns
        lease_ms, waited_ms = self.lease_ns // 10**6, waited_ns // 10**6
        return Call(self.name, self._number, lease_ms, tuple(lines), priority, waited_ms, reading=reading)

    def leave(self, now_ns: int) -> Call:
        """The last call: it gives up everything."""
        self.slices, self.until_ns = {}, _NEVER_NS
        self._number += 1
        self.waits_since_ns = now_ns
        return Call(self.name, self._number, self.lease_ns // 10**6, (), leaves=True)

    def heard(self, answer: Answer, now_ns: int) -> bool:
        """The bank has answered; whether that counts: it is of the last call, and in time."""
        if answer.number != self._number or self.waits_since_ns is None:
            return False
        until_ns = self.waits_since_ns + int(self.lease_ns * (1 - DRIFT))
        self.waits_since_ns = None
        if now_ns >= until_ns:
            return False
        self.until_ns = until_ns
        self.slices = {account: one.granted for account, one in answer.slices.items()}
        self.elsewhere = {account: one.elsewhere for account, one in answer.slices.items()}
        self.short, self.settling, self.branches = answer.short, answer.settling, answer.branches
        self.yields_to, self.missing = answer.yields_to, answer.missing
        if not answer.settling:
            self.opens_ns = 0
        elif self.opens_ns <= now_ns:  # it began to settle before it answered, and does so for a lease
            self.opens_ns = now_ns + self.lease_ns
        return True

    def failed(self, number: int | None = None) -> None:
        """The last call was not answered, and nobody waits for that any more; it may have been heard all the same.
        `number`: only if it is the last."""
        if number is None or number == self._number:
            self.waits_since_ns = None

    def _keeps(self, stand: Stand) -> int:
        """Of its slice: all of it, unless it has far more than it needs. Where somebody else lacks something, only what
        is promised: parts of what is needed, kept by several who wait, would be of use to none."""
        had = self.slices.get(stand.account, 0)
        needs = max(stand.needs, stand.promised)
        if self.short:
            return min(had, stand.promised)
        return had if had <= needs + 2 * stand.reserve else needs + stand.reserve
