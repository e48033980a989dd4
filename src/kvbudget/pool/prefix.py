"""Who holds the same blocks of a common prompt prefix, and who of them is charged for these: each block once.

A prompt's full blocks have keys, each standing for everything up to the block's end (`pool.chains`), so prompts that
begin alike have the same first keys, and all living ones form a tree whose runs are blocks with the same holders. A run
with h holders takes min(h, copies) blocks of the pool per key. `copies` is 1 wherever the engine is sure to share:

vLLM 0.32 finds a block from the step in which it is *scheduled* (`v1/core/kv_cache_manager.py: allocate_slots` caches
at once), looks a prompt up when it starts, and gives a prompt that is not read to its end the whole budget of each
further step before anybody else starts (`v1/core/sched/scheduler.py`, running requests first). So nobody starts while
a key that he could use is still to be computed by another who runs: whoever starts finds the block, or nobody holds it
any more and he computes the only one. Therefore the credit does not depend on what was evicted: if the one who had the
blocks is gone and so are they, whoever comes next takes his place, in the engine and here. `Sharing.SCHEDULED` is that
rule. Several prompts can be read side by side with `long_prefill_token_threshold` and in other engines, and then two
may compute the same block; for them there is `Sharing.COMPUTED`: only what a living one has computed to its end counts,
anything else may be one more copy. A copy of somebody who ended may be held by those who stay, so copies are forgotten
only with the last holder: min(h, copies) is right whoever holds which.

The last token of a prompt is always computed (`get_computed_blocks`), so its block is never a shared one. Groups that
forget (windows, chunks, states) bound what is found to what the *least* of them still has, and a window's blocks are
evictable as soon as a sequence has passed them: with such groups nothing is certain, and nothing is credited.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import lcm
from typing import Final

from kvbudget.errors import AccountingError
from kvbudget.pool.groups import LayerKind, Layout
from kvbudget.units import Tokens

_SHARED_KINDS: Final = (LayerKind.FULL, LayerKind.MLA, LayerKind.MLA_INDEXER)


class Sharing(StrEnum):
    """From when on the engine is sure to let others use a prompt's blocks."""

    OFF = "off"  # never: it has no prefix cache, or we do not trust it
    COMPUTED = "computed"  # since its first token was seen
    SCHEDULED = "scheduled"  # at once: prompts are read one after another


def key_tokens(layout: Layout) -> Tokens:
    """Tokens that one key stands for; 0 where no block is sure to be shared."""
    for group in layout.groups:
        if group.kind not in _SHARED_KINDS or group not in layout.growing:
            return Tokens(0)
    return Tokens(lcm(*[group.block_size for group in layout.groups]))


def blocks_per_key(layout: Layout) -> int:
    """Blocks of all groups together that hold the tokens of one key; 0 where no block is sure to be shared."""
    tokens = key_tokens(layout)
    return sum([tokens // group.block_size for group in layout.groups])


class _Run:
    """The keys start..end of everybody who holds them: `holders`, of whom `computed` have read their prompts."""

    __slots__ = ("children", "claims", "computed", "copies", "end", "holders", "keys", "mark", "parent", "start")

    def __init__(self, keys: Sequence[int], start: int, end: int, parent: "_Run | None" = None) -> None:
        self.keys = keys  # from the very beginning: a place means the same in all of them
        self.start = start
        self.end = end  # 0 only at the root, which is its own parent
        self.parent = parent or self
        self.children: dict[int, _Run] = {}  # by their first key
        self.holders = 0
        self.computed = 0
        self.copies = 0
        self.claims = 0  # of `copies`, paid by somebody already; of the walk `mark`
        self.mark = 0

    @property
    def charged(self) -> int:
        """Keys that are charged for, once for each copy that may be there."""
        return (self.end - self.start) * min(self.holders, self.copies)


class _Place:
    """Where one holder stands in the tree."""

    __slots__ = ("added", "computed", "credited", "keys", "last", "met")

    def __init__(self, last: _Run, keys: int, met: int, credited: int, added: int) -> None:
        self.last = last  # the run that its keys end with
        self.keys = keys
        self.met = met  # keys that others held when it came
        self.credited = credited  # leading keys that it was believed to find
        self.added = added  # copies that were added for each of the others
        self.computed = False


class LivePrefixes:
    """The prefixes of all living reservations, as a tree. Counts are in keys; `blocks_per_key` blocks each.

    Coming and going cost a look at the runs of one's own prompt, whatever else lives.
    """

    __slots__ = ("_mark", "_one_copy", "_places", "_root", "charged_keys", "held_keys", "sharing")

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.held_keys = 0  # of all holders, each by itself
        self.charged_keys = 0
        self.clear()

    def clear(self) -> None:
        """Forget everybody: from now on nobody shares anything."""
        self.held_keys = self.charged_keys = 0
        self._root = _Run((), 0, 0)
        self._places: dict[str, _Place] = {}
        self._mark = 0
        self._one_copy = True  # nowhere is more than one

    @property
    def saved_keys(self) -> int:
        """Keys that are not charged because another holder is."""
        return self.held_keys - self.charged_keys

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def join(self, name: str, keys: Sequence[int], *, sequences: int = 1, proved: int = 0, trusted: bool = True) -> int:
        """`name` holds `keys` from now on, in one of its `sequences`; returns how many of them others pay.

        `proved`: so many leading keys are known to be in the engine's cache. Not `trusted`: it may compute everything
        again. Raises AccountingError if it holds some already.
        """
        if name in self._places:
            raise AccountingError(f"{name!r} holds a prefix already", fix="let it leave first")
        if not keys or self.sharing is Sharing.OFF:
            return 0
        at, met = self._descend(keys)
        if met < at.end:
            at = self._split(at, met)
        if trusted and at.start < proved < at.end and not at.computed:
            self._split(at, proved)
        last = at
        if met < len(keys):
            last = _Run(keys, met, len(keys), at)
            at.children[keys[met]] = last
        together = self.sharing is Sharing.SCHEDULED
        place = _Place(last, len(keys), met, 0, 1 if together else sequences)
        before = self.charged_keys
        run = last
        while run.end:
            sure = trusted and run.holders > 0 and (together or run.computed > 0 or run.end <= proved)
            if sure and run.end > place.credited:
                place.credited = run.end
            self._change(run, 1, 0, 0 if sure else place.added)
            run = run.parent
        self._places[name] = place
        self.held_keys += len(keys)
        return len(keys) - (self.charged_keys - before)

    def undo(self, name: str) -> None:
        """Take the last `join` back, as if it had never been; nothing if it held nothing."""
        place = self._places.get(name)
        if place is not None:
            run = place.last
            while run.end > place.credited:
                self._change(run, 0, 0, -place.added)
                run = run.parent
            self.leave(name)

    def leave(self, name: str) -> int:
        """`name` holds nothing any more; what it shared is charged to those who stay. Nothing if it held nothing.

        Returns how many keys of theirs must be charged again: side by side they may all compute what they were to find
        with him, if none of them has read it yet.
        """
        place = self._places.get(name)
        if place is None:
            return 0
        del self._places[name]
        self.held_keys -= place.keys
        again, read = 0, 1 if place.computed else 0
        run = place.last
        while run.end:
            self._change(run, -1, -read, 0)
            if read and not run.computed and self.sharing is Sharing.COMPUTED:
                before = self.charged_keys
                self._change(run, 0, 0, max(0, run.holders - run.copies))
                again += self.charged_keys - before
            run = run.parent
        run = place.last
        while run.end:
            above = run.parent
            if run.holders:
                _join_with_only_child(run)
            else:
                del above.children[run.keys[run.start]]
            run = above
        if not self._root.children:
            self._one_copy = True
        return again

    def computed(self, name: str) -> None:
        """The prompt of `name` is read: all its blocks are there. Nothing if it holds none."""
        place = self._places.get(name)
        if place is not None and not place.computed:
            place.computed = True
            run = place.last
            while run.end:
                self._change(run, 0, 1, 0)
                run = run.parent

    def found(self, name: str, keys: int) -> int:
        """The engine tells that `name` found `keys` leading keys in its cache. Returns by how many keys the charge
        rises; negative if it turns out that less was computed than was feared. Nothing if it holds none.

        Where prompts are read one after another it may have been the first to be read, before those who came sooner:
        then they find what it computed, and nothing is wrong.
        """
        place = self._places.get(name)
        if place is None:
            return 0
        before = self.charged_keys
        if keys < place.credited:
            first = self.sharing is Sharing.SCHEDULED
            self._change_between(place.last, keys, place.credited, 1, read=place.computed if first else -1)
        elif place.credited < place.met:
            self._change_between(place.last, place.credited, min(keys, place.met), -place.added)
        place.credited = place.met = min(keys, place.met)
        return self.charged_keys - before

    def shares(self, longest_first: Iterable[str]) -> dict[str, int]:
        """Keys that each of the named does not pay because others before it do; who pays none of his is not left out.

        With those that live longest first, the charges of all that still live add up to what is held at any moment.
        """
        self._mark += 1
        shares: dict[str, int] = {}
        for name in longest_first:
            place = self._places.get(name)
            if place is None:
                continue
            shared = 0
            run = place.last
            while run.end:
                if run.mark != self._mark:
                    run.mark, run.claims = self._mark, 0
                if run.claims < run.copies:
                    run.claims += 1
                elif self._one_copy:  # whoever pays a run pays all before it
                    shared += run.end
                    break
                else:
                    shared += run.end - run.start
                run = run.parent
            if shared:
                shares[name] = shared
        return shares

    def widest(self, least_holders: int, least_keys: int) -> list[Sequence[int]]:
        """The beginnings of so many keys at least that so many hold, wherever some leave the others: of one that begins
        another the shorter comes first. A longer one counts only if most of those who have the shorter have it."""
        found: list[Sequence[int]] = []
        for first in self._root.children.values():
            run, most = first, self._root
            while run.holders >= least_holders and (run is first or 2 * run.holders > most.holders):
                if run.end >= least_keys:
                    found.append(run.keys[: run.end])
                if not run.children:
                    break
                run, most = max(run.children.values(), key=_holders_of), run
        return found

    def common_keys(self, name: str) -> int:
        """Keys of `name` that others hold too."""
        place = self._places.get(name)
        if place is None:
            return 0
        run = place.last
        while run.holders == 1 and run.end:
            run = run.parent
        return run.end

    def _descend(self, keys: Sequence[int]) -> tuple[_Run, int]:
        """The deepest run that has some of `keys`, and how many of them are met up to its end or inside it."""
        run, met = self._root, 0
        while met < len(keys):
            child = run.children.get(keys[met])
            if child is None:
                break
            run = child
            low, high = met + 1, min(run.end, len(keys))
            while low < high:  # a key that is the same says that all before it are
                middle = (low + high + 1) // 2
                if run.keys[middle - 1] == keys[middle - 1]:
                    low = middle
                else:
                    high = middle - 1
            met = low
            if met < run.end:
                break
        return run, met

    def _split(self, run: _Run, at: int) -> _Run:
        """Cut a run before the key `at`; returns the first part. The second stays the same object: places end there."""
        above = run.parent
        first = _Run(run.keys, run.start, at, above)
        first.holders, first.computed, first.copies = run.holders, run.computed, run.copies
        first.claims, first.mark = run.claims, run.mark
        first.children[run.keys[at]] = run
        above.children[run.keys[run.start]] = first
        run.start, run.parent = at, first
        return first

    def _change(self, run: _Run, holders: int, computed: int, copies: int) -> None:
        self.charged_keys -= run.charged
        run.holders += holders
        run.computed += computed
        run.copies = max(run.copies + copies, 1)
        if run.copies > 1:
            self._one_copy = False
        self.charged_keys += run.charged

    def _change_between(self, last: _Run, first_key: int, end_key: int, copies: int, read: int = -1) -> None:
        """More or fewer copies of the keys first_key..end_key on the way to `last`, where more than `read` have read
        them."""
        for run in _path(last):
            part = run
            if part.start < end_key < part.end:
                part = self._split(part, end_key)
            if part.start < first_key < part.end:
                self._split(part, first_key)
            if first_key <= part.start and part.end <= end_key and part.computed > read:
                self._change(part, 0, 0, copies)


def _holders_of(run: _Run) -> int:
    return run.holders


def _path(last: _Run) -> Iterable[_Run]:
    """The runs from `last` up to the first keys; runs may be split on the way."""
    run = last
    while run.end:
        above = run.parent
        yield run
        run = above


def _join_with_only_child(run: _Run) -> None:
    """Make one run of two that have the same holders."""
    if len(run.children) != 1:
        return
    (child,) = run.children.values()
    if (child.holders, child.computed, child.copies) == (run.holders, run.computed, run.copies):
        child.start, child.parent = run.start, run.parent
        run.parent.children[run.keys[run.start]] = child
