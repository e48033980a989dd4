"""Bounds of the data plane."""

import pytest

from kvbudget.edge.http.limits import ServerLimits, UpstreamLimits
from kvbudget.errors import BadValueError


@pytest.mark.parametrize(
    "name", ["header_bytes", "body_bytes", "connections", "head_s", "body_s", "idle_s", "write_stall_s"]
)
def test_a_server_limit_must_be_positive(name: str) -> None:
    with pytest.raises(BadValueError, match=name):
        ServerLimits(**{name: 0})


@pytest.mark.parametrize("name", ["connections", "connect_s", "response_s", "read_stall_s", "idle_s"])
def test_an_upstream_limit_must_be_positive(name: str) -> None:
    with pytest.raises(BadValueError, match=name):
        UpstreamLimits(**{name: -1})


def test_the_clock_is_looked_at_often_enough_for_the_shortest_limit() -> None:
    assert ServerLimits().sweep_s == 1.0
    assert ServerLimits(head_s=0.4).sweep_s == pytest.approx(0.1)
    assert UpstreamLimits(response_s=None, read_stall_s=None, connect_s=0.001).sweep_s == 0.02
