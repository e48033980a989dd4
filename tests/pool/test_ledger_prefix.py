"""What several reservations hold together is charged once: against sets of block names, step by step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.pool.prefix import Sharing
from kvbudget.pool.trajectory import held_at, peak_over_time
from kvbudget.units import Blocks, Bytes, Tokens

BLOCK = 4


def prefix_of(letters: str) -> tuple[int, ...]:
    return tuple([hash(letters[: end + 1]) for end in range(len(letters))])


def a_ledger(sharing: Sharing = Sharing.SCHEDULED) -> Ledger:
    return Ledger(uniform_layout(BLOCK), Blocks(1000), sharing=sharing)


def reserve(ledger: Ledger, name: str, letters: str, prompt: int, new: int, n: int = 1, **more: bool) -> Reservation:
    """Each letter stands for one block of the prompt."""
    footprint = Footprint((Tokens(prompt),), Tokens(new), n)
    ledger.offer(name, footprint, prefix_of(letters))
    return ledger.reserve(name, "t", footprint, paced=more.get("paced", n == 1), now_ns=0)


def test_a_credit_is_granted_once_and_moves_to_who_stays() -> None:
    ledger = a_ledger()
    first = reserve(ledger, "a", "abc", 13, 4)
    second = reserve(ledger, "b", "abd", 13, 8)
    assert (first.credit_blocks, first.net_blocks, second.credit_blocks, second.net_blocks) == (0, 5, 2, 4)
    assert (ledger.peak_sum_blocks, ledger.shared_prefix_blocks) == (9, 2)
    ledger.end("a")
    assert (ledger.peak_sum_blocks, ledger.shared_prefix_blocks) == (6, 0)
    ledger.end("b")
    assert ledger.peak_sum_blocks == 0


def test_the_block_of_the_last_token_is_never_shared() -> None:
    ledger = a_ledger()
    reserve(ledger, "a", "abc", 12, 4)
    assert reserve(ledger, "b", "abc", 12, 4).credit_blocks == 2
    assert reserve(ledger, "c", "abc", 13, 4).credit_blocks == 2  # nobody is sure to have let the third be found


def test_an_offer_that_is_withdrawn_leaves_no_trace() -> None:
    ledger = a_ledger()
    reserve(ledger, "a", "abc", 13, 4)
    footprint = Footprint((Tokens(13),), Tokens(4))
    assert ledger.offer("b", footprint, prefix_of("abx")) == 2
    ledger.withdraw("b")
    assert (ledger.peak_sum_blocks, ledger.shared_prefix_blocks) == (5, 0)
    assert ledger.offer("b", footprint, ()) == 0
    ledger.withdraw("b")
    assert ledger.reserve("b", "t", footprint, paced=True, now_ns=0).credit_blocks == 0


def test_an_offer_is_for_him_who_asked() -> None:
    ledger = a_ledger()
    reserve(ledger, "a", "abc", 13, 4)
    ledger.offer("b", Footprint((Tokens(13),), Tokens(4)), prefix_of("abc"))
    other = ledger.reserve("c", "t", Footprint((Tokens(13),), Tokens(4)), paced=True, now_ns=0)
    assert other.credit_blocks == 0


def test_of_several_sequences_one_is_credited_and_of_several_prompts_none() -> None:
    ledger = a_ledger()
    reserve(ledger, "a", "abc", 13, 4)
    assert reserve(ledger, "b", "abc", 13, 4, n=3).net_blocks == 3 * 5 - 3
    assert ledger.offer("c", Footprint((Tokens(13), Tokens(13)), Tokens(4)), prefix_of("abc")) == 0


def test_less_found_than_credited_is_charged_at_once() -> None:
    ledger = a_ledger()
    reserve(ledger, "a", "abc", 13, 4)
    wrong = reserve(ledger, "b", "abc", 13, 4)
    ledger.progress("a", 1, 0)
    assert ledger.found("b", 7) == 2  # one whole block of seven tokens
    assert (ledger.peak_sum_blocks, wrong.credit_blocks) == (9, 1)
    several = reserve(ledger, "c", "abc", 13, 4, n=2)
    assert (ledger.found("c", 0), several.credit_blocks) == (0, 3)  # what is told of several is a sum
    unseen = reserve(ledger, "d", "xyz", 13, 4)
    assert (ledger.found("d", 12), unseen.credit_blocks) == (0, 0)  # left behind by somebody who ended


def test_more_found_than_credited_is_taken_off_at_once() -> None:
    ledger = a_ledger(Sharing.COMPUTED)
    reserve(ledger, "a", "abc", 13, 4)
    right = reserve(ledger, "b", "abc", 13, 4)
    assert (ledger.found("b", 9), right.credit_blocks, ledger.peak_sum_blocks) == (-2, 2, 8)


def test_with_windows_nothing_is_credited() -> None:
    window = Group(LayerKind.SLIDING, 1, Tokens(4), Bytes(4), most_tokens=Tokens(20), window=Tokens(8))
    ledger = Ledger(Layout((*uniform_layout(4).groups, window)), Blocks(100), sharing=Sharing.SCHEDULED)
    reserve(ledger, "a", "abc", 13, 4)
    assert reserve(ledger, "b", "abc", 13, 4).credit_blocks == 0
    assert ledger.found("b", 12) == 0


def test_blocks_of_another_size_end_every_credit() -> None:
    ledger = a_ledger()
    reserve(ledger, "a", "abc", 13, 4)
    second = reserve(ledger, "b", "abc", 13, 4)
    ledger.resize(uniform_layout(BLOCK), Blocks(500))
    assert (ledger.peak_sum_blocks, second.credit_blocks) == (7, 3)
    ledger.resize(uniform_layout(2 * BLOCK), Blocks(500))
    assert (ledger.peak_sum_blocks, second.credit_blocks) == (6, 0)
    ledger.end("a")
    ledger.end("b")
    assert ledger.peak_sum_blocks == 0


def test_only_what_was_seen_to_be_computed_is_credited_where_that_matters() -> None:
    ledger = a_ledger(Sharing.COMPUTED)
    reserve(ledger, "a", "abc", 13, 4)
    assert reserve(ledger, "b", "abc", 13, 4).credit_blocks == 0
    ledger.progress("a", 1, 0)
    assert reserve(ledger, "c", "abx", 13, 4).credit_blocks == 2


REQUEST = st.tuples(st.text("ab", max_size=6), st.integers(1, 3), st.integers(1, 20), st.integers(0, 20))


class Sequence:
    def __init__(self, name: str, letters: str, rest: int, new: int, made: int) -> None:
        self.name, self.prompt, self.new, self.made = name, len(letters) * BLOCK + rest, new, min(made, new)
        self.keys = prefix_of(letters)

    def blocks(self, made: int) -> set[object]:
        """Names of the blocks that it holds: those of the prefix are the same for all."""
        count = -(-(self.prompt + made) // BLOCK)
        return {*self.keys, *[(self.name, place) for place in range(len(self.keys), count)]}


def batch_of(requests: list[tuple[str, int, int, int]]) -> tuple[Ledger, list[Sequence]]:
    ledger = a_ledger()
    sequences = [Sequence(f"r{i}", *request) for i, request in enumerate(requests)]
    for one in sequences:
        footprint = Footprint((Tokens(one.prompt),), Tokens(one.new))
        ledger.offer(one.name, footprint, one.keys)
        ledger.reserve(one.name, "t", footprint, paced=True, now_ns=0)
        ledger.progress(one.name, one.made, 0)
    return ledger, sequences


@given(st.lists(REQUEST, max_size=6))
def test_in_step_the_peak_is_the_most_distinct_blocks_of_any_step(requests: list[tuple[str, int, int, int]]) -> None:
    ledger, sequences = batch_of(requests)
    most = 0
    for step in range(21):
        alive = [one for one in sequences if one.made + step <= one.new]
        most = max(most, len({block for one in alive for block in one.blocks(one.made + step)}))
    courses, fixed = ledger.batch()
    assert fixed + peak_over_time(ledger.layout, courses, 0) == most


@settings(max_examples=300)
@given(st.lists(REQUEST, min_size=1, max_size=6), st.integers(0, 8), st.integers(0, 8), st.data())
def test_out_of_step_and_ending_early_they_never_hold_more(
    requests: list[tuple[str, int, int, int]], most_ahead: int, most_delay: int, data: st.DataObject
) -> None:
    ledger, sequences = batch_of(requests)
    for one in sequences:
        if data.draw(st.integers(0, 5)) == 0:
            ledger.lose_pace(one.name)
    ahead = [data.draw(st.integers(0, most_ahead)) for _ in sequences]
    delays = [data.draw(st.integers(0, most_delay)) for _ in sequences]
    stops = [data.draw(st.integers(0, 40)) for _ in sequences]
    courses, fixed = ledger.batch()
    promised = fixed + peak_over_time(ledger.layout, courses, most_ahead + most_delay)
    assert promised <= ledger.peak_sum_blocks
    for step in range(60):
        held: set[object] = set()
        for one, early, late, stop in zip(sequences, ahead, delays, stops, strict=True):
            made = min(one.made + early, one.new) + max(0, step - late)
            if made <= one.new and step < stop:
                held |= one.blocks(made)
        assert len(held) <= promised


class LedgerMachine(RuleBasedStateMachine):
    """The sum of peaks is the number of distinct blocks with everybody at his longest, in whatever order they end."""

    living: Bundle[str] = Bundle("living")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = a_ledger()
        self.sequences: dict[str, Sequence] = {}
        self.made = 0

    @rule(target=living, letters=st.text("ab", max_size=8), rest=st.integers(1, 9), new=st.integers(1, 20))
    def reserve(self, letters: str, rest: int, new: int) -> str:
        self.made += 1
        one = Sequence(f"r{self.made}", letters, rest, new, 0)
        footprint = Footprint((Tokens(one.prompt),), Tokens(new))
        before = self.ledger.peak_sum_blocks
        credit = self.ledger.offer(one.name, footprint, one.keys)
        peak = footprint.peak_blocks(self.ledger.layout)
        assert self.ledger.peak_sum_blocks + peak == before + peak - credit
        made = self.ledger.reserve(one.name, "t", footprint, paced=self.made % 2 == 0, now_ns=0)
        assert self.ledger.peak_sum_blocks == before + made.net_blocks
        self.sequences[one.name] = one
        return one.name

    @rule(letters=st.text("ab", max_size=8))
    def offer(self, letters: str) -> None:
        self.ledger.offer("offered", Footprint((Tokens(50),), Tokens(3)), prefix_of(letters))
        self.ledger.withdraw("offered")

    @rule(name=living, tokens=st.integers(0, 9))
    def progress(self, name: str, tokens: int) -> None:
        self.ledger.progress(name, tokens, 0)

    @rule(name=living)
    def lose_pace(self, name: str) -> None:
        self.ledger.lose_pace(name)

    @rule(name=consumes(living))
    def end(self, name: str) -> None:
        del self.sequences[name]
        self.ledger.end(name)

    @invariant()
    def distinct_blocks_are_charged(self) -> None:
        distinct = {block for one in self.sequences.values() for block in one.blocks(one.new)}
        assert self.ledger.peak_sum_blocks == len(distinct)
        shared = self.ledger.shared_blocks(self.ledger)
        assert sum(shared.values()) == self.ledger.shared_prefix_blocks
        courses, fixed = self.ledger.batch()
        at_peaks = sum([self.ledger.layout.blocks_for(c.peak_tokens) - c.shared_blocks for c in courses])
        assert fixed + at_peaks == len(distinct)

    @rule(
        letters=st.text("ab", max_size=8), rest=st.integers(1, 9), new=st.integers(1, 20), paced=st.booleans(),
        skew=st.integers(0, 20),
    )  # fmt: skip
    def the_first_end_is_one_of_the_moments(self, letters: str, rest: int, new: int, paced: bool, skew: int) -> None:
        ledger, one = self.ledger, Sequence("asks", letters, rest, new, 0)
        footprint = Footprint((Tokens(one.prompt),), Tokens(new))
        ledger.offer(one.name, footprint, one.keys)
        asks = Reservation(one.name, "t", footprint, footprint.peak_blocks(ledger.layout), paced, 0)
        courses, fixed = ledger.batch(asks)
        first = min([course.peak_tokens - course.held_tokens for course in courses], default=0) + skew
        held = sum([held_at(ledger.layout, course, first, skew) for course in courses])
        assert ledger.at_first_end(asks, skew) == fixed + held <= fixed + peak_over_time(ledger.layout, courses, skew)
        ledger.withdraw(one.name)

    def teardown(self) -> None:
        for name in self.sequences:
            self.ledger.end(name)
        assert (self.ledger.peak_sum_blocks, self.ledger.unpaced_peak_blocks) == (0, 0)


LedgerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase


@pytest.mark.parametrize("sharing", list(Sharing))
def test_without_prefixes_nothing_changes(sharing: Sharing) -> None:
    ledger = a_ledger(sharing)
    reserve(ledger, "a", "", 13, 4)
    reserve(ledger, "b", "", 13, 4)
    assert (ledger.peak_sum_blocks, ledger.shared_prefix_blocks) == (10, 0)


def test_what_is_held_in_common_is_charged_to_nobody_here_and_again_when_it_is_not() -> None:
    ledger = a_ledger()
    reserve(ledger, "a", "abc", 13, 4)
    reserve(ledger, "b", "abd", 13, 8)
    assert ledger.peak_sum_blocks == 9
    changes, allowances = ledger.changes, ledger.allowances
    ledger.hold_in_common("ab", prefix_of("ab"))
    assert (ledger.changes - changes, ledger.allowances - allowances) == (1, 1)
    assert (ledger.peak_sum_blocks, ledger.common_blocks_of(2), ledger.counting_on("ab")) == (7, 2, 2)
    assert ledger.shared_blocks(ledger) == {"a": 2, "b": 2}
    late = reserve(ledger, "c", "abe", 13, 4)
    assert late.credit_blocks == 2
    ledger.end("a")
    ledger.end("b")
    ledger.end("c")
    assert (ledger.peak_sum_blocks, ledger.counting_on("ab")) == (0, 0)
    assert reserve(ledger, "d", "ax", 9, 4).credit_blocks == 1
    assert ledger.counting_on("ab") == 1
    ledger.pay_again("ab")
    ledger.pay_again("ab")
    assert (ledger.peak_sum_blocks, ledger.commons) == (4, {})


def test_copies_that_may_be_there_beside_the_common_one_are_charged_here() -> None:
    ledger = a_ledger()
    reserve(ledger, "a", "abc", 13, 4)
    reserve(ledger, "b", "abd", 13, 4)
    ledger.prefixes.computed("a")
    ledger.prefixes.computed("b")
    assert ledger.found("b", 0) == 2
    ledger.hold_in_common("ab", prefix_of("ab"))
    assert ledger.peak_sum_blocks == 10 - 2
    ledger.end_credits()
    assert (ledger.peak_sum_blocks, ledger.commons) == (10, {})
