"""Gates that tell each other what they have seen know what one gate with all of it would know."""

import random
from collections.abc import Mapping

import pytest

from kvbudget.gate.bank.experience import MOST_HABITS, MOST_HEARD, MOST_LIVES, Experience, Told
from kvbudget.gate.learning.lengths import MAX_KEYS, MEMORY, Habit, Lengths

LENGTHS = (10, 50, 100, 200, 400, 800)


class Gates:
    """Each learns from what it sees and from the statements of the others."""

    def __init__(self, count: int) -> None:
        self.lengths = [Lengths() for _ in range(count)]
        self.experiences = [Experience() for _ in range(count)]

    def answer(self, at: int, tokens: int, tenant: str = "acme") -> None:
        see(self.lengths[at], tokens, tenant)

    def told(self, at: int) -> list[Told]:
        return list(self.experiences[at].told(self.lengths[at]))

    def hears(self, at: int, statements: Mapping[str, list[Told]]) -> float:
        return sum(self.experiences[at].take(self.lengths[at], statements))

    def all_hear(self) -> None:
        statements = {str(at): self.told(at) for at in range(len(self.lengths))}
        for at in range(len(self.lengths)):
            self.hears(at, {life: one for life, one in statements.items() if life != str(at)})

    def chances(self, at: int, tenant: str = "acme") -> list[float]:
        return chances(self.lengths[at], tenant)


def see(lengths: Lengths, tokens: int, tenant: str = "acme") -> None:
    for habit in lengths.chain(tenant, "chat m", 1024, 100):
        habit.lived(0, tokens)
        habit.ended(tokens)


def chances(lengths: Lengths, tenant: str = "acme") -> list[float]:
    table = lengths.chain(tenant, "chat m", 1024, 100)[-1].survival()
    return [table.chance(0, tokens) for tokens in LENGTHS]


def drawn(chance: random.Random, median: float) -> int:
    return max(1, min(1000, round(median * chance.lognormvariate(0.0, 0.7))))


def test_what_four_gates_see_is_known_to_each_as_if_it_had_seen_all() -> None:
    chance, gates, one = random.Random(5), Gates(4), Lengths()
    for number in range(600):
        tokens = drawn(chance, 120)
        gates.answer(number % 4, tokens)
        see(one, tokens)
        if number % 40 == 39:
            gates.all_hear()
    for at in range(4):
        assert gates.chances(at) == pytest.approx(chances(one), abs=0.02)
        assert gates.lengths[at].answers == pytest.approx(one.answers, rel=0.05)


def test_a_gate_without_answers_of_its_own_knows_what_the_others_know() -> None:
    chance, gates = random.Random(6), Gates(2)
    for _ in range(50):
        gates.answer(0, drawn(chance, 120))
    taken = gates.hears(1, {"0": gates.told(0)})
    assert taken == pytest.approx(gates.lengths[0].answers, rel=0.001)
    assert gates.chances(1) == pytest.approx(gates.chances(0), abs=0.01)


def test_what_is_known_follows_a_change_as_fast_as_with_one_gate() -> None:
    chance, gates, one = random.Random(7), Gates(4), Lengths()
    for number in range(2400):
        tokens = drawn(chance, 40 if number < 1200 else 400)
        gates.answer(number % 4, tokens)
        see(one, tokens)
        if number % 40 == 39:
            gates.all_hear()
    assert gates.lengths[0].answers < 1.05 * MEMORY
    assert gates.chances(0) == pytest.approx(chances(one), abs=0.03)


def test_a_statement_that_comes_twice_counts_once_and_one_that_is_lost_is_made_good() -> None:
    chance, gates, other = random.Random(8), Gates(2), Gates(2)
    for number in range(90):
        tokens = drawn(chance, 120)
        gates.answer(0, tokens)
        other.answer(0, tokens)
        if number % 30 == 29:
            gates.hears(1, {"0": gates.told(0)})
            gates.hears(1, {"0": gates.told(0)})
    other.hears(1, {"0": other.told(0)})
    assert gates.chances(1) == pytest.approx(other.chances(1), abs=0.005)
    assert gates.lengths[1].answers == pytest.approx(other.lengths[1].answers, rel=0.01)
    assert gates.hears(1, {"0": gates.told(0)}) == 0.0


def test_living_answers_count_before_they_end() -> None:
    gates = Gates(2)
    for habit in gates.lengths[0].chain("acme", "chat m", 1024, 100):
        habit.lived(0, 500)
    before = gates.chances(1)
    gates.hears(1, {"0": gates.told(0)})
    assert all(after > was for after, was in zip(gates.chances(1), before, strict=True))


def test_nobody_tells_what_he_was_told() -> None:
    gates = Gates(3)
    for _ in range(20):
        gates.answer(0, 100)
    gates.hears(1, {"0": gates.told(0)})
    assert gates.told(1) == []
    gates.answer(1, 300)
    ((_, _, _, answers, bins), *_) = gates.told(1)
    assert answers == 100
    assert sum(ended for _, ended, _ in bins) == 100


def test_what_was_kept_over_a_restart_is_not_told_anew() -> None:
    gates = Gates(2)
    for _ in range(20):
        gates.answer(0, 100)
    gates.lengths[0] = Lengths.restored(gates.lengths[0].state())
    assert gates.told(0) == []
    gates.answer(0, 200)
    assert gates.told(0)[0].hundredths == 100


def test_a_key_that_its_gate_has_forgotten_and_begun_anew_counts_from_there() -> None:
    gates = Gates(2)
    for _ in range(20):
        gates.answer(0, 100)
    gates.hears(1, {"0": gates.told(0)})
    gates.lengths[0] = Lengths()  # all keys at once
    for _ in range(5):
        gates.answer(0, 100)
    assert gates.hears(1, {"0": gates.told(0)}) == pytest.approx(5, rel=0.05)


def test_answers_are_as_many_when_weights_are_counted_anew() -> None:
    one, other = Habit(None), Habit(None)
    for _ in range(3):
        one.lived(0, 50)
        one.ended(50)
    seen = one.own()
    for _ in range(100):  # weights grow beyond what is counted with
        other.take_in(seen._replace(answers=float(MEMORY)))
    assert other.own().answers == pytest.approx(0.0, abs=1e-6)
    assert other.weight < 1e9
    assert other.answers == pytest.approx(MEMORY / (1 - 2.718**-1), rel=0.01)
    for _ in range(6000):
        other.lived(0, 50)
        other.ended(50)
    assert other.own().answers == pytest.approx(other.answers)


def test_no_more_keys_are_made_than_there_may_be() -> None:
    lengths, gates = Lengths(), Gates(1)
    for number in range(MAX_KEYS):
        lengths.chain(f"tenant {number}", "chat m", 1024, 100)
    gates.answer(0, 100, "another")
    list(Experience().take(lengths, {"0": gates.told(0)}))
    assert lengths.habit_of(("another", "chat m", "11"), 1024) is None
    assert lengths.answers == pytest.approx(1.0)  # what is known of all together is known all the same


def test_what_is_no_key_makes_no_habit() -> None:
    lengths = Lengths()
    for key in (("one",), ("1", "2", "3", "4", "5"), ("x" * 600, "11")):
        assert lengths.habit_of(key, 0) is None
    list(Experience().take(lengths, {"0": [Told(("one",), 1.0, 0, 100, ((3, 100, 100),))]}))
    assert lengths.answers == 0.0


def test_a_statement_tells_of_the_keys_in_use_last() -> None:
    gates = Gates(1)
    for number in range(100):
        gates.answer(0, 100, f"tenant {number}")
    told = gates.told(0)
    assert len(told) == MOST_HABITS
    assert told[0].key == ()
    assert told[1].key[:3] == ("tenant 99", "chat m", "11")
    assert list(gates.experiences[0].told(gates.lengths[0], 3)) == told[:3]


def test_what_is_remembered_of_others_is_bounded() -> None:
    experience, lengths = Experience(), Lengths()
    row = Told((), 1.0, 0, 100, ((3, 100, 100),))
    for number in range(MOST_LIVES + 1):
        list(experience.take(lengths, {str(number): [row]}))
    assert sum(experience.take(lengths, {str(MOST_LIVES): [row]})) == 0.0
    assert sum(experience.take(lengths, {"0": [row]})) == 1.0  # the oldest was forgotten


def test_evidence_counts_once_however_many_habits_a_gate_tells_of() -> None:
    """A habit that was forgotten is learned from anew from its next statement on: too little rather than twice."""
    experience, lengths = Experience(), Lengths()
    root = Told((), 1.0, 0, 100, ((3, 100, 100),))
    many = [Told(("r", str(number)), 1.0, 16, 100, ((3, 100, 100),)) for number in range(MOST_HEARD + 10)]
    taken = sum([sum(experience.take(lengths, {"x": [root, *many[k : k + 8]]})) for k in range(0, len(many), 8)])
    assert taken == 1.0
    habit = lengths.habit_of(("r", "0"), 16)
    assert habit is not None
    before = habit.faded
    list(experience.take(lengths, {"x": many[:1]}))
    assert habit.faded == before == 1.0
    list(experience.take(lengths, {"x": [Told(("r", "0"), 2.0, 16, 200, ((3, 200, 200),))]}))
    assert 1.9 < habit.faded < 2.1
    others = [{str(number): [root]} for number in range(MOST_LIVES + 1)]
    for one in others:
        list(experience.take(lengths, one))
    list(experience.take(lengths, {"x": many[:1]}))  # the life was forgotten, and is a new one
    assert habit.faded > 2.9
