"""When a refused client comes back."""

import random

import pytest

from kvbudget.simulate.clients import Client
from kvbudget.simulate.settings import ClientHabits
from simulated import SECOND, request


def client(tries: int) -> Client:
    made = Client(7, request())
    for _ in range(tries):
        made.next_try()
    return made


def test_each_try_is_a_request_of_its_own() -> None:
    one = client(1)
    assert one.key == "7"
    one.next_try()
    assert one.key == "7.2"


def test_a_told_time_is_kept_and_lengthened_by_up_to_a_quarter_as_the_edge_does() -> None:
    habits = ClientHabits(retries=1, patience_ns=None)
    pauses = [client(1).comes_back_in_ns(habits, 4 * SECOND, 0, random.Random(seed)) for seed in range(200)]
    assert all(pause is not None and 4 * SECOND <= pause <= 5 * SECOND for pause in pauses)
    assert len(set(pauses)) > 190
    assert client(1).comes_back_in_ns(habits, 118 * SECOND, 0, random.Random(2)) == 120 * SECOND


@pytest.mark.parametrize(("tries", "longest_s"), [(1, 0.5), (2, 1), (3, 2), (5, 8), (9, 8)])
def test_without_a_told_time_pauses_double_up_to_eight_seconds(tries: int, longest_s: float) -> None:
    habits = ClientHabits(retries=10, patience_ns=None)
    for seed in range(50):
        pause = client(tries).comes_back_in_ns(habits, None, 0, random.Random(seed))
        assert pause is not None
        assert 0.75 * longest_s <= pause / SECOND <= longest_s


def test_nobody_comes_back_more_often_than_it_may_nor_after_its_patience() -> None:
    chance = random.Random(0)
    assert client(2).comes_back_in_ns(ClientHabits(retries=1, patience_ns=None), SECOND, 0, chance) is None
    assert client(1).comes_back_in_ns(ClientHabits(retries=1), SECOND, 29 * SECOND, chance) is None
    assert client(1).comes_back_in_ns(ClientHabits(retries=1), SECOND, 20 * SECOND, chance) is not None
