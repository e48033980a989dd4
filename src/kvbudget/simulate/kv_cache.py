"""Decides whether a request's next tokens find room, over all KV cache groups, and what it need not compute again.

After vLLM 0.32 `v1/core/kv_cache_manager.py` and `v1/core/kv_cache_coordinator.py`: all groups draw from one pool; a
prefix counts as found only as far as every group has it; where one group has more of it than another, the place is
marked, so that the others keep it from then on.
"""

from collections.abc import Sequence
from math import gcd, lcm
from typing import NamedTuple

from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.simulate.block_pool import NULL_BLOCK, BlockPool
from kvbudget.simulate.engine_request import EngineRequest
from kvbudget.simulate.group_rules import BlockTable, ChunkedRule, GroupRule, HeldForLife, SlidingRule
from kvbudget.simulate.state_rule import CHECKPOINT_STATE_BLOCKS, PLAIN_STATE_BLOCKS, StateRule

_STATE_BLOCKS = (PLAIN_STATE_BLOCKS, CHECKPOINT_STATE_BLOCKS)


class Hit(NamedTuple):
    """What the prefix cache has of a sequence: blocks per group (null where none is needed), the tokens that they stand
    for, and how far some group's own part of it goes when that is further (0: no further)."""

    blocks: tuple[Sequence[int], ...]
    tokens: int
    parted_at: int = 0


class _Batch(NamedTuple):
    """Groups that are alike are searched together: a block counts when all of them have it."""

    rule: GroupRule
    places: tuple[int, ...]
    keeps_all: bool


class KvCache:
    """The pool and the rules of its groups. A request's block tables hang on the request itself."""

    def __init__(
        self, layout: Layout, num_blocks: int, max_model_len: int, *, prefix_caching: bool, retention: int | None
    ) -> None:
        """Raises BadValueError or UnsupportedError for groups that could not be driven, or not with a prefix cache."""
        groups = layout.groups
        self.pool = BlockPool(num_blocks, len(groups))
        self.prefix_caching = prefix_caching
        self.alignment = lcm(*(group.block_size for group in groups))
        self.hash_size = gcd(*(group.block_size for group in groups if not _apart(group))) or self.alignment
        self._max_model_len = max_model_len
        _check(groups, self.alignment, prefix_caching=prefix_caching, retention=retention)
        self.rules = tuple(
            _rule_for(
                group, place, self.pool, max_model_len, self.alignment, self.hash_size,
                caching=prefix_caching, retention=retention,
            )
            for place, group in enumerate(groups)
        )  # fmt: skip
        self._batches = _batches(self.rules)
        self._nothing = Hit(tuple(() for _ in groups), 0)
        # vLLM cuts prefill where states can be remembered (mamba cache mode "align").
        states = [group for group in groups if group.kind is LayerKind.MAMBA and prefix_caching]
        self.state_block_size = int(states[0].block_size) if states else 0
        self.puts_states_aside = all(group.fixed_blocks == CHECKPOINT_STATE_BLOCKS for group in states)

    def begin_step(self) -> None:
        """A new step begins."""
        for rule in self.rules:
            rule.begin_step()

    def lookup(self, request: EngineRequest) -> Hit:
        """What of the request is cached; never all of it, its last token must be computed."""
        if not self.prefix_caching:
            return self._nothing
        limit = request.num_tokens - 1
        found: list[Sequence[int]] = [()] * len(self.rules)
        if len(self.rules) == 1:
            blocks, tokens = self.rules[0].find((0,), limit, request.block_key)
            return Hit((blocks[0],), tokens)
        tokens, longest = self._search(request, limit, found)
        for batch in self._batches:
            if batch.keeps_all:
                for place in batch.places:
                    found[place] = found[place][: tokens // batch.rule.block_size]
        return Hit(tuple(found), tokens, longest if longest > tokens else 0)

    def _search(self, request: EngineRequest, limit: int, found: list[Sequence[int]]) -> tuple[int, int]:
        """(tokens that every group has, most that one has by itself); `found` is filled.

        Each group in turn may shorten what the ones before it have, until all agree. With full attention and one other
        kind a single round is enough, as in vLLM: what full attention has, it has of every shorter prefix.
        """
        once = len(self._batches) == 2 and self._batches[0].keeps_all
        own: dict[int, int] = {}  # what groups that keep all have: looked up once
        longest = 0
        agreed = limit
        while True:
            tokens = agreed
            for number, batch in enumerate(self._batches):
                if number in own:
                    tokens = min(tokens, own[number])
                    continue
                blocks, tokens = batch.rule.find(batch.places, tokens, request.block_key)
                if batch.keeps_all:
                    own[number] = tokens
                for place, one in zip(batch.places, blocks, strict=True):
                    found[place] = one
                longest = max(longest, tokens)
            if tokens >= agreed:
                return agreed, longest
            agreed = tokens
            if once:
                return agreed, longest

    def admit(self, request: EngineRequest, new_tokens: int, hit: Hit, *, whole: bool, headroom: int = 0) -> bool:
        """Room for `new_tokens` tokens behind `hit`, for a request that holds nothing; False if there is none.

        `whole`: all that it has to compute must fit, not only this step's part; `headroom`: blocks that must stay free
        beside (the watermark).
        """
        tables = tuple([BlockTable() for _ in self.rules])
        free = self.pool.free_blocks - headroom
        length = min(request.num_tokens, self._max_model_len)
        if whole and self._missing(request, tables, length, hit, whole=True) > free:
            return False
        tokens = min(hit.tokens + new_tokens, self._max_model_len)
        if self._missing(request, tables, tokens, hit, whole=False) > free:
            return False
        request.tables = tables
        if hit.tokens:
            for rule, table, blocks in zip(self.rules, tables, hit.blocks, strict=True):
                rule.adopt(table, blocks, hit.tokens)
        self._take(request, tokens, hit.tokens)
        return True

    def grow(self, request: EngineRequest, new_tokens: int) -> bool:
        """Room for `new_tokens` tokens behind those that are computed; False if there is none.

        Blocks that are no longer looked at are given back in any case.
        """
        computed, end = request.num_computed_tokens, request.prefill_end
        processed = max(0, computed - request.num_in_flight_tokens)
        tokens = min(computed + new_tokens, self._max_model_len)
        missing = 0
        for rule, table in zip(self.rules, request.tables, strict=True):
            rule.retire(table, processed)
            missing += rule.missing(table, tokens, (), computed, end, whole=False)
        if missing > self.pool.free_blocks:
            return False
        self._take(request, tokens, processed)
        return True

    def _take(self, request: EngineRequest, tokens: int, processed: int) -> None:
        caching = self.prefix_caching
        quiet = self._max_model_len
        for rule, table in zip(self.rules, request.tables, strict=True):
            rule.grow(table, tokens)
            quiet = min(quiet, rule.quiet_until(table, processed, caching=caching))
        request.quiet_until = quiet
        if caching:
            self.remember(request, min(tokens, request.num_tokens))

    def remember(self, request: EngineRequest, tokens: int) -> None:
        """Let the full blocks of its first `tokens` tokens be found by others."""
        if not self.prefix_caching:
            return
        if len(self.rules) > 1:
            tokens -= tokens % self.alignment
        # A prompt that is sent again goes on from its last full block (vLLM `replay_boundaries`).
        boundaries = [request.prompt_tokens - 1]
        if request.shared_prefix_tokens:
            boundaries.append(request.shared_prefix_tokens)
        for rule, table in zip(self.rules, request.tables, strict=True):
            rule.remember(table, tokens, request.prompt_tokens, request.block_key, boundaries)

    def release(self, request: EngineRequest) -> None:
        """Give back all that the request holds."""
        for table in request.tables:
            self.pool.give_back(table.blocks)
        request.tables = ()
        request.quiet_until = 0

    def held(self, request: EngineRequest) -> tuple[int, ...]:
        """Blocks that the request holds in each group, null blocks left out."""
        return tuple([table.kept for table in request.tables]) or (0,) * len(self.rules)

    def block_ids(self, request: EngineRequest) -> tuple[int, ...]:
        """Ids of these blocks, group after group."""
        return tuple([block for table in request.tables for block in table.blocks if block != NULL_BLOCK])

    def _missing(
        self, request: EngineRequest, tables: Sequence[BlockTable], tokens: int, hit: Hit, *, whole: bool
    ) -> int:
        end = request.prefill_end
        return sum(
            [
                rule.missing(table, tokens, blocks, hit.tokens, end, whole=whole)
                for rule, table, blocks in zip(self.rules, tables, hit.blocks, strict=True)
            ]
        )


def _apart(group: Group) -> bool:
    """Blocks that no other request could use."""
    return bool(group.fixed_blocks) and group.kind is not LayerKind.MAMBA


def _check(groups: Sequence[Group], alignment: int, *, prefix_caching: bool, retention: int | None) -> None:
    """Raises for what would not behave as vLLM does."""
    for group in groups:
        if group.most_tokens and not group.window:
            raise BadValueError(f"a {group.kind} group with no window", fix="tell its window or chunk in tokens")
    if retention is not None and (retention < 0 or retention % alignment):
        raise BadValueError(
            f"prefix_retention_interval: {retention} is no multiple of the block size, {alignment}",
            fix="give a multiple of it, 0 for prompt ends only, None for everything",
        )
    if not prefix_caching:
        return
    if retention and not any(group.most_tokens or group.kind is LayerKind.MAMBA for group in groups):
        raise BadValueError(
            f"prefix_retention_interval: {retention} without a sliding-window or Mamba group has no effect",
            fix="set it to 0",
        )
    if all(_apart(group) for group in groups):
        raise UnsupportedError("a prefix cache over groups of which nothing can be shared")
    for group in groups:
        unequal = group.block_size != alignment
        if group.kind is LayerKind.MAMBA and (group.fixed_blocks not in _STATE_BLOCKS or unequal):
            raise UnsupportedError(
                f"a prefix cache over a state of {group.fixed_blocks} blocks of {group.block_size} tokens: only states "
                "of two or three blocks, as large as the other groups', are followed",
                fix="turn prefix_caching off",
            )
        if group.kind is LayerKind.CHUNKED and unequal:
            raise UnsupportedError("chunked attention beside groups of other block sizes, with a prefix cache")


def _batches(rules: Sequence[GroupRule]) -> tuple[_Batch, ...]:
    alike: dict[tuple[LayerKind, int, int], list[int]] = {}
    for place, rule in enumerate(rules):
        if not isinstance(rule, HeldForLife):
            group = rule.group
            alike.setdefault((group.kind, group.block_size, group.window), []).append(place)
    batches = [
        _Batch(rules[places[0]], tuple(places), keeps_all=type(rules[places[0]]) is GroupRule)
        for places in alike.values()
    ]
    return tuple(sorted(batches, key=lambda batch: not batch.keeps_all))  # sorted() is stable


def _rule_for(
    group: Group, place: int, pool: BlockPool, longest: int, alignment: int, hash_size: int, *,
    caching: bool, retention: int | None,
) -> GroupRule:  # fmt: skip
    """The rule of one group; `caching`: there is a prefix cache."""
    if group.kind is LayerKind.MAMBA and caching:
        return StateRule(group, place, pool, longest, alignment, hash_size, retention)
    if group.fixed_blocks:
        return HeldForLife(group, place, pool, longest, alignment, hash_size)
    if group.kind is LayerKind.CHUNKED:
        return ChunkedRule(group, place, pool, longest, alignment, hash_size)
    if group.most_tokens:
        return SlidingRule(group, place, pool, longest, alignment, hash_size, retention)
    return GroupRule(group, place, pool, longest, alignment, hash_size)
