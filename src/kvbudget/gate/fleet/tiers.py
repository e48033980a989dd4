"""Decides which instances can take a request at all, in which order they are asked: the shortest that fits first.

Instances of similar context are one tier (within TIER_RATIO of the shortest of it, or as an operator says). A request
goes to a longer tier only when the shorter ones that fit it have no room: that tier is kept for what fits nowhere else.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvbudget.gate.events import Arrived
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.refusing.refusals import Refusal

TIER_RATIO = 1.5


class Able(NamedTuple):
    """One instance that can take a request. `lent`: it is of a longer tier than the request needs; `stands_in`: the
    request is for another model."""

    member: Member
    peak_blocks: int
    tier: int
    lent: bool
    stands_in: bool


def tiers_of(members: Sequence[Member]) -> dict[str, int]:
    """The tier of each, by name."""
    tiers: dict[str, int] = {}
    tier, shortest = -1, 0.0
    for member in sorted(members, key=lambda member: member.gate.max_context):
        if member.options.tier is not None:
            tiers[member.name] = member.options.tier
            continue
        if tier < 0 or member.gate.max_context >= shortest * TIER_RATIO:
            tier, shortest = tier + 1, float(member.gate.max_context)
        tiers[member.name] = tier
    return tiers


def able_to(event: Arrived, own: Sequence[Member], standing_in: Sequence[Member]) -> list[Able]:
    """All that can take it, up or not, in the order of preference between kinds: equal (tier, stands_in) are of one
    kind. Who grants all that is asked comes before who would cut the answer short; those only if there is nobody else,
    and of them the longest."""
    return [*_able(event, own, stands_in=False), *_able(event, standing_in, stands_in=True)]


def _able(event: Arrived, members: Sequence[Member], *, stands_in: bool) -> list[Able]:
    asked = event.max_new_tokens if event.max_new_tokens is not None else event.default_new_tokens
    whole: list[tuple[Member, int]] = []
    cut: list[tuple[Member, int]] = []
    for member in members:
        at_member = member.own(event)
        resolved = member.gate.resolver.resolve(at_member)
        if isinstance(resolved, Refusal):
            continue
        footprint, peak_blocks = resolved
        grants_all = footprint.max_new_tokens >= asked and footprint.prompts == at_member.prompts
        (whole if grants_all else cut).append((member, peak_blocks))
    if not whole and cut:
        longest = max([member.gate.max_context for member, _ in cut])
        whole = [(member, peak) for member, peak in cut if member.gate.max_context == longest]
    tiers = tiers_of(members) if len(whole) > 1 else {}
    lowest = min([tiers[member.name] for member, _ in whole], default=0) if tiers else 0
    found = [
        Able(member, peak, tiers.get(member.name, 0), tiers.get(member.name, 0) > lowest, stands_in)
        for member, peak in whole
    ]
    found.sort(key=lambda able: able.tier)
    return found
