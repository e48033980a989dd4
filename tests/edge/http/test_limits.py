"""Bounds of the data plane."""

import pytest

from kvbudget.edge.http.limits import ServerLimits, UpstreamLimits
from kvbudget.errors import BadValueError


@pytest.mark.parametrize(
    "name",
    ["header_bytes", "body_bytes", "buffered_bytes", "connections", "head_s", "body_s", "idle_s", "write_stall_s"],
)
def test_a_server_limit_must_be_positive(name: str) -> None:
    with pytest.raises(BadValueError, match=name):
        ServerLimits(**{name: 0})


@pytest.mark.parametrize(
    "name",
    [
        "connections",
        "uncharged_waiting",
        "own_connections",
        "connect_s",
        "reuse_race_s",
        "response_s",
        "read_stall_s",
        "idle_s",
    ],
)
def test_an_upstream_limit_must_be_positive(name: str) -> None:
    with pytest.raises(BadValueError, match=name):
        UpstreamLimits(**{name: -1})


def test_the_clock_is_looked_at_often_enough_for_the_shortest_limit() -> None:
    assert ServerLimits().sweep_s == 1.0
    assert ServerLimits(head_s=0.4).sweep_s == pytest.approx(0.1)
    assert UpstreamLimits(response_s=None, read_stall_s=None, connect_s=0.001).sweep_s == 0.02


def test_uncharged_requests_get_a_quarter_of_the_connections_and_at_least_one() -> None:
    assert [UpstreamLimits(connections=n).uncharged_connections for n in (1, 7, 8, 4096)] == [1, 1, 2, 1024]


def test_what_is_buffered_has_room_for_one_whole_body() -> None:
    assert ServerLimits(buffered_bytes=10, body_bytes=20).buffered_most_bytes == 20
    assert ServerLimits().buffered_most_bytes == 512 * 2**20
