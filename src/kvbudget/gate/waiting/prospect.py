"""Decides how a request would fare at a gate if it came now, and changes nothing: by this a fleet chooses."""

from typing import TYPE_CHECKING, NamedTuple

from kvbudget.gate.events import Arrived
from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.gate.waiting.parking import Place
from kvbudget.units import Blocks

if TYPE_CHECKING:
    from kvbudget.gate.gate import Gate


class Prospect(NamedTuple):
    """It would get no room now. `may_wait`: there is a place in the queue; `wait_ns`: until room is expected."""

    may_wait: bool
    wait_ns: int


def room_for(gate: "Gate", event: Arrived, now_ns: int) -> Blocks | None:
    """Blocks that all promises would need together with this one, let in now; None: it would wait or be refused."""
    resolved = gate.resolver.resolve(event)
    booking = gate.returns.due(event, now_ns)
    return None if isinstance(resolved, Refusal) else gate.trial.room_for(event, *resolved, now_ns, booking)


def free_blocks_in(gate: "Gate", within_ns: int, now_ns: int) -> Blocks:
    """Blocks that will not be promised that much later, if nobody comes: those that are free, and those of whoever is
    expected to have ended by then (as Retry-After expects it), at most the whole pool."""
    ledger, remaining_ns = gate.ledger, gate.expectation.remaining_ns
    ending = sum([living.net_blocks for living in ledger if remaining_ns(living, now_ns) <= within_ns])
    return Blocks(max(0, min(ledger.pool_blocks, gate.free_blocks() + ending)))


def prospect_of(gate: "Gate", event: Arrived, now_ns: int) -> Prospect:
    """How long it would wait. Only for a request that this gate can serve at all."""
    resolved = gate.resolver.resolve(event)
    assert not isinstance(resolved, Refusal)  # noqa: S101 - the caller has looked
    footprint, peak_blocks = resolved
    booked = gate.returns.due(event, now_ns) is not None
    place = gate.parking.place(event, footprint, peak_blocks, now_ns, booked=booked)
    expected_ns = place.expected.wait_ns if isinstance(place, Place) else 0
    wait_ns = expected_ns or gate.rejections.turnover_ns(event, footprint, now_ns)
    return Prospect(isinstance(place, Place), max(wait_ns, gate.busy_until_ns - now_ns))
