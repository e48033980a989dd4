"""Decides which of all findings is the verdict: the most causal one, for a cause hides what follows from it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvbudget.diagnose.across import rank_imbalance, reporting_change
from kvbudget.diagnose.actions import BEHIND_THE_GATE, GATE_IN_FRONT
from kvbudget.diagnose.budget import budget_full, bypass, gate_budget_full, gate_places_full, gate_pool_full
from kvbudget.diagnose.compute import compute_bound
from kvbudget.diagnose.enough import gate_healthy, healthy, insufficient_data, lacking
from kvbudget.diagnose.finding import CERTAIN, Diagnosis, Finding
from kvbudget.diagnose.fullness import NEXT_DOES_NOT_FIT
from kvbudget.diagnose.outputs import runaway_output
from kvbudget.diagnose.pool import fixed_footprint, pool_filling, pool_full, sub_pool_full
from kvbudget.diagnose.prefix import (
    counter_unwired,
    is_structural,
    prefix_cache_below_block,
    prefix_cache_no_sharing,
    prefix_cache_off,
    prefix_cache_too_small,
)
from kvbudget.diagnose.refusing import arrivals_exceed_service, client_timeouts, engine_rejecting
from kvbudget.diagnose.sequences import over_provisioned, seqs_full
from kvbudget.diagnose.stuck import deferred, stuck
from kvbudget.diagnose.symptoms import Symptoms
from kvbudget.engines.window import GateWindow, Observation

HEALTHY, INSUFFICIENT = "healthy", "insufficient_data"


class Code(NamedTuple):
    """`rank`: the lower, the more causal; the same rank goes by certainty. `verdict`: whether it can be the verdict;
    the others go with one, and leave a healthy engine healthy. `means`: for the reference."""

    rank: int
    verdict: bool
    means: str


CODES: dict[str, Code] = {
    "stuck": Code(0, True, "Requests wait and nothing is computed, with nothing full: the scheduler stands still."),
    "pool_full": Code(10, True, "The engine's blocks are used up: requests wait for them or are preempted."),
    "runaway_output": Code(20, True, "A few answers that go on and on hold nearly all of the pool."),
    "budget_full": Code(30, True, "Promises (the gate's, or an engine's) are used up while blocks are free."),
    "engine_rejecting": Code(40, True, "The engine itself turned requests away, or let them fail."),
    "deferred": Code(45, True, "Requests wait for a LoRA slot, a KV transfer or a grammar, not for room."),
    "seqs_full": Code(50, True, "As many run as max_num_seqs lets, and others wait although the pool has room."),
    "compute_bound": Code(70, True, "Prefill takes the steps: requests wait although pool and places have room."),
    "sub_pool_full": Code(80, True, "One part of the pool is full while another is nearly empty."),
    "bypass": Code(110, True, "Requests reach the engine on another way than through the gate."),
    "rank_imbalance": Code(120, True, "One rank or replica is full while another of the same model is nearly idle."),
    "client_timeouts": Code(130, True, "Clients give up: what is computed for them is lost, and tokens/s flatters."),
    INSUFFICIENT: Code(135, True, "Too little is known for a verdict; `collect` says what would be enough."),
    "prefix_cache_below_block": Code(140, True, "The prefix cache can hit nothing: what is shared is under one block."),
    "prefix_cache_too_small": Code(140, True, "What is shared is pushed out before it is asked for again."),
    "fixed_footprint": Code(145, True, "Requests hold a large share each, whatever their length."),
    "prefix_cache_no_sharing": Code(150, True, "Prompts are long enough, the cache has room, and nothing comes twice."),
    "prefix_cache_off": Code(148, True, "Prefix caching is off while several prompts of several blocks are computed."),
    "over_provisioned": Code(150, True, "The pool holds far more than can ever run at once."),
    HEALTHY: Code(160, True, "Nobody waits for room, nothing was preempted or refused."),
    "pool_filling": Code(165, False, "Nobody waits yet, and at this rate the pool is full soon."),
    "arrivals_exceed_service": Code(170, False, "The queue grows: more come than are served."),
    "counter_unwired": Code(180, False, "Hits of the prefix cache are not counted; other figures show them."),
    "reporting_change": Code(190, False, "A figure or name means something else in another version."),
}
_OF_NOTES = 185
# Found for certain they go before what is otherwise told by counters, such as refusals.
_WHEN_CERTAIN = {"seqs_full": 35, "compute_bound": 36, "prefix_cache_below_block": 132, "over_provisioned": 138}
OF_ONE: tuple[Callable[[Symptoms], Finding | None], ...] = (
    stuck,
    pool_full,
    runaway_output,
    budget_full,
    engine_rejecting,
    deferred,
    seqs_full,
    compute_bound,
    sub_pool_full,
    fixed_footprint,
    pool_filling,
    client_timeouts,
    over_provisioned,
    prefix_cache_below_block,
    prefix_cache_too_small,
    prefix_cache_no_sharing,
    arrivals_exceed_service,
    counter_unwired,
    prefix_cache_off,
)
OF_SEVERAL: tuple[Callable[[Sequence[Symptoms]], Finding | None], ...] = (rank_imbalance, reporting_change)
OF_A_GATE: tuple[Callable[[GateWindow], Finding | None], ...] = (
    gate_pool_full,
    gate_budget_full,
    gate_places_full,
    bypass,
)


def diagnose(seen: Observation, max_num_seqs: int | None = None) -> Diagnosis:
    """The verdict on all that was seen. `max_num_seqs`: told by a person, for every engine in it."""
    several = [Symptoms(window, max_num_seqs) for window in seen.engines]
    found = [finding for s in several for finding in findings_of(s)]
    found += [finding for rule in OF_SEVERAL if (finding := rule(several)) is not None]
    of_gates: list[Finding] = []
    for gate in seen.gates:
        told = [finding for rule in OF_A_GATE if (finding := rule(gate)) is not None]
        of_gates += told or ([] if several else [gate_healthy(gate)])
    if seen.gates:
        alone = len(several) == 1  # of several it is not known which gate stands before which engine
        found = [_behind_a_gate(one) for one in found if not (alone and _is_of_the_budget(one, of_gates))]
    found += of_gates
    if not any(_weighs(finding) for finding in found):
        found.append(lacking("no engine and no gate was seen", ("the /metrics of an engine, or its log",), {}))
    if seen.problems and not any(_weighs(one) and one.code != HEALTHY for one in found):
        found.append(lacking("not all that was named could be read", seen.problems, {}))
    ordered = sorted(_merged(found), key=_rank)
    verdict = next(finding.code for finding in ordered if _weighs(finding))
    if verdict != HEALTHY:
        ordered = [finding for finding in ordered if finding.code != HEALTHY]
    notes = dict.fromkeys(note for window in seen.engines for note in window.notes)
    return Diagnosis(verdict, tuple(ordered), seen.sources, seen.problems, tuple(notes))


def _is_of_the_budget(finding: Finding, of_gates: Sequence[Finding]) -> bool:
    """Whether an engine's queue is told as a full pool only because the next one is large, while the gate before it
    knows that its promises are what is used up: two names for one thing, and the gate's has the figures."""
    by_size = finding.code == "pool_full" and finding.sure == NEXT_DOES_NOT_FIT
    return by_size and any(one.code == "budget_full" for one in of_gates)


def _behind_a_gate(finding: Finding) -> Finding:
    """Nobody who has a gate is told to put one in front."""
    actions = tuple(BEHIND_THE_GATE if action == GATE_IN_FRONT else action for action in finding.actions)
    return replace(finding, actions=actions)


def _weighs(finding: Finding) -> bool:
    """Whether it can be the verdict."""
    return CODES[finding.code].verdict and not finding.note


def _rank(finding: Finding) -> tuple[int, int]:
    rank = _OF_NOTES if finding.note else CODES[finding.code].rank
    plain = finding.certainty == CERTAIN or is_structural(finding)
    return (_WHEN_CERTAIN.get(finding.code, rank) if plain else rank), -finding.certainty


def findings_of(s: Symptoms) -> list[Finding]:
    """Of one engine: all that holds; else that too little is known, or that nothing is wrong."""
    found = [finding for rule in OF_ONE if (finding := rule(s)) is not None]
    if s.window.where:
        found = [replace(finding, where=finding.where or (s.window.where,)) for finding in found]
    if not any(_weighs(finding) for finding in found) or _only_the_cache(found):
        lacks = insufficient_data(s)
        if lacks is not None:
            return [lacks, *found]
    if any(_weighs(finding) for finding in found):
        return found
    return [healthy(s), *found]


def _only_the_cache(found: Sequence[Finding]) -> bool:
    """Whether all that holds is of less weight than what may be hidden by a missing figure."""
    least = CODES["prefix_cache_below_block"].rank
    return all(CODES[finding.code].rank >= least for finding in found)


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """One finding for each code: the most certain, with all the places where it holds."""
    by_code: dict[str, Finding] = {}
    for finding in found:
        known = by_code.get(finding.code)
        if known is None:
            by_code[finding.code] = finding
            continue
        best = max(known, finding, key=lambda one: (not one.note, one.certainty))
        where = dict.fromkeys((*known.where, *finding.where))
        by_code[finding.code] = replace(best, where=tuple(where))
    return list(by_code.values())
