"""What the bank of a pool grants to which gate (`gate.bank.bank`)."""

from typing import Any

from kvbudget.gate.bank.bank import ASK_MS, PATIENCE_MS, Bank
from kvbudget.gate.bank.terms import BLOCKS, PREFIX, SEQUENCES, Answer, Call, Line, Reading, Slice

LEASE_MS = 3000
NOTHING_THERE = Reading(0, 0, 1)
POOL = 100


class Teller:
    """One branch at the counter: numbers its calls, all of one account."""

    def __init__(self, bank: Bank, name: str, limit: int = POOL) -> None:
        self.bank, self.name, self.limit, self.number = bank, name, limit, 0
        self.woken: list[str] = []

    def call(
        self, now_ms: int, keeps: int = 0, needs: int = 0, wants: int = 0, promised: int | None = None, **more: Any
    ) -> Answer | None:
        needs = max(needs, keeps)
        line = Line(BLOCKS, self.limit, keeps, needs, max(wants, needs), keeps if promised is None else promised)
        self.number += 1
        call = Call(self.name, self.number, LEASE_MS, (line,), **more)
        answer, self.woken = self.bank.call(call, now_ms)
        return answer

    def asks(self, now_ms: int, *amounts: int, **more: Any) -> int:
        """What it is granted."""
        answer = self.call(now_ms, *amounts, **more)
        assert answer is not None
        return answer.slices[BLOCKS].granted


def two(limit: int = POOL) -> tuple[Bank, Teller, Teller]:
    bank = Bank()
    return bank, Teller(bank, "a", limit), Teller(bank, "b", limit)


def test_who_needs_gets_all_of_it_or_nothing() -> None:
    bank, a, b = two()
    assert a.asks(0, 0, 60) == 60
    assert b.asks(1, 0, 50) == 0
    assert b.asks(2, 0, 40) == 40
    assert bank.granted(BLOCKS) == POOL


def test_while_nobody_lacks_anything_one_gets_a_part_of_what_it_wants_beyond() -> None:
    _, a, b = two()
    assert a.asks(0, 0, 10, 90) == 10 + 90 // 2  # a part for itself, a part for who may come
    assert b.asks(1, 0, 0, 100) == 45 // 3


def test_nothing_beyond_need_is_lent_while_another_lacks_something() -> None:
    _, a, b = two()
    assert a.asks(0, 0, 90) == 90
    assert b.asks(1, 0, 20) == 0
    answer = a.call(2, 80, 80, 100)
    assert answer is not None
    assert answer.short
    assert answer.slices[BLOCKS].granted == 80


def test_what_those_who_wait_longer_ask_for_is_not_given_to_others() -> None:
    _, a, b = two()
    c = Teller(a.bank, "c")
    a.asks(0, 0, 70)
    assert b.asks(1, 0, 40, waited_ms=PATIENCE_MS + 100) == 0
    assert c.asks(2, 0, 10, waited_ms=50) == 0  # 30 are free, and b waits for 40
    assert a.asks(3, 10) == 10
    assert a.woken == ["b", "c"]
    assert b.asks(4, 0, 40, waited_ms=PATIENCE_MS + 103) == 40
    assert c.asks(5, 0, 10, waited_ms=53) == 10


def test_what_has_no_room_for_a_large_one_is_given_to_whom_it_fits_until_the_large_one_waits_much_longer() -> None:
    _, a, b = two()
    c = Teller(a.bank, "c")
    a.asks(0, 0, 70)
    assert b.asks(1, 0, 40, waited_ms=1000) == 0
    assert c.asks(2, 0, 10) == 10
    assert b.asks(1000, 0, 40, waited_ms=PATIENCE_MS + 500) == 0
    assert c.asks(1001, 10, 20) == 10


def test_a_more_urgent_one_comes_before_who_waits_longer() -> None:
    _, a, b = two()
    c = Teller(a.bank, "c")
    a.asks(0, 0, 100)
    assert b.asks(1, 0, 40, waited_ms=900, priority=1) == 0
    assert c.asks(2, 0, 40, waited_ms=0, priority=0) == 0
    a.asks(3, 50)
    assert a.woken == ["c"]
    assert b.asks(4, 0, 40, waited_ms=903, priority=1) == 0
    assert c.asks(5, 0, 40, waited_ms=3, priority=0) == 40


def test_who_asks_and_is_not_heard_of_asks_no_more() -> None:
    _, a, b = two()
    c = Teller(a.bank, "c")
    a.asks(0, 0, 70)
    assert b.asks(1, 0, 40, waited_ms=PATIENCE_MS) == 0
    assert c.asks(ASK_MS, 0, 30) == 0
    assert c.asks(ASK_MS + 1, 0, 30) == 30


def test_those_who_have_more_than_they_need_are_called_when_another_begins_to_lack() -> None:
    _, a, b = two()
    c = Teller(a.bank, "c")
    a.asks(0, 0, 10, 60)
    c.asks(1, 0, 50)
    assert b.asks(2, 0, 60) == 0
    assert b.woken == ["a"]
    assert b.asks(3, 0, 60) == 0
    assert b.woken == []  # they know


def test_a_call_that_is_out_of_date_is_not_heeded() -> None:
    bank, a, _ = two()
    a.asks(0, 0, 60)
    a.asks(1, 20, 20)
    a.number = 0
    assert a.call(2, 60, 60) is None
    assert bank.slice_of("a", BLOCKS) == 20


def test_what_one_gives_up_is_free_for_others() -> None:
    _, a, b = two()
    a.asks(0, 0, 100)
    a.asks(1, 30, 30)
    assert b.asks(2, 0, 70) == 70


def test_a_lease_ends_and_only_its_own_calls_renew_it() -> None:
    bank, a, b = two()
    a.asks(0, 0, 100)
    b.asks(LEASE_MS - 1, 0, 0)
    assert bank.slice_of("a", BLOCKS) == 100
    assert b.asks(LEASE_MS, 0, 100) == 0  # something of it may still be in the engine
    assert bank.slice_of("a", BLOCKS) == 0
    assert b.asks(LEASE_MS + 2, 0, 100, reading=NOTHING_THERE) == 100


def test_who_was_forgotten_gets_back_what_is_free() -> None:
    _, a, b = two()
    a.asks(0, 0, 80)
    b.asks(LEASE_MS - 1, 0, 0)
    b.asks(LEASE_MS, 0, 0)
    assert b.asks(LEASE_MS + 2, 0, 50, reading=NOTHING_THERE) == 50
    answer = a.call(LEASE_MS + 3, 80)
    assert answer is not None
    assert not answer.known
    assert answer.slices[BLOCKS].granted == 50


def test_who_leaves_gives_up_all() -> None:
    bank, a, b = two()
    a.asks(0, 0, 80)
    b.asks(1, 0, 90)
    answer = a.call(2, leaves=True)
    assert answer is not None
    assert answer.slices == {}
    assert a.woken == ["b"]
    assert bank.slice_of("a", BLOCKS) == 0


def test_a_bank_without_memory_takes_each_at_its_word_and_grants_nothing_else() -> None:
    bank = Bank(settling_until_ms=LEASE_MS)
    a, b = Teller(bank, "a"), Teller(bank, "b")
    answer = a.call(0, 40, 60, 60)
    assert answer is not None
    assert answer.settling
    assert not answer.known
    assert answer.slices[BLOCKS].granted == 40
    assert b.asks(1, 50) == 50
    assert a.asks(2, 40, 50) == 40
    assert a.woken == []
    assert a.asks(LEASE_MS, 40, 50) == 50


def test_after_a_failure_that_struck_all_each_has_its_own_again() -> None:
    _, a, b = two()
    a.asks(0, 0, 60)
    b.asks(0, 0, 40)
    answer = b.call(LEASE_MS + 5, 40, 60)
    assert answer is not None
    assert answer.missing
    assert answer.slices[BLOCKS] == Slice(40, 60)
    assert a.asks(LEASE_MS + 6, 60) == 60


def test_one_who_had_nothing_is_not_missed() -> None:
    _, a, b = two()
    a.asks(0)
    answer = b.call(LEASE_MS, 0, 100)
    assert answer is not None
    assert (answer.missing, answer.slices[BLOCKS].granted) == (False, 100)


def test_who_was_missing_and_leaves_has_nothing_there_any_more() -> None:
    _, a, b = two()
    a.asks(0, 0, 60)
    b.asks(100, 0, 40)
    b.asks(LEASE_MS + 5, 40, 40)
    answer = a.call(LEASE_MS + 6, leaves=True)
    assert answer is not None
    assert not answer.known
    assert b.asks(LEASE_MS + 7, 40, 100) == 100


def test_a_look_that_was_made_before_tells_nothing_and_one_that_finds_something_keeps_it() -> None:
    _, a, b = two()
    a.asks(0, 0, 60, promised=0)
    b.asks(100, 0, 40, promised=10)
    assert b.asks(LEASE_MS, 40, 50, promised=10, reading=Reading(10, 0, 1)) == 40
    assert b.asks(LEASE_MS + 5, 40, 50, promised=10, reading=Reading(11, 0, 1)) == 40
    assert b.asks(LEASE_MS + 6, 40, 50, promised=10, reading=Reading(10, 0, 5)) == 40
    assert b.asks(LEASE_MS + 7, 40, 50, promised=10, reading=Reading(10, 0, 1)) == 50


def test_the_least_limit_holds_and_who_knows_of_none_says_nothing() -> None:
    bank = Bank()
    a, b, c = Teller(bank, "a", 100), Teller(bank, "b", 0), Teller(bank, "c", 70)
    b.asks(0)
    assert a.asks(1, 0, 80) == 80
    assert c.asks(2, 0, 10) == 0
    a.asks(3, 60, 60)
    assert c.asks(4, 0, 10) == 10


def test_a_pool_that_shrank_is_short_for_all() -> None:
    _, a, b = two()
    a.asks(0, 0, 60)
    b.limit = 50
    answer = b.call(1)
    assert answer is not None
    assert answer.short
    answer = a.call(2, 40)
    assert answer is not None
    assert not answer.short


def test_what_others_have_promised_is_told() -> None:
    _, a, b = two()
    a.asks(0, 0, 60, promised=0)
    a.asks(1, 60, promised=35)
    answer = b.call(2)
    assert answer is not None
    assert answer.slices[BLOCKS].elsewhere == 35
    assert answer.branches == 2


def test_all_accounts_are_granted_together_or_none() -> None:
    bank = Bank()

    def call(name: str, number: int, blocks: int, sequences: int) -> tuple[int, int]:
        lines = (Line(BLOCKS, 100, 0, blocks, blocks, 0), Line(SEQUENCES, 4, 0, sequences, sequences, 0))
        answer, _ = bank.call(Call(name, number, LEASE_MS, lines), 0)
        assert answer is not None
        return answer.slices[BLOCKS].granted, answer.slices[SEQUENCES].granted

    assert call("a", 1, 10, 3) == (10, 3)
    assert call("b", 1, 10, 2) == (0, 0)
    assert call("b", 2, 10, 1) == (10, 1)
    assert bank.slice_of("b", "other") == bank.slice_of("c", BLOCKS) == 0


def test_a_gate_yields_to_one_elsewhere_that_has_waited_much_longer() -> None:
    _, a, b = two()
    a.asks(0, 0, 100)
    b.asks(0, 0, 40)

    def yields_to(now_ms: int, *, waits: bool, waited_ms: int = 0, priority: int = 0) -> int | None:
        b.call(now_ms, 0, 40, waited_ms=now_ms)
        answer = a.call(now_ms, 100, 110 if waits else 100, waited_ms=waited_ms, priority=priority)
        assert answer is not None
        return answer.yields_to

    assert yields_to(PATIENCE_MS, waits=False) is None
    assert yields_to(PATIENCE_MS + 10, waits=False) == 0  # whoever comes now
    assert yields_to(PATIENCE_MS + 20, waits=True, waited_ms=10) == 0
    assert yields_to(PATIENCE_MS + 30, waits=True, waited_ms=100) is None  # ours has waited nearly as long
    assert yields_to(PATIENCE_MS + 40, waits=True, waited_ms=100, priority=1) == 0
    assert yields_to(PATIENCE_MS + 50, waits=True, priority=-1) is None


class Keeper:
    """One branch that keeps blocks, and a beginning out of them."""

    def __init__(self, bank: Bank, name: str) -> None:
        self.bank, self.name, self.number = bank, name, 0

    def keeps(self, now_ms: int, blocks: int, common: int, *, needs: int = 0) -> tuple[int, int]:
        """(blocks, of the beginning) that are its."""
        needs, beginning = max(needs, blocks), f"{PREFIX}4 of one"
        lines = (
            Line(BLOCKS, POOL, blocks, needs, needs, blocks),
            *([Line(beginning, 0, common, common, common, common)] if common else []),
        )
        self.number += 1
        answer, _ = self.bank.call(Call(self.name, self.number, LEASE_MS, lines), now_ms)
        assert answer is not None
        common_slice = answer.slices.get(beginning)
        return answer.slices[BLOCKS].granted, 0 if common_slice is None else common_slice.granted


def test_a_beginning_is_charged_once_and_none_is_kept_for_which_there_is_no_room() -> None:
    bank = Bank()
    a, b, c = (Keeper(bank, name) for name in "abc")
    assert a.keeps(0, 0, 0, needs=60) == (60, 0)
    assert a.keeps(1, 20, 40) == (20, 40)  # out of its own
    assert b.keeps(2, 0, 40, needs=40) == (40, 40)  # which costs no more
    assert c.keeps(3, 0, 41) == (0, 0)  # a part would be of no use
    assert c.keeps(4, 0, 40) == (0, 40)


def test_what_one_who_is_missing_kept_in_common_stays_charged_like_its_slice() -> None:
    bank = Bank()
    a, b = (Keeper(bank, name) for name in "ab")
    assert a.keeps(0, 0, 0, needs=60) == (60, 0)
    assert a.keeps(1, 20, 40) == (20, 40)
    assert b.keeps(2, 0, 0) == (0, 0)
    late_ms = LEASE_MS + 10
    assert b.keeps(late_ms, 0, 0, needs=41) == (0, 0)
    assert b.keeps(late_ms + 1, 0, 0, needs=40) == (40, 0)
