"""Decides what only several engines beside one another show: work shared out badly, or figures that changed meaning."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from kvbudget.diagnose.finding import Action, Cost, Finding, Severity, Sure
from kvbudget.diagnose.symptoms import Symptoms, number

_FULL, _APART = 0.8, 0.4  # of the pool
_SAME_BLOCKS, _OTHER_TOKENS = 0.05, 1.5  # vllm#43308: the same pool read 55k tokens in 0.20, 525k in 0.21


class _Pair(NamedTuple):
    """The fullest and the emptiest of two pools of one model."""

    apart: float
    s: Symptoms
    busy: str
    busy_usage: float
    idle: str
    idle_usage: float


def rank_imbalance(several: Sequence[Symptoms]) -> Finding | None:
    """One rank or replica is full while another of the same model is nearly idle."""
    pairs = [pair for one, other in combinations(several, 2) if (pair := _of_two(one, other)) is not None]
    pairs += [pair for s in several if (pair := _within(s)) is not None]
    pairs = [pair for pair in pairs if pair.busy_usage >= _FULL and pair.apart >= _APART]
    if not pairs:
        return None
    worst = max(pairs, key=lambda pair: pair.apart)
    return Finding(
        code="rank_imbalance",
        severity=Severity.WARNING,
        message=f"work is shared out badly: {worst.busy} has {worst.busy_usage:.0%} of its pool in use, {worst.idle}"
        f" {worst.idle_usage:.0%}",
        evidence=worst.s.evidence(
            busy_usage_share=worst.busy_usage, idle_usage_share=worst.idle_usage, usage_apart_share=worst.apart
        ),
        sure=Sure("medium" if worst.s.several else "low", "two pools of the same model at the same time"),
        refuted_by="the two the other way round a minute later: then it is chance, not routing",
        actions=(
            Action(
                "route by what is free: the gate places by promised blocks; not by turns, nor by number of requests",
                Cost.FREE,
                "usage of the two comes together, and the queue of the full one goes",
            ),
            Action(
                "where requests are pinned for their prefix, let them go elsewhere when the pinned one is full",
                Cost.FREE,
                "fewer hits, and no queue beside an idle card",
            ),
        ),
        where=tuple(dict.fromkeys((worst.busy, worst.idle))),
    )


def _of_two(one: Symptoms, other: Symptoms) -> _Pair | None:
    here, there = one.last.usage, other.last.usage
    if (one.window.engine, one.window.model) != (other.window.engine, other.window.model):
        return None
    if here is None or there is None:
        return None
    busy, idle = (one, other) if here >= there else (other, one)
    if idle.last.for_room:
        return None
    return _Pair(abs(here - there), busy, _name(busy), max(here, there), _name(idle), min(here, there))


def _within(s: Symptoms) -> _Pair | None:
    """Of ranks that one server tells together."""
    by_rank = s.window.last.usage_by_rank
    shares = {rank: share for rank, told in by_rank.items() if (share := number(told)) is not None and share <= 1}
    if len(shares) < 2:
        return None
    busy, idle = max(shares, key=lambda rank: shares[rank]), min(shares, key=lambda rank: shares[rank])
    apart = shares[busy] - shares[idle]
    return _Pair(apart, s, f"rank {busy}", shares[busy], f"rank {idle}", shares[idle])


def reporting_change(several: Sequence[Symptoms]) -> Finding | None:
    """Two versions tell the same pool in figures that mean something else; or a name was read that is no more."""
    for one, other in combinations(several, 2):
        pools = one.window.limits.pool, other.window.limits.pool
        if None in pools or one.window.engine != other.window.engine:
            continue
        blocks = [number(pool.num_blocks) for pool in pools if pool is not None]
        tokens = [number(pool.tokens) for pool in pools if pool is not None]
        if None in blocks or None in tokens or not all(blocks) or not all(tokens):
            continue
        apart = abs((blocks[0] or 0) - (blocks[1] or 0)) / max(blocks[0] or 1, blocks[1] or 1)
        times = max(tokens[0] or 1, tokens[1] or 1) / min(tokens[0] or 1, tokens[1] or 1)
        if apart <= _SAME_BLOCKS and times >= _OTHER_TOKENS:
            return _changed(
                one,
                f"two engines with the same blocks ({blocks[0]:,.0f} and {blocks[1]:,.0f}) tell {tokens[0]:,.0f} and"
                f" {tokens[1]:,.0f} tokens: the figure changed meaning between versions, the pool did not",
                {"tokens_times": round(times, 2), "num_blocks": blocks[0]},
            )
    for one in several:
        old = [note.partition(":")[0] for note in _old_names(one)]
        if old:
            words = (
                f"read by names that newer versions no longer have: {len(old)} of them, such as {_old_names(one)[0]}"
            )
            return _changed(one, words, {"old_names_count": len(old)})
    return None


def _old_names(s: Symptoms) -> list[str]:
    return [note for note in s.window.notes if "older" in note and ":" in note]


def _changed(s: Symptoms, words: str, figures: dict[str, float | str | None]) -> Finding:
    return Finding(
        code="reporting_change",
        severity=Severity.INFO,
        message=words,
        evidence=figures | {"engine": s.window.engine},
        sure=Sure("high", "by the engine's own names and figures"),
        refuted_by="other hardware or other flags between the two: then the pool did change",
        actions=(
            Action(
                "make alert rules and dashboards by version: usage as a share first, tokens only within one version",
                Cost.FREE,
                "no alarm from an upgrade alone; kvbudget diagnose reads both names",
            ),
        ),
        where=(s.window.where,) if s.window.where else (),
    )


def _name(s: Symptoms) -> str:
    return s.window.where or s.window.model or s.window.engine
