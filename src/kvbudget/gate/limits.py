"""Decides whether a tenant is at a limit of its own: blocks that it has reserved, tokens that it takes in a minute.

Tokens are a bucket of one minute's tokens that fills evenly. A request takes all that it may come to when it is let in
or parked; what it did not use comes back when it ends. One that is larger than the bucket passes when it is full.
"""

from collections import OrderedDict
from collections.abc import Mapping

from kvbudget.gate.refusals import Refusal
from kvbudget.gate.tenants import TenantLimits, limits_of

MINUTE_NS = 60 * 10**9
MOST_BUCKETS = 4096  # names come from outside; beyond that, whoever was seen longest ago starts anew


class Bucket:
    """Tokens that one tenant has left."""

    __slots__ = ("_since_ns", "_tokens", "per_minute")

    def __init__(self, per_minute: int, now_ns: int) -> None:
        self.per_minute = per_minute
        self._tokens = float(per_minute)
        self._since_ns = now_ns

    def left(self, now_ns: int) -> float:
        """Below 0 after a request that was larger than the bucket."""
        filled = max(0, now_ns - self._since_ns) * self.per_minute / MINUTE_NS
        self._tokens = min(float(self.per_minute), self._tokens + filled)
        self._since_ns = max(self._since_ns, now_ns)
        return self._tokens

    def full_enough_in_ns(self, tokens: int, now_ns: int) -> int:
        """Time until so many can be taken; 0: now."""
        missing = min(tokens, self.per_minute) - self.left(now_ns)
        return max(0, int(missing * MINUTE_NS / self.per_minute) + 1) if missing > 0 else 0

    def take(self, tokens: int, now_ns: int) -> None:
        """So many are gone; below 0: they come back."""
        self._tokens = min(float(self.per_minute), self.left(now_ns) - tokens)


class Limits:
    """What tenants with limits of their own have left.

    Where several gates share the pools, blocks that the others have reserved for a tenant count as well, by their last
    word, and each gate has an equal part of a tenant's tokens.
    """

    def __init__(self, tenants: Mapping[str, TenantLimits]) -> None:
        self._tenants = tenants
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._taken: dict[str, tuple[Bucket, int]] = {}  # by request
        self._blocks: dict[str, int] = {}  # reserved, by tenant
        self._held: dict[str, tuple[str, int]] = {}  # by request
        self._elsewhere: Mapping[str, int] = {}  # blocks reserved at other gates, by tenant
        self._gates = 1
        self.changes = 0  # rises with what is told of blocks

    def configure(self, tenants: Mapping[str, TenantLimits]) -> None:
        """Other limits hold from now on; what was taken of this minute's tokens stays taken."""
        self._tenants = tenants
        for tenant, bucket in list(self._buckets.items()):
            per_minute = limits_of(tenant, tenants).tokens_per_minute
            if per_minute is None:
                del self._buckets[tenant]
            else:
                bucket.per_minute = self._part_of(per_minute)

    def shared(self, elsewhere: Mapping[str, int], gates: int) -> bool:
        """What other gates have reserved, by tenant, and how many there are with this one; whether a tenant may have
        more than before."""
        more = any(blocks > elsewhere.get(tenant, 0) for tenant, blocks in self._elsewhere.items())
        self._elsewhere = elsewhere
        if gates != self._gates:
            self._gates = gates
            self.configure(self._tenants)
        return more

    def reserved_by_tenant(self) -> Mapping[str, int]:
        """Blocks of those whose blocks are limited."""
        return self._blocks

    def _part_of(self, per_minute: int) -> int:
        return max(1, per_minute // self._gates)

    def blocks_of(self, tenant: str) -> int:
        """Blocks that it has reserved, if they are limited."""
        return self._blocks.get(tenant, 0)

    def refusal(
        self, tenant: str, tokens: int, peak_blocks: int, now_ns: int, request_id: str = ""
    ) -> tuple[Refusal, int] | None:
        """Why a request that may come to so many tokens and blocks is refused, and when to come back (0: never). Who
        was accepted before, and comes from another instance, has its tokens already."""
        if self.never_fits(tenant, peak_blocks):
            return Refusal.TENANT_TOO_LARGE, 0
        if request_id in self._taken:
            return None
        bucket = self._bucket(tenant, now_ns)
        wait_ns = 0 if bucket is None else bucket.full_enough_in_ns(tokens, now_ns)
        return (Refusal.TENANT_TOKENS, wait_ns) if wait_ns else None

    def never_fits(self, tenant: str, peak_blocks: int) -> bool:
        """Whether its tenant may not have so many blocks at all."""
        most = limits_of(tenant, self._tenants).max_blocks
        return most is not None and peak_blocks > most

    def tokens_left(self, tenant: str, now_ns: int) -> tuple[int, int] | None:
        """(tokens a minute, tokens left); None without a limit."""
        bucket = self._bucket(tenant, now_ns)
        return None if bucket is None else (bucket.per_minute, max(0, int(bucket.left(now_ns))))

    def accepted(self, request_id: str, tenant: str, tokens: int, now_ns: int) -> None:
        """It is let in, or waits."""
        bucket = None if request_id in self._taken else self._bucket(tenant, now_ns)
        if bucket is not None:
            bucket.take(tokens, now_ns)
            self._taken[request_id] = (bucket, tokens)

    def has_blocks(self, tenant: str, peak_blocks: int) -> bool:
        """Whether it may reserve so many more now."""
        most = limits_of(tenant, self._tenants).max_blocks
        return most is None or self._blocks.get(tenant, 0) + self._elsewhere.get(tenant, 0) + peak_blocks <= most

    def reserved(self, request_id: str, tenant: str, peak_blocks: int) -> None:
        """It was forwarded."""
        if limits_of(tenant, self._tenants).max_blocks is not None:
            self.changes += 1
            self._blocks[tenant] = self._blocks.get(tenant, 0) + peak_blocks
            self._held[request_id] = (tenant, peak_blocks)

    def used(self, request_id: str, tokens: int, now_ns: int) -> None:
        """It is over and came to so many tokens; 0 of one that was never let in."""
        bucket, taken = self._taken.pop(request_id, (None, 0))
        if bucket is not None:
            bucket.take(tokens - taken, now_ns)

    def gone(self, request_id: str) -> None:
        """Its blocks are back."""
        tenant, blocks = self._held.pop(request_id, ("", 0))
        if blocks:
            self.changes += 1
            self._blocks[tenant] -= blocks
            if not self._blocks[tenant]:
                del self._blocks[tenant]

    def _bucket(self, tenant: str, now_ns: int) -> Bucket | None:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            per_minute = limits_of(tenant, self._tenants).tokens_per_minute
            if per_minute is None:
                return None
            bucket = self._buckets[tenant] = Bucket(self._part_of(per_minute), now_ns)
            if len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(tenant)
        return bucket
