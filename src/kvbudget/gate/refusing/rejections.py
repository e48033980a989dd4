"""Decides what a refused client is told: what it needed, what was free, what would be served, when to come back."""

from typing import Final

from kvbudget.gate.commands import Reject
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived
from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.gate.policies import Policy
from kvbudget.gate.promises import Promises
from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.gate.refusing.returns import Returns
from kvbudget.gate.resolve import Resolver, most_new_tokens
from kvbudget.gate.tenants.fairness import Fairness
from kvbudget.gate.tenants.own_limit import own_limit_ns
from kvbudget.gate.tenants.settings import limits_of
from kvbudget.gate.waiting.expectation import MAX_WAIT_NS, Expectation
from kvbudget.gate.waiting.parking import Parking
from kvbudget.gate.waiting.queue import Queue, Waiting
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger
from kvbudget.units import Tokens

MIN_RETRY_NS: Final = 1_000_000_000  # sooner than a second is no waiting time worth telling
LEDGER_LOST_RETRY_NS: Final = 2_000_000_000  # a failover takes seconds, a restart of an engine longer


class Rejections:
    """The numbers of one gate's refusals."""

    def __init__(
        self,
        config: GateConfig,
        ledger: Ledger,
        queue: Queue,
        resolver: Resolver,
        promises: Promises,
        parking: Parking,
        learned: LearnedPolicy,
        expectation: Expectation,
        returns: Returns,
        fairness: Fairness,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._queue = queue
        self._resolver = resolver
        self._promises = promises
        self._parking = parking
        self._learned = learned
        self._expectation = expectation
        self._returns = returns
        self._fairness = fairness

    def configure(self, config: GateConfig) -> None:
        """Tell other limits from now on."""
        self._config = config

    def throw_out(self, waiting: Waiting, refusal: Refusal, now_ns: int, retry_after_ns: int) -> Reject:
        """The answer to one who waits, and does so no more."""
        self._queue.remove(waiting.arrived.request_id)
        waited_ns = now_ns - waiting.since_ns
        return self.reject(waiting.arrived, refusal, now_ns, retry_after_ns=retry_after_ns, waited_ns=waited_ns)

    def for_now(
        self, event: Arrived, footprint: Footprint, refusal: Refusal, now_ns: int, waited_ns: int = 0
    ) -> Reject:
        """The answer to one who may come back when room is expected."""
        told_ns = self.retry_after_ns(event, footprint, now_ns)
        return self.reject(event, refusal, now_ns, retry_after_ns=told_ns, waited_ns=waited_ns)

    def reject(
        self, event: Arrived, refusal: Refusal, now_ns: int, *, retry_after_ns: int, waited_ns: int = 0
    ) -> Reject:
        """The answer to who is refused; it must not wait any longer. It is told to come back after `retry_after_ns`
        within MIN_RETRY_NS to MAX_WAIT_NS, or never (0)."""
        self._fairness.over(event.request_id, 0, now_ns)
        ledger, max_context = self._ledger, self._resolver.max_context
        asked = event.max_new_tokens if event.max_new_tokens is not None else event.default_new_tokens
        cap = self._resolver.context_cap
        if cap is not None:
            asked = Tokens(max(1, min(asked, cap - max(event.prompts))))
        needed = Footprint(event.prompts, asked, event.sequences).peak_blocks(ledger.layout)
        return Reject(
            request_id=event.request_id,
            refusal=refusal,
            prompt_tokens=Tokens(sum(event.prompts)),
            max_new_tokens=event.max_new_tokens,
            needed_blocks=needed,
            free_blocks=self._promises.free_to_tell(now_ns),
            capacity_blocks=ledger.pool_blocks,
            max_context=max_context,
            largest_new_tokens=most_new_tokens(event, max_context, ledger),
            position=self._queue.place_for(event.priority),
            retry_after_ns=min(max(retry_after_ns, MIN_RETRY_NS), MAX_WAIT_NS) if retry_after_ns else 0,
            sequences=event.sequences * len(event.prompts),
            running_sequences=ledger.sequences,
            max_num_seqs=self._config.max_num_seqs,
            waited_ns=waited_ns,
            limit=self._tenant_blocks(event, refusal),
            settling=self._promises.closed_ns(now_ns) > 0,
        )

    def retry_after_ns(self, event: Arrived, footprint: Footprint, now_ns: int) -> int:
        """Time until everybody before it and then itself would be let in, from MIN_RETRY_NS to MAX_WAIT_NS.

        Under `learned` it is also a promise: who comes back then finds room (`gate.refusing.returns`). By expected
        lengths, also while `trajectory` still decides: until who is refused comes back the first answers have ended,
        and limits would tell many times of what it takes.
        """
        learns = self._config.policy is Policy.LEARNED
        wait_ns = self._parking.wait_for_room_ns(event, footprint, now_ns) if learns else None
        if wait_ns is None:  # or further than lengths tell anything of
            wait_ns = self._promises.closed_ns(now_ns) + self.turnover_ns(event, footprint, now_ns)
        soonest_ns = min(max(wait_ns, self._limit_ns(event, footprint, now_ns), MIN_RETRY_NS), MAX_WAIT_NS)
        if not learns:
            return soonest_ns
        peak_blocks = footprint.peak_blocks(self._ledger.layout)
        credit = self._promises.credit(event, footprint)
        blocks = self._learned.size(self._ledger, event, footprint, credit, now_ns)
        number = self._queue.next_number()
        return self._returns.tell(event, soonest_ns, MAX_WAIT_NS, blocks, peak_blocks, number, now_ns)

    def _tenant_blocks(self, event: Arrived, refusal: Refusal) -> int:
        if refusal not in (Refusal.TENANT_BLOCKS, Refusal.TENANT_TOO_LARGE):
            return 0
        return limits_of(event.tenant, self._config.tenants).max_blocks or 0

    def _limit_ns(self, event: Arrived, footprint: Footprint, now_ns: int) -> int:
        """Time until its tenant's own limit of blocks lets it in, behind those of its tenant that wait."""
        limits, tenant = self._fairness.limits, event.tenant
        if limits is None or limits_of(tenant, self._config.tenants).max_blocks is None:
            return 0
        waiting = sum([one.peak_blocks for one in self._queue if one.arrived.tenant == tenant])
        blocks = waiting + footprint.peak_blocks(self._ledger.layout)
        return own_limit_ns(self._ledger, limits, self._expectation, tenant, footprint, blocks, now_ns)

    def turnover_ns(self, event: Arrived, footprint: Footprint, now_ns: int) -> int:
        """Time until what runs has ended as far as is needed."""
        ledger = self._ledger
        blocks_before, sequences_before = self._queue.before(event.priority)
        needed = blocks_before + footprint.peak_blocks(ledger.layout) - self._promises.credit(event, footprint)
        sequences = sequences_before + footprint.total_sequences
        return self._expectation.wait_ns(
            ledger,
            missing_blocks=needed - self._promises.free_to_tell(now_ns),
            missing_sequences=sequences - (self._config.max_num_seqs - ledger.sequences),
            now_ns=now_ns,
        )
