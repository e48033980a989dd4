from collections.abc import Callable

from kvbudget.gate.events import Arrived
from kvbudget.gate.waiting.queue import Queue, Waiting
from kvbudget.pool.footprint import Footprint
from kvbudget.units import Blocks, Tokens

Arrive = Callable[..., Arrived]


def waiting(arrived: Arrived, number: int, deadline_ns: int = 100) -> Waiting:
    footprint = Footprint(arrived.prompts, Tokens(16), arrived.sequences)
    return Waiting(arrived, footprint, Blocks(2), 0, deadline_ns, (arrived.priority, number))


def test_the_next_is_the_most_urgent_then_the_earliest(arrive: Arrive) -> None:
    queue = Queue()
    for number, (name, priority) in enumerate([("a", 1), ("b", 0), ("c", 1), ("d", 0)]):
        queue.push(waiting(arrive(name, priority=priority), number))
    assert [one.arrived.request_id for one in queue] == ["b", "d", "a", "c"]
    assert [queue.place_for(priority) for priority in (-1, 0, 1)] == [1, 3, 5]
    assert [queue.before(priority) for priority in (-1, 0, 1)] == [(0, 0), (4, 2), (8, 4)]


def test_who_left_is_not_found_again(arrive: Arrive) -> None:
    queue = Queue()
    queue.push(waiting(arrive("a"), 1))
    assert "a" in queue
    assert queue.remove("a") is not None
    assert queue.remove("a") is None
    assert (len(queue), queue.tokens, queue.head(), queue.next_deadline_ns()) == (0, 0, None, None)


def test_deadlines_of_those_who_left_do_not_pile_up(arrive: Arrive) -> None:
    queue = Queue()
    queue.push(waiting(arrive("stays"), 0, deadline_ns=10**9))
    for number in range(1, 1000):
        queue.push(waiting(arrive(f"r{number}"), number, deadline_ns=number))
        queue.remove(f"r{number}")
    assert len(queue._deadlines) < 100
    assert queue.next_deadline_ns() == 10**9


def test_other_lengths_keep_the_place_and_move_the_sums(arrive: Arrive) -> None:
    queue = Queue()
    first = waiting(arrive("a", 16), 1)
    queue.push(first)
    queue.push(waiting(arrive("b", 16), 2))
    queue.replace(first, first.resolved_as(first.arrived, Footprint((Tokens(16),), Tokens(4)), Blocks(1), None))
    head = queue.head()
    assert head is not None
    assert (head.arrived.request_id, head.footprint.max_new_tokens) == ("a", 4)
    assert (queue.tokens, queue.before(0)) == (20 + 32, (3, 2))
