import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvbudget.errors import AccountingError
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.units import Blocks, Bytes, Tokens


def a_ledger(usable: int = 100, margin: int = 0) -> Ledger:
    return Ledger(uniform_layout(16), Blocks(usable), margin)


def a_footprint(prompt: int = 10, new: int = 22, sequences: int = 1) -> Footprint:
    return Footprint((Tokens(prompt),), Tokens(new), sequences)


def test_a_promise_is_made_once_and_ended_once() -> None:
    ledger = a_ledger()
    made = ledger.reserve("a", "t", a_footprint(), paced=True, now_ns=5)
    assert (made.peak_blocks, ledger.peak_sum_blocks, len(ledger)) == (2, 2, 1)
    assert ledger.end("a") is made
    assert (ledger.peak_sum_blocks, ledger.sequences, len(ledger)) == (0, 0, 0)
    with pytest.raises(AccountingError, match="does not live"):
        ledger.end("a")


def test_an_id_lives_only_once() -> None:
    ledger = a_ledger()
    ledger.reserve("a", "t", a_footprint(), paced=False, now_ns=0)
    with pytest.raises(AccountingError, match="already lives"):
        ledger.reserve("a", "t", a_footprint(), paced=False, now_ns=0)
    assert ledger.peak_sum_blocks == 2


def test_at_the_first_end_a_group_that_keeps_some_tokens_is_at_its_peak() -> None:
    full = Group(LayerKind.FULL, 1, Tokens(16), Bytes(16))
    states = Group(LayerKind.MAMBA, 1, Tokens(16), Bytes(16), fixed_blocks=Blocks(2))
    ledger = Ledger(Layout((full, states)), Blocks(100))
    ledger.reserve("a", "t", a_footprint(10, 54), paced=True, now_ns=0)
    ledger.reserve("b", "t", a_footprint(), paced=False, now_ns=0)
    asks = Reservation("c", "t", a_footprint(16, 16), Blocks(4), paced=True, made_ns=0)
    assert ledger.at_first_end(asks, 0) == (2 + 2) + (2 + 2) + (2 + 2)  # c ends after 16 steps, when a has 26 tokens
    assert ledger.at_first_end(asks, 30) == (4 + 2) + (2 + 2) + (2 + 2)


def test_several_sequences_cannot_be_watched() -> None:
    with pytest.raises(AccountingError, match="single sequence"):
        a_ledger().reserve("a", "t", a_footprint(sequences=2), paced=True, now_ns=0)


def test_progress_moves_the_course_and_ends_the_wait_for_prefill() -> None:
    ledger = a_ledger()
    made = ledger.reserve("a", "t", a_footprint(10, 20), paced=True, now_ns=0)
    assert ledger.unseen_prompt_tokens == 10
    ledger.progress("a", 5, 7)
    assert (made.course.held_tokens, made.course.peak_tokens) == (15, 30)
    assert (made.first_seen_ns, ledger.unseen_prompt_tokens) == (7, 0)
    ledger.progress("a", 1000, 8)
    assert made.course.held_tokens == 30


def test_what_cannot_be_watched_any_more_counts_at_its_peak() -> None:
    ledger = a_ledger()
    ledger.reserve("a", "t", a_footprint(), paced=True, now_ns=0)
    assert ledger.unpaced_peak_blocks == 0
    ledger.lose_pace("a")
    ledger.lose_pace("a")
    assert (ledger.unpaced_peak_blocks, ledger.batch()) == (2, ([], 2))


def test_the_margin_is_kept_back() -> None:
    assert a_ledger(100, 30).capacity_blocks == 70
    assert a_ledger(20, 30).capacity_blocks == 0


def test_another_pool_is_counted_by_its_own_blocks() -> None:
    ledger = a_ledger()
    ledger.reserve("a", "t", a_footprint(), paced=True, now_ns=0)
    ledger.reserve("b", "t", a_footprint(), paced=False, now_ns=0)
    ledger.resize(uniform_layout(4), Blocks(7))
    assert (ledger.peak_sum_blocks, ledger.unpaced_peak_blocks, ledger.usable_blocks) == (16, 8, 7)
    ledger.end("a")
    ledger.end("b")
    assert (ledger.peak_sum_blocks, ledger.unpaced_peak_blocks) == (0, 0)


class LedgerMachine(RuleBasedStateMachine):
    """The sums that the ledger keeps always equal what its living reservations say."""

    living: Bundle[str] = Bundle("living")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = a_ledger()
        self.made = 0

    @rule(target=living, prompt=st.integers(1, 50), new=st.integers(1, 50), n=st.integers(1, 3), paced=st.booleans())
    def reserve(self, prompt: int, new: int, n: int, paced: bool) -> str:
        self.made += 1
        name = f"r{self.made}"
        self.ledger.reserve(name, f"t{self.made % 3}", a_footprint(prompt, new, n), paced=paced and n == 1, now_ns=0)
        return name

    @rule(name=living, tokens=st.integers(0, 30))
    def progress(self, name: str, tokens: int) -> None:
        self.ledger.progress(name, tokens, 1)

    @rule(name=living)
    def lose_pace(self, name: str) -> None:
        self.ledger.lose_pace(name)

    @rule(name=consumes(living))
    def end(self, name: str) -> None:
        self.ledger.end(name)

    @rule(block_size=st.integers(1, 32), usable=st.integers(0, 500))
    def resize(self, block_size: int, usable: int) -> None:
        self.ledger.resize(uniform_layout(block_size), Blocks(usable))

    @invariant()
    def sums_are_those_of_the_living(self) -> None:
        layout = self.ledger.layout
        peaks = {one.reservation_id: one.footprint.peak_blocks(layout) for one in self.ledger}
        assert self.ledger.peak_sum_blocks == sum(peaks.values())
        assert self.ledger.unpaced_peak_blocks == sum(peaks[r.reservation_id] for r in self.ledger if not r.paced)
        assert self.ledger.sequences == sum(r.footprint.total_sequences for r in self.ledger)
        unseen = (r for r in self.ledger if r.first_seen_ns is None)
        assert self.ledger.unseen_prompt_tokens == sum(sum(r.footprint.prompts) * r.footprint.sequences for r in unseen)


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
