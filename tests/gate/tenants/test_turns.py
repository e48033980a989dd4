from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from kvbudget.gate.tenants.turns import AGE_NS, MOST_CLASSES, PER_LESS_URGENT, Key, Turns


def keys(turns: Turns, now_ns: int = 0) -> list[Key]:
    return [key for key, _ in turns.order(now_ns)]


def test_the_tenant_with_the_least_service_is_first_and_in_it_whoever_came_first() -> None:
    service = {"a": 2.0, "b": 1.0}
    turns = Turns(service.__getitem__)
    for number, tenant in enumerate(["a", "a", "b", "b"]):
        turns.push((0, number), tenant, 0)
    assert keys(turns) == [(0, 2), (0, 0)]
    service["b"] = 3.0  # it was served
    assert keys(turns) == [(0, 0), (0, 2)]
    service["b"] = 1.5  # less than was charged
    turns.moved("b")
    assert keys(turns) == [(0, 2), (0, 0)]


def test_a_more_urgent_class_comes_first_unless_the_other_has_aged_and_is_due() -> None:
    turns = Turns(lambda tenant: 0.0)
    turns.asks(5)
    turns.push((5, 1), "bulk", 0)
    turns.push((4, 2), "chat", 0)
    by_class = [((4, 2), 4), ((5, 1), 5)]
    for _ in range(PER_LESS_URGENT - 1):
        turns.let_in(4)
    assert list(turns.order(AGE_NS)) == by_class
    turns.let_in(4)
    assert list(turns.order(AGE_NS - 1)) == by_class
    assert list(turns.order(AGE_NS)) == [((5, 1), 4), *by_class]
    turns.let_in(5)  # however it got in
    assert list(turns.order(AGE_NS)) == by_class


def test_classes_beyond_the_most_start_anew() -> None:
    turns = Turns(lambda tenant: 0.0)
    turns.asks(5)
    for _ in range(PER_LESS_URGENT):
        turns.let_in(0)
    assert turns.is_due(5)
    assert (turns.urgent_of(5), turns.urgent_of(6)) == (5, 6)  # nobody more urgent waits
    turns.push((0, 1), "chat", 0)
    assert (turns.urgent_of(5), turns.urgent_of(6)) == (0, 6)
    for priority in range(100, 100 + MOST_CLASSES):
        turns.asks(priority)
    assert not turns.is_due(5)


def test_unfair_turns_are_by_arrival_whoever_comes() -> None:
    turns = Turns(lambda tenant: float(len(tenant)), fair=False)
    turns.push((0, 1), "long-name", 0)
    turns.push((0, 2), "a", 0)
    assert keys(turns) == [(0, 1)]
    turns.remove((0, 1))
    assert keys(turns) == [(0, 2)]


def test_who_comes_back_to_an_old_place_stands_there() -> None:
    turns = Turns(lambda tenant: 0.0)
    for number in (3, 5, 4, 1):
        turns.push((0, number), "a", 0)
    assert turns.youngest("a", 0) == (0, 5)
    for number in (1, 3, 4, 5):
        assert keys(turns) == [(0, number)]
        turns.remove((0, number))
    assert not turns.waits("a", 0)


def test_an_order_that_is_left_early_loses_nobody() -> None:
    turns = Turns(lambda tenant: float(ord(tenant)))
    for number, tenant in enumerate("abc"):
        turns.push((0, number), tenant, 0)
    order = turns.order(0)
    assert next(order)[0] == (0, 0)
    order.close()
    assert keys(turns) == [(0, 0), (0, 1), (0, 2)]


def test_tenants_that_come_and_go_do_not_pile_up() -> None:
    turns = Turns(lambda tenant: float(tenant))
    for number in range(2000):
        turns.push((0, number), str(number), 0)
        turns.remove((0, number))
        turns.push((0, number), str(number), 0)
        turns.moved(str(number))
        if number:
            turns.remove((0, number - 1))
    assert len(turns._lines[0].heap) < 100
    assert keys(turns) == [(0, 1999)]


events = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.sampled_from(["push", "remove", "serve", "correct"])),
    max_size=60,
)


@given(events)
def test_whatever_happens_the_order_is_that_of_a_plain_sort(happened: list[tuple[str, int, str]]) -> None:
    service: dict[str, float] = defaultdict(float)
    turns = Turns(lambda tenant: service[tenant])
    waiting: list[tuple[Key, str]] = []
    for number, (tenant, priority, what) in enumerate(happened):
        if what == "push":
            turns.push((priority, number), tenant, 0)
            waiting.append(((priority, number), tenant))
        elif what == "serve":
            service[tenant] += 1 + number / 7
        elif what == "correct":
            service[tenant] -= number / 3
            turns.moved(tenant)
        elif waiting:
            key, _ = waiting.pop(number % len(waiting))
            turns.remove(key)
        heads: dict[tuple[int, str], Key] = {}
        for key, name in sorted(waiting):
            heads.setdefault((key[0], name), key)
        expected = [heads[part] for part in sorted(heads, key=lambda part: (part[0], service[part[1]], part[1]))]
        assert keys(turns) == expected


def is_one_line(turns: Turns) -> bool:
    return turns.is_one_line


def test_one_tenant_of_one_class_is_one_line_and_goes_in_the_order_of_turns() -> None:
    turns = Turns(lambda tenant: 0.0)
    assert not is_one_line(turns)
    for number in (3, 7, 5):
        turns.push((1, number), "a", 0)
    assert is_one_line(turns)
    assert [*keys(turns), *turns.behind((1, 3))] == [(1, 3), (1, 5), (1, 7)]
    turns.push((1, 8), "b", 0)
    assert not is_one_line(turns)
    turns.remove((1, 8))
    assert is_one_line(turns)
    turns.push((0, 9), "a", 0)
    assert not is_one_line(turns)
