"""What an operator says of one instance, and of all of them together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """`models`: names and aliases under which it is asked for, those that the engine tells aside; empty: any name.

    `weight`: how much work it gets beside others of its kind. `tier`: its place among lengths, smaller takes first;
    None: found from the context that it takes. `borrow`: share of its pool that work of shorter tiers may reserve, who
    waits for it included. `fallback`: models for which it stands in when no instance of theirs takes a request;
    `fallback_share`: share of its pool that may be reserved for that. A share of 1 is no limit.
    """

    models: frozenset[str] = frozenset()
    weight: float = 1.0
    tier: int | None = None
    borrow: float = 1.0
    fallback: frozenset[str] = frozenset()
    fallback_share: float = 1.0


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """`failures`: in a row, after which an instance gets no work for a while: `open_ns`, twice as long every time, at
    most `longest_open_ns`. `most_ejected`: share of the instances that may be out for that reason at once.
    `ramp_ns`: how long an instance that came back takes until it gets as much as the others."""

    failures: int = 5
    open_ns: int = 2 * 10**9
    longest_open_ns: int = 60 * 10**9
    most_ejected: float = 0.5
    ramp_ns: int = 10 * 10**9
