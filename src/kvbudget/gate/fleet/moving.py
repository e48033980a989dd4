"""Decides who leaves the queue of one instance for another that has room: the first who may, by class and time.

Whoever is passed over keeps its place where it waits, and is the first to get the room that comes there: who goes to
another instance takes nothing from it.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from kvbudget.gate.events import Arrived
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.place import Place
from kvbudget.gate.fleet.placement import may_lend
from kvbudget.gate.fleet.tiers import Able, able_to
from kvbudget.gate.waiting.prospect import room_for
from kvbudget.gate.waiting.queue import Waiting

LOOKED_AT = 32  # of each queue
_MOST_TRIED = 8  # of all of them, as long as nobody can go


class Move(NamedTuple):
    """`event`: as the request arrives there; its deadline is the one that it has."""

    place: Place
    able: Able
    event: Arrived


def next_move(
    members: Sequence[Member], targets: Sequence[Member], places: Mapping[str, Place], now_ns: int
) -> Move | None:
    """The next one, to one of `targets`; None if nobody can move. `places`: of all that live."""
    waiting: list[tuple[tuple[int, int], int, Waiting, Place]] = []
    for number, member in enumerate(members):
        for one in islice(member.gate.queue, LOOKED_AT):
            place = places[one.arrived.request_id]
            waiting.append(((one.arrived.priority, place.since_ns), number, one, place))
    if not waiting:
        return None
    waiting.sort(key=lambda entry: entry[:2])
    tried = 0
    for _, _, one, place in waiting:
        event = one.arrived._replace(deadline_ns=one.deadline_ns)
        own = [member for member in members if member.serves(event.model)]
        standing_in = [member for member in members if member.stands_in_for(event.model) and member not in own]
        own, standing_in = [[one for one in kind if one.reads(event)] for kind in (own, standing_in)]
        for able in able_to(event, own, standing_in):
            member = able.member
            if member is place.member or member not in targets or member.name in place.avoid:
                continue
            limits = member.gate.fairness.limits
            if not may_lend(able) or not (limits is None or limits.has_blocks(event.tenant, able.peak_blocks)):
                continue
            if room_for(member.gate, member.own(event), now_ns) is not None:
                return Move(place, able, event)
            tried += 1
            if tried == _MOST_TRIED:
                return None
    return None
