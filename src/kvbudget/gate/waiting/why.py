"""Decides what is told of those who wait: why, by the gate's own word at its last look at them, and how long still.

The word is noted where the decision is made (`gate.waiting.look`, `gate.waiting.trial`, `gate.tenants.fairness`), so
that no second rule has to find it again; here it is only read. Nothing is changed by it.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.gate.tenants.own_limit import own_limit_ns

if TYPE_CHECKING:
    from kvbudget.gate.gate import Gate
    from kvbudget.gate.waiting.queue import Waiting


class Why(StrEnum):
    """Why a request does not go now. The words that refusals have too mean the same."""

    TURN = "turn"  # others go first: those before it, or one that lacks room and would be put off by it
    POOL = "pool"  # the pool has no room for it beside what is promised
    SEQUENCES = "sequences"  # as many sequences run as may (max_num_seqs)
    TENANT_SHARE = "tenant_share"  # what room there is stays free for other tenants or classes
    TENANT_BLOCKS = "tenant_blocks"  # its tenant has reserved as many blocks as it may
    PROMPTS = "prompts"  # prompts that the engine has not computed yet come first
    ENGINE_BUSY = "engine_busy"  # the engine said that it is overloaded


class Waits(NamedTuple):
    """One who waits. `left_ns`: until it is expected to be let in, as Retry-After would tell it."""

    waiting: "Waiting"
    why: Why
    left_ns: int


def who_waits(gate: "Gate", most: int, now_ns: int) -> list[Waits]:
    """The first `most`, in the order of the queue."""
    waiting = list(islice(gate.queue, most))
    left_ns = _left_ns(gate, waiting, now_ns)
    return [Waits(one, _why(gate, one, now_ns), left) for one, left in zip(waiting, left_ns, strict=True)]


def _why(gate: "Gate", waiting: "Waiting", now_ns: int) -> Why:
    if now_ns < gate.busy_until_ns:
        return Why.ENGINE_BUSY
    return gate.queue.whys.get(waiting.key, Why.TURN)


def _left_ns(gate: "Gate", waiting: "list[Waiting]", now_ns: int) -> Iterator[int]:
    """What was foreseen for each when it came (`learned`), less what has passed; else, and where that is over, when
    enough of what runs has ended: of its tenant's own, where that one is at its limit of blocks. Its tokens it has had
    since it came."""
    expectation = replace(gate.expectation)  # which guesses a pace as long as nobody has ended
    turnover = expectation.waits_ns(gate.ledger, _missing(gate, waiting), now_ns)
    limits = gate.fairness.limits
    own_blocks: dict[str, int] = {}  # of each tenant's up to here
    for one, turnover_ns in zip(waiting, turnover, strict=True):
        tenant = one.arrived.tenant
        blocks = own_blocks[tenant] = own_blocks.get(tenant, 0) + one.peak_blocks
        limit_ns = own_limit_ns(gate.ledger, limits, expectation, tenant, one.footprint, blocks, now_ns)
        foreseen_ns = one.since_ns + one.expected_ns - now_ns if one.expected_ns else 0
        yield max(foreseen_ns if foreseen_ns > 0 else turnover_ns, limit_ns, gate.busy_until_ns - now_ns)


def _missing(gate: "Gate", waiting: "list[Waiting]") -> Iterator[tuple[int, int]]:
    """(blocks, sequences) that have to come back until each is let in behind those before it."""
    blocks = -gate.free_blocks()
    sequences = gate.ledger.sequences - gate.config.max_num_seqs
    for one in waiting:
        blocks += one.peak_blocks
        sequences += one.footprint.total_sequences
        yield blocks, sequences
