"""Decides what each that lives is believed to hold, now and over time, and keeps the sums of that up to date.

The sums are a `pool.risk.Outlook`; here is who they are made of: how far each is by now, how likely it is to go on, and
what of it others hold as well. A step is one decode step of the engine (`gate.learning.pace`).
"""

from typing import Final

from kvbudget.gate.events import Arrived
from kvbudget.gate.learning.hindsight import Hindsight
from kvbudget.gate.learning.lengths import Habit, tell_lived
from kvbudget.gate.learning.overlap import Overlap
from kvbudget.gate.learning.pace import Pace
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import Layout
from kvbudget.pool.growth import Growth
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.pool.risk import EPOCH_STEPS, Outlook
from kvbudget.pool.share import Share
from kvbudget.pool.survival import Survival
from kvbudget.units import Tokens

_EPOCH_NS: Final = 250_000_000
# How often the habits are told of one that lives: every so many tokens, later every such part of what it has.
_FIRST_MARK: Final = 8
_MARKS: Final = 4
_FOR_EVER: Final = 1 << 40  # steps
_PAUSE_STEPS: Final = 24  # behind the others by more than that: it was preempted, or its prompt took long


class Tracked:
    """What is kept of one living promise."""

    __slots__ = (
        "habit", "habits", "known_tokens", "limit", "lived", "next_mark", "number", "sequences",
        "share", "start_step",
    )  # fmt: skip

    def __init__(
        self, number: int, habits: tuple[Habit, ...], known_tokens: Tokens | None, footprint: Footprint,
        start_step: int,
    ) -> None:  # fmt: skip
        self.number = number  # in the order in which they were promised
        self.habits = habits
        self.habit = habits[-1]  # the one to ask
        self.known_tokens = known_tokens
        self.limit: int = footprint.max_new_tokens if known_tokens is None else known_tokens
        self.sequences = footprint.total_sequences
        self.start_step = start_step  # the step before its first token
        self.lived = 0  # tokens told to the habits
        self.next_mark = 1  # tokens at which they are told more
        self.share: Share | None = None  # its part of the outlook, which is not made again with every epoch

    def tell(self, made: int) -> None:
        """Tell the habits of all tokens up to the `made`-th."""
        if made > self.lived:
            tell_lived(self.habits, self.lived, made)
            self.lived = made
        self.next_mark = made + max(_FIRST_MARK, made // _MARKS)


class Batch:
    """All that live under one gate, as far as `learned` knows them."""

    def __init__(self, layout: Layout) -> None:
        self.pace = Pace()
        self.overlap = Overlap()
        self.outlook = Outlook()
        self.hindsight = Hindsight()
        self.growth = Growth(layout)
        self.tracked: dict[str, Tracked] = {}
        self._newest = 0  # number of the last one
        self._fresh_until_ns = 0
        self._stale = True

    # Who comes, goes on and goes

    def add(self, event: Arrived, made: Reservation, habits: tuple[Habit, ...], now_ns: int) -> None:
        """A promise was made."""
        if not self.tracked:
            self.pace.begin(now_ns)
        self._newest += 1
        tracked = Tracked(self._newest, habits, event.known_tokens, made.footprint, self.pace.step)
        self.tracked[made.reservation_id] = tracked
        outlook = self.outlook
        if self._stale or now_ns >= self._fresh_until_ns or self.pace.step - outlook.epoch >= EPOCH_STEPS:
            return  # the next look makes all shares anew
        outlook.add(made.reservation_id, self._share(made, tracked, made.credit_blocks, outlook.now - outlook.epoch))

    def progressed(self, living: Reservation, new_tokens: int, now_ns: int) -> None:
        """Tokens of a watched one were seen, and are counted in `living` already."""
        tracked = self.tracked.get(living.reservation_id)
        if tracked is None:  # it was cut off, and its last tokens come late
            return
        pace, seen = self.pace, living.seen_tokens
        is_first = seen <= new_tokens and living.first_seen_ns == now_ns
        if is_first or tracked.start_step + seen < pace.step - _PAUSE_STEPS:  # or it stood still
            tracked.start_step = pace.step - seen
        elif tracked.start_step + seen > pace.step:
            pace.advance(tracked.start_step + seen - pace.step, now_ns)
            self.outlook.now = pace.step
        if seen >= tracked.next_mark:
            tracked.tell(seen)

    def pace_lost(self, living: Reservation) -> None:
        """From now on its tokens are one a step."""
        tracked = self.tracked.get(living.reservation_id)
        if tracked is not None and living.seen_tokens:
            tracked.start_step = self.pace.step - living.seen_tokens

    def gone(self, reservation_id: str) -> None:
        """Its blocks are back."""
        self.outlook.discard(reservation_id)
        if reservation_id in self.tracked:  # it ended under another policy
            del self.tracked[reservation_id]

    def pool_changed(self, layout: Layout) -> None:
        """Blocks are counted otherwise from now on."""
        self.growth = Growth(layout)
        self.hindsight.forget()
        self._stale = True

    # The outlook

    def refresh(self, ledger: Ledger, now_ns: int) -> None:
        """Everybody's share anew, if the grid has become old: once in EPOCH_STEPS."""
        if not self.is_old(ledger, now_ns):
            return
        outlook, step = self.outlook, self.pace.step
        self._stale = False
        self._fresh_until_ns = now_ns + _EPOCH_NS
        outlook.begin(step)
        hindsight = self.hindsight
        judging, held = hindsight.due(step), 0.0
        any_prefix = ledger.prefixes.held_keys > 0
        for living in ledger:
            name = living.reservation_id
            tracked = self.tracked.get(name)
            is_new = tracked is None or tracked.share is None
            share = self._share(living, tracked, ledger.common_blocks(name) if any_prefix else 0, 0)
            if is_new:
                outlook.add(name, share)
            else:
                outlook.count(share)
            if judging and tracked is not None and tracked.number <= hindsight.newest:
                held += share.held
        if judging:
            hindsight.judge(step, held)
        hindsight.foretell(step, outlook, self._newest)

    def is_old(self, ledger: Ledger, now_ns: int) -> bool:
        """Whether `refresh` would make all shares anew; if not, the outlook is that of now."""
        if self._fresh_until_ns <= now_ns and not any(living.paced for living in ledger):
            self.pace.go_on(now_ns)
        outlook, step = self.outlook, self.pace.step
        outlook.now = step
        return self._stale or step - outlook.epoch >= EPOCH_STEPS or now_ns >= self._fresh_until_ns

    def together(self, ledger: Ledger) -> int:
        """Blocks that several hold and that are in nobody's share: held for as long as anybody lives.

        What shares leave out is either saved or one of these; below 0 where more turned out to be shared than that.
        """
        return self.outlook.shared + ledger.offered_blocks - ledger.shared_prefix_blocks

    def newcomer(self, event: Arrived, footprint: Footprint, survival: Survival | None, common: int) -> Share:
        """The share that one more would have, beside `common` blocks that others hold too. No `survival`: its length
        is known."""
        limit = footprint.max_new_tokens if event.known_tokens is None else event.known_tokens
        many = footprint.total_sequences
        held = self.held(footprint, 0) - self.overlap.own * common
        offset = self.outlook.now - self.outlook.epoch
        return Share(survival, 0, limit, held, self.growth.per_token * many, many, offset)

    def _share(self, living: Reservation, tracked: Tracked | None, common: int, offset: int) -> Share:
        """Its part `offset` steps from the epoch on. `common`: blocks that others hold as well, and that it leaves
        out."""
        footprint = living.footprint
        if tracked is None:  # cut off, or promised under another policy: nothing is known, it may stay at its peak
            share = Share(
                None, 0, _FOR_EVER, float(living.peak_blocks - common), 0.0, footprint.total_sequences, offset
            )
            share.shared = common
            return share
        many, limit = tracked.sequences, tracked.limit
        made = self.made(living, tracked)
        if made >= limit:
            made = limit - 1
        held = self.held(footprint, made) - self.overlap.own * common
        survival = tracked.habit.survival() if tracked.known_tokens is None else None
        per_step = self.growth.per_token * many
        known = tracked.share
        if known is None or offset:
            known = tracked.share = Share(survival, made, limit - made, held, per_step, many, offset)
        else:
            known.again(survival, made, limit - made, held, per_step)
        known.shared = common
        return known

    # Each of them

    def made(self, living: Reservation, tracked: Tracked) -> int:
        """Tokens by now: what was seen of it is a report behind, while the others' reports tell what the step is."""
        if living.paced and not living.seen_tokens:
            return 0
        return max(living.seen_tokens, self.pace.step - tracked.start_step)

    def held(self, footprint: Footprint, made: int) -> float:
        """Blocks that are held of it with `made` tokens in each of its sequences."""
        growth, new, own = self.growth, footprint.max_new_tokens, self.overlap.own
        prompts = footprint.prompts
        if len(prompts) == 1:
            prompt = footprint.prompt_tokens
            return growth.blocks(own * prompt + made, prompt + new) * footprint.sequences
        return sum([growth.blocks(own * p + made, p + new) for p in prompts]) * footprint.sequences

    def engine_holds(self, ledger: Ledger, blocks: int, now_ns: int) -> None:
        """The engine's own word of what it holds: less than believed where prompts share blocks.

        Whose prompt is still being read is not counted as believed, but may be held: an error to the safe side.
        """
        if not self.overlap.listens(now_ns):
            return
        believed = prompts = 0.0
        for living in ledger:
            tracked = self.tracked.get(living.reservation_id)
            if tracked is None or not living.seen_tokens:
                continue
            footprint = living.footprint
            whole = self.growth.per_token * footprint.prompt_tokens * footprint.sequences
            believed += self.held(footprint, self.made(living, tracked)) + self.overlap.share * whole
            prompts += whole
        known = ledger.shared_prefix_blocks  # what is known to be shared need not be guessed
        self.overlap.engine_holds(blocks, believed - known, prompts - known)
