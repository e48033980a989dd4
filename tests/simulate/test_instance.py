"""What the gate before an engine hears, and what the engine's own flags do."""

import itertools
import random

import pytest

from kvbudget.gate.events import Arrived, Ended, Preempted, Progressed
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import Simulation
from kvbudget.units import Tokens
from simulated import MS, SECOND, request, run, settings

KINDS = (False, True)  # in leaps, in single steps


def heard(load: list, given=None, policy: str = "learned", *, every_step: bool = True) -> list:  # type: ignore[no-untyped-def, type-arg]
    """(event, when in ms) of everything the only gate was told, in order."""
    simulation = Simulation(load, given or settings(), contender(policy), random.Random(0), every_step=every_step)
    gate = simulation.instances[0].gate
    events, handle, progressed = [], gate.handle, gate.progressed

    def note(event, now_ns):  # type: ignore[no-untyped-def]
        if not isinstance(event, Progressed):  # which is told by `progressed` as well
            events.append((event, now_ns / MS))
        return handle(event, now_ns)

    def note_progress(request_id, new_tokens, now_ns, cached_tokens=None):  # type: ignore[no-untyped-def]
        events.append((Progressed(request_id, new_tokens, cached_tokens), now_ns / MS))
        return progressed(request_id, new_tokens, now_ns, cached_tokens)

    gate.handle, gate.progressed = note, note_progress  # type: ignore[method-assign]
    simulation.run()
    return events


@pytest.mark.parametrize("every_step", KINDS)
def test_tokens_are_reported_at_the_first_then_every_sixteenth_and_before_the_end(every_step: bool) -> None:
    events = heard([request(0, 10, 20, most=50)], every_step=every_step)
    told = [(event.new_tokens, at) for event, at in events if isinstance(event, Progressed)]
    assert told == [(1, 10), (16, 170), (3, 200)]
    end, at = events[-1]
    assert (end, at) == (Ended("0", Outcome.FINISHED, Tokens(20)), 200)


@pytest.mark.parametrize("every_step", KINDS)
def test_the_gate_is_told_what_clients_declare_and_only_the_clairvoyant_more(every_step: bool) -> None:
    load = [request(0, 10, 5, most=50, priority=-1, tenant="a"), request(0, 10, 5, declared=False)]
    (declared, _), (open_, _) = heard(load, every_step=every_step)[:2]
    assert isinstance(declared, Arrived)
    assert (declared.max_new_tokens, declared.known_tokens, declared.priority, declared.tenant) == (50, None, -1, "a")
    assert (open_.max_new_tokens, open_.default_new_tokens) == (None, 2048)
    (known, _), *_ = heard(load, policy="oracle", every_step=every_step)
    assert (known.max_new_tokens, known.known_tokens) == (5, 5)


@pytest.mark.parametrize("every_step", KINDS)
def test_a_client_that_leaves_ends_its_promise_by_where_it_stands(every_step: bool) -> None:
    given = settings(20, patience_ns=25 * MS, max_num_batched_tokens=256)
    inside = heard([request(0, 310, 5)], settings(20, patience_ns=5 * MS), every_step=every_step)[-2][0]
    assert inside == Ended("0", Outcome.CLIENT_GONE, None, engine_done=False)
    events = heard([request(0, 100, 200), request(MS, 200, 100)], given, "worst-case", every_step=every_step)
    assert (Ended("1", Outcome.WITHDRAWN), 26) in events


@pytest.mark.parametrize("every_step", KINDS)
def test_preemptions_are_heard_of_a_second_later_as_from_a_counter_that_is_read_now_and_then(every_step: bool) -> None:
    load = [request(k, 90, 200, most=200) for k in range(4)]  # 4 x 19 blocks on 40
    seen = run(load, settings(40), "none", every_step=every_step)
    told = [(now_ns, event.requests) for _, now_ns, event, _ in seen.decisions if isinstance(event, Preempted)]
    assert sum(requests for _, requests in told) == seen.document["preemptions"] > 0
    assert all(later - earlier >= SECOND for (earlier, _), (later, _) in itertools.pairwise(told))


@pytest.mark.parametrize("every_step", KINDS)
def test_the_engines_own_flags_refuse_without_a_time(every_step: bool) -> None:
    load = [request(k, 100, 50) for k in range(6)]
    by_requests = run(load, settings(), "max-num-queued-reqs=4", every_step=every_step)
    assert by_requests.document["refusals"] == {"engine_busy": 2}
    by_tokens = run(load, settings(), "max-num-queued-tokens=201", every_step=every_step)
    assert by_tokens.document["refusals"] == {"engine_busy": 3}  # the third is let in while 200 are in prefill
    assert by_tokens.document["retry_after"]["told"] == 0


def test_without_a_gate_nothing_binds_but_the_window() -> None:
    load = [request(0, 500, 1000, most=1000) for _ in range(50)]
    seen = run(load, settings(100, patience_ns=None), "none")
    assert seen.endings == (50, 0, 0)
    assert seen.document["wait_s"]["p99"] == 0
    assert seen.document["preemptions"] > 0


def test_a_watermark_keeps_blocks_free_for_those_that_run() -> None:
    load = [request(k, 100, 150) for k in range(12)]
    plain, kept = run(load, settings(50)), run(load, settings(50), "watermark=0.3")
    assert kept.document["preemptions"] < plain.document["preemptions"]


@pytest.mark.parametrize("every_step", KINDS)
def test_prompts_of_clients_that_left_no_longer_count_for_the_engines_own_flag(every_step: bool) -> None:
    given = settings(40, max_num_batched_tokens=64, max_num_seqs=1, patience_ns=25 * MS)
    load = [request(0, 400, 5), request(SECOND, 400, 5), request(SECOND + MS, 400, 5)]
    seen = run(load, given, "max-num-queued-tokens=300", every_step=every_step)
    assert (seen.endings, seen.document["refusals"]) == ((0, 1, 2), {"engine_busy": 1})
