"""Decides how bad the world is in which several gates share one pool: network, clocks, crashes, load."""

from typing import NamedTuple

from kvbudget.gate.policies import Policy
from kvbudget.simulate.chance import Chance

_MS = 10**6
_SECOND = 10**9


class Weather(NamedTuple):
    """One world. All of it is bad until `storm_ns`; then nothing fails any more, requests come until `calm_ns`, and
    then none.

    `lost`, `doubled`: chances of a message; one that is `astray` comes up to two leases late. `drift_ppm`: clocks of
    gates go that much faster or slower than the bank's at most. `pauses`, `crashes`, `partitions` (of one gate),
    `outages` (of the bank, which then is back with its memory or without): how many of each in the storm.
    `squeezes`: how often others at the engine take another part of the pool, which the gates see one after the other.
    `gap_ns`: between two requests, in the mean. `common_blocks`: that nearly all prompts begin with; 0: nobody shares
    anything.
    """

    gates: int
    pool_blocks: int
    max_num_seqs: int
    most_prompt: int
    most_new: int
    policy: Policy
    classes: int
    lease_ns: int
    abort_tail_ns: int
    lost: float
    doubled: float
    astray: float
    delay_ns: int
    drift_ppm: int
    pauses: int
    crashes: int
    partitions: int
    outages: int
    squeezes: int
    storm_ns: int
    calm_ns: int
    gap_ns: int
    common_blocks: int


def weather_of(chance: Chance) -> Weather:
    """One of very many."""

    def one_of(*values: float) -> float:
        return values[chance.randint(0, len(values) - 1)]

    pool_blocks = chance.randint(20, 300)
    lease_ns = int(one_of(1, 2, 3)) * _SECOND
    storm_ns = chance.randint(4, 10) * _SECOND
    most_prompt = pool_blocks * 16 // int(one_of(3, 8, 20))
    most_new = int(one_of(40, 100, 200))
    # Blocks that an average request holds, for as long as it lives, against the pool: from half a load to three.
    mean_blocks = (most_prompt / 2 + most_new / 2) / 16 + 1
    lives_s = 0.1 + 0.02 * most_new / 2
    gap_s = mean_blocks * lives_s / pool_blocks / one_of(0.5, 1.0, 1.5, 3.0)
    return Weather(
        gates=chance.randint(2, 5),
        pool_blocks=pool_blocks,
        max_num_seqs=int(one_of(4, 16, 64)),
        most_prompt=most_prompt,
        most_new=most_new,
        policy=list(Policy)[chance.randint(0, len(Policy) - 1)],
        classes=int(one_of(1, 1, 2)),
        lease_ns=lease_ns,
        abort_tail_ns=int(one_of(0, 250)) * _MS,
        lost=one_of(0.0, 0.01, 0.1, 0.3),
        doubled=one_of(0.0, 0.05, 0.3),
        astray=one_of(0.0, 0.01, 0.05),
        delay_ns=int(one_of(0.2, 2, 20, 100) * _MS),
        drift_ppm=int(one_of(0, 100, 5000)),
        pauses=chance.randint(0, 6),
        crashes=chance.randint(0, 3),
        partitions=chance.randint(0, 6),
        outages=chance.randint(0, 2),
        squeezes=int(one_of(0, 0, 3)),
        storm_ns=storm_ns,
        calm_ns=storm_ns + lease_ns + chance.randint(4, 10) * _SECOND,
        gap_ns=int(max(gap_s, 0.03) * _SECOND),
        common_blocks=(0, pool_blocks // 12, pool_blocks // 5)[pool_blocks % 3],
    )
