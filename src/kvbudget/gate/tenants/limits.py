"""Decides whether a tenant is at a limit of its own: blocks that it has reserved, tokens that it takes in a minute.

Tokens are a bucket of one minute's tokens that fills evenly. A request takes all that it may come to when it is let in
or parked; what it did not use comes back when it ends. One that is larger than the bucket passes when it is full.
"""

from collections import OrderedDict
from collections.abc import Mapping
from math import ceil

from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.gate.tenants.settings import ALL_OTHERS, TenantLimits, limits_of

MINUTE_NS = 60 * 10**9
# After which what other gates said of their tokens is not gone by any more: they say it each second.
STALE_NS = 3 * 10**9
SOON_NS = 50_000_000  # by when they will have said it anew
MOST_BUCKETS = 4096  # names come from outside; beyond that, whoever was seen longest ago starts anew
_NOTHING: Mapping[str, int] = {}


class Bucket:
    """Tokens that one tenant has left.

    Of a bucket that several gates share each knows what it has taken itself, and by the others' last word what they
    have. It fills what was taken here and there in proportion, so that all fill one bucket. Between two words a gate
    takes one request, or its part of what is left.
    """

    __slots__ = ("_elsewhere", "_gates", "_left_then", "_since_ns", "_taken", "_tokens", "_told_ns", "per_minute")

    def __init__(self, per_minute: int, now_ns: int) -> None:
        self.per_minute = per_minute
        self._tokens = float(per_minute)  # that would be left if nothing was taken elsewhere
        self._since_ns = now_ns
        self._elsewhere = 0.0  # taken there, and not filled since
        self._gates = 1  # that share it by what they say
        self._told_ns = 0
        self._left_then = 0.0  # when the others' last word came
        self._taken = 0.0  # since

    def left(self, now_ns: int) -> float:
        """Below 0 after a request that was larger than the bucket."""
        filled = max(0, now_ns - self._since_ns) * self.per_minute / MINUTE_NS
        self._since_ns = max(self._since_ns, now_ns)
        if not self._elsewhere:
            self._tokens = min(float(self.per_minute), self._tokens + filled)
            return self._tokens
        taken = self.per_minute - self._tokens
        stays = max(0.0, 1.0 - filled / (max(0.0, taken) + self._elsewhere))
        self._elsewhere *= stays
        # Below 0: more came back than was left of what was taken here; that is left of what was taken elsewhere.
        self._tokens = self.per_minute - max(taken * stays if taken > 0.0 else taken, -self._elsewhere)
        return self._tokens - self._elsewhere

    def full_enough_in_ns(self, tokens: int, now_ns: int) -> int:
        """Time until so many can be taken; 0: now."""
        missing = min(tokens, self.per_minute) - self.left(now_ns)
        if missing > 0:
            return max(0, int(missing * MINUTE_NS / self.per_minute) + 1)
        return SOON_NS if self.lacks_word(tokens, now_ns) else 0

    def lacks_word(self, tokens: int, now_ns: int) -> bool:
        """Whether so many are left, but are not to be taken before the other gates are heard of again."""
        if self._gates == 1 or self._taken <= 0.0:
            return False
        filled = max(0, now_ns - self._told_ns) * self.per_minute / MINUTE_NS
        part = (self._left_then + filled) / self._gates - self._taken
        return part < tokens and self.left(now_ns) >= min(tokens, self.per_minute)

    def take(self, tokens: int, now_ns: int) -> None:
        """So many are gone; below 0: they come back."""
        self.left(now_ns)
        self._tokens = min(self.per_minute + self._elsewhere, self._tokens - tokens)
        self._taken += tokens

    def taken(self, now_ns: int) -> int:
        """Here, and not filled since; for the other gates."""
        self.left(now_ns)
        return max(0, ceil(self.per_minute - self._tokens))

    def share(self, per_minute: int, elsewhere: int, gates: int, now_ns: int) -> None:
        """Of all tokens `per_minute` the other gates have taken so many."""
        taken = self.per_minute - self.left(now_ns) - self._elsewhere
        self.per_minute, self._elsewhere, self._gates = per_minute, float(elsewhere), gates
        self._tokens = per_minute - max(taken, -self._elsewhere)
        self._told_ns, self._left_then, self._taken = now_ns, max(0.0, self._tokens - self._elsewhere), 0.0

    def part(self, per_minute: int, now_ns: int) -> None:
        """It is this gate's alone, with so many tokens: what others take is not known."""
        taken = max(0.0, self.per_minute - self.left(now_ns) - self._elsewhere)
        self.per_minute, self._elsewhere, self._gates = per_minute, 0.0, 1
        self._tokens = per_minute - taken

    def resize(self, per_minute: int) -> None:
        """Another limit holds from now on."""
        if self.is_shared:
            self._tokens += per_minute - self.per_minute
        self.per_minute = per_minute

    @property
    def is_shared(self) -> bool:
        """Whether it goes by what other gates say."""
        return self._gates > 1

    def is_stale(self, now_ns: int) -> bool:
        """Whether the others' last word is too old."""
        return self._gates > 1 and now_ns - self._told_ns > STALE_NS


class Limits:
    """What tenants with limits of their own have left.

    Where several gates share the pools, blocks that the others have reserved for a tenant count as well, by their last
    word, and so do tokens that they have taken. Where of these nothing is known (of one who just came, of more tenants
    than are told of, without a ledger) a gate has an equal part of them.
    """

    def __init__(self, tenants: Mapping[str, TenantLimits]) -> None:
        self._tenants = tenants
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._taken: dict[str, tuple[Bucket, int]] = {}  # by request
        self._blocks: dict[str, int] = {}  # reserved, by tenant
        self._held: dict[str, tuple[str, int]] = {}  # by request
        self._elsewhere: Mapping[str, int] = {}  # blocks reserved at other gates, by tenant
        self._gates = 1
        self.changes = 0  # rises with what is told of blocks and tokens

    def configure(self, tenants: Mapping[str, TenantLimits]) -> None:
        """Other limits hold from now on; what was taken of this minute's tokens stays taken."""
        self._tenants = tenants
        for tenant, bucket in list(self._buckets.items()):
            per_minute = limits_of(tenant, tenants).tokens_per_minute
            if per_minute is None:
                del self._buckets[tenant]
            else:
                bucket.resize(per_minute if bucket.is_shared else self._part_of(per_minute))

    def shared(
        self, elsewhere: Mapping[str, int], gates: int, tokens: Mapping[str, int] = _NOTHING, now_ns: int = 0
    ) -> bool:
        """What other gates have reserved, by tenant, and how many there are with this one; whether a tenant may have
        more than before. `tokens`: that they have taken, of those tenants of which that is known."""
        more = any(blocks > elsewhere.get(tenant, 0) for tenant, blocks in self._elsewhere.items())
        self._elsewhere = elsewhere
        if gates != self._gates:
            self._gates = gates
            for tenant, bucket in self._buckets.items():
                bucket.part(self._part_of(limits_of(tenant, self._tenants).tokens_per_minute or 1), now_ns)
        for tenant, taken in tokens.items() if gates > 1 else ():
            own = self._bucket(tenant, now_ns)
            if own is not None:
                own.share(limits_of(tenant, self._tenants).tokens_per_minute or 1, taken, gates, now_ns)
        return more

    def taken_by_tenant(self, now_ns: int, most: int) -> dict[str, tuple[int, int]]:
        """(tokens taken here and not filled since, tokens a minute) of those whose tokens are limited, for the other
        gates: who came last before the others, then those that are named."""
        told: dict[str, tuple[int, int]] = {}
        for tenant in (*reversed(self._buckets), *self._tenants):
            per_minute = limits_of(tenant, self._tenants).tokens_per_minute
            if per_minute is None or tenant == ALL_OTHERS or len(told) >= most:
                continue
            bucket = self._buckets.get(tenant)
            taken = 0 if bucket is None else bucket.taken(now_ns)
            if tenant not in told and (taken or tenant in self._tenants):
                told[tenant] = taken, per_minute
        return told

    def lacks_word(self, tenant: str, tokens: int, now_ns: int) -> bool:
        """Whether a tenant's tokens would do, but for what other gates may have taken since they were heard of."""
        bucket = self._bucket(tenant, now_ns)
        return bucket is not None and bucket.lacks_word(tokens, now_ns)

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
            self.changes += 1

    def has_blocks(self, tenant: str, peak_blocks: int) -> bool:
        """Whether it may reserve so many more now."""
        return not self.blocks_over(tenant, peak_blocks)

    def blocks_over(self, tenant: str, blocks: int) -> int:
        """How many have to come back until it may reserve so many more."""
        most = limits_of(tenant, self._tenants).max_blocks
        if most is None:
            return 0
        return max(0, self._blocks.get(tenant, 0) + self._elsewhere.get(tenant, 0) + blocks - most)

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
            self.changes += 1

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
        elif bucket.is_stale(now_ns):
            bucket.part(self._part_of(limits_of(tenant, self._tenants).tokens_per_minute or 1), now_ns)
        self._buckets.move_to_end(tenant)
        return bucket
