"""Decides by learned output lengths whether one more promise may be made, and how long whoever comes will wait.

Puts together what the parts know: `gate.learning.lengths` how likely answers are to go on, `gate.learning.batch` what
each that lives holds, `pool.risk` how much all of them will hold over time, `gate.learning.hindsight` and
`gate.learning.margin` how wrong that was, and `gate.waiting.wait_forecast` when there will be room.
"""

from math import sqrt
from typing import Any, Final

from kvbudget.errors import BadValueError
from kvbudget.gate.events import Arrived
from kvbudget.gate.learning.batch import Batch
from kvbudget.gate.learning.clairvoyant import all_known, clairvoyant_promise
from kvbudget.gate.learning.lane import START_NS_PER_TOKEN, Lane
from kvbudget.gate.learning.lengths import Habit, Lengths, tell_at_limit, tell_ended
from kvbudget.gate.learning.margin import HIGHEST, Margin
from kvbudget.gate.learning.pace import LEAST_NS_PER_STEP, MOST_NS_PER_STEP
from kvbudget.gate.tenants.kept import Kept
from kvbudget.gate.waiting.queue import Demand
from kvbudget.gate.waiting.wait_forecast import WaitForecast, steps_until_room
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import Layout
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.pool.risk import promise
from kvbudget.pool.share import GRID, Share
from kvbudget.pool.survival import Survival
from kvbudget.units import Blocks

MOST_ASKED: Final = 32  # who waits is asked about again and again: so many are remembered
_HALVES: Final[tuple[int, ...]] = tuple([moment // 2 for moment in GRID])  # whoever waits is let in half-way on average
_SURE: Final = [1.0] * len(GRID)
_SAVED: Final = (
    ("margin_added", 0.0, HIGHEST),
    ("ns_per_step", LEAST_NS_PER_STEP, MOST_NS_PER_STEP),
    ("wait_bias", 0.25, 4.0),
    ("prefill_ns", 0.0, 1e18),  # of so many tokens:
    ("prefill_tokens", 1.0, 1e15),
)


class LearnedPolicy:
    """State of the `learned` policy over one pool."""

    def __init__(self, layout: Layout, epsilon: float, enough_answers: float) -> None:
        self.enough_answers = enough_answers
        self.lengths = Lengths()
        self.margin = Margin(epsilon)
        self.batch = Batch(layout)
        self.outlook = self.batch.outlook
        self.pace = self.batch.pace
        self.lane = Lane(self.pace)
        self.forecast = WaitForecast()
        self.part = 1.0  # of all that is promised of the pool, where several gates share it
        self.is_clairvoyant = False  # whether the driver has told the true length of anybody
        self._tables: dict[Habit, Survival] = {}  # that were asked for while they were noted
        self._notes_tables = False
        # Who did not fit beside what is held, and of what that followed.
        self._full_for = ""
        self._full_outlook = self._full_ledger = 0
        self._full_overlap = 0.0
        self._asked: dict[str, tuple[Arrived, tuple[Habit, ...]]] = {}
        self._asked_forgotten = 0

    @property
    def ready(self) -> bool:
        """Whether enough has been seen to decide by it."""
        return self.is_clairvoyant or self.lengths.root.answers >= self.enough_answers

    @property
    def ns_per_step(self) -> float:
        """Time that a decode step takes."""
        return self.pace.ns_per_step

    @property
    def shared(self) -> float:
        """Share of prompts' blocks that is thought to be held by others too (`gate.learning.overlap`)."""
        return self.batch.overlap.share

    @property
    def _z(self) -> float:
        """Standard deviations to keep free: what is asked for, and by how much the outlook was wrong lately.

        Of the part of a pool that several gates share: variances add up, not deviations. With each gate keeping z times
        the root of its part, all of them keep z standard deviations of all together. (What the outlook was wrong by is
        as likely wrong everywhere.)
        """
        return self.margin.z * sqrt(self.part) + self.batch.hindsight.excess

    def configure(self, epsilon: float, enough_answers: float) -> None:
        """Take another risk from now on; what was learned stays."""
        self.enough_answers = enough_answers
        self.margin.take_risk(epsilon)

    # Decisions

    def promise_with(
        self,
        ledger: Ledger,
        event: Arrived,
        footprint: Footprint,
        kept_blocks: int,
        now_ns: int,
        kept: Kept | None = None,
        caution: float = 1.0,
    ) -> Blocks | None:
        """Blocks that all promises need with this one; None if that is more than the capacity without what is kept, or
        if more is held already."""
        self.refresh(ledger, now_ns)
        batch, outlook = self.batch, self.outlook
        capacity = ledger.capacity_blocks - kept_blocks
        newcomer = self._newcomer(event, footprint, ledger.offered_blocks)
        together = batch.together(ledger)
        reading = sum([batch.growth.reading(prompt) for prompt in footprint.prompts]) * footprint.sequences
        held = outlook.held_now() + newcomer.held + reading
        if held + together > capacity:
            if held + together > ledger.capacity_blocks:
                self._full_for, self._full_overlap = event.request_id, batch.overlap.share
                self._full_outlook, self._full_ledger = outlook.version, ledger.changes
            return None
        if event.known_tokens is not None and all_known(batch):
            needed = clairvoyant_promise(batch, ledger, event, footprint, capacity)
            if kept is not None:
                needed = Blocks(needed + int(kept.most(self.margin.z)))
        else:
            blocks, variance = (None, 0.0) if kept is None else (kept.blocks, kept.variance)
            alone = outlook.promise_up_to(capacity - together, held, self._z * caution, newcomer, blocks, variance)
            if alone is None:
                return None
            needed = Blocks(alone + together)
        return needed if needed <= capacity else None

    def is_still_full(self, ledger: Ledger, event: Arrived, now_ns: int) -> bool:
        """Whether it is clear without a closer look that `promise_with` would give None: it did for this one, since
        even what is held left no room, and since then nobody came or went, and more is held with each step."""
        if self._full_for != event.request_id or self._full_ledger != ledger.changes:
            return False
        if self._full_outlook != self.outlook.version or self._full_overlap != self.batch.overlap.share:
            return False
        if self.batch.is_old(ledger, now_ns):
            return False
        self._survival_of(event)  # so that habits are counted anew as often as if it had been looked at
        return True

    def forget_full(self) -> None:
        """There may be more room than `is_still_full` can know of."""
        self._full_for = ""

    def note_tables(self) -> None:
        """From now on, those that are asked for."""
        self._tables.clear()
        self._notes_tables = True

    def tables_are_noted(self) -> None:
        """No more of them."""
        self._notes_tables = False

    def tables_stand(self) -> bool:
        """Whether all that were noted are what they were."""
        return all(habit.survival() is table for habit, table in self._tables.items())

    def promised(self, ledger: Ledger, now_ns: int) -> Blocks:
        """Blocks that the living promises need."""
        if not len(ledger):
            return Blocks(0)
        self.refresh(ledger, now_ns)
        enough = promise(self.outlook.enough(self._z), self.outlook.held_now())
        return Blocks(enough + self.batch.together(ledger))

    def size(self, ledger: Ledger, event: Arrived, footprint: Footprint, common: int, now_ns: int) -> Blocks:
        """Blocks that this one is expected to hold when it holds most, beside `common` ones that others hold too."""
        self.refresh(ledger, now_ns)
        newcomer = self._newcomer(event, footprint, common)
        return Blocks(int(newcomer.most) + 1)

    def expected_tokens(self, event: Arrived, footprint: Footprint) -> int:
        """What each of its sequences is expected to produce."""
        if event.known_tokens is not None:
            return event.known_tokens
        return self._habits_of(event)[-1].survival().mean_tokens(footprint.max_new_tokens)

    def demand(self, event: Arrived, footprint: Footprint, common: int) -> Demand:
        """What this request will take while it waits and after, beside `common` blocks that others hold too. Until
        enough was seen the queue counts all the tokens that it may make: who would wait in vain is refused at once."""
        survival = self._survival_of(event)
        limit = footprint.max_new_tokens if event.known_tokens is None else event.known_tokens
        expected = limit if survival is None or not self.ready else survival.mean_tokens(limit)
        many = footprint.total_sequences
        prompt_tokens = footprint.prompt_tokens * footprint.sequences
        demand = Demand(prompt_tokens + expected * many, prompt_tokens)
        held = self.batch.held(footprint, 0) - self.batch.overlap.own * common
        per_step = self.batch.growth.per_token * many
        chances = _SURE if survival is None else survival.chances(_HALVES)
        for g, half in enumerate(_HALVES):
            if half >= limit:
                break
            alive = chances[g]
            demand.blocks[g] = alive * (held + half * per_step)
            demand.sequences[g] = alive * many
        return demand

    def wait_ns(
        self,
        ledger: Ledger,
        event: Arrived,
        footprint: Footprint,
        common: int,
        ahead: Demand | None,
        places: int,
        now_ns: int,
        kept: Kept | None = None,
    ) -> int | None:
        """Expected time until this one is let in, after those `ahead`; None if that is beyond what can be seen.

        The first moment from which on the living, those ahead and itself fit, in blocks and in `places`. Those who live
        and wait at other gates are taken to do as those here.
        """
        self.refresh(ledger, now_ns)
        newcomer = self._newcomer(event, footprint, common)
        part = self.part
        blocks = float(ledger.pool_blocks - self.batch.together(ledger))
        seats = int(part * (places - footprint.total_sequences))
        if part < 1.0:  # a part of all, the newcomer included
            blocks = part * ledger.pool_blocks + (1.0 - part) * newcomer.most - self.batch.together(ledger)
        z = self.margin.z * sqrt(part)
        steps = steps_until_room(self.outlook, z, newcomer, blocks, seats, ahead, kept)
        return None if steps is None else self.forecast.wait_ns(steps, self.pace.ns_per_step)

    def refresh(self, ledger: Ledger, now_ns: int) -> None:
        """Bring the outlook up to date, as far as is worth it."""
        self.batch.refresh(ledger, now_ns)

    def newcomer(self, ledger: Ledger, event: Arrived, footprint: Footprint, now_ns: int) -> Share:
        """The share that this one would have, with nothing in common with others."""
        self.refresh(ledger, now_ns)
        return self._newcomer(event, footprint, 0)

    def _newcomer(self, event: Arrived, footprint: Footprint, common: int) -> Share:
        return self.batch.newcomer(event, footprint, self._survival_of(event), common)

    def _survival_of(self, event: Arrived) -> Survival | None:
        """How likely it is to go on; None if its length is known."""
        if event.known_tokens is not None:
            return None
        habit = self._habits_of(event)[-1]
        table = habit.survival()
        if self._notes_tables:
            self._tables[habit] = table
        return table

    def _habits_of(self, event: Arrived, *, again: bool = True) -> tuple[Habit, ...]:
        """`again`: they may be asked for again."""
        lengths, asked = self.lengths, self._asked
        if lengths.forgotten != self._asked_forgotten or len(asked) > MOST_ASKED:
            asked.clear()
        known = asked.get(event.request_id)
        if known is not None and known[0] is event:
            return known[1]
        prompts = event.prompts
        longest = prompts[0] if len(prompts) == 1 else max(prompts)
        chain = lengths.chain(event.tenant, event.route, event.max_new_tokens, longest)
        self._asked_forgotten = lengths.forgotten
        if again:
            asked[event.request_id] = event, chain
        return chain

    # What happens

    def forwarded(self, event: Arrived, made: Reservation, now_ns: int) -> None:
        """A promise was made."""
        if event.known_tokens is not None:
            self.is_clairvoyant = True
        self.batch.add(event, made, self._habits_of(event, again=False), now_ns)

    def progressed(self, living: Reservation, new_tokens: int, now_ns: int) -> None:
        """Tokens of a watched one were seen, and are counted in `living` already."""
        self.batch.progressed(living, new_tokens, now_ns)

    def pace_lost(self, living: Reservation) -> None:
        """From now on its tokens are not seen."""
        self.batch.pace_lost(living)

    def ended(self, living: Reservation, output_tokens: int | None, *, of_itself: bool) -> None:
        """It is over, with `output_tokens` per sequence if that is known; `of_itself`: it was not cut off."""
        tracked = self.batch.tracked.pop(living.reservation_id, None)
        if tracked is None:  # it was promised under another policy
            return
        self.margin.ended()
        made = output_tokens if output_tokens is not None else living.seen_tokens
        if made < 1:
            return
        tracked.tell(made)
        if of_itself and made < living.footprint.max_new_tokens:
            tell_ended(tracked.habits, made)
        elif of_itself:
            tell_at_limit(tracked.habits)

    def gone(self, reservation_id: str) -> None:
        """Its blocks are back."""
        self.batch.gone(reservation_id)

    def waited(self, predicted_ns: int, real_ns: int) -> None:
        """Somebody for whom a wait was predicted waited this long."""
        self.forecast.waited(predicted_ns, real_ns)

    def overflowed(self, now_ns: int) -> None:
        """Requests were preempted."""
        self.margin.overflowed(now_ns)
        self.batch.overlap.overflowed(now_ns)

    def engine_holds(self, ledger: Ledger, blocks: int, now_ns: int) -> None:
        """The engine's own word of what it holds."""
        self.batch.engine_holds(ledger, blocks, now_ns)

    def pool_changed(self, layout: Layout) -> None:
        """Blocks are counted otherwise from now on."""
        self.batch.pool_changed(layout)

    # What is kept over a restart

    def state(self) -> dict[str, Any]:
        """Plain data of what was learned, from which `resume` goes on; who lives is not part of it."""
        return {
            "lengths": self.lengths.state(),
            "margin_added": self.margin.added,
            "ns_per_step": self.pace.ns_per_step,
            "wait_bias": self.forecast.bias,
            "prefill_ns": self.lane.ns_per_token,  # two numbers, as in files that were written when they were sums
            "prefill_tokens": 1.0,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave, before anybody is promised. Raises BadValueError for what it did not give."""
        lengths = Lengths.restored(_part(state, "lengths"))
        numbers = [_number(state, name, least, most) for name, least, most in _SAVED]
        self.lengths = lengths
        self._asked.clear()
        self.margin.added, self.pace.ns_per_step, self.forecast.bias, prefill_ns, prefill_tokens = numbers
        self.lane.resume(prefill_ns / prefill_tokens or START_NS_PER_TOKEN)


def _part(state: dict[str, Any], name: str) -> Any:
    try:
        return state[name]
    except (KeyError, TypeError):
        raise BadValueError(f"what was learned has no {name}", fix="start without it") from None


def _number(state: dict[str, Any], name: str, least: float, most: float) -> float:
    value = _part(state, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise BadValueError(
            f"what was learned: {name} {str(value)[:40]} is not from {least} to {most}", fix="start without it"
        )
    return float(value)
