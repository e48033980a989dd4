import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.simulate.engine_request import EngineRequest
from kvbudget.simulate.waiting import SchedulingPolicy, Waiting, waiting_queue


def request(name: str, priority: int = 0, arrival: int = 0) -> EngineRequest:
    return EngineRequest(name, 1, 1, 1, None, priority, arrival, ())


def names(queue: Waiting) -> str:
    return "".join(one.request_id for one in queue.in_order())


def test_who_comes_first_is_first_and_who_is_put_back_stands_before_all_in_the_same_order() -> None:
    queue = waiting_queue(SchedulingPolicy.FCFS)
    for name in "abc":
        queue.add(request(name, priority=ord("c") - ord(name)))
    taken = [queue.take(), queue.take()]
    queue.add(request("d"))
    queue.put_back(taken)
    assert names(queue) == "abcd"
    assert queue.head() is taken[0]


def test_by_priority_the_smallest_number_is_next_of_equals_the_earlier_and_then_the_smaller_id() -> None:
    queue = waiting_queue(SchedulingPolicy.PRIORITY)
    for name, priority, arrival in [("d", 5, 1), ("c", 0, 9), ("b", 0, 2), ("a", -1, 7), ("e", 5, 1)]:
        queue.add(request(name, priority, arrival))
    assert names(queue) == "abcde"
    assert queue.take().request_id == "a"


def test_by_priority_who_is_put_back_gets_no_better_place() -> None:
    queue = waiting_queue(SchedulingPolicy.PRIORITY)
    queue.add(request("a", 1))
    queue.put_back([request("c", 3), request("b", 2)])
    assert names(queue) == "abc"


@pytest.mark.parametrize("policy", SchedulingPolicy)
def test_whoever_is_removed_is_gone_wherever_it_stood(policy: SchedulingPolicy) -> None:
    queue = waiting_queue(policy)
    all_of_them = [request(name, priority) for name, priority in zip("abcde", [3, 1, 4, 1, 5], strict=True)]
    for one in all_of_them:
        queue.add(one)
    queue.remove(all_of_them[1])
    assert len(queue) == 4
    assert "b" not in names(queue)
    assert "".join(queue.take().request_id for _ in range(4)) == names_sorted(policy, "acde", all_of_them)


def names_sorted(policy: SchedulingPolicy, left: str, requests: list[EngineRequest]) -> str:
    if policy is SchedulingPolicy.FCFS:
        return left
    return "".join(one.request_id for one in sorted(requests, key=lambda one: one.order) if one.request_id in left)


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), max_size=12))
def test_by_priority_requests_leave_in_their_order(ranks: list[tuple[int, int]]) -> None:
    queue = waiting_queue(SchedulingPolicy.PRIORITY)
    for number, (priority, arrival) in enumerate(ranks):
        queue.add(request(f"{number:02}", priority, arrival))
    left = [queue.take().order for _ in ranks]
    assert left == sorted(left)
    assert len(queue) == 0
