"""Decides what an engine's own word means: how requests ended, preemptions, what it holds, its cache, another pool."""

from kvbudget.gate.commands import Command
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived, CacheChanged, CapacityChanged, Ended, PoolHeld, Preempted
from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.gate.learning.margin import HIGHEST
from kvbudget.gate.policies import Policy
from kvbudget.gate.promises import Promises
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.gate.resolve import Resolver
from kvbudget.gate.tenants.fairness import Fairness
from kvbudget.gate.waiting.expectation import Expectation
from kvbudget.gate.waiting.queue import Demand, Queue, Waiting
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.units import Tokens


class EngineReports:
    """What the engine behind one gate tells of itself."""

    def __init__(
        self,
        config: GateConfig,
        ledger: Ledger,
        queue: Queue,
        resolver: Resolver,
        promises: Promises,
        learned: LearnedPolicy,
        fairness: Fairness,
        expectation: Expectation,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._queue = queue
        self._resolver = resolver
        self._promises = promises
        self._learned = learned
        self._fairness = fairness
        self._expectation = expectation

    def configure(self, config: GateConfig) -> None:
        """Decide by other limits from now on."""
        self._config = config

    def ended(self, living: Reservation, event: Ended, now_ns: int) -> Tokens | None:
        """A forwarded one is over; learn what it tells. Returns the tokens of its answers that are believed."""
        if event.cached_tokens is not None:
            self._promises.found(event.request_id, event.cached_tokens)
        self._promises.trust.ended()
        output_tokens, sequences = event.output_tokens, living.footprint.total_sequences
        per_sequence: int | None = None
        if output_tokens is not None:
            # An engine that goes on for ever, or says so, is not to be billed for ever.
            most = living.footprint.max_new_tokens * sequences
            if not 0 <= output_tokens <= most:
                output_tokens = Tokens(min(max(0, output_tokens), most))
            per_sequence = output_tokens // sequences
            self._expectation.learn(living, per_sequence, now_ns)
            if living.paced and event.output_tokens == output_tokens:  # who lies teaches nothing
                # The engine put several tokens into one event.
                self._promises.was_behind(output_tokens - living.seen_tokens)
        if self._config.policy is Policy.LEARNED:
            of_itself = event.outcome is Outcome.FINISHED and event.engine_done
            self._learned.ended(living, per_sequence, of_itself=of_itself)
        self._fairness.ended(living, output_tokens, now_ns)
        return output_tokens

    def preempted(self, event: Preempted, now_ns: int) -> list[Command]:
        """It ran out of blocks: was that a risk that was taken, or is less shared than was believed?"""
        was_risked = self._promises.by_lengths and self._learned.margin.added < HIGHEST
        if not was_risked:
            self._promises.overflowed()
        self._learned.overflowed(now_ns)
        return []

    def pool_held(self, event: PoolHeld, now_ns: int) -> list[Command]:
        """What it holds tells how much is shared; only `learned` looks at it."""
        if self._config.policy is Policy.LEARNED:
            self._learned.engine_holds(self._ledger, event.blocks, now_ns)
        return []

    def cache_changed(self, event: CacheChanged, now_ns: int) -> list[Command]:
        """What its prefix cache has."""
        cached = self._promises.cached
        if event.cleared:
            cached.cleared()
        cached.removed(event.removed)
        cached.stored(event.stored)
        return []

    def capacity_changed(self, event: CapacityChanged) -> list[tuple[Waiting, Refusal]]:
        """Its pool is another one: all promises are counted by that. Returns who waits and can never be served now."""
        ledger = self._ledger
        key_tokens = ledger.key_tokens
        still_holds = event.layout == ledger.layout and event.usable_blocks >= ledger.usable_blocks
        ledger.resize(event.layout, event.usable_blocks)
        keys_are_old = ledger.key_tokens != key_tokens
        self._learned.pool_changed(event.layout)
        self._fairness.pool_changed()
        self._promises.pool_changed(still_holds=still_holds)
        self._resolver.engine_told(event.max_context)
        hopeless: list[tuple[Waiting, Refusal]] = []
        for waiting in list(self._queue):  # who waits was told no lengths yet, so they may be resolved anew
            resolved = self._resolver.resolve(waiting.arrived)
            if not isinstance(resolved, Refusal) and self._fairness.never_fits(waiting.arrived.tenant, resolved[1]):
                resolved = Refusal.TENANT_TOO_LARGE
            if isinstance(resolved, Refusal):
                hopeless.append((waiting, resolved))
            else:
                arrived = waiting.arrived._replace(prefix=()) if keys_are_old else waiting.arrived
                demand = self._demand(arrived, resolved[0])
                self._queue.replace(waiting, waiting.resolved_as(arrived, *resolved, demand))
        return hopeless

    def _demand(self, arrived: Arrived, footprint: Footprint) -> Demand | None:
        """What one who waits will take: whoever comes next waits for that."""
        if self._config.policy is not Policy.LEARNED:
            return None
        return self._learned.demand(arrived, footprint, self._promises.credit(arrived, footprint))
