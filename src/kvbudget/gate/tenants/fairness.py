"""Decides what tenants and classes owe one another: who may be tried now, and what has to stay free then.

Puts `gate.tenants.shares`, `gate.tenants.turns` and `gate.tenants.limits` together. A look goes through every tenant's
first, in fair order. Whoever is held back for its own tenant's sake (a limit, the lane of prompts, what a borrower
leaves free) is passed over, and no other borrower of its class goes before it; of whoever lacks room in the pool
itself, and who may go before that one all the same, decides `gate.waiting.overtaking`.
"""

from collections.abc import Callable
from typing import Final

from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived
from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.gate.tenants.kept import Kept
from kvbudget.gate.tenants.limits import Limits
from kvbudget.gate.tenants.settings import account_name
from kvbudget.gate.tenants.shares import Shares
from kvbudget.gate.tenants.turns import PER_LESS_URGENT, Turns
from kvbudget.gate.waiting.expectation import Expectation
from kvbudget.gate.waiting.queue import Demand, Queue, Waiting
from kvbudget.gate.waiting.why import Why
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.pool.risk import Outlook

AGAIN_NS: Final = 250_000_000  # what is kept fades with time, and what is thought of who lives goes on


class Fairness:
    """State between the tenants of one gate."""

    def __init__(self, config: GateConfig, ledger: Ledger, learned: LearnedPolicy, expectation: Expectation) -> None:
        self.shares = Shares(ledger.capacity_blocks, config.max_num_seqs, config.tenants, config.classes, learned.lane)
        self.limits = Limits(config.tenants) if config.tenants else None
        self.turns = Turns(self.shares.virtual_of, fair=config.fair)
        self._on = config.fair
        self._policy = config.policy
        self._ledger = ledger
        self._learned = learned
        self._expectation = expectation
        # Of the last look:
        self._stopped: tuple[int, float] | None = None  # (class, virtual service) of whom the pool had no room for
        self._borrower_waits: int | None = None  # the most urgent class in which a borrower was passed over
        self.why = Why.TURN  # of whom `allows` held back last

    def configure(self, config: GateConfig) -> None:
        """Other settings of tenants and classes hold from now on, for those that live as well."""
        self._policy = config.policy
        self.shares.configure(config.max_num_seqs, config.tenants, config.classes)
        if self.limits is None:
            self.limits = Limits(config.tenants) if config.tenants else None
        if self.limits is not None:
            self.limits.configure(config.tenants)
            self.share_limits(self.limits)

    def share_limits(self, limits: Limits | None) -> None:
        """Go by these, which other gates go by too; who lives here counts in them."""
        self.limits = limits
        if limits is not None:
            for living in self._ledger:
                limits.gone(living.reservation_id)
                limits.reserved(living.reservation_id, living.tenant, living.peak_blocks)

    @property
    def binds(self) -> bool:
        """Whether there is anybody to be fair to."""
        return self._on and self.shares.counting

    @property
    def is_alone(self) -> bool:
        """Whether one tenant and class are alone, under `learned`."""
        return self._policy is Policy.LEARNED and not self.binds and self.limits is None and self._on

    # What happens

    def arrived(self, event: Arrived, footprint: Footprint, now_ns: int) -> None:
        """A lawful request came. If it is not let in after all, `over` follows."""
        if self.limits is not None:
            self.limits.accepted(event.request_id, event.tenant, _most_tokens(footprint), now_ns)
        if not self._on:
            return
        self.turns.asks(event.priority)
        alone = self.shares.arrived(_account(event), event.priority, now_ns)
        if alone is not None:
            for living in self._ledger:
                tokens = living.footprint.max_new_tokens // 2
                self._ask(alone[0], living.footprint, tokens, tokens * self._ns_per_token, now_ns)
                self._charge(living, alone[1], tokens, tokens * self._ns_per_token, now_ns)
        if self.shares.counting:
            self._ask(_account(event), footprint, *self._expected(event, footprint), now_ns)

    def refusal(
        self, event: Arrived, footprint: Footprint, peak_blocks: int, now_ns: int
    ) -> tuple[Refusal, int] | None:
        """Why its tenant may not ask for so much now, and when to come back (0: never)."""
        if self.limits is None:
            return None
        return self.limits.refusal(event.tenant, _most_tokens(footprint), peak_blocks, now_ns, event.request_id)

    def lacks_word(self, event: Arrived, footprint: Footprint, now_ns: int) -> bool:
        """Whether its tenant's tokens would do, if other gates have taken none meanwhile."""
        return self.limits is not None and self.limits.lacks_word(event.tenant, _most_tokens(footprint), now_ns)

    def never_fits(self, tenant: str, peak_blocks: int) -> bool:
        """Whether its tenant may not have so many blocks at all."""
        return self.limits is not None and self.limits.never_fits(tenant, peak_blocks)

    def forwarded(self, event: Arrived, made: Reservation, now_ns: int) -> None:
        """A promise was made."""
        self.turns.let_in(event.priority)
        if self.limits is not None:
            self.limits.reserved(event.request_id, event.tenant, made.peak_blocks)
        if self.binds:
            self._charge(made, event.priority, *self._expected(event, made.footprint), now_ns)

    @property
    def waits_for_prompts(self) -> bool:
        """Whether somebody may wait until the prompts of others are read."""
        return self._borrower_waits is not None

    def ended(self, living: Reservation, output_tokens: int | None, now_ns: int) -> None:
        """It is over, with so many tokens in all its sequences, None if that is not known."""
        if self.limits is not None:
            made = output_tokens
            if made is None:
                most = living.footprint.max_new_tokens * living.footprint.total_sequences
                made = living.seen_tokens if living.paced else most
            self.limits.used(living.reservation_id, living.footprint.prompt_tokens + made, now_ns)

    def over(self, request_id: str, tokens: int, now_ns: int) -> None:
        """It came to so many tokens, prompt and output; 0: it was never let in."""
        if self.limits is not None:
            self.limits.used(request_id, tokens, now_ns)

    def gone(self, living: Reservation, output_tokens: int | None, now_ns: int) -> None:
        """Its blocks are back; its sequences made so many tokens in all, None if that is not known."""
        if self.limits is not None:
            self.limits.gone(living.reservation_id)
        if self.binds:
            held = None
            if output_tokens is not None:
                held = self._mean_blocks(living.footprint, output_tokens // living.footprint.total_sequences)
            tenant = self.shares.ended(living.reservation_id, held, now_ns)
            if tenant is not None:
                self.turns.moved(tenant)

    def pool_changed(self) -> None:
        """The pool has another size."""
        self.shares.capacity_blocks = max(1, self._ledger.pool_blocks)

    # Decisions

    def look_again_ns(self, now_ns: int) -> int | None:
        """When those who wait should be tried again although nothing has happened; None if time alone lets nobody in.
        It does where somebody was passed over, and by lengths, which tell what those make whom nobody watches."""
        if self._borrower_waits is None and self._policy is not Policy.LEARNED:
            return None
        clear_ns = self._learned.lane.clear_ns(now_ns)
        again_ns = now_ns + AGAIN_NS
        return again_ns if clear_ns is None else min(clear_ns, again_ns)

    def may_overtake(self, event: Arrived) -> bool:
        """Whether a newcomer comes before all whom the pool has no room for."""
        if not self.binds or self.turns.waits(_account(event), event.priority):
            return False
        mine = (event.priority, self.shares.virtual_of(_account(event)))
        return self._stopped is None or mine < self._stopped

    def begin_look(self) -> None:
        """Those who wait are gone through from the start."""
        self._stopped = self._borrower_waits = None

    def allows(
        self, event: Arrived, footprint: Footprint, peak_blocks: int, priority: int, now_ns: int
    ) -> tuple[bool, Kept | None]:
        """(whether it may be tried now, what has to stay free for others). `priority`: the class that it counts in."""
        if self.limits is not None and not self.limits.has_blocks(event.tenant, peak_blocks):
            self.why = Why.TENANT_BLOCKS
            return False, None
        if not self.binds or not len(self._ledger):  # an empty pool keeps nobody waiting
            return True, None
        kept = self.shares.kept_from(_account(event), priority, self._outlook(now_ns), now_ns)
        prompt_tokens = footprint.prompt_tokens * footprint.sequences
        if not self.shares.prompt_may_go(_account(event), priority, prompt_tokens, now_ns):
            self._pass_over(priority)
            self.why = Why.PROMPTS
            return False, kept
        self.why = Why.TURN
        return kept is None or self._borrower_waits is None or priority < self._borrower_waits, kept

    def allows_booked(self, event: Arrived, peak_blocks: int, now_ns: int) -> tuple[bool, Kept | None]:
        """The same for one who comes back when told: it has waited its turn, so that neither the lane of prompts nor
        those who wait hold it up. There are few of them (`gate.refusing.return_pace`)."""
        if self.limits is not None and not self.limits.has_blocks(event.tenant, peak_blocks):
            self.why = Why.TENANT_BLOCKS
            return False, None
        return True, self.kept_from(event, now_ns) if len(self._ledger) else None

    def lacks_room(self, event: Arrived, priority: int, kept: Kept | None) -> bool:
        """There was no room for it; whether the pool has none, or only what others need is in its way."""
        if kept is None:
            self._stopped = (priority, self.shares.virtual_of(_account(event)))
            return True
        self._pass_over(priority)
        return False

    def trusts(self, event: Arrived, now_ns: int) -> bool:
        """Whether it only takes what others borrowed, so that the caution may be less."""
        return self.binds and self.shares.lends(_account(event), event.priority, now_ns)

    def ahead_of(self, event: Arrived, footprint: Footprint, queue: Queue, now_ns: int) -> Demand | None:
        """The demand of all who come before a newcomer."""
        return queue.demand_before(event.priority, self._part_before(event, footprint, queue, now_ns))

    def kept_from(self, event: Arrived, now_ns: int) -> Kept | None:
        """What a newcomer has to leave free."""
        if not self.binds:
            return None
        counts_in = self.turns.urgent_of(event.priority)
        return self.shares.kept_from(_account(event), counts_in, self._outlook(now_ns), now_ns)

    def refused_for(self, event: Arrived, peak_blocks: int, now_ns: int, otherwise: Refusal | None = None) -> Refusal:
        """Why there is no place in the queue. `otherwise`: the reason if its tenant is at no limit of blocks."""
        if self.limits is not None and not self.limits.has_blocks(event.tenant, peak_blocks):
            return Refusal.TENANT_BLOCKS
        if otherwise is not None:
            return otherwise
        borrows = self.binds and self.shares.borrows(_account(event), now_ns)
        return Refusal.TENANT_SHARE if borrows else Refusal.QUEUE_FULL

    def makes_place(self, event: Arrived, tokens: int, queue: Queue) -> Waiting | None:
        """Whom to refuse so that a newcomer gets a place in the full queue: the youngest of the tenant that has most
        of it, by weight, in the least urgent class; None if that is the newcomer. A class that has no more of the queue
        than its turns are worth counts as the most urgent that waits."""
        if not self.binds:
            return None
        weight_of = self.shares.weight_of
        parts = list(queue.parts())
        in_class = {event.priority: tokens}
        for (priority, _), waiting in parts:
            in_class[priority] = in_class.get(priority, 0) + waiting
        little = (queue.tokens + tokens) / PER_LESS_URGENT
        urgent = min(in_class)
        counts_as = {priority: urgent if part <= little else priority for priority, part in in_class.items()}
        own = (queue.tokens_of(event.priority, event.tenant) + tokens) / weight_of(event.tenant)
        most = (counts_as[event.priority], own)
        found = None
        for (priority, tenant), waiting in parts:
            rank = (counts_as[priority], waiting / weight_of(tenant))
            if rank > most:
                most, found = rank, (priority, tenant)
        return None if found is None else queue.at(self.turns.youngest(account_name(found[1], found[0]), found[0]))

    # Parts

    @property
    def _by_lengths(self) -> bool:
        return self._policy is Policy.LEARNED and self._learned.ready

    def _pass_over(self, priority: int) -> None:
        self._borrower_waits = priority if self._borrower_waits is None else min(priority, self._borrower_waits)

    def _outlook(self, now_ns: int) -> Outlook | None:
        if not self._by_lengths:
            return None
        self._learned.refresh(self._ledger, now_ns)
        return self._learned.outlook

    def _part_before(
        self, event: Arrived, footprint: Footprint, queue: Queue, now_ns: int
    ) -> Callable[[int, str, int], float]:
        """Of what one tenant has waiting in one class, how much comes before a newcomer."""
        if not self.binds:
            return lambda priority, tenant, tokens: 1.0
        shares = self.shares
        borrows = shares.borrows(_account(event), now_ns)
        own = queue.tokens_of(event.priority, event.tenant) + footprint.prompt_tokens * footprint.sequences
        own_share = own / shares.weight_of(event.tenant)
        in_class = sum([tokens for (priority, _), tokens in queue.parts() if priority == event.priority])
        more_urgent = sum([tokens for (priority, _), tokens in queue.parts() if priority < event.priority])
        before = PER_LESS_URGENT * (in_class + footprint.prompt_tokens * footprint.sequences) / max(1, more_urgent)

        def part(priority: int, tenant: str, tokens: int) -> float:
            if priority < event.priority:
                return min(1.0, before)  # then it is due
            if tenant == event.tenant:
                return 1.0
            if shares.borrows(account_name(tenant, priority), now_ns) is not borrows:
                return 1.0 if borrows else 0.0
            return min(1.0, own_share * shares.weight_of(tenant) / max(1, tokens))  # they take turns

        return part

    @property
    def _ns_per_token(self) -> float:
        return self._learned.ns_per_step if self._by_lengths else self._expectation.ns_per_token

    def _expected(self, event: Arrived, footprint: Footprint) -> tuple[int, float]:
        """(tokens that each of its sequences will make, how long that takes)."""
        if self._by_lengths:
            tokens = self._learned.expected_tokens(event, footprint)
        else:
            tokens = int(self._expectation.used_share * footprint.max_new_tokens)
        return tokens, tokens * self._ns_per_token

    def _ask(self, tenant: str, footprint: Footprint, tokens: int, lives_ns: float, now_ns: int) -> None:
        self.shares.asked(
            tenant,
            blocks=self._mean_blocks(footprint, tokens),
            sequences=footprint.total_sequences,
            prompt_tokens=footprint.prompt_tokens * footprint.sequences,
            lives_ns=lives_ns,
            now_ns=now_ns,
        )

    def _charge(self, made: Reservation, priority: int, tokens: int, lives_ns: float, now_ns: int) -> None:
        footprint = made.footprint
        self.shares.forwarded(
            made.reservation_id,
            account_name(made.tenant, priority),
            priority,
            blocks=self._mean_blocks(footprint, tokens),
            sequences=footprint.total_sequences,
            prompt_tokens=footprint.prompt_tokens * footprint.sequences,
            lives_ns=lives_ns,
            now_ns=now_ns,
        )

    def _mean_blocks(self, footprint: Footprint, tokens: int) -> float:
        """Held on average while `tokens` are produced."""
        blocks_for = self._ledger.layout.blocks_for
        return sum([blocks_for(prompt + tokens // 2) for prompt in footprint.prompts]) * footprint.sequences


def _account(event: Arrived) -> str:
    return account_name(event.tenant, event.priority)


def _most_tokens(footprint: Footprint) -> int:
    """What it may come to, as it is billed: each prompt once."""
    return footprint.prompt_tokens + footprint.max_new_tokens * footprint.total_sequences
