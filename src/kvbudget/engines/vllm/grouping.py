"""Decides which layers share a block table: vLLM's groups, and the common page size behind them.

`v1/core/kv_cache_utils.py: get_kv_cache_groups` tries, in this order: all alike, one type, packed (block-outermost
layouts), pages made equal.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from kvbudget.engines.vllm.spec import Family, Spec, are_alike, are_of_one_type
from kvbudget.errors import UnsupportedError

_PROMOTED = {Family.SLIDING: Family.FULL, Family.CHUNKED: Family.FULL, Family.SLIDING_MLA: Family.MLA}


class Member(NamedTuple):
    """A layer's cache in a group: its place among all caches of the model, and its spec there."""

    place: int
    spec: Spec


LayerGroup = tuple[Member, ...]


class PromotionError(Exception):
    """Without the hybrid manager the engine would not start; in its own words."""


class PagesDifferError(Exception):
    """Pages cannot be made equal."""


def groups_of(
    specs: Sequence[Spec], *, hybrid_manager: bool, packed: bool, near_equal: bool = True
) -> tuple[LayerGroup, ...]:
    """Groups over the whole model, in the engine's order. `packed`: the layout is block-outermost. `near_equal`:
    kinds that differ by less than half in number share the larger group size.

    Raises UnsupportedError where the engine itself finds no grouping, PromotionError where only the hybrid manager
    would find one.
    """
    if not hybrid_manager:
        specs = _promote(specs)  # raises PromotionError
    members = tuple(Member(i, spec) for i, spec in enumerate(specs))
    if not members:
        return ()
    if are_alike(specs) or are_of_one_type(specs):
        return (members,)
    if packed and len({spec.page_bytes for spec in specs}) > 1:
        return _packed(members)
    try:
        return _split(_equal_pages(members), near_equal=near_equal)
    except PagesDifferError:
        promoted = _full_allocation(specs)
        if promoted is None:
            raise UnsupportedError(
                "vLLM cannot unify the KV cache page sizes of these layers (page sizes "
                f"{sorted({spec.page_bytes for spec in specs})} bytes)",
                fix="another --block-size or --kv-cache-dtype may fit; vLLM itself raises NotImplementedError here",
            ) from None
        return (tuple(Member(i, spec) for i, spec in enumerate(promoted)),)


def _promote(specs: Sequence[Spec]) -> tuple[Spec, ...]:
    """Hybrid manager off: local layers keep all tokens (`unify_hybrid_kv_cache_specs`)."""
    attention = [s for s in specs if not _apart(s)]
    if not attention or are_alike(attention) or are_of_one_type(attention):
        return tuple(specs)
    full_sizes = {s.block_size for s in attention if s.family in (Family.FULL, Family.MLA)}
    if not full_sizes:
        return tuple(specs)
    promoted = []
    for spec in specs:
        target = _PROMOTED.get(spec.family)
        if target is None or _apart(spec):
            promoted.append(spec)
            continue
        if spec.family is Family.SLIDING_MLA:  # dropped from one class, unknown to the other
            raise PromotionError(
                "TypeError: MLAAttentionSpec.__init__() got an unexpected keyword argument 'bounded_replay'"
            )
        size = next(iter(full_sizes)) if len(full_sizes) == 1 else spec.block_size
        content = spec.content._replace(window=0)
        promoted.append(spec.with_block_size(size)._replace(family=target, content=content))
    left = [s for s in promoted if not _apart(s)]
    windows = {spec.window for spec in left if spec.window}
    if len(windows) > 1 and all(spec.family is Family.FULL for spec in left):
        raise PromotionError(
            "ValueError: All attention layers in the same KV cache group must have the same window size. "
            f"(These have {sorted(windows)}.)"
        )
    if not (are_alike(left) or are_of_one_type(left)):
        raise PromotionError("ValueError: Failed to promote local KV cache specs to one unified type.")
    return tuple(promoted)


def _apart(spec: Spec) -> bool:
    """Attention that context parallelism replicates is promoted by itself; states are not attention."""
    return spec.replicated and spec.family is not Family.MAMBA


def _full_allocation(specs: Sequence[Spec]) -> tuple[Spec, ...] | None:
    """MLA beside plain sliding layers: all keep all tokens (`_try_get_full_allocation_fallback_groups`)."""
    families = {spec.family for spec in specs}
    if families & {Family.SLIDING_MLA, Family.CHUNKED} or not {Family.MLA, Family.SLIDING} <= families:
        return None
    try:
        promoted = _promote(specs)
    except PromotionError:
        return None
    return promoted if are_of_one_type(promoted) else None


def _equal_pages(members: LayerGroup) -> LayerGroup:
    """Smaller pages get larger blocks, or padding where that does not divide (`unify_kv_cache_spec_page_size`)."""
    largest = max(member.spec.page_bytes for member in members)
    return tuple(Member(place, _widened(spec, largest)) for place, spec in members)


def _widened(spec: Spec, page: int) -> Spec:
    if spec.page_bytes == page:
        return spec
    if spec.family is Family.MAMBA:
        return spec._replace(padded=page)
    if page % spec.page_bytes == 0:
        wider = spec.with_block_size(spec.block_size * (page // spec.page_bytes))
        return wider._replace(padded=page if spec.padded else 0)
    if spec.family in (Family.MLA, Family.SLIDING_MLA):
        if spec.family is Family.SLIDING_MLA:
            return spec._replace(padded=page)
        raise PagesDifferError
    return spec._replace(padded=page)


def _split(members: LayerGroup, *, near_equal: bool) -> tuple[LayerGroup, ...]:
    """Layers bucketed by likeness, each bucket dealt out over groups of equal size
    (`_get_kv_cache_groups_uniform_page_size`)."""
    buckets: list[list[Member]] = []
    by_spec: dict[Spec, list[Member]] = {}
    for member in members:
        by_spec.setdefault(member.spec, []).append(member)
    specs_of: list[list[Spec]] = []
    for spec, same in by_spec.items():
        for bucket, specs in zip(buckets, specs_of, strict=True):
            if specs[0].family is spec.family and are_alike([*specs, spec]):
                bucket.extend(same)
                specs.append(spec)
                break
        else:
            buckets.append(list(same))
            specs_of.append([spec])
    sizes = [len(bucket) for bucket in buckets]
    # 1.5: gpt-oss-20b with an EAGLE head is 12 sliding and 13 full layers, better padded to 13 than to 24
    size = max(sizes) if near_equal and max(sizes) < min(sizes) * 1.5 else min(sizes)
    groups: list[LayerGroup] = []
    for bucket in buckets:
        count = ceil(len(bucket) / size)
        # dealt round, so that every pipeline stage holds about as many layers of each group
        groups += [tuple(bucket[i::count]) for i in range(count)]
    return tuple(groups)


class _Bucket(NamedTuple):
    """Layers of one type; `by_page` splits them by page size. `balanced`: as many layers of each page size."""

    members: LayerGroup
    by_page: tuple[LayerGroup, ...]

    @property
    def balanced(self) -> bool:
        return len({len(same) for same in self.by_page}) == 1

    @property
    def repeats(self) -> int:
        return max(len(same) for same in self.by_page)

    def widest(self, groups: int) -> int:
        """Page bytes of the widest of `groups` groups that it splits into."""
        return sum(ceil(len(same) / groups) * same[0].spec.page_bytes for same in self.by_page)


def _packed(members: LayerGroup) -> tuple[LayerGroup, ...]:
    """Groups whose pages may differ, packed into one block each (`_get_packed_kv_cache_groups`)."""
    buckets = [_bucket(tuple(same)) for same in _by_type(members)]
    least = max((b.repeats for b in buckets if b.balanced and len(b.by_page) > 1), default=0)
    repeats = _least_padding([b.repeats for b in buckets if b.balanced], least) if least else 0

    def splits(bucket: _Bucket) -> int:
        return ceil(bucket.repeats / repeats) if bucket.balanced and repeats else 1

    def is_state(bucket: _Bucket) -> bool:
        family = bucket.members[0].spec.family
        return family in (Family.MAMBA, Family.RING) or (not repeats and family in (Family.SLIDING, Family.SLIDING_MLA))

    anchor = max(b.widest(len(b.members) if is_state(b) else splits(b)) for b in buckets)
    groups: list[LayerGroup] = []
    for bucket in buckets:
        count = splits(bucket)
        if is_state(bucket):  # as many states as the block holds anyway
            fitting = max(anchor // bucket.members[0].spec.page_bytes, 1)
            count = max(count, ceil(len(bucket.members) / fitting))
        if count == 1:
            groups.append(bucket.members)
            continue
        pattern = list(zip(*bucket.by_page, strict=False))
        groups += [tuple(m for repeat in pattern[i::count] for m in repeat) for i in range(count)]
    return tuple(groups)


def _by_type(members: LayerGroup) -> list[list[Member]]:
    """Each member with the first bucket that it is of one type with."""
    typed: list[list[Member]] = []
    specs_of: list[list[Spec]] = []
    home: dict[Spec, list[Member]] = {}  # layers repeat: each different spec is looked at once
    for member in members:
        bucket = home.get(member.spec)
        if bucket is None:
            for same, specs in zip(typed, specs_of, strict=True):
                if are_of_one_type([*specs, member.spec]):
                    specs.append(member.spec)
                    bucket = same
                    break
            else:
                bucket = []
                typed.append(bucket)
                specs_of.append([member.spec])
            home[member.spec] = bucket
        bucket.append(member)
    return typed


def _bucket(members: LayerGroup) -> _Bucket:
    by_page: dict[int, list[Member]] = {}
    for member in members:
        by_page.setdefault(member.spec.page_bytes, []).append(member)
    return _Bucket(members, tuple(tuple(same) for same in by_page.values()))


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The divisor from `least` on that rounds all counts up with the least padding; the larger of equals
    (`_approximate_gcd`)."""
    best, best_padding = least, -1
    for divisor in range(max(1, least), max(counts) + 1):
        padding = sum(-count % divisor for count in counts)
        if best_padding < 0 or padding <= best_padding:
            best, best_padding = divisor, padding
    return best
