"""Decides whether one more promise fits beside those that live, and how many blocks all of them need together.

Over one ledger. By which rule: `gate.policies`, or `gate.learning.learned` once enough answers were seen. What has to
stay free meanwhile for other tenants (`gate.tenants.fairness`) and for those who were told to come back
(`gate.refusing.returns`) is left out.
"""

from collections.abc import Sequence
from typing import Final

from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived, SliceChanged
from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.gate.policies import Policy, promise_with, promised_blocks, promised_by_tenant, shared_out
from kvbudget.gate.refusing.returns import Returns
from kvbudget.gate.tenants.fairness import Fairness
from kvbudget.gate.tenants.kept import SPREAD, Kept
from kvbudget.gate.trust import Trust
from kvbudget.gate.waiting.why import Why
from kvbudget.pool.chains import CachedKeys
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.units import Blocks, Tokens

# Progress can let the head of the queue in, but looking for every report would cost more than the room is worth: with
# 900 sequences one look takes a millisecond.
RECHECK_NS: Final = 20_000_000
# Who takes back what others borrowed needs less caution: their answers end, and they leave room for it.
LENDER_CAUTION: Final = 0.3
# So does who comes back when told, of whom there are few at a time: those who come after it wait until it fits again.
BOOKED_CAUTION: Final = 0.3
# Of the pool, that all who live and needed less caution may hold when one more lender comes: with many tenants nearly
# always one borrows, and then all the others would need less.
MOST_DARED: Final = 0.1
_NOBODY: Final = ("", 0)


class Promises:
    """All promises of one gate: those that are made, and whether one more may be."""

    def __init__(
        self, config: GateConfig, ledger: Ledger, learned: LearnedPolicy, fairness: Fairness, returns: Returns
    ) -> None:
        self.cached = CachedKeys()
        self.trust = Trust()
        self._config = config
        self._ledger = ledger
        self._learned = learned
        self._fairness = fairness
        self._returns = returns
        self._lag_steps = config.lag_steps
        # What was shown to suffice when the last one was let in covers every course from then on, so it still does. The
        # same sum made later lets everybody be out of step once more, from where they are seen to be by then.
        # Who is no longer watched goes on in step: an engine queues its tokens and does not wait for readers.
        self._shown: Blocks | None = None
        self.taken_blocks = Blocks(0)  # of the pool, that are not ours to promise for now (`events.RoomTaken`)
        self.elsewhere_blocks = Blocks(0)  # promised by other gates before the same pool (`gate.bank`)
        self.elsewhere_sequences = 0
        self._slice_sequences: int | None = None  # where several gates share the pool; None: all of max_num_seqs
        self.gates = 1  # that share the pool
        self._opens_ns = 0  # nothing of it is ours before, whatever ends
        self._yields_to: int | None = None  # nobody of this class, or less urgent, is let in
        # Of the last look: what is known of the engine's cache, whether it is trusted, and what others have taken.
        self._shares = (0, True, Blocks(0))
        self._daring = _NOBODY  # who was found to fit with less caution, and what it is expected to hold
        self._dared: dict[str, int] = {}  # those that live
        self._dared_blocks = 0
        self._told_free: tuple[int, Blocks] | None = None  # (valid until, free blocks), for what refusals tell

    def configure(self, config: GateConfig) -> None:
        """Decide by other limits from now on."""
        self._config = config
        self._ledger.keep_back(config.margin_blocks)
        self._lag_steps = max(self._lag_steps, config.lag_steps)
        self._shown = None

    @property
    def by_lengths(self) -> bool:
        """Whether learned lengths decide; before enough was seen, `trajectory` does."""
        return self._config.policy is Policy.LEARNED and self._learned.ready

    # One more

    def needed_with(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, kept: Kept | None, now_ns: int, *, booked: bool
    ) -> Blocks | None:
        """What all promises need together with this one; None if there is no room for it beside what is `kept` for
        other tenants. What it shares with those that live is counted once. `booked`: it comes back when told to."""
        self._daring = _NOBODY
        slots = 0 if kept is None else int(kept.slots)
        if not booked and len(self._ledger) and self.by_lengths:  # who would be alone goes all the same
            slots += self._returns.kept_sequences(int(self.part * self._config.max_num_seqs), now_ns)
        if self._yields(event) or not self.has_places(footprint, slots):
            return None
        if not event.prefix:
            return self._needed_with(event, footprint, peak_blocks, kept, now_ns, booked=booked)
        self.offer(event, footprint)
        needed = self._needed_with(event, footprint, peak_blocks, kept, now_ns, booked=booked)
        if needed is None:
            self._ledger.withdraw(event.request_id)
        return needed

    def has_places(self, footprint: Footprint, kept_slots: int = 0) -> bool:
        """Whether all its sequences may run beside those that live, and beside what is kept for others."""
        slots = max(0, kept_slots - self._outside_sequences) if kept_slots else 0
        return self._ledger.sequences + footprint.total_sequences + slots <= self._places

    @property
    def _places(self) -> int:
        most, ours = self._config.max_num_seqs, self._slice_sequences
        return most if ours is None or ours > most else ours

    @property
    def _outside_sequences(self) -> int:
        """Free places beyond ours: what is kept for others may be there as well."""
        return max(0, self._config.max_num_seqs - self.elsewhere_sequences - self._places)

    @property
    def _outside_blocks(self) -> int:
        """The same of blocks."""
        return max(0, self._ledger.pool_blocks - self.elsewhere_blocks - self._ledger.capacity_blocks)

    @property
    def slice(self) -> tuple[int, int]:
        """(blocks, sequences) that are ours to promise."""
        return self._ledger.capacity_blocks, self._places

    def why_no_room(self, event: Arrived, footprint: Footprint, kept: Kept | None) -> Why:
        """What is in the way of one for whom `needed_with` gave None."""
        if self._yields(event):
            return Why.TURN
        if self._ledger.sequences + self.elsewhere_sequences + footprint.total_sequences > self._config.max_num_seqs:
            return Why.SEQUENCES
        return Why.POOL if kept is None else Why.TENANT_SHARE

    def _yields(self, event: Arrived) -> bool:
        return self._yields_to is not None and event.priority >= self._yields_to

    def are_due(self, now_ns: int) -> bool:
        """Whether reckoning what is kept for those who come back would change what is known of them."""
        return self._returns.is_due(now_ns)

    def is_still_full(self, event: Arrived, now_ns: int) -> bool:
        """Whether it is clear that `needed_with` would give None for one who needs to keep nothing for others.

        There may be more room where the engine told of its cache, it is trusted again, or others have taken less.
        """
        if not self.by_lengths:
            return False
        shares = self.cached.changes, self.trust.given, self.taken_blocks
        if shares != self._shares:
            self._shares = shares
            self._learned.forget_full()
            return False
        return self._learned.is_still_full(self._ledger, event, now_ns)

    def _needed_with(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, kept: Kept | None, now_ns: int, *, booked: bool
    ) -> Blocks | None:
        ledger = self._ledger
        # Who would be alone goes all the same: the engine itself makes it wait, and nothing of ours could. Of a pool
        # that several share the bank has taken it off already.
        taken = self.taken_blocks if len(ledger) and ledger.slice_blocks is None else 0
        outside = self._outside_blocks
        others = taken if kept is None else taken + max(0, int(kept.most(SPREAD)) - outside)
        if self.by_lengths:
            sum_of_peaks = Blocks(ledger.peak_sum_blocks + peak_blocks)
            if sum_of_peaks + others <= ledger.capacity_blocks:
                return sum_of_peaks
            trusted = kept is None and self._fairness.trusts(event, now_ns)
            dares = booked or trusted
            # Of a pool that several share each keeps for those whom it told to come, of its part.
            most = int(self.part * ledger.pool_blocks)
            coming = 0 if dares else max(0, self._returns.kept_blocks(most, now_ns) - outside)
            kept = kept if kept is None or not outside else kept.less(outside)
            by_lengths = self._learned.promise_with(ledger, event, footprint, coming + taken, now_ns, kept)
            if by_lengths is None and dares:
                return self._dare(event, footprint, taken, now_ns, kept, booked=booked)
            return by_lengths
        needed = self.by_peaks(event, footprint, peak_blocks)
        return needed if needed is None or needed + others <= ledger.capacity_blocks else None

    def by_peaks(self, event: Arrived, footprint: Footprint, peak_blocks: Blocks) -> Blocks | None:
        """What all need with this one where limits decide, None if that is more than the capacity."""
        return promise_with(
            self._config.policy,
            self._ledger,
            footprint,
            peak_blocks,
            paced=_can_be_watched(event, footprint),
            skew_steps=self._skew_with(footprint.prompt_tokens),
            request_id=event.request_id,
        )

    def _dare(
        self, event: Arrived, footprint: Footprint, taken: int, now_ns: int, kept: Kept | None, *, booked: bool
    ) -> Blocks | None:
        """With less caution."""
        ledger, learned = self._ledger, self._learned
        size = learned.size(ledger, event, footprint, ledger.offered_blocks, now_ns)
        if not booked and self._dared and self._dared_blocks + size > MOST_DARED * ledger.capacity_blocks:
            return None
        self._daring = (event.request_id, size)
        caution = BOOKED_CAUTION if booked else LENDER_CAUTION
        return learned.promise_with(ledger, event, footprint, taken, now_ns, kept, caution)

    def credit(self, event: Arrived, footprint: Footprint) -> Blocks:
        """Blocks of it that would not be charged now, as others hold them."""
        if not event.prefix:
            return Blocks(0)
        credit = self.offer(event, footprint)
        self._ledger.withdraw(event.request_id)
        return credit

    def withdraw(self, event: Arrived) -> None:
        """It is not let in, although there is room."""
        if event.prefix:
            self._ledger.withdraw(event.request_id)

    def offer(self, event: Arrived, footprint: Footprint) -> Blocks:
        """Reckon with what it shares, until it is let in or `withdraw`."""
        proved = self.cached.longest(event.prefix)
        return self._ledger.offer(event.request_id, footprint, event.prefix, proved=proved, trusted=self.trust.given)

    # Those that are made

    def make(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, needed: Blocks, now_ns: int
    ) -> Reservation:
        """Promise it. `needed` is what `needed_with` gave for it."""
        self._told_free = None
        self._shown = needed
        daring, self._daring = self._daring, _NOBODY
        if daring[0] == event.request_id:
            self._dared[daring[0]] = daring[1]
            self._dared_blocks += daring[1]
        return self._ledger.reserve(
            event.request_id,
            event.tenant,
            footprint,
            paced=_can_be_watched(event, footprint),
            now_ns=now_ns,
            peak_blocks=peak_blocks,
        )

    def lose_pace(self, request_id: str) -> Reservation:
        """Its tokens are no longer seen."""
        self._told_free = None
        return self._ledger.lose_pace(request_id)

    def take_back(self, request_id: str) -> Reservation:
        """Its blocks are free again."""
        self._told_free = None
        if self._dared:
            self._dared_blocks -= self._dared.pop(request_id, 0)
        charged_again = self._ledger.charged_again
        ended = self._ledger.end(request_id)
        if self._ledger.charged_again != charged_again:
            self._shown = None
        return ended

    def was_behind(self, steps: int) -> None:
        """So many tokens of one were not seen until it ended: that far our view of a sequence can be behind it."""
        if steps > self._lag_steps:
            self._lag_steps = steps
            self._shown = None

    def found(self, request_id: str, cached_tokens: Tokens) -> bool:
        """The engine told how much of a prompt it reused; whether less is charged now."""
        rise = self._ledger.found(request_id, cached_tokens)
        if rise > 0:
            self._guessed_wrong()
        return rise < 0

    def overflowed(self) -> None:
        """The engine ran out of blocks. All of it fitted by our reckoning, so what we believe to be shared is not."""
        if self._ledger.shared_prefix_blocks:
            self._ledger.end_credits()
            self._guessed_wrong()

    def _guessed_wrong(self) -> None:
        self.trust.wrong()
        self._shown = None
        self._told_free = None

    def hold_in_common(self, name: str, keys: Sequence[int], most_blocks: Blocks, now_ns: int) -> bool:
        """These leading keys of prompts are paid for elsewhere from now on (`gate.bank.commons`), unless all promises
        would need more than so many blocks even so; whether it is so."""
        shown, self._shown = self._shown, None
        self._ledger.hold_in_common(name, keys)
        if self.blocks(now_ns) > most_blocks:
            self._ledger.pay_again(name)
            self._shown = shown
            return False
        self._told_free = None
        return True

    def pay_again(self, name: str) -> None:
        """They are charged here again."""
        self._ledger.pay_again(name)
        self._shown = None
        self._told_free = None

    def pay_again_within(self, name: str, most_blocks: int, now_ns: int) -> None:
        """The same, unless all promises would need more than so many blocks."""
        keys, shown = self._ledger.commons[name], self._shown
        self.pay_again(name)
        if self.blocks(now_ns) > most_blocks:
            self._ledger.hold_in_common(name, keys)
            self._shown = shown

    def room_taken(self, blocks: Blocks) -> bool:
        """So many are not ours to promise; whether that leaves more than before."""
        before, self.taken_blocks = self.taken_blocks, blocks
        self._told_free = None
        return blocks < before

    def slice_changed(self, event: SliceChanged) -> bool:
        """Of a pool that several share, so much is ours; whether one may be let in by that who was not before."""
        ledger = self._ledger
        more = event.blocks > (ledger.slice_blocks or 0) or event.sequences > (self._slice_sequences or 0)
        yielded = self._yields_to
        more = more or (yielded is not None and (event.yields_to is None or event.yields_to > yielded))
        self._yields_to, self.gates = event.yields_to, event.gates
        self._slice_sequences, self.elsewhere_sequences = event.sequences, event.sequences_elsewhere
        self.elsewhere_blocks = event.elsewhere
        self._opens_ns = 0 if event.blocks else event.opens_ns
        if event.blocks != ledger.slice_blocks:
            ledger.allow(event.blocks)
        self._told_free = None
        self._learned.part = self.part
        return more

    def slice_lost(self) -> None:
        """Nothing of it is ours any more."""
        self._slice_sequences = 0
        self._ledger.allow(Blocks(0))
        self._told_free = None

    def closed_ns(self, now_ns: int) -> int:
        """For how long still nothing of the pool is ours, whatever ends in it; 0: it is open."""
        return self._opens_ns - now_ns if self._opens_ns > now_ns else 0

    @property
    def part(self) -> float:
        """The part of the pool that is this gate's as things go, for forecasts: who waits for room waits for that which
        becomes free at all gates, beside those who wait there. They are taken to be as here."""
        ours, elsewhere = self._ledger.capacity_blocks, self.elsewhere_blocks
        return max(1.0 / self.gates, ours / (ours + elsewhere)) if elsewhere else 1.0

    def lower_slice(self, blocks: Blocks, sequences: int, now_ns: int) -> None:
        """At most so much of it is ours from now on. What our promises need by now has to go on being enough."""
        ledger = self._ledger
        if not self.by_lengths:
            self._shown = self.blocks(now_ns)
        self._slice_sequences = min(sequences, self._places)
        if blocks < ledger.capacity_blocks:
            ledger.allow(blocks)

    def pool_changed(self, *, still_holds: bool) -> None:
        """The pool was told anew. `still_holds`: with the layout that it had, and no fewer blocks."""
        if not still_holds:
            self._shown = None
        self._told_free = None

    # All together

    def blocks(self, now_ns: int) -> Blocks:
        """Blocks that all promises need at their worst common moment.

        Where limits decide: never less than the engine can come to hold. Under `learned`: what will be enough but for
        the risk that is taken, by what is believed of each.

        At most the capacity, unless the pool shrank, its layout changed, sequences turned out to be further out of step
        than was thought when they were let in, or what was believed to be shared is not. Under `learned` also when
        answers go on for longer than was foreseen, or some were let in with less caution. Then nobody is let in until
        it fits again.
        """
        if self.by_lengths:
            return min(self._ledger.peak_sum_blocks, self._learned.promised(self._ledger, now_ns))
        anew = promised_blocks(self._config.policy, self._ledger, self.skew_steps)
        return anew if self._shown is None else min(anew, self._shown)

    def by_tenant(self, now_ns: int) -> dict[str, Blocks]:
        """The same, by tenant; the sum is `blocks`."""
        by_tenant = promised_by_tenant(self._config.policy, self._ledger, self.skew_steps)
        return shared_out(by_tenant, self.blocks(now_ns))

    def free_blocks(self, now_ns: int) -> Blocks:
        """Blocks of the pool that are not promised, nor taken by others."""
        promised = self.blocks(now_ns) + self.elsewhere_blocks
        return Blocks(max(0, self._ledger.pool_blocks - self.taken_blocks - promised))

    def free_to_tell(self, now_ns: int) -> Blocks:
        """`free_blocks`, at most RECHECK_NS old as to progress: a storm of refusals must be cheap."""
        if self._told_free is None or self._told_free[0] <= now_ns:
            self._told_free = (now_ns + RECHECK_NS, self.free_blocks(now_ns))
        return self._told_free[1]

    @property
    def skew_steps(self) -> int:
        """How far sequences may be out of step with one another: outstanding prefill, and reports under way."""
        return self._skew_with(0)

    def _skew_with(self, more_prompt_tokens: int) -> int:
        waiting_for_prefill = self._ledger.unseen_prompt_tokens + more_prompt_tokens
        return -(-waiting_for_prefill // self._config.prefill_tokens_per_step) + self._lag_steps


def _can_be_watched(event: Arrived, footprint: Footprint) -> bool:
    """Whether its course is known: its tokens are reported, its prompt is counted, and it is one sequence."""
    return event.paced and event.exact and footprint.total_sequences == 1
