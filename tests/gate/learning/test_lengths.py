import json
from math import exp, sqrt
from random import Random

import pytest

from kvbudget.errors import BadValueError
from kvbudget.gate.learning.lengths import MAX_KEYS, MEMORY, Habit, Lengths, tell_at_limit
from kvbudget.pool.survival import BINS, EDGES, bin_of

EMPTY: dict[str, object] = {"weight": 1.0, "total": 0.0, "before_all": 0.0, "ends": {}, "exposure": {}}


def lived_and_ended(habit: Habit, tokens: int) -> None:
    habit.lived(0, tokens)
    habit.ended(tokens)


def teach(lengths: Lengths, tenant: str, tokens: int, limit: int | None = 2000, route: str = "chat") -> None:
    for habit in lengths.chain(tenant, route, limit, 500):
        lived_and_ended(habit, tokens)


def chance(lengths: Lengths, tenant: str, tokens: int, further: int, limit: int | None = 2000) -> float:
    return lengths.chain(tenant, "chat", limit, 500)[-1].survival().chance(tokens, further)


def test_the_table_comes_to_be_that_of_the_answers() -> None:
    lengths, rng = Lengths(), Random(1)
    for _ in range(3000):
        teach(lengths, "a", max(1, round(300 * exp(0.8 * rng.gauss(0, 1)))))
    assert chance(lengths, "a", 0, 300) == pytest.approx(0.5, abs=0.08)
    assert chance(lengths, "a", 0, 677) == pytest.approx(0.155, abs=0.05)  # a standard deviation further
    assert lengths.answers == pytest.approx(MEMORY, rel=0.01)


def test_before_any_answer_a_quarter_of_the_limit_is_thought_likely() -> None:
    lengths = Lengths()
    assert 0.2 < chance(lengths, "a", 0, 500) < 0.6
    assert chance(lengths, "b", 0, 500, limit=60_000) > chance(lengths, "a", 0, 500)


@pytest.mark.parametrize("tokens", [64, 1024, 40_000])
def test_beyond_all_experience_seven_of_ten_are_thought_to_double(tokens: int) -> None:
    assert Habit(None).survival().chance(tokens, tokens) == pytest.approx(1 / sqrt(2), rel=0.02)


def test_whoever_is_cut_off_biases_nothing() -> None:
    """Half of all answers are cut at 100 tokens by their clients; the other half shows what would have been."""
    whole, cut = Habit(None), Habit(None)
    rng = Random(2)
    for _ in range(2000):
        tokens = rng.randint(1, 400)
        lived_and_ended(whole, tokens)
        if rng.random() < 0.5 and tokens > 100:
            cut.lived(0, 100)
        else:
            lived_and_ended(cut, tokens)
    assert cut.survival().chance(0, 200) == pytest.approx(whole.survival().chance(0, 200), abs=0.06)


def test_a_drift_is_seen_before_the_first_long_answer_has_ended() -> None:
    lengths = Lengths()
    for _ in range(200):
        teach(lengths, "a", 100)
    before = chance(lengths, "a", 0, 400)
    for _ in range(60):
        for habit in lengths.chain("a", "chat", 2000, 500):
            for start in range(0, 384, 16):  # as it is told while they go on
                habit.lived(start, start + 16)
    assert before < 0.05
    assert chance(lengths, "a", 0, 300) > 0.15


def test_a_new_tenant_starts_as_the_others_are_and_leaves_that_when_it_differs() -> None:
    lengths = Lengths()
    for _ in range(200):
        teach(lengths, "short", 50)
    assert chance(lengths, "new", 0, 400) < 0.1
    for _ in range(30):
        teach(lengths, "new", 1000)
    assert chance(lengths, "new", 0, 400) > 0.7
    assert chance(lengths, "short", 0, 400) < 0.15


def test_what_few_ends_tell_is_doubted_the_more_the_fewer_were_seen_beyond() -> None:
    lengths = Lengths()
    before = lengths.chain("a", "chat", 2000, 500)[-1].survival().doubts
    assert before[0] == before[-1] == pytest.approx(1 / sqrt(2.0))  # a guess, worth two answers
    for tokens in [100] * 60 + [900] * 4:
        teach(lengths, "a", tokens)
    doubts = lengths.chain("a", "chat", 2000, 500)[-1].survival().doubts
    assert doubts[0] == pytest.approx(1 / sqrt(73), rel=0.1)  # 64, and what coarser keys lend
    assert doubts[bin_of(500)] > 2 * doubts[0]
    assert doubts[bin_of(1500)] == pytest.approx(before[0])
    assert doubts == sorted(doubts)


def test_old_answers_fade() -> None:
    habit = Habit(None)
    for tokens in (50, 1000):
        for _ in range(4 * MEMORY):
            lived_and_ended(habit, tokens)
    assert habit.survival().chance(0, 500) > 0.9


def test_an_answer_cut_at_its_limit_is_known_without_an_end() -> None:
    habit = Habit(None)
    for _ in range(50):
        habit.lived(0, 100)
        tell_at_limit((habit,))
    assert habit.survival().chance(0, 95) > 0.7
    assert habit.answers > 40


def test_weights_are_scaled_down_before_they_grow_too_large() -> None:
    scaled, fresh = Habit(None), Habit(None)
    for number in range(12_000):  # a weight of (256/255)^12000 would be 2e20
        lived_and_ended(scaled, 10 + number % 7)
        if number >= 8_000:
            lived_and_ended(fresh, 10 + number % 7)
    assert scaled.weight < 2e9
    assert scaled.survival().chance(0, 13) == pytest.approx(fresh.survival().chance(0, 13), abs=1e-6)


def test_lengths_beyond_the_last_bin_are_counted_in_it() -> None:
    habit = Habit(None)
    habit.lived(0, 1 << 21)
    assert habit.exposure[BINS - 1] == (1 << 21) - EDGES[BINS - 1]


def test_tables_are_not_made_anew_for_every_token() -> None:
    lengths = Lengths()
    for _ in range(100):
        teach(lengths, "a", 100)
    habit = lengths.chain("a", "chat", 2000, 500)[-1]
    table = habit.survival()
    for one in lengths.chain("a", "chat", 2000, 500):
        one.lived(0, 10)
    assert habit.survival() is table
    for _ in range(20):
        teach(lengths, "a", 100)
    assert habit.survival() is not table


def test_nothing_is_counted_twice_between_two_that_were_told_nothing_new() -> None:
    lengths = Lengths()
    for number in range(40):
        teach(lengths, "a", 50 + number)
    habit = lengths.chain("a", "chat", 2000, 500)[-1]
    table, beyond = habit.survival(), habit._ends_beyond()
    assert habit.survival() is table
    assert habit._ends_beyond() is beyond
    teach(lengths, "b", 900)  # of which all know
    assert habit._ends_beyond() is not beyond
    assert habit._ends_beyond()[0] > beyond[0]


def test_prompts_and_limits_of_another_size_are_told_apart() -> None:
    lengths = Lengths()
    fine = {id(lengths.chain("a", "chat", limit, prompt)[-1]) for limit in (None, 10, 2000) for prompt in (100, 60_000)}
    assert len(fine) == 6
    assert lengths.chain("a", "chat", 2000, 500)[1] is lengths.chain("b", "chat", 2000, 500)[1]


def test_names_from_outside_do_not_pile_up() -> None:
    lengths = Lengths()
    for number in range(MAX_KEYS):
        lengths.chain(f"tenant-{number}", "chat", 2000, 500)
    assert len(lengths._habits) == MAX_KEYS
    kept = lengths.chain("tenant-9999", "chat", 2000, 500)  # the coarse one that all used is still the same
    assert kept[1] is lengths.chain("tenant-0", "chat", 2000, 500)[1]


def test_a_finer_key_that_was_saved_without_its_coarser_one_leans_on_the_new_one() -> None:
    lengths = Lengths()
    teach(lengths, "a", 50)
    state = lengths.state()
    state["habits"] = state["habits"][-1:]
    restored = Lengths.restored(state)
    alone = next(iter(restored._habits.values()))
    before = alone.survival()
    chain = restored.chain("a", "chat", 2000, 500)
    assert chain[-1] is alone
    assert alone.parent is chain[-2]
    assert alone.survival() is not before


def test_state_that_was_saved_gives_the_same_tables() -> None:
    lengths, rng = Lengths(), Random(3)
    for _ in range(500):
        teach(lengths, rng.choice("ab"), rng.randint(1, 900), rng.choice([None, 500, 2000]))
    restored = Lengths.restored(json.loads(json.dumps(lengths.state())))
    for tenant in "abc":
        for limit in (None, 500, 2000):
            for tokens in (0, 100, 700):
                mine = chance(lengths, tenant, tokens, 200, limit)
                assert chance(restored, tenant, tokens, 200, limit) == mine


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"version": 2},
        {"version": 1, "root": {}},
        {"version": 1, "root": {**EMPTY, "ends": {"0": -1}}, "habits": []},
        {"version": 1, "root": {**EMPTY, "ends": {"x": 1}}, "habits": []},
        {"version": 1, "root": {**EMPTY, "weight": "much"}, "habits": []},
        {"version": 1, "root": {**EMPTY, "total": float("nan")}, "habits": []},
        {"version": 1, "root": EMPTY, "habits": [3]},
        {"version": 1, "root": EMPTY, "habits": [[["a"] * 4, EMPTY]] * (MAX_KEYS + 1)},
    ],
)
def test_state_that_is_broken_is_refused_with_what_to_do(broken: dict[str, object]) -> None:
    with pytest.raises(BadValueError) as caught:
        Lengths.restored(broken)
    assert "start without them" in str(caught.value.fix)
