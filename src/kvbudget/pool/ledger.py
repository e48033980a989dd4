"""Who was promised how much of the pool. A reservation is made once and ended once; there is no other way out.

The ledger records; whether a promise may be made is the gate's decision (`gate.policies`), taken from the sums here.
Blocks of a prompt's beginning that several hold together are counted once (`pool.prefix`), and not at all while others
than this ledger pay for them (`hold_in_common`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from kvbudget.errors import AccountingError
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import Layout, blocks_in
from kvbudget.pool.prefix import LivePrefixes, Sharing, blocks_per_key, key_tokens
from kvbudget.pool.trajectory import Course
from kvbudget.units import Blocks, Tokens

_FOR_EVER: Final = 1 << 61
_NONE: Final = Blocks(0)


class Reservation:
    """One promise. `paced` says that its tokens can be watched as they come (one streamed sequence); of an unpaced
    one nothing is known until it ends, so it counts at its peak. `credit_blocks` of the peak are held by others as
    well, and were charged already when it was made.

    Written by hand: the `__init__` of a dataclass is the interpreter's also where all else is compiled.
    """

    __slots__ = (
        "credit_blocks", "first_seen_ns", "footprint", "made_ns", "paced", "peak_blocks", "reservation_id",
        "seen_tokens", "tenant",
    )  # fmt: skip

    def __init__(
        self, reservation_id: str, tenant: str, footprint: Footprint, peak_blocks: Blocks, paced: bool, made_ns: int
    ) -> None:
        self.reservation_id = reservation_id
        self.tenant = tenant
        self.footprint = footprint
        self.peak_blocks = peak_blocks
        self.paced = paced
        self.made_ns = made_ns
        self.seen_tokens = 0
        self.first_seen_ns: int | None = None
        self.credit_blocks = _NONE

    @property
    def net_blocks(self) -> Blocks:
        """What was charged for it."""
        return Blocks(self.peak_blocks - self.credit_blocks)

    @property
    def course(self) -> Course:
        """Where this paced reservation stands and where it can get to."""
        prompt = self.footprint.prompts[0]
        return Course(prompt + self.seen_tokens, prompt + self.footprint.max_new_tokens)


@dataclass(slots=True)
class Ledger:
    """All living reservations over one pool.

    `usable_blocks` excludes the engine's null block; `margin_blocks` are kept back on purpose; `sharing`: from when on
    the engine lets others use a prompt's blocks; `key_blocks`: a prefix has a key for so many of them at a time (fewer
    keys cost less, and what is shared of less than that many is not credited).
    """

    layout: Layout
    usable_blocks: Blocks
    margin_blocks: int = 0
    sharing: Sharing = Sharing.OFF
    key_blocks: int = 1
    prefixes: LivePrefixes = field(init=False)
    key_tokens: Tokens = field(init=False)  # what a key of a prefix stands for; 0: nothing is shared in this layout
    pool_blocks: Blocks = field(init=False)  # what may be promised by all who share the pool: usable minus margin
    capacity_blocks: Blocks = field(init=False)  # what we may promise: that, at most the slice
    slice_blocks: Blocks | None = None  # of a pool that several share, what is ours to promise; None: all of it
    sequences: int = 0  # that the engine runs for all living reservations
    unseen_prompt_tokens: int = 0  # of reservations that have produced nothing yet: what may still wait for prefill
    commons: dict[str, Sequence[int]] = field(default_factory=dict)  # beginnings that are paid for elsewhere, by name
    _living: dict[str, Reservation] = field(default_factory=dict)
    _peak_sum: int = 0
    _unpaced_peak_sum: int = 0
    _blocks_per_key: int = field(init=False)
    _offered: tuple[str, Blocks] | None = None  # (who asks, its credit)
    changes: int = 0  # rises with whatever may change who may have a promise, or what is shared
    allowances: int = 0  # those of them that were no more than another slice
    charged_again: int = 0  # blocks in all that an end made others pay who were not to: promises may be short of them

    def __post_init__(self) -> None:
        """Derives the capacity."""
        self._set_capacity()
        self.prefixes = LivePrefixes(self.sharing)
        self.key_tokens = Tokens(key_tokens(self.layout) * self.key_blocks)
        self._blocks_per_key = blocks_per_key(self.layout) * self.key_blocks

    @property
    def peak_sum_blocks(self) -> Blocks:
        """Sum of all peaks, what is shared counted once, and what is held in common not at all: what would be held if
        everybody stood at the worst moment at once. While one who asks is offered a credit, that is taken off
        already."""
        prefixes = self.prefixes
        if not prefixes.held_keys:
            return Blocks(self._peak_sum)
        return Blocks(self._peak_sum - prefixes.saved_keys * self._blocks_per_key)

    @property
    def shared_prefix_blocks(self) -> Blocks:
        """Blocks that several hold and that are charged to one of them, or elsewhere: what credit is worth now."""
        return Blocks(self.prefixes.saved_keys * self._blocks_per_key)

    @property
    def unpaced_peak_blocks(self) -> Blocks:
        """Peaks of those whose progress cannot be watched, each by itself."""
        return Blocks(self._unpaced_peak_sum)

    def offer(
        self,
        reservation_id: str,
        footprint: Footprint,
        prefix: Sequence[int],
        *,
        proved: int = 0,
        trusted: bool = True,
    ) -> Blocks:
        """How many blocks of one who asks would not be charged, as others hold them; `prefix`: keys of its prompt.

        They are counted as if it lived until `reserve` or `withdraw` of the same id, which must follow. Of several
        sequences one gets the credit. `proved`, `trusted`: see `pool.prefix`.
        """
        credit = 0
        if prefix and self.key_tokens and len(footprint.prompts) == 1:
            whole = (footprint.prompts[0] - 1) // self.key_tokens  # the last token is always computed
            credit = self._blocks_per_key * self.prefixes.join(
                reservation_id, prefix[:whole], sequences=footprint.sequences, proved=proved, trusted=trusted
            )
        self._offered = (reservation_id, Blocks(credit))
        return Blocks(credit)

    @property
    def offered_blocks(self) -> Blocks:
        """Credit of the offer that was neither taken nor withdrawn yet."""
        return _NONE if self._offered is None else self._offered[1]

    def withdraw(self, reservation_id: str) -> None:
        """Take an offer back."""
        self._offered = None
        self.prefixes.undo(reservation_id)

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
        """Record a promise. `peak_blocks` is the footprint's, if the caller has it at hand; what was offered holds.

        Raises AccountingError if `reservation_id` already lives.
        """
        if reservation_id in self._living:
            raise AccountingError(f"reservation {reservation_id!r} already lives", fix="use a fresh id per request")
        if paced and footprint.total_sequences != 1:
            raise AccountingError(f"reservation {reservation_id!r}: only a single sequence can be paced")
        if peak_blocks is None:
            peak_blocks = footprint.peak_blocks(self.layout)
        made = Reservation(reservation_id, tenant, footprint, peak_blocks, paced, now_ns)
        if self._offered is not None and self._offered[0] == reservation_id:
            made.credit_blocks = self._offered[1]
        self._offered = None
        self._living[reservation_id] = made
        self._add(made, +1)
        self.changes += 1
        self.unseen_prompt_tokens += footprint.prompt_tokens * footprint.sequences
        return made

    def progress(self, reservation_id: str, new_tokens: int, now_ns: int) -> Reservation:
        """Note tokens seen of a paced reservation, which is returned. Raises AccountingError if it does not live."""
        living = self.living(reservation_id)
        self.advance(living, new_tokens, now_ns)
        return living

    def advance(self, living: Reservation, new_tokens: int, now_ns: int) -> None:
        """The same of a reservation that is at hand."""
        if living.first_seen_ns is None:
            living.first_seen_ns = now_ns
            self.changes += 1
            self.prefixes.computed(living.reservation_id)
            self._is_read(living)
        living.seen_tokens = min(living.seen_tokens + max(0, new_tokens), living.footprint.max_new_tokens)

    def lose_pace(self, reservation_id: str) -> Reservation:
        """From now on count this reservation at its peak: its progress can no longer be watched."""
        living = self.living(reservation_id)
        if living.paced:
            living.paced = False
            self._unpaced_peak_sum += living.peak_blocks
        return living

    def found(self, reservation_id: str, cached_tokens: int) -> int:
        """The engine tells how many tokens of its prompt it had cached. Returns by how many blocks the charge rises, if
        it was credited more than that; negative if less. Raises AccountingError if it does not live."""
        living = self.living(reservation_id)
        if not self.key_tokens or living.footprint.total_sequences != 1:
            return 0  # what is told of several sequences is a sum
        self.changes += 1
        keys = max(0, cached_tokens) // self.key_tokens
        rise = self._blocks_per_key * self.prefixes.found(reservation_id, keys)
        living.credit_blocks = Blocks(max(0, living.credit_blocks - rise))
        return rise

    def hold_in_common(self, name: str, keys: Sequence[int]) -> None:
        """These leading keys are paid for elsewhere from now on, for all who live here or come: whose they are, one
        copy of them is not charged. None may begin with the same key as another that is held in common."""
        self.prefixes.join(_place_of(name), keys)
        self.commons[name] = keys
        self._commons_changed()

    def pay_again(self, name: str) -> None:
        """What was held in common under this name is charged here again. Nothing if it is not."""
        if self.commons.pop(name, None) is not None:
            self.prefixes.leave(_place_of(name))
            self._commons_changed()

    def counting_on(self, name: str) -> int:
        """Leading keys, of those held in common under this name, that anybody who lives here has."""
        return self.prefixes.common_keys(_place_of(name))

    def common_blocks_of(self, keys: int) -> Blocks:
        """Blocks of so many keys."""
        return Blocks(self._blocks_per_key * keys)

    def _commons_changed(self) -> None:
        self.changes += 1
        self.allowances += 1

    def end_credits(self) -> None:
        """From now on charge everybody who lives for all that he may hold."""
        self.changes += 1
        self.prefixes.clear()
        self.commons.clear()
        for living in self._living.values():
            living.credit_blocks = _NONE

    def end(self, reservation_id: str) -> Reservation:
        """Take a promise back. Raises AccountingError if it does not live (ended twice, or never made)."""
        ended = self.living(reservation_id)
        del self._living[reservation_id]
        self.changes += 1
        self.charged_again += self._blocks_per_key * self.prefixes.leave(reservation_id)
        self._add(ended, -1)
        if ended.first_seen_ns is None:
            self._is_read(ended)
        return ended

    def resize(self, layout: Layout, usable_blocks: Blocks) -> None:
        """The engine's pool changed: take its new size, and count what lives by its new blocks.

        Promises are kept even if they now exceed the capacity; the gate admits nobody until they fit again. Where
        blocks are of another size, nothing that lives is credited any more.
        """
        shared = Tokens(key_tokens(layout) * self.key_blocks), blocks_per_key(layout) * self.key_blocks
        if shared != (self.key_tokens, self._blocks_per_key):
            self.key_tokens, self._blocks_per_key = shared
            self.end_credits()
        self.changes += 1
        self.layout = layout
        self.usable_blocks = usable_blocks
        self._set_capacity()
        self._peak_sum = self._unpaced_peak_sum = 0
        for living in self._living.values():
            living.peak_blocks = living.footprint.peak_blocks(layout)
            self._peak_sum += living.peak_blocks
            self._unpaced_peak_sum += 0 if living.paced else living.peak_blocks

    def keep_back(self, margin_blocks: int) -> None:
        """Another margin from now on."""
        self.margin_blocks = margin_blocks
        self._set_capacity()

    def allow(self, slice_blocks: Blocks) -> None:
        """Only so much of the pool is ours to promise from now on. What is promised stays so."""
        self.slice_blocks = slice_blocks
        self.changes += 1
        self.allowances += 1
        self._set_capacity()

    def _set_capacity(self) -> None:
        pool = self.pool_blocks = Blocks(max(0, self.usable_blocks - self.margin_blocks))
        self.capacity_blocks = pool if self.slice_blocks is None else min(pool, self.slice_blocks)

    def get(self, reservation_id: str) -> Reservation | None:
        """The living reservation of that id, or None."""
        return self._living.get(reservation_id)

    def batch(self, newcomer: Reservation | None = None) -> tuple[list[Course], int]:
        """(courses of all that can be watched, blocks of the others at their peaks), with one more who asks.

        What several hold is charged to whoever of them lives longest: who cannot be watched, or has most to come.
        """
        living = list(self._living.values())
        fixed = self._unpaced_peak_sum
        if newcomer is not None:
            living.append(newcomer)
            fixed += 0 if newcomer.paced else newcomer.peak_blocks
        if not self.prefixes.saved_keys:
            return [one.course for one in living if one.paced], fixed
        shared = self.shared_blocks(living)
        courses: list[Course] = []
        for one in living:
            blocks = shared.get(one.reservation_id, 0)
            if one.paced:
                prompt, new = one.footprint.prompts[0], one.footprint.max_new_tokens
                courses.append(Course(prompt + one.seen_tokens, prompt + new, 1, blocks))
            else:
                fixed -= blocks
        return courses, fixed

    def at_first_end(self, newcomer: Reservation, skew_steps: int) -> int:
        """Blocks that those of `batch` need when the first of them is over, and so at least what they need at their
        worst: nearly always more than the capacity where that is. One sum, without who pays for what is shared.
        """
        living = list(self._living.values())
        living.append(newcomer)
        watched = [one for one in living if one.paced]
        blocks = self._unpaced_peak_sum - self._blocks_per_key * self.prefixes.saved_keys
        if not newcomer.paced:
            blocks += newcomer.peak_blocks
        if not watched:
            return blocks
        steps = min([one.footprint.max_new_tokens - one.seen_tokens for one in watched]) + skew_steps
        groups, growing = self.layout.groups, self.layout.growing
        constant = () if len(growing) == len(groups) else tuple([group for group in groups if group not in growing])
        for one in watched:
            prompt, new = one.footprint.prompts[0], one.footprint.max_new_tokens
            blocks += blocks_in(growing, prompt + min(one.seen_tokens + steps, new))
            if constant:
                blocks += blocks_in(constant, prompt + new)
        return blocks

    def shared_blocks(self, living: Iterable[Reservation]) -> dict[str, int]:
        """What is charged to others, by id; those that pay for all of theirs are left out."""
        return self.shared_in([one.reservation_id for one in sorted(living, key=_life, reverse=True)])

    def shared_in(self, longest_first: Iterable[str]) -> dict[str, int]:
        """The same with another belief of who lives how long. What is held in common outlives them all."""
        payers = chain(map(_place_of, self.commons), longest_first) if self.commons else longest_first
        return {name: keys * self._blocks_per_key for name, keys in self.prefixes.shares(payers).items()}

    def common_blocks(self, reservation_id: str) -> int:
        """Blocks of it that others hold too."""
        return self._blocks_per_key * self.prefixes.common_keys(reservation_id)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._living.values())

    def __len__(self) -> int:
        return len(self._living)

    def living(self, reservation_id: str) -> Reservation:
        """The living reservation of that id. Raises AccountingError if it does not live."""
        try:
            return self._living[reservation_id]
        except KeyError:
            raise AccountingError(f"reservation {reservation_id!r} does not live") from None

    def _is_read(self, reservation: Reservation) -> None:
        footprint = reservation.footprint
        self.unseen_prompt_tokens -= footprint.prompt_tokens * footprint.sequences

    def _add(self, reservation: Reservation, sign: int) -> None:
        peak, sequences = int(reservation.peak_blocks), reservation.footprint.total_sequences
        if sign < 0:  # compiled, to multiply by a negative number is slow
            peak, sequences = -peak, -sequences
        self._peak_sum += peak
        self.sequences += sequences
        if not reservation.paced:
            self._unpaced_peak_sum += peak


def _place_of(name: str) -> str:
    """Among the holders of prefixes; no request's id begins so."""
    return f"\0{name}"


def _life(reservation: Reservation) -> int:
    """How many steps it may live; who cannot be watched may outlive everybody."""
    if not reservation.paced:
        return _FOR_EVER
    return reservation.footprint.max_new_tokens - reservation.seen_tokens
