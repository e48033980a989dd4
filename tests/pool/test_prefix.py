"""The tree of living prefixes against sets of blocks, and what engines may do behind our back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvbudget.errors import AccountingError
from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.pool.prefix import LivePrefixes, Sharing, blocks_per_key, key_tokens
from kvbudget.units import Blocks, Bytes, Tokens


def keys_of(text: str) -> tuple[int, ...]:
    """A key for each beginning of `text`: two are equal where the texts begin alike."""
    return tuple([hash(text[: end + 1]) for end in range(len(text))])


def living(sharing: Sharing = Sharing.SCHEDULED, **texts: str) -> LivePrefixes:
    prefixes = LivePrefixes(sharing)
    for name, text in texts.items():
        prefixes.join(name, keys_of(text))
    return prefixes


def test_what_another_holds_is_not_charged_again() -> None:
    prefixes = living(a="abcd")
    assert prefixes.join("b", keys_of("abxy")) == 2
    assert prefixes.join("c", keys_of("abcd")) == 4
    assert prefixes.join("d", keys_of("abcdef")) == 4
    assert prefixes.join("e", keys_of("q")) == 0
    assert (prefixes.charged_keys, prefixes.held_keys, prefixes.saved_keys) == (4 + 2 + 0 + 2 + 1, 19, 10)


def test_who_stays_is_charged_for_what_he_shared() -> None:
    prefixes = living(a="abcd", b="abxy")
    prefixes.leave("a")
    assert (prefixes.charged_keys, prefixes.common_keys("b")) == (4, 0)
    prefixes.leave("b")
    assert (prefixes.charged_keys, prefixes.held_keys, "b" in prefixes) == (0, 0, False)


def test_nobody_holds_a_prefix_twice() -> None:
    prefixes = living(a="abcd")
    with pytest.raises(AccountingError, match="already"):
        prefixes.join("a", keys_of("ab"))


def test_the_longest_lived_pays_and_the_others_share() -> None:
    prefixes = living(a="abcd", b="abxy", c="abce", d="z")
    assert prefixes.shares(["b", "a", "c", "d"]) == {"a": 2, "c": 3}
    assert prefixes.shares(["c", "nobody", "a", "b"]) == {"a": 3, "b": 2}
    assert prefixes.shares(["c"]) == {}


def test_nothing_is_shared_where_the_engine_does_not() -> None:
    prefixes = living(Sharing.OFF, a="abcd", b="abcd")
    assert (prefixes.saved_keys, prefixes.held_keys, "a" in prefixes) == (0, 0, False)
    for change in (prefixes.leave, prefixes.undo, prefixes.computed):
        change("a")
    assert (prefixes.found("a", 3), prefixes.common_keys("a")) == (0, 0)


def test_where_prompts_are_read_side_by_side_only_what_is_computed_is_credited() -> None:
    prefixes = living(Sharing.COMPUTED, a="abcd")
    assert prefixes.join("b", keys_of("abcd")) == 0
    prefixes.computed("a")
    prefixes.computed("a")
    # Two copies may be there, and now three may hold them.
    assert prefixes.join("c", keys_of("abcd")) == 4
    # Whoever goes, both copies may still be held: his can be the one that c uses.
    prefixes.leave("a")
    assert prefixes.charged_keys == 8
    prefixes.leave("b")
    assert prefixes.charged_keys == 4
    prefixes.leave("c")
    assert prefixes.join("d", keys_of("abcd")) == 0
    prefixes.computed("d")
    assert prefixes.join("e", keys_of("abcd")) == 4  # copies were forgotten with the last holder


def test_several_sequences_that_are_read_side_by_side_may_make_several_copies() -> None:
    prefixes = LivePrefixes(Sharing.COMPUTED)
    prefixes.join("a", keys_of("ab"), sequences=3)
    prefixes.computed("a")
    assert [prefixes.join(name, keys_of("ab")) for name in "bcd"] == [0, 0, 2]


def test_what_the_engine_tells_to_be_cached_counts_as_computed() -> None:
    prefixes = living(Sharing.COMPUTED, a="abcdef")
    assert prefixes.join("b", keys_of("abcd"), proved=3) == 3
    assert prefixes.join("c", keys_of("abcx"), proved=3) == 3
    assert prefixes.charged_keys == len("abc") + 2 * len("d") + len("ef") + len("x")


def test_a_promise_that_was_not_made_leaves_no_trace() -> None:
    for sharing in (Sharing.COMPUTED, Sharing.SCHEDULED):
        prefixes = living(sharing, a="abcd", b="abxy")
        before = (prefixes.charged_keys, prefixes.held_keys, prefixes.shares("ab"), prefixes.shares("ba"))
        for text in ("abcz", "ab", "abcdef", "q"):
            prefixes.join("c", keys_of(text), sequences=2)
            prefixes.undo("c")
            assert before == (prefixes.charged_keys, prefixes.held_keys, prefixes.shares("ab"), prefixes.shares("ba"))


def test_a_wrong_guess_raises_the_charge_and_stays_in_mind() -> None:
    prefixes = living(a="abcd", b="abcd")
    prefixes.computed("a")
    assert prefixes.found("b", 1) == 3
    assert prefixes.charged_keys == 7
    assert prefixes.found("b", 1) == 0  # told again
    assert prefixes.join("c", keys_of("abcd")) == 4
    prefixes.leave("c")
    prefixes.leave("b")
    assert prefixes.charged_keys == 4
    assert prefixes.join("d", keys_of("abcd")) == 1  # b's copy of the last three may be the one that d finds


def test_who_is_read_first_finds_nothing_and_is_not_wrong() -> None:
    prefixes = living(a="abcd", b="abcd", c="abce")
    prefixes.computed("b")
    assert prefixes.found("b", 0) == 0
    prefixes.computed("a")
    assert prefixes.found("a", 4) == 0
    assert prefixes.found("c", 2) == 1  # of abc; abce is its own


def test_who_loses_him_that_has_read_it_may_have_to_read_it_side_by_side_with_others() -> None:
    prefixes = living(Sharing.COMPUTED, a="abcd")
    prefixes.computed("a")
    for name in "bc":
        assert prefixes.join(name, keys_of("abx")) > 0
    assert prefixes.leave("c") == 0  # a is still there
    assert prefixes.join("c", keys_of("abx")) > 0
    assert prefixes.leave("a") == 2
    assert prefixes.charged_keys == 6
    prefixes.computed("b")
    assert (prefixes.leave("b"), prefixes.charged_keys) == (0, 3)


def test_a_right_guess_that_was_not_dared_is_credited_later() -> None:
    prefixes = living(a="abcd")
    assert prefixes.join("b", keys_of("abxy"), trusted=False) == 0
    assert prefixes.found("b", 2) == -2
    prefixes = living(Sharing.COMPUTED, a="abcd", b="abcd", c="abcd")
    assert prefixes.found("b", 3) == -3
    assert prefixes.found("c", 4) == -4
    assert prefixes.found("a", 4) == 0
    assert prefixes.charged_keys == 5


def test_where_two_copies_may_be_held_two_pay() -> None:
    prefixes = living(a="abcd", b="abcd", c="abce")
    prefixes.computed("a")
    prefixes.computed("b")
    prefixes.found("b", 2)
    assert prefixes.shares("abc") == {"b": 2, "c": 3}
    assert prefixes.shares("cba") == {"b": 2, "a": 3}


@pytest.mark.parametrize(
    ("layout", "tokens", "blocks"),
    [
        (uniform_layout(16), 16, 1),
        (
            Layout((Group(LayerKind.MLA, 1, Tokens(64), Bytes(1)), Group(LayerKind.FULL, 1, Tokens(16), Bytes(1)))),
            64,
            5,
        ),
        (
            Layout(
                (
                    Group(LayerKind.FULL, 1, Tokens(16), Bytes(1)),
                    Group(LayerKind.SLIDING, 1, Tokens(16), Bytes(1), most_tokens=Tokens(64), window=Tokens(32)),
                )
            ),
            0,
            0,
        ),
        (Layout((Group(LayerKind.MAMBA, 1, Tokens(16), Bytes(1), fixed_blocks=Blocks(1)),)), 0, 0),
    ],
)
def test_only_layouts_that_keep_everything_share(layout: Layout, tokens: int, blocks: int) -> None:
    assert (key_tokens(layout), blocks_per_key(layout)) == (tokens, blocks)


TEXT = st.text("ab", min_size=1, max_size=12)


class PrefixMachine(RuleBasedStateMachine):
    """Sharing at once: distinct (place, beginning) pairs are what is charged, whoever comes and goes."""

    holders: Bundle[str] = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.prefixes = LivePrefixes(Sharing.SCHEDULED)
        self.texts: dict[str, str] = {}
        self.made = 0

    def distinct(self, names: object = None) -> int:
        chosen = self.texts if names is None else names
        return len({key for name in chosen for key in keys_of(self.texts[name])})  # type: ignore[attr-defined]

    @rule(target=holders, text=TEXT)
    def join(self, text: str) -> str:
        self.made += 1
        name = f"r{self.made}"
        before = self.distinct()
        credit = self.prefixes.join(name, keys_of(text))
        self.texts[name] = text
        assert credit == len(text) - (self.distinct() - before)
        return name

    @rule(text=TEXT)
    def offer(self, text: str) -> None:
        self.prefixes.join("offered", keys_of(text))
        self.prefixes.undo("offered")

    @rule(name=holders)
    def computed(self, name: str) -> None:
        self.prefixes.computed(name)

    @rule(name=consumes(holders))
    def leave(self, name: str) -> None:
        del self.texts[name]
        self.prefixes.leave(name)

    @rule(order=st.randoms(use_true_random=False))
    def the_longest_living_pay_exactly_what_is_left(self, order: random.Random) -> None:
        names = sorted(self.texts)
        order.shuffle(names)
        shares = self.prefixes.shares(names)
        for count in range(len(names) + 1):  # the first `count` still live
            still = names[:count]
            assert sum(len(self.texts[n]) - shares.get(n, 0) for n in still) == self.distinct(still)

    @invariant()
    def distinct_blocks_are_charged(self) -> None:
        assert self.prefixes.charged_keys == self.distinct()
        assert self.prefixes.held_keys == sum(map(len, self.texts.values()))
        for name, text in self.texts.items():
            others = self.distinct([other for other in self.texts if other != name])
            assert self.prefixes.common_keys(name) == len(text) - (self.distinct() - others)

    def teardown(self) -> None:
        for name in self.texts:
            self.prefixes.leave(name)
        assert (self.prefixes.charged_keys, self.prefixes.held_keys) == (0, 0)
        assert not self.prefixes._root.children


PrefixMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestPrefixMachine = PrefixMachine.TestCase


class AnyEngine:
    """Prompts are read side by side, a block a step: who misses a key makes a copy, which can be found once it is made.

    The oldest copy is the one that is found. What nobody holds is overwritten in the order in which it was given back,
    the end of a prompt first.
    """

    def __init__(self) -> None:
        self.copies: dict[int, list[int]] = {}  # key -> copies, oldest first
        self.unheld: list[tuple[int, int]] = []  # (key, copy), the next to be overwritten first
        self.of: dict[str, list[int]] = {}  # holder -> its copies
        self.keys: dict[str, tuple[int, ...]] = {}
        self.made = 0

    def start(self, name: str, keys: tuple[int, ...]) -> int:
        self.keys[name], mine = keys, []
        for key in keys:
            if not self.copies.get(key):
                break
            mine.append(self.copies[key][0])
        self.of[name] = mine
        self.unheld = [(key, copy) for key, copy in self.unheld if copy not in mine]
        return len(mine)

    def advance(self, name: str) -> bool:
        """One block; True once all are there."""
        mine, keys = self.of[name], self.keys[name]
        if len(mine) < len(keys):
            self.made += 1
            self.copies.setdefault(keys[len(mine)], []).append(self.made)
            mine.append(self.made)
        return len(mine) == len(keys)

    def end(self, name: str) -> None:
        mine, keys = self.of.pop(name), self.keys.pop(name)
        held = {copy for others in self.of.values() for copy in others}
        pairs = list(zip(keys, mine, strict=False))
        self.unheld += [(key, copy) for key, copy in reversed(pairs) if copy not in held]

    def overwrite(self, count: int) -> None:
        for key, copy in self.unheld[:count]:
            self.copies[key].remove(copy)
        del self.unheld[:count]

    def held(self) -> int:
        return len({copy for mine in self.of.values() for copy in mine})


def most_saved(seed: int, *, reports: bool, letters: str) -> int:
    """Eighty prompts come and go; fails if more is ever held than charged."""
    rng = random.Random(seed)
    engine, prefixes = AnyEngine(), LivePrefixes(Sharing.COMPUTED)
    haste = rng.choice([0.1, 0.3, 0.9])
    coming: dict[str, tuple[int, ...]] = {}
    reading: list[str] = []
    names: list[str] = []
    saved = 0
    longest = rng.randint(1, 6)
    for number in range(80):
        for name in [f"r{number}{one}" for one in "xyz"[: rng.randint(0, 3)]]:
            keys = keys_of("".join(rng.choice(letters) for _ in range(rng.randint(1, longest))))
            prefixes.join(name, keys)
            names.append(name)
            coming[name] = keys
        for one in [one for one in coming if rng.random() < haste]:  # in between others may end and be overwritten
            found = engine.start(one, coming.pop(one))
            reading.append(one)
            if reports and rng.random() < 0.5:
                prefixes.found(one, found)
        for one in list(reading):
            if rng.random() < 0.5 and engine.advance(one):
                reading.remove(one)
                prefixes.computed(one)
        while len(names) > 8 or (names and rng.random() < 0.4):
            gone = names.pop(rng.choice([0, rng.randrange(len(names))]))  # most often the oldest
            prefixes.leave(gone)
            if coming.pop(gone, None) is None:
                engine.end(gone)
            if gone in reading:
                reading.remove(gone)
        engine.overwrite(rng.choice([0, rng.randint(0, 4), 40]))
        saved = max(saved, prefixes.saved_keys)
        assert engine.held() <= prefixes.charged_keys
    return saved


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 10**9), reports=st.booleans(), letters=st.sampled_from(["a", "aab", "abc"]))
def test_no_engine_holds_more_than_is_charged_where_only_the_computed_is_credited(
    seed: int, reports: bool, letters: str
) -> None:
    most_saved(seed, reports=reports, letters=letters)


def test_nevertheless_something_is_saved_there_and_more_if_the_engine_tells_what_it_reused() -> None:
    silent, telling = [
        sum(most_saved(seed, reports=told, letters="aab") for seed in range(40)) for told in (False, True)
    ]
    assert 0 < silent < telling


def test_the_widest_are_those_that_most_have_up_to_where_they_part() -> None:
    prefixes = LivePrefixes(Sharing.SCHEDULED)
    assert prefixes.widest(1, 1) == []
    for number in range(3):
        prefixes.join(f"one-{number}", (1, 2, 3, 4, 50 + number))
    assert prefixes.widest(3, 1) == [(1, 2, 3, 4)]
    assert prefixes.widest(4, 1) == prefixes.widest(3, 5) == []
    for number in range(2):
        prefixes.join(f"two-{number}", (1, 2, 7, 60 + number))
    assert prefixes.widest(3, 1) == [(1, 2), (1, 2, 3, 4)]
    prefixes.join("three", (1, 2, 8))
    assert prefixes.widest(3, 1) == [(1, 2)]  # no more than half of them go on alike
    for number in range(3):
        prefixes.join(f"same-{number}", (9, 10))
    assert prefixes.widest(3, 2) == [(1, 2), (9, 10)]
