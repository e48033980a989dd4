"""When requests fail: turned away by the engine, or given up by their clients."""

import pytest

from kvbudget.diagnose.refusing import arrivals_exceed_service, client_timeouts, engine_rejecting
from windows import histogram, symptoms

CALM = {"usage": 0.4, "running": 8, "waiting": 0}


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({"rejected": {"max_num_queued_reqs": 1.0}}, True),
        ({"rejected": {"max_num_queued_reqs": 0.0}}, False),
        ({"rejected": {}}, False),
        ({"failed": 2.0, "finished": {"stop": 98.0}}, True),
        ({"failed": 1.0, "finished": {"stop": 98.0}}, False),
        ({"rejected": {"x": 9.0}, "since_start": True}, False),
        ({"rejected": {"x": float("nan")}}, False),
    ],
)
def test_one_that_is_turned_away_is_enough_and_a_failure_in_fifty(counts: dict[str, object], found: bool) -> None:
    assert (engine_rejecting(symptoms(**CALM, **counts)) is not None) is found


def test_reasons_are_told_with_their_numbers() -> None:
    told = engine_rejecting(
        symptoms(**CALM, rejected={"queue": 4.0, "tokens": 2.0}, failed=1.0, finished={"stop": 9.0})
    )
    assert told is not None
    assert "turned 6 requests away (queue 4, tokens 2) and let 1 fail" in told.message
    assert told.evidence["rejected_share"] == 0.4


@pytest.mark.parametrize(
    ("aborted", "finished", "found"), [(10, 100, True), (9, 100, False), (4, 4, False), (5, 5, True), (0, 0, False)]
)
def test_a_tenth_that_gives_up_is_told_and_five_at_least(aborted: float, finished: float, found: bool) -> None:
    s = symptoms(**CALM, aborted=aborted, finished={"stop": finished - aborted, "abort": aborted})
    assert (client_timeouts(s) is not None) is found


def test_requests_that_began_and_neither_ended_nor_run_were_given_up() -> None:
    began = histogram({1.0: 20.0, float("inf"): 0.0}, 6.0)
    left = symptoms(usage=0.2, running=3, waiting=0, finished={"stop": 0.0}, ttft_s=began)
    found = client_timeouts(left)
    assert found is not None
    assert found.evidence["aborted_requests"] == 20
    still_running = symptoms(usage=0.2, running=(3, 20), waiting=0, finished={"stop": 0.0}, ttft_s=began)
    assert client_timeouts(still_running) is None
    ended = symptoms(usage=0.2, running=3, waiting=0, finished={"stop": 19.0}, ttft_s=began)
    assert client_timeouts(ended) is None


@pytest.mark.parametrize(
    ("waiting", "found"), [((10, 14), False), ((10, 15), True), ((100, 109), False), ((15, 10), False)]
)
def test_a_queue_that_grows_by_five_and_a_tenth_is_told(waiting: tuple[int, int], found: bool) -> None:
    assert (arrivals_exceed_service(symptoms(usage=0.5, running=9, waiting=waiting)) is not None) is found
