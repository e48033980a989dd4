"""What is set for tenants and classes; whoever is not named has the defaults."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvbudget.units import Blocks, Tokens

ALL_OTHERS = "*"  # the limits of each tenant that is not named


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """One tenant's part of the pool.

    `weight`, above 0: its share is weight / sum of the weights of all that are active. `max_blocks`: most that its
    reservations may come to at their peaks, as x-kvbudget-reserved-blocks tells them. `tokens_per_minute`: prompt and
    output tokens; until an answer has ended, all that it may still produce counts. None: no limit.
    """

    weight: float = 1.0
    max_blocks: Blocks | None = None
    tokens_per_minute: Tokens | None = None


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """What is kept for the requests of one priority against all that are less urgent: `reserved_blocks` of the pool,
    `reserved_slots` of max_num_seqs. What they hold counts, so that while both are in use nothing more is kept."""

    reserved_blocks: int = 0
    reserved_slots: int = 0


NO_LIMITS = TenantLimits()
_APART = "\x1f"


def account_name(tenant: str, priority: int) -> str:
    """A tenant has one account in each class: what it does in bulk does not count against what is urgent."""
    return tenant if priority == 0 else f"{tenant}{_APART}{priority}"


def tenant_of(account: str) -> str:
    """Whose account it is."""
    return account.partition(_APART)[0]


def limits_of(tenant: str, tenants: Mapping[str, TenantLimits]) -> TenantLimits:
    """Of the tenant itself, or of all others."""
    found = tenants.get(tenant)
    return tenants.get(ALL_OTHERS, NO_LIMITS) if found is None else found
