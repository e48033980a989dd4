"""Decides when a tenant that has reserved as many blocks as it may is expected to be allowed more."""

from kvbudget.gate.tenants.limits import Limits
from kvbudget.gate.waiting.expectation import Expectation
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger


def own_limit_ns(
    ledger: Ledger,
    limits: Limits | None,
    expectation: Expectation,
    tenant: str,
    footprint: Footprint,
    blocks: int,
    now_ns: int,
) -> int:
    """Time until its own limit lets in `blocks` more, the last of them of a request with this footprint; 0: it does.

    That is when enough of its own have ended, at most MAX_WAIT_NS. Of those at other gates it is known what they hold,
    not when they end: they are taken to come and go as those here do, and where none is here as this one would.
    """
    missing = 0 if limits is None else limits.blocks_over(tenant, blocks)
    if not missing:
        return 0
    own = [living for living in ledger if living.tenant == tenant]
    if not own:
        return expectation.life_ns(footprint)
    return expectation.wait_ns(own, missing_blocks=missing, missing_sequences=0, now_ns=now_ns, whole=True)
