"""Decides when the gate that shares its pool talks to the bank, and what the answer means for it.

Each driver (gateway, simulator, tests) asks `due` after what it gave the gate, sends the call that it gets, and gives
the answer to `heard`. While nothing is short that is a few calls a second; when requests wait, with every change.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kvbudget.gate.bank.branch import Branch, Stand
from kvbudget.gate.bank.commons import Commons
from kvbudget.gate.bank.terms import BLOCKS, SEQUENCES, TENANT, TOKENS, Answer, Call, Reading
from kvbudget.gate.bank.whole_pool import is_held_back, needed_of_pool
from kvbudget.gate.events import Arrived, SliceChanged
from kvbudget.gate.gate import Gate
from kvbudget.gate.tenants.settings import ALL_OTHERS, limits_of
from kvbudget.units import Blocks

GAP_NS: Final = 1_000_000  # between two calls
TIDY_NS: Final = 50_000_000  # by then the bank knows of what changed while nothing was short
BEAT_NS: Final = 10**9  # so often at least: what others have promised is told that old
BACK_OFF_NS: Final = 100_000_000  # after a call that failed
ASK_AGAIN_NS: Final = 250_000_000  # well within `bank.ASK_MS`
# What is kept at hand for those who come next, as a part of what is promised and of all there is. More means fewer
# calls, and more that lies idle until another gate's lack is known.
_RESERVE_OF_PROMISED: Final = 0.125
_RESERVE_OF_ALL: Final = 0.01
_CAME_BACK_NS: Final = 30 * 10**9  # who comes when told has waited already: at the bank so much longer than others
_MOST_TENANTS: Final = 64  # with limits of their own, in one call


class _Ask(NamedTuple):
    """What the first that waits, or one who is about to come, needs to be let in, with all that is promised."""

    blocks: int
    sequences: int
    priority: int
    since_ns: int


class Replica:
    """One gate of several before the same pool."""

    def __init__(self, gate: Gate, branch: Branch, now_ns: int, *, tells_tenants: bool = True) -> None:
        """`tells_tenants`: what tenants have reserved; where one gate has several engines, only one of them does."""
        self.gate = gate
        self.tells_tenants = tells_tenants
        self.branch = branch
        self.commons = Commons(gate, branch)
        until_ns = now_ns + branch.lease_ns
        self.first = SliceChanged(Blocks(0), 0, until_ns, Blocks(0), settling=True, opens_ns=until_ns)
        self._next_ns = now_ns  # when to call, if nothing happens before
        self._last_ns = now_ns - GAP_NS
        self._told: tuple[tuple[int, int], str | None] | None = None
        self._is_changed = False  # since that, as far as was looked
        self._not_before_ns = now_ns
        self._knew_short = False  # at the last call
        self._woken = False  # while a call was under way, or too soon after one that failed
        self._asked = ("", 0)  # for whom, in the last call, and how much
        self._held_back = False  # who waits has to leave room for others, which fades with time
        self._more = 0  # how often that was granted and was not enough
        self._coming: _Ask | None = None
        self._looked: tuple[int, int, int] | None = None  # (blocks, sequences, when) by the engine's word
        self._retry_ns = min(branch.lease_ns // 8, 10**9)  # a call is given up after that, and made again

    @property
    def next_wake_ns(self) -> int:
        """When to ask `due` again, if nothing happens before."""
        since_ns = self.branch.waits_since_ns
        if since_ns is not None:
            return since_ns + self._retry_ns
        return self._next_ns if self._next_ns > self._not_before_ns else self._not_before_ns

    @property
    def promised_elsewhere(self) -> Blocks:
        """Blocks that all other gates have promised, by their last word."""
        return Blocks(self.branch.elsewhere.get(BLOCKS, 0))

    @property
    def sequences_elsewhere(self) -> int:
        """Sequences of theirs."""
        return self.branch.elsewhere.get(SEQUENCES, 0)

    def due(self, now_ns: int) -> Call | None:
        """The call that is to be made now, if any."""
        branch = self.branch
        if branch.waits_since_ns is not None:
            if now_ns < branch.waits_since_ns + self._retry_ns:
                return None
            branch.failed()
            self._next_ns = now_ns
        if (
            self._is_changed
            and now_ns < self._next_ns
            and not (branch.short or self._woken or self.gate.queue.in_order)
        ):
            return None  # a call that is not urgent is made soon, and tells of whatever comes until then
        told = self._state()
        if told != self._told:
            self._is_changed = True
            urgent = told[1] is not None or branch.short
            self._next_ns = min(self._next_ns, self._last_ns + (GAP_NS if urgent else TIDY_NS))
        if told[1] is not None and told[1] == self._asked[0] and self._asked[1] <= branch.slices.get(BLOCKS, 0):
            self._next_ns = min(self._next_ns, self._last_ns + TIDY_NS)  # it got what it asked for, and needs more
        if self._woken:
            branch.short, self._woken = True, False
        if branch.short and not self._knew_short:  # what lies idle is to be given back
            self._next_ns = min(self._next_ns, self._last_ns + GAP_NS)
        return self._call(now_ns) if now_ns >= max(self._next_ns, self._not_before_ns) else None

    def looked(self, held: Blocks, sequences: int, looked_ns: int) -> None:
        """The engine's own word of what it holds, and runs or lets wait, for all gates; what came another way aside."""
        self._looked = (held, sequences, looked_ns)
        if self.branch.missing:
            self._next_ns = looked_ns  # others may wait for that

    def called(self, now_ns: int) -> Call | None:
        """The bank wants to hear of it: another gate lacks something, or what this one asked for is there."""
        if self.is_calling or now_ns < self._not_before_ns:
            self._woken = True
            return None
        self.branch.short = True
        return self._call(now_ns)

    @property
    def is_calling(self) -> bool:
        """Whether a call is under way."""
        return self.branch.waits_since_ns is not None

    def lacks_slice(self, event: Arrived, now_ns: int) -> bool:
        """Whether one who comes would have to wait for no other reason than that our slice is small, and more of the
        pool may be had at once."""
        return self._ask_for(event, now_ns) is not None

    def lacks_word(self, event: Arrived, now_ns: int) -> bool:
        """Whether its tenant's tokens would do, and only what other gates have taken meanwhile is not known."""
        return now_ns >= self._not_before_ns and _ask_for_word(self.gate, event, now_ns) is not None

    def call_for(self, events: Sequence[Arrived], now_ns: int) -> Call | None:
        """The call to make before these are given to the gate; None if that would be in vain."""
        ask = None if self.is_calling else self._ask_for(events[0], now_ns)
        if ask is None:
            return None
        for event in events[1:]:
            resolved = self.gate.resolver.resolve(event)
            if isinstance(resolved, tuple):
                footprint, peak_blocks = resolved
                ask = ask._replace(blocks=ask.blocks + peak_blocks, sequences=ask.sequences + footprint.total_sequences)
        self._coming = ask
        call = self._call(now_ns)
        self._coming = None
        return call

    def heard(self, answer: Answer, now_ns: int) -> SliceChanged | None:
        """What to tell the gate after the bank answered; None: it was too late."""
        if not self.branch.heard(answer, now_ns):
            return None
        self.commons.confirmed()
        return self._slice()

    def failed(self, call: Call, now_ns: int) -> None:
        """A call was not answered; the next one is made after a pause."""
        self.branch.failed(call.number)
        self._next_ns = self._not_before_ns = now_ns + BACK_OFF_NS

    def alone(self, now_ns: int) -> SliceChanged:
        """What to go by without a bank, if that is wanted: an equal part of the pool. The parts of all gates are no
        more than the pool, but what they have promised so far may be."""
        parts = max(1, self.branch.branches)
        self.commons.pay_all_again()
        until_ns = now_ns + 2 * (BACK_OFF_NS + self._retry_ns)
        blocks = Blocks(self.gate.ledger.pool_blocks // parts)
        return SliceChanged(blocks, self.gate.config.max_num_seqs // parts, until_ns, self.promised_elsewhere)

    def leave(self, now_ns: int) -> Call:
        """The last call: everything is given up. Nobody may live any more."""
        self.gate.lower_slice(Blocks(0), 0)
        return self.branch.leave(now_ns)

    @property
    def overdrawn_blocks(self) -> int:
        """More is promised than the bank gave back to one that it had forgotten: so many blocks have to be freed."""
        return max(0, self.gate.promised_blocks() - self.branch.slices.get(BLOCKS, 0))

    def _slice(self) -> SliceChanged:
        slices = self.branch.slices
        blocks, sequences = Blocks(slices.get(BLOCKS, 0)), slices.get(SEQUENCES, 0)
        return SliceChanged(
            blocks,
            sequences,
            self.branch.until_ns,
            self.promised_elsewhere,
            self.sequences_elsewhere,
            self.branch.yields_to,
            max(1, self.branch.branches),
            self._elsewhere_of(TENANT) if self.tells_tenants else None,
            self._elsewhere_of(TOKENS) if self.tells_tenants else None,
            self.branch.settling,
            self.branch.opens_ns,
        )

    def _elsewhere_of(self, prefix: str) -> dict[str, int]:
        told = self.branch.elsewhere.items()
        return {account.removeprefix(prefix): amount for account, amount in told if account.startswith(prefix)}

    def _tenants(self, now_ns: int) -> list[Stand]:
        """Of those whose blocks are limited: all that are named, and who has some here or waits. Of those whose tokens
        are: who has taken some that have not come back, and all that are named. Nobody is lent tokens, so the bank need
        know of no limit."""
        limits = self.gate.fairness.limits
        if limits is None or not self.tells_tenants:
            return []
        blocks, named = limits.reserved_by_tenant(), self.gate.config.tenants
        names = dict.fromkeys((*blocks, *named, *[waiting.arrived.tenant for waiting in self.gate.queue]))
        names.pop(ALL_OTHERS, None)
        stands: list[Stand] = []
        for tenant in names:
            most = limits_of(tenant, named).max_blocks
            if most is not None and len(stands) < _MOST_TENANTS:
                reserved = blocks.get(tenant, 0)
                stands.append(Stand(TENANT + tenant, most, reserved, reserved, 0, told_only=True))
        for tenant, (taken, _) in limits.taken_by_tenant(now_ns, _MOST_TENANTS).items():
            stands.append(Stand(TOKENS + tenant, 0, taken, taken, 0, told_only=True))
        return stands

    def _state(self) -> tuple[tuple[int, int], str | None]:
        """What a call would tell of, roughly: it changes whenever that may."""
        head = self.gate.first_waiting()
        ledger, limits = self.gate.ledger, self.gate.fairness.limits
        changes = ledger.changes - ledger.allowances  # what the bank itself changed is no news to it
        of_tenants = 0 if limits is None or not self.tells_tenants else limits.changes
        return (changes, of_tenants), None if head is None else head.arrived.request_id

    def _call(self, now_ns: int) -> Call:
        gate, branch = self.gate, self.branch
        coming = self._coming
        if not branch.is_lost(now_ns):
            self.commons.review(now_ns, is_short=branch.short or coming is not None or bool(gate.queue))
        ask = coming if coming is not None and coming.sequences else self._first_waiting(now_ns)
        asked = ask or _Ask(0, 0, 0, now_ns)
        ledger = gate.ledger
        blocks, sequences = self._promised_blocks(asked.blocks, now_ns), ledger.sequences
        needs_blocks, needs_sequences = max(blocks, asked.blocks), max(sequences, asked.sequences)
        alone = not blocks and not branch.elsewhere.get(BLOCKS, 0)  # then what others took of it is not our business
        limit = ledger.pool_blocks - (0 if alone else gate.promises.taken_blocks)
        most = gate.config.max_num_seqs
        stands = [
            Stand(
                BLOCKS,
                limit,
                blocks,
                min(needs_blocks, ledger.pool_blocks),
                _reserve(blocks, limit),
                claims=self.commons.given_up_blocks,
            ),
            Stand(SEQUENCES, most, sequences, min(needs_sequences, most), _reserve(sequences, most)),
            *self._tenants(now_ns),
            *self.commons.stands(),
        ]
        self._told, self._is_changed = self._state(), False
        self._last_ns = now_ns
        self._knew_short = branch.short
        beat_ns = min(branch.lease_ns // 3, BEAT_NS)
        self._next_ns = now_ns + (ASK_AGAIN_NS if ask is not None or branch.short or self._held_back else beat_ns)
        reading = None
        if self._looked is not None:
            held, there, looked_ns = self._looked
            reading = Reading(held, there, -(-(now_ns - looked_ns) // 10**6))
        waited_ns = now_ns - asked.since_ns
        call = branch.call(stands, now_ns, priority=asked.priority, waited_ns=waited_ns, reading=reading)
        if not branch.is_lost(now_ns):  # otherwise the gate knows it by itself, or goes by a part of its own (`alone`)
            gate.lower_slice(Blocks(branch.slices.get(BLOCKS, 0)), branch.slices.get(SEQUENCES, 0))
        return call

    def _ask_for(self, event: Arrived, now_ns: int) -> _Ask | None:
        """What to ask for one who comes; None where it does not lack our slice, or asking would be in vain now."""
        if now_ns < self._not_before_ns:
            return None
        in_vain = self.branch.short or self.branch.settling or self.gate.queue.in_order
        ask = None if in_vain else _ask_of(self.gate, event, now_ns)
        if ask is not None or self.gate.fairness.limits is None:
            return ask
        return _ask_for_word(self.gate, event, now_ns)

    def _promised_blocks(self, asked_blocks: int, now_ns: int) -> Blocks:
        """While there is plenty for all, the sum of all peaks: it is never less than what is promised. What learned
        lengths say of the living has to be kept up to date with every request once it was asked for, which takes a
        third of a gate's time."""
        ledger = self.gate.ledger
        peaks = ledger.peak_sum_blocks
        most = max(peaks, asked_blocks)
        if self.branch.is_lost(now_ns):  # what is kept from here on has to be enough for all that they may come to
            return peaks
        if not self.branch.short and 2 * most <= ledger.pool_blocks - self.promised_elsewhere:
            return peaks
        return self.gate.promised_blocks()

    def _first_waiting(self, now_ns: int) -> _Ask | None:
        """What the first that waits lacks. Where what was granted was not enough after all, as time went on: a little
        more every time."""
        waiting = self.gate.first_waiting()
        self._held_back = False
        if waiting is None:
            self._asked, self._more = ("", 0), 0
            return None
        arrived, ledger = waiting.arrived, self.gate.ledger
        if self._asked[0] != arrived.request_id:
            self._more = 0
        elif self._asked[1] <= self.branch.slices.get(BLOCKS, 0):
            self._more += 1
        needed = needed_of_pool(self.gate, arrived, waiting.footprint, waiting.peak_blocks, now_ns, sparing=True)
        more = self._more * max(1, waiting.peak_blocks // 16)
        if is_held_back(self.gate, waiting, needed, now_ns):
            self._asked, self._held_back = ("", 0), True
            return None
        most = ledger.peak_sum_blocks + waiting.peak_blocks
        blocks = most if needed is None else min(needed + more, most)
        self._asked = (arrived.request_id, blocks)
        sequences = ledger.sequences + waiting.footprint.total_sequences
        since_ns = waiting.since_ns - (_CAME_BACK_NS if waiting.booked else 0)
        return _Ask(blocks, sequences, arrived.priority, since_ns)


def _ask_of(gate: Gate, event: Arrived, now_ns: int) -> _Ask | None:
    """What one who comes needs, if it could go at once but for our slice."""
    resolved = gate.resolver.resolve(event)
    if not isinstance(resolved, tuple):
        return None
    footprint, peak_blocks = resolved
    ledger = gate.ledger
    if ledger.peak_sum_blocks + peak_blocks <= ledger.capacity_blocks and gate.promises.has_places(footprint):
        return None  # whatever it may wait for, our slice is not it
    is_plenty = 2 * (ledger.peak_sum_blocks + peak_blocks) <= ledger.pool_blocks - gate.promises.elsewhere_blocks
    if not is_plenty and gate.trial.room_for(event, footprint, peak_blocks, now_ns) is not None:
        return None
    needed = needed_of_pool(gate, event, footprint, peak_blocks, now_ns)
    if needed is None:
        return None
    return _Ask(needed, ledger.sequences + footprint.total_sequences, event.priority, now_ns)


def _ask_for_word(gate: Gate, event: Arrived, now_ns: int) -> _Ask | None:
    """Where the other gates are to be heard of before its tenant may take more tokens: a call without more."""
    resolved = None if gate.fairness.limits is None else gate.resolver.resolve(event)
    if isinstance(resolved, tuple) and gate.fairness.lacks_word(event, resolved[0], now_ns):
        return _Ask(0, 0, event.priority, now_ns)
    return None


def _reserve(promised: int, limit: int) -> int:
    return max(1, int(_RESERVE_OF_PROMISED * promised), int(_RESERVE_OF_ALL * limit))
