"""What cannot be simulated is refused with its name."""

import pytest

from kvbudget.errors import BadValueError
from simulated import SECOND, settings


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("instances", 0, "instances"),
        ("instances", 65, "instances"),
        ("retries", -1, "retries"),
        ("retries", 1001, "retries"),
        ("margin_blocks", -1, "margin_blocks"),
        ("queue_requests", 10**13, "queue_requests"),
        ("queue_tokens", -5, "queue_tokens"),
        ("default_new_tokens", 0, "default_max_tokens"),
        ("queue_ns", -1, "queue_seconds"),
        ("patience_ns", 0, "patience"),
        ("deadline_ns", 0, "deadline"),
        ("ttft_ns", 0, "slo_ttft"),
        ("gap_ns", 10**20, "slo_gap"),
    ],
)
def test_a_value_out_of_bounds_is_named(field: str, value: int, told: str) -> None:
    with pytest.raises(BadValueError, match=told):
        settings(**{field: value})


def test_a_gate_may_have_no_queue_and_nothing_need_be_judged() -> None:
    given = settings(queue_ns=0, queue_requests=0, patience_ns=None, ttft_ns=None, gap_ns=None)
    assert given.gate.queue_ns == 0


def test_the_window_is_what_the_pool_holds_unless_it_is_given() -> None:
    assert settings(100).engine.window == 1600
    assert settings(100, max_model_len=512).engine.window == 512
    assert settings(100).engine.usable_blocks == 100
    assert settings(patience_ns=SECOND).clients.patience_ns == SECOND
