"""Decides which instance takes a request: who has room now, the least full first; else where room is expected soonest.
Who comes back when told goes where it was told, as room is kept for it there, if any is.

Every instance is judged by itself: one that is full is no candidate, however empty the others are on average.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from kvbudget.gate.events import Arrived
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.tiers import Able, able_to
from kvbudget.gate.waiting.prospect import Prospect, prospect_of, room_for


class Verdict(Enum):
    """What becomes of a request."""

    GOES = "goes"  # it goes to an instance now
    WAITS = "waits"  # it waits at one, or is refused there for now
    NEVER = "never"  # none of all that are configured can ever take it
    NOBODY = "nobody"  # those that could are away, and no other one lends it so much


class Choice(NamedTuple):
    """The verdict, and for which instance; of NEVER: the one whose limits are told."""

    verdict: Verdict
    able: Able | None


def choose(
    event: Arrived, own: Sequence[Member], standing_in: Sequence[Member], now_ns: int, avoid: frozenset[str]
) -> Choice:
    """Where a request goes or waits. `avoid`: names of instances that it must not go to (again)."""
    able = able_to(event, own, standing_in)
    if not able:
        serving = [*own, *standing_in]
        if not all(member.known for member in serving):
            return Choice(Verdict.NOBODY, None)
        told = max(serving, key=lambda member: (member.gate.backend_up, member.gate.max_context))
        verdict = Verdict.NEVER if told.gate.backend_up else Verdict.NOBODY
        return Choice(verdict, Able(told, 0, 0, lent=False, stands_in=False))
    takers = [one for one in able if one.member.takes(now_ns) and one.member.name not in avoid]
    expecting = [one for one in takers if one.member.expects(event, now_ns)]  # room is kept for it there
    found = with_room(event, expecting, now_ns) or with_room(event, takers, now_ns)
    if found is not None:
        return Choice(Verdict.GOES, found)
    lenders = [one for one in takers if may_lend(one)]
    if not lenders:
        return Choice(Verdict.NOBODY, None)
    honouring = [one for one in expecting if may_lend(one) and _prospect(event, one, now_ns).may_wait]
    return Choice(Verdict.WAITS, _soonest(event, honouring or lenders, now_ns))


def come(event: Arrived, chosen: Member, members: Sequence[Member], now_ns: int) -> None:
    """It goes to this one, or waits there. Who told it to come, if that is another one, expects it no more."""
    if chosen.expects(event, now_ns):
        return  # its own gate sees that it has come
    for member in members:
        if member is chosen or not member.reads(event):
            continue
        if member.gate.returns.claim(member.own(event), now_ns) is not None:
            return


def with_room(event: Arrived, takers: Sequence[Able], now_ns: int) -> Able | None:
    """The first that has room: by kind, and of a kind the least full."""
    for kind in _kinds(takers):
        for one in _least_full_first(event, kind, now_ns):
            if may_lend(one) and room_for(one.member.gate, one.member.own(event), now_ns) is not None:
                return one
    return None


def _least_full_first(event: Arrived, kind: list[Able], now_ns: int) -> list[Able]:
    if len(kind) == 1:
        return kind
    at_peaks = all(one.member.fits_at_peaks(one.peak_blocks) for one in kind)
    loads = [
        one.member.load_with(one.member.counted(event), one.peak_blocks, now_ns, at_peaks=at_peaks) for one in kind
    ]
    order = sorted(range(len(kind)), key=lambda number: (loads[number], kind[number].member.turn))
    return [kind[number] for number in order]


def may_lend(one: Able) -> bool:
    """Whether it is within what the instance may reserve for others' work, those of it that wait there included."""
    member, options = one.member, one.member.options
    if one.lent and not _within(options.borrow, member.lent_blocks + one.peak_blocks, member):
        return False
    return not one.stands_in or _within(options.fallback_share, member.stand_in_blocks + one.peak_blocks, member)


def _within(share: float, peaks_blocks: int, member: Member) -> bool:
    """All of the pool is no limit: then more may wait, and by learned lengths more may go, than it holds at peaks."""
    return share >= 1.0 or peaks_blocks <= share * member.gate.ledger.capacity_blocks


def _soonest(event: Arrived, takers: Sequence[Able], now_ns: int) -> Able:
    """Of the first kind only: whoever waits goes elsewhere when room is there, and should not stand before those who
    can be nowhere else."""
    first = next(_kinds(takers))
    if len(first) == 1:
        return first[0]

    def wait(one: Able) -> tuple[bool, int, int]:
        prospect = _prospect(event, one, now_ns)
        return not prospect.may_wait, prospect.wait_ns, one.member.turn

    return min(first, key=wait)


def _prospect(event: Arrived, one: Able, now_ns: int) -> Prospect:
    return prospect_of(one.member.gate, one.member.own(event), now_ns)


def _kinds(takers: Sequence[Able]) -> Iterator[list[Able]]:
    return (list(kind) for _, kind in groupby(takers, key=lambda one: (one.stands_in, one.tier)))
