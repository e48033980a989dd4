"""Decides whether one more promise may be made: the admission policies, over the same ledger.

`worst-case`   the sum of all peaks stays within the capacity. Safe; wastes the pool when peaks do not coincide.
`trajectory`   the peak over time of the whole batch stays within the capacity (`pool.trajectory`). As safe, admits
               more. What is not paced counts at its peak for as long as it lives.
`learned`      the peak over time stays within the capacity but for a small chance, by output lengths that are learned
               (`gate.learning.learned`); until enough has been seen, and wherever these functions are asked, as
               `trajectory`.
"""

from enum import StrEnum

from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.pool.trajectory import peak_over_time, shares_at_peak
from kvbudget.units import Blocks


class Policy(StrEnum):
    """Names as on the command line."""

    WORST_CASE = "worst-case"
    TRAJECTORY = "trajectory"
    LEARNED = "learned"


def promise_with(
    policy: Policy,
    ledger: Ledger,
    footprint: Footprint,
    peak_blocks: int,
    *,
    paced: bool,
    skew_steps: int,
    request_id: str = "",
) -> Blocks | None:
    """Blocks that all promises need when `footprint`, which needs `peak_blocks` at its worst, is promised on top of
    everything that lives; None if that is more than the capacity. What the ledger has offered to `request_id` is taken
    off."""
    capacity = ledger.capacity_blocks
    sum_of_peaks = ledger.peak_sum_blocks + peak_blocks
    if sum_of_peaks <= capacity:
        return Blocks(sum_of_peaks)  # true under every policy, and cheap: the common case of a pool with room
    if policy is Policy.WORST_CASE:
        return None
    newcomer = Reservation(request_id, "", footprint, Blocks(peak_blocks), paced, 0)
    if ledger.at_first_end(newcomer, skew_steps) > capacity:
        return None  # as nearly always where there is no room: who waits is asked about again and again
    courses, fixed = ledger.batch(newcomer)
    needed = fixed + peak_over_time(ledger.layout, courses, skew_steps, capacity - fixed)
    return Blocks(needed) if needed <= capacity else None


def promised_blocks(policy: Policy, ledger: Ledger, skew_steps: int) -> Blocks:
    """Blocks that the living promises need at their worst common moment."""
    if policy is Policy.WORST_CASE:
        return ledger.peak_sum_blocks
    courses, fixed = ledger.batch()
    return Blocks(fixed + peak_over_time(ledger.layout, courses, skew_steps))


def promised_by_tenant(policy: Policy, ledger: Ledger, skew_steps: int) -> dict[str, Blocks]:
    """`promised_blocks`, split by tenant at the worst common moment."""
    totals: dict[str, int] = {}
    shared = ledger.shared_blocks(ledger)
    watched: list[Reservation] = []
    for living in ledger:
        totals.setdefault(living.tenant, 0)
        if policy is Policy.WORST_CASE or not living.paced:
            totals[living.tenant] += living.peak_blocks - shared.get(living.reservation_id, 0)
        else:
            watched.append(living)
    courses = ledger.batch()[0] if watched else []
    shares = shares_at_peak(ledger.layout, courses, skew_steps)
    for living, share in zip(watched, shares, strict=True):
        totals[living.tenant] += share
    return {tenant: Blocks(blocks) for tenant, blocks in totals.items()}


def shared_out(by_tenant: dict[str, Blocks], blocks: int) -> dict[str, Blocks]:
    """`by_tenant` in the same proportion, rounded, so that it adds up to `blocks`, which is at most its sum."""
    total = sum(by_tenant.values())
    shares: dict[str, Blocks] = {}
    before = given = 0
    for tenant, part in by_tenant.items():
        before += part
        upto = blocks * before // total if total else 0
        shares[tenant] = Blocks(upto - given)
        given = upto
    return shares
