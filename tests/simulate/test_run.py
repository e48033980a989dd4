"""What happens in a simulation: clients arrive, wait, leave, come back; several engines share them."""

import random
import tracemalloc

import pytest

from kvbudget.errors import BadValueError
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import simulate
from kvbudget.simulate.scenarios import scenario_named
from simulated import MS, SECOND, request, run, settings

KINDS = (False, True)  # in leaps, in single steps


@pytest.mark.parametrize("every_step", KINDS)
def test_one_request_alone_takes_a_step_a_token(every_step: bool) -> None:
    seen = run([request(SECOND, 10, 5)], every_step=every_step)
    assert seen.answers == [(0, SECOND + 50 * MS, 5, SECOND + 10 * MS, False)]
    document = seen.document
    assert (document["steps"], document["scheduled_tokens"], document["elapsed_s"]) == (5, 14, 0.05)
    assert (document["ttft_s"]["p50"], document["gap_s"]["p99"]) == (pytest.approx(0.01, rel=1e-3),) * 2
    assert document["pool_use_mean"] == pytest.approx(1 / 100)  # 10 to 14 tokens: one block of a hundred
    assert document["goodput_tokens_per_s"] == 100


@pytest.mark.parametrize("every_step", KINDS)
def test_what_arrives_in_the_middle_of_a_step_enters_at_its_end(every_step: bool) -> None:
    seen = run([request(0, 10, 50), request(15 * MS, 10, 1), request(20 * MS, 10, 1)], every_step=every_step)
    assert [(number, end // MS) for number, end, *_ in seen.answers] == [(1, 30), (2, 30), (0, 500)]


@pytest.mark.parametrize("every_step", KINDS)
def test_a_client_leaves_when_its_patience_ends_without_a_first_token_and_that_is_loss(every_step: bool) -> None:
    long = request(0, 100, 1000)
    late = request(MS, 1500, 10)
    seen = run([long, late], settings(100, patience_ns=2 * SECOND), every_step=every_step)
    assert seen.endings == (1, 0, 1)
    assert seen.document["goodput_tokens_per_s"] == 100  # of the one that stayed
    assert seen.document["slo_fraction"] == 0.5


def test_work_for_a_client_that_left_during_its_prompt_is_wasted() -> None:
    given = settings(100, max_num_batched_tokens=256, patience_ns=25 * MS)
    seen = run([request(0, 1000, 10)], given)
    assert seen.endings == (0, 0, 1)
    assert seen.document["wasted_tokens"] == 768  # three steps of 256 had begun
    assert seen.document["output_tokens_per_s"] == 0


def test_a_refused_client_comes_back_at_the_told_time_as_often_as_it_may() -> None:
    given = settings(20, queue_requests=0, retries=3, patience_ns=None)
    load = [request(0, 100, 200), request(MS, 200, 100)]  # 19 blocks, then 19 blocks
    seen = run(load, given, "worst-case")
    assert seen.endings == (2, 0, 0)
    retry = seen.document["retry_after"]
    assert seen.document["tries"] == 2 + retry["told"]
    assert 1 <= retry["told"] <= 3
    assert retry["returned"] == retry["told"]
    assert retry["admitted_at_once"] == 1
    assert run(load, settings(20, queue_requests=0, patience_ns=None), "worst-case").endings == (1, 1, 0)


def test_nobody_comes_back_after_its_patience() -> None:
    given = settings(20, queue_requests=0, retries=3, patience_ns=SECOND)
    seen = run([request(0, 100, 200), request(MS, 200, 100)], given, "worst-case")
    assert (seen.endings, seen.document["tries"]) == ((1, 1, 0), 2)  # the least that is told is a second


def test_a_request_that_can_never_be_served_is_refused_for_good() -> None:
    seen = run([request(0, 5000, 5)], settings(100, retries=5))
    assert (seen.endings, seen.document["tries"]) == ((0, 1, 0), 1)
    assert seen.document["refusals"] == {"context_exceeded": 1}


def test_several_instances_take_the_next_request_where_there_are_fewest() -> None:
    load = [request(k, 10, 100) for k in range(6)]
    one, three = run(load, settings(max_num_seqs=2)), run(load, settings(max_num_seqs=2, instances=3))
    # The first is alone in its engine's first step.
    assert [round(seen.document["elapsed_s"], 6) for seen in (one, three)] == [3.01, 1.01]
    assert {gate for gate, *_ in three.decisions} == {0, 1, 2}


def test_the_same_seed_gives_the_same_result_to_the_byte() -> None:
    for policy in ("none", "learned"):
        scenario = scenario_named("retrying")
        documents = []
        for _ in range(2):
            given = settings(1024, max_model_len=8192, retries=2)
            load = scenario.load(random.Random(7), 60)
            documents.append(simulate(load, given, contender(policy), random.Random(7)).document())
        assert documents[0] == documents[1]


def test_every_request_ends_once_and_nothing_stays_promised() -> None:
    for policy in ("none", "worst-case", "trajectory", "learned", "oracle", "max-num-queued-reqs=4"):
        load = list(scenario_named("overload-1.7").load(random.Random(3), 120))
        seen = run(load, settings(700, max_model_len=8192, retries=1, instances=2), policy)
        assert sum(seen.endings) == 120
        assert seen.result.promised_at_end == 0


def test_a_long_load_needs_no_memory_of_its_own() -> None:
    """The load is made as it is used and no request is kept: a million need what a few thousand do."""

    def peak(requests: int) -> int:
        load = (request(number * 40 * MS, 100, 20) for number in range(requests))
        tracemalloc.start()
        try:
            result = simulate(load, settings(400), contender("worst-case"), random.Random(0))
            assert result.document()["finished"] == requests
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(300)  # what is made once
    assert peak(6000) < 1.3 * peak(1500)


def test_an_engine_that_would_not_start_is_an_error() -> None:
    with pytest.raises(BadValueError, match="To serve at least one request"):
        run([request()], settings(10, max_model_len=4096))
