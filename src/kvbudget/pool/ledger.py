"""Who was promised how much of the pool. A reservation is made once and ended once; there is no other way out.

The ledger records; whether a promise may be made is the gate's decision (`gate.policies`), taken from the sums here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvbudget.errors import AccountingError
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import Layout
from kvbudget.pool.trajectory import Course
from kvbudget.units import Blocks, Tokens


@dataclass(slots=True)
class Reservation:
    """One promise. `paced` says that its tokens can be watched as they come (one streamed sequence); of an unpaced
    one nothing is known until it ends, so it counts at its peak."""

    reservation_id: str
    tenant: str
    footprint: Footprint
    peak_blocks: Blocks
    paced: bool
    made_ns: int
    seen_tokens: int = 0
    first_seen_ns: int | None = None

    @property
    def course(self) -> Course:
        """Where this paced reservation stands and where it can get to."""
        prompt = self.footprint.prompts[0]
        return Course(prompt + self.seen_tokens, prompt + self.footprint.max_new_tokens)


@dataclass(slots=True)
class Ledger:
    """All living reservations over one pool.

    `usable_blocks` excludes the engine's null block; `margin_blocks` are kept back on purpose.
    """

    layout: Layout
    usable_blocks: Blocks
    margin_blocks: int = 0
    capacity_blocks: Blocks = field(init=False)  # what may be promised: usable minus margin
    _living: dict[str, Reservation] = field(default_factory=dict)
    _peak_sum: int = 0
    _unpaced_peak_sum: int = 0
    _sequences: int = 0
    _unseen_prompt_tokens: int = 0

    def __post_init__(self) -> None:
        """Derives the capacity."""
        self.capacity_blocks = Blocks(max(0, self.usable_blocks - self.margin_blocks))

    @property
    def peak_sum_blocks(self) -> Blocks:
        """Sum of all peaks: what would be held if everybody stood at the worst moment at once."""
        return Blocks(self._peak_sum)

    @property
    def unpaced_peak_blocks(self) -> Blocks:
        """The part of `peak_sum_blocks` whose progress cannot be watched."""
        return Blocks(self._unpaced_peak_sum)

    @property
    def sequences(self) -> int:
        """Sequences that the engine runs for all living reservations."""
        return self._sequences

    @property
    def unseen_prompt_tokens(self) -> Tokens:
        """Prompt tokens of reservations that have produced nothing yet: what may still wait for prefill."""
        return Tokens(self._unseen_prompt_tokens)

    def reserve(
        self,
        reservation_id: str,
        tenant: str,
        footprint: Footprint,
        *,
        paced: bool,
        now_ns: int,
        peak_blocks: Blocks | None = None,
    ) -> Reservation:
        """Record a promise. `peak_blocks` is the footprint's, if the caller has it at hand.

        Raises AccountingError if `reservation_id` already lives.
        """
        if reservation_id in self._living:
            raise AccountingError(f"reservation {reservation_id!r} already lives", fix="use a fresh id per request")
        if paced and footprint.total_sequences != 1:
            raise AccountingError(f"reservation {reservation_id!r}: only a single sequence can be paced")
        if peak_blocks is None:
            peak_blocks = footprint.peak_blocks(self.layout)
        made = Reservation(reservation_id, tenant, footprint, peak_blocks, paced, now_ns)
        self._living[reservation_id] = made
        self._add(made, +1)
        self._unseen_prompt_tokens += _prompt_tokens(made)
        return made

    def progress(self, reservation_id: str, new_tokens: int, now_ns: int) -> None:
        """Note tokens seen of a paced reservation. Raises AccountingError if it does not live."""
        living = self._get(reservation_id)
        if living.first_seen_ns is None:
            living.first_seen_ns = now_ns
            self._unseen_prompt_tokens -= _prompt_tokens(living)
        living.seen_tokens = min(living.seen_tokens + new_tokens, living.footprint.max_new_tokens)

    def lose_pace(self, reservation_id: str) -> None:
        """From now on count this reservation at its peak: its progress can no longer be watched."""
        living = self._get(reservation_id)
        if living.paced:
            living.paced = False
            self._unpaced_peak_sum += living.peak_blocks

    def end(self, reservation_id: str) -> Reservation:
        """Take a promise back. Raises AccountingError if it does not live (ended twice, or never made)."""
        ended = self._get(reservation_id)
        del self._living[reservation_id]
        self._add(ended, -1)
        if ended.first_seen_ns is None:
            self._unseen_prompt_tokens -= _prompt_tokens(ended)
        return ended

    def resize(self, layout: Layout, usable_blocks: Blocks) -> None:
        """The engine's pool changed: take its new size, and count what lives by its new blocks.

        Promises are kept even if they now exceed the capacity; the gate admits nobody until they fit again.
        """
        self.layout = layout
        self.usable_blocks = usable_blocks
        self.capacity_blocks = Blocks(max(0, usable_blocks - self.margin_blocks))
        self._peak_sum = self._unpaced_peak_sum = 0
        for living in self._living.values():
            living.peak_blocks = living.footprint.peak_blocks(layout)
            self._peak_sum += living.peak_blocks
            self._unpaced_peak_sum += 0 if living.paced else living.peak_blocks

    def get(self, reservation_id: str) -> Reservation | None:
        """The living reservation of that id, or None."""
        return self._living.get(reservation_id)

    def paced_courses(self) -> list[Course]:
        """Courses of all paced reservations."""
        return [living.course for living in self._living.values() if living.paced]

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._living.values())

    def __len__(self) -> int:
        return len(self._living)

    def _get(self, reservation_id: str) -> Reservation:
        try:
            return self._living[reservation_id]
        except KeyError:
            raise AccountingError(f"reservation {reservation_id!r} does not live") from None

    def _add(self, reservation: Reservation, sign: int) -> None:
        self._peak_sum += sign * reservation.peak_blocks
        self._sequences += sign * reservation.footprint.total_sequences
        if not reservation.paced:
            self._unpaced_peak_sum += sign * reservation.peak_blocks


def _prompt_tokens(reservation: Reservation) -> int:
    return sum(reservation.footprint.prompts) * reservation.footprint.sequences
