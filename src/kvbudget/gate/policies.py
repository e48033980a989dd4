"""Decides whether one more promise may be made: the admission policies, over the same ledger.

`worst-case`   the sum of all peaks stays within the capacity. Safe; wastes the pool when peaks do not coincide.
`trajectory`   the peak over time of the whole batch stays within the capacity (`pool.trajectory`). As safe, admits
               more. What is not paced counts at its peak for as long as it lives.
"""

from enum import StrEnum

from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.pool.trajectory import Course, peak_over_time, shares_at_peak
from kvbudget.units import Blocks


class Policy(StrEnum):
    """Names as on the command line."""

    WORST_CASE = "worst-case"
    TRAJECTORY = "trajectory"


def promise_with(
    policy: Policy, ledger: Ledger, footprint: Footprint, peak_blocks: int, *, paced: bool, skew_steps: int
) -> Blocks | None:
    """Blocks that all promises need when `footprint`, which needs `peak_blocks` at its worst, is promised on top of
    everything that lives; None if that is more than the capacity."""
    capacity = ledger.capacity_blocks
    sum_of_peaks = ledger.peak_sum_blocks + peak_blocks
    if sum_of_peaks <= capacity:
        return Blocks(sum_of_peaks)  # true under every policy, and cheap: the common case of a pool with room
    if policy is Policy.WORST_CASE:
        return None
    fixed = ledger.unpaced_peak_blocks + (0 if paced else peak_blocks)
    if fixed > capacity:
        return None
    courses = ledger.paced_courses()
    if paced:
        prompt = footprint.prompts[0]
        courses.append(Course(prompt, prompt + footprint.max_new_tokens))
    needed = fixed + peak_over_time(ledger.layout, courses, skew_steps)
    return Blocks(needed) if needed <= capacity else None


def promised_blocks(policy: Policy, ledger: Ledger, skew_steps: int) -> Blocks:
    """Blocks that the living promises need at their worst common moment."""
    if policy is Policy.WORST_CASE:
        return ledger.peak_sum_blocks
    peak = peak_over_time(ledger.layout, ledger.paced_courses(), skew_steps)
    return Blocks(ledger.unpaced_peak_blocks + peak)


def promised_by_tenant(policy: Policy, ledger: Ledger, skew_steps: int) -> dict[str, Blocks]:
    """`promised_blocks`, split by tenant at the worst common moment."""
    totals: dict[str, int] = {}
    paced: list[Reservation] = []
    for living in ledger:
        totals.setdefault(living.tenant, 0)
        if policy is Policy.WORST_CASE or not living.paced:
            totals[living.tenant] += living.peak_blocks
        else:
            paced.append(living)
    shares = shares_at_peak(ledger.layout, [living.course for living in paced], skew_steps)
    for living, share in zip(paced, shares, strict=True):
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
