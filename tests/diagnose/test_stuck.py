"""When nothing moves although nothing is full, and when it is a constraint of the requests themselves."""

import pytest

from kvbudget.diagnose.stuck import deferred, stuck
from windows import symptoms

STILL = {"usage": 0.0, "running": 0, "waiting": 6, "prompt_tokens": 0, "generation_tokens": 0}


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "high"),
        ({"window_s": 120.0}, "high"),
        ({"window_s": 5.0}, "medium"),
        ({"prompt_tokens": None, "generation_tokens": None}, "medium"),
        ({"deferred": 0}, "high"),
        ({"usage": 0.7}, "high"),
        ({"usage": None}, "high"),
        ({"generation_tokens": 1}, None),
        ({"prompt_tokens": 900}, "high"),  # what is computed of prompts alone, with nobody running, is late news
        ({"prompt_tokens": 900, "generation_tokens": None}, None),
        ({"finished": {"stop": 1.0}}, None),
        ({"preemptions": 1}, None),
        ({"running": (0, 1)}, None),
        ({"waiting": (0, 6)}, None),
        ({"waiting": 0}, None),
        ({"deferred": 6}, None),
        ({"looks": 1}, None),
    ],
)
def test_nobody_runs_somebody_waits_and_nothing_is_computed(changes: dict[str, object], level: str | None) -> None:
    found = stuck(symptoms(**{**STILL, **changes}))
    assert (None if found is None else found.sure.level) == level


def test_the_label_capacity_is_not_believed_when_nothing_runs() -> None:
    found = stuck(symptoms(**STILL, deferred=0))
    assert found is not None
    assert "that label means nothing" in found.message


def test_places_taken_by_those_that_are_deferred_are_stuck_only_where_the_limit_is_told() -> None:
    full = {"usage": 0.1, "running": 4, "waiting": 10, "deferred": 8, "prompt_tokens": 0, "generation_tokens": 0}
    assert stuck(symptoms(12, **full)) is not None
    assert stuck(symptoms(None, **full)) is None
    assert stuck(symptoms(13, **full)) is None


def test_a_standstill_with_requests_in_their_places_takes_a_minute_to_be_believed() -> None:
    frozen = {"usage": 0.4, "running": 9, "waiting": 5, "prompt_tokens": 0, "generation_tokens": 0}
    assert stuck(symptoms(**frozen, window_s=60.0)) is not None
    assert stuck(symptoms(**frozen, window_s=59.0)) is None
    assert stuck(symptoms(**frozen)) is None
    assert stuck(symptoms(**{**frozen, "waiting": (5, 6)}, window_s=90.0)) is None
    assert stuck(symptoms(**{**frozen, "usage": (0.4, 0.41)}, window_s=90.0)) is None


@pytest.mark.parametrize(
    ("waiting", "held", "level"),
    [
        (12, 12, "high"),
        (12, 6, "medium"),
        (12, 5, None),
        (12, 0, None),
        (12, None, None),
        (1, 1, "high"),
        (1, (0, 1), None),
    ],
)
def test_deferred_is_half_of_the_queue_or_more(waiting: int, held: object, level: str | None) -> None:
    found = deferred(symptoms(usage=0.3, running=5, waiting=waiting, deferred=held))
    assert (None if found is None else found.sure.level) == level
