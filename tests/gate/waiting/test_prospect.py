"""What is told of room to come is what Retry-After expects."""

from collections.abc import Callable

from kvbudget.gate.events import Arrived, SliceChanged
from kvbudget.gate.gate import Gate
from kvbudget.gate.waiting.prospect import free_blocks_in
from kvbudget.units import Blocks

SECOND = 10**9


def test_blocks_come_back_when_their_requests_are_expected_to_end(
    make_gate: Callable[..., Gate], arrive: Callable[..., Arrived]
) -> None:
    gate = make_gate(100)
    gate.expectation.ns_per_token, gate.expectation.learned = 0.1 * SECOND, True
    gate.handle(arrive("short", 16, 16), 0)  # 1.6 s, two blocks
    gate.handle(arrive("long", 16, 304), 0)  # 30.4 s, twenty
    assert gate.free_blocks() == 78
    found = [free_blocks_in(gate, seconds * SECOND, 0) for seconds in (1, 2, 10, 31, 600)]
    assert found == [78, 80, 80, 100, 100]


def test_where_the_pool_is_shared_it_is_the_pool_that_drains_and_not_the_slice(
    make_gate: Callable[..., Gate], arrive: Callable[..., Arrived]
) -> None:
    gate = make_gate(100)
    gate.handle(SliceChanged(Blocks(30), 9, 60 * SECOND, Blocks(40)), 0)
    gate.expectation.ns_per_token, gate.expectation.learned = 0.1 * SECOND, True
    gate.handle(arrive("long", 16, 304), 0)  # 30.4 s, twenty
    assert gate.free_blocks() == 40
    assert [free_blocks_in(gate, seconds * SECOND, 0) for seconds in (1, 31)] == [40, 60]


def test_an_empty_gate_has_all_its_blocks_free(make_gate: Callable[..., Gate]) -> None:
    assert free_blocks_in(make_gate(10), 10 * SECOND, 0) == 10
    assert free_blocks_in(make_gate(0), 10 * SECOND, 0) == 0
