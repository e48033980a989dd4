"""The rules of `gate.bank.bank` by name, for the bank in memory, over a socket, in Redis and in Valkey alike."""

from typing import Any

from bank_time import let_pass
from kvbudget.gate.bank.bank import MISSING_MS, PATIENCE_MS, URGENT_MS
from kvbudget.gate.bank.terms import Answer, Call, Line, Reading, Slice

LEASE_MS = 3000
LIMIT = 100
NOTHING_THERE = Reading(0, 0, 1)


class Gates:
    """Gates that call one bank and go by its answers."""

    def __init__(self, bank: Any) -> None:
        self.bank = bank
        self.has: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def call(self, name: str, needs: int = 0, **more: Any) -> tuple[Answer, list[str]]:
        """With one account; `keeps`: all that it has, unless told."""
        keeps = more.pop("keeps", self.has.get(name, 0))
        wants, limit = more.pop("wants", max(needs, keeps)), more.pop("limit", LIMIT)
        promised = more.pop("promised", 0)
        self._numbers[name] = number = self._numbers.get(name, 0) + 1
        lines = (Line("blocks", limit, keeps, needs, wants, promised),)
        answer, woken = self.bank.call(Call(name, number, LEASE_MS, lines, **more))
        assert answer is not None
        assert answer.number == number
        self.has[name] = answer.slices["blocks"].granted
        return answer, woken

    def leave(self, name: str) -> tuple[Answer, list[str]]:
        self._numbers[name] = number = self._numbers.get(name, 0) + 1
        self.has.pop(name, None)
        answer, woken = self.bank.call(Call(name, number, LEASE_MS, (), leaves=True))
        assert answer is not None
        return answer, woken

    def pass_ms(self, ms: int) -> None:
        let_pass(self.bank, ms, LEASE_MS)


def test_a_slice_is_what_a_branch_needs_and_all_slices_are_within_the_limit(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60)
    gates.call("b", 40)
    assert gates.has == {"a": 60, "b": 40}
    gates.call("c", 1)
    assert gates.has["c"] == 0


def test_what_a_branch_does_not_keep_is_free_for_others(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 100)
    gates.call("a", 30, keeps=30)
    gates.call("b", 70)
    assert gates.has == {"a": 30, "b": 70}


def test_a_bank_without_memory_takes_a_branch_at_its_word_as_far_as_there_is_room(bank: Any) -> None:
    gates = Gates(bank)
    answer, _ = gates.call("a", keeps=70)
    assert not answer.known
    answer, _ = gates.call("b", keeps=70)
    assert not answer.known
    assert gates.has == {"a": 70, "b": 30}
    answer, _ = gates.call("b", keeps=30)
    assert answer.known


def test_a_branch_gets_all_that_it_needs_at_once_or_nothing(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 90)
    gates.call("b", 20)
    assert gates.has["b"] == 0
    gates.call("b", 10)
    assert gates.has["b"] == 10


def test_all_accounts_are_granted_or_none(bank: Any) -> None:
    lines = (Line("blocks", LIMIT, 0, 10, 10, 0), Line("sequences", 4, 0, 5, 5, 0))
    answer, _ = bank.call(Call("a", 1, LEASE_MS, lines))
    assert {account: one.granted for account, one in answer.slices.items()} == {"blocks": 0, "sequences": 0}
    lines = (Line("blocks", LIMIT, 0, 10, 10, 0), Line("sequences", 4, 0, 4, 4, 0))
    answer, _ = bank.call(Call("a", 2, LEASE_MS, lines))
    assert {account: one.granted for account, one in answer.slices.items()} == {"blocks": 10, "sequences": 4}


def test_who_has_waited_much_longer_is_not_overtaken(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 90)
    gates.call("b", 20, waited_ms=PATIENCE_MS)
    gates.pass_ms(1)
    gates.call("c", 10)
    assert gates.has == {"a": 90, "b": 0, "c": 0}
    gates.call("a", 70, keeps=70)
    gates.call("c", 10)
    assert gates.has["c"] == 10  # beside the 20 that b asks for
    gates.call("b", 20)
    assert gates.has == {"a": 70, "b": 20, "c": 10}


def test_what_is_too_little_for_the_first_is_given_to_whom_it_fits(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 80)
    gates.call("b", 30, waited_ms=1000)
    gates.call("c", 20)
    assert gates.has == {"a": 80, "b": 0, "c": 20}


def test_the_more_urgent_comes_first(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 90)
    gates.call("b", 20, priority=0)
    gates.call("c", 10, priority=-1)
    assert gates.has["c"] == 10


def test_whose_request_waits_longer_comes_first(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 90)
    gates.call("b", 20, waited_ms=PATIENCE_MS + 100)
    gates.call("c", 10, waited_ms=99)
    assert gates.has["c"] == 0
    gates.call("c", 10, waited_ms=100)
    assert gates.has["c"] == 10


def test_of_two_that_wait_since_the_same_moment_names_decide_byte_by_byte(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("z", 100)
    gates.call("a", 20)
    gates.call("B", 20)  # before a by bytes, after it in most languages
    _, woken = gates.call("z", 60, keeps=60)
    assert woken == ["B", "a"]


def test_who_asks_again_does_not_wait_for_himself(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 85)
    gates.call("b", 20, waited_ms=50)
    gates.call("b", 10, waited_ms=20)
    assert gates.has["b"] == 10


def test_who_is_not_heard_of_for_a_second_asks_no_more(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 90)
    gates.call("b", 20, waited_ms=PATIENCE_MS)
    gates.pass_ms(999)
    answer, _ = gates.call("c", 10)
    assert (gates.has["c"], answer.short) == (0, True)
    gates.pass_ms(1)
    answer, _ = gates.call("c", 10)
    assert (gates.has["c"], answer.short) == (10, False)


def test_a_branch_is_lent_a_part_of_what_is_free_while_nobody_lacks_anything(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 10, wants=100)
    assert gates.has["a"] == 10 + 90 // 2
    gates.call("b", 10, wants=12)
    assert gates.has["b"] == 12
    gates.call("c", 80)
    gates.call("a", 10, wants=100)
    assert gates.has["a"] == 55


def test_a_lease_ends_unless_its_own_branch_calls(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60)
    for _ in range(3):
        gates.pass_ms(LEASE_MS // 3)
        answer, _ = gates.call("b", 50)  # nobody's call but his own renews it
    assert (answer.branches, gates.has["b"]) == (1, 0)
    gates.pass_ms(10)
    gates.call("b", 50, reading=NOTHING_THERE)
    assert gates.has["b"] == 50
    answer, _ = gates.call("a", 60)
    assert not answer.known
    assert gates.has["a"] == 50  # it claims 60, and there is room for 50


def test_a_branch_that_calls_keeps_its_lease(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60)
    gates.call("b", 10)
    for _ in range(10):
        gates.pass_ms(LEASE_MS - 1)
        answer, _ = gates.call("a", 60)
        assert answer.known
    assert gates.has["a"] == 60


def test_a_slice_whose_lease_ran_out_is_its_own_again_when_it_comes_back(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60, promised=50)
    gates.call("b", 10, promised=10)
    gates.pass_ms(LEASE_MS)
    answer, _ = gates.call("c", 60, reading=Reading(60, 6, 0))
    assert (answer.missing, answer.slices["blocks"].elsewhere, gates.has["c"]) == (True, 70, 0)
    answer, _ = gates.call("c", 30)
    assert gates.has["c"] == 30
    answer, _ = gates.call("a", 50, keeps=50, promised=50)
    assert (answer.known, gates.has["a"]) == (False, 50)
    answer, _ = gates.call("b", 10, keeps=10, promised=10)
    assert (answer.missing, gates.has["b"]) == (False, 10)


def test_a_look_since_then_tells_whether_something_of_the_missing_is_still_held(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60, promised=60)
    gates.pass_ms(LEASE_MS // 2)
    gates.call("b", 20, promised=20)
    gates.pass_ms(LEASE_MS // 2)
    answer, _ = gates.call("b", 20, promised=20, reading=Reading(20, 0, 1))  # made before
    assert (answer.missing, answer.slices["blocks"].elsewhere) == (True, 60)
    gates.pass_ms(100)
    answer, _ = gates.call("b", 20, promised=20, reading=Reading(21, 0, 1))
    assert (answer.missing, answer.slices["blocks"].elsewhere) == (True, 60)  # however little, it may grow
    gates.pass_ms(100)
    answer, _ = gates.call("b", 100, promised=20, reading=Reading(20, 0, 1))
    assert (answer.missing, gates.has["b"]) == (False, 100)


def test_sequences_that_run_beside_those_of_all_others_keep_what_is_missing(bank: Any) -> None:
    def lines(blocks: int, sequences: int) -> tuple[Line, Line]:
        some = [sequences] * 4
        return Line("blocks", LIMIT, blocks, blocks, blocks, blocks), Line("sequences", 8, *some)

    gates = Gates(bank)
    bank.call(Call("b", 1, 20 * LEASE_MS, lines(20, 2)))
    bank.call(Call("a", 1, LEASE_MS, lines(60, 4)))
    gates.pass_ms(LEASE_MS + 100)
    answer, _ = bank.call(Call("b", 2, LEASE_MS, lines(20, 2), reading=Reading(10, 3, 1)))
    assert answer.slices == {"blocks": Slice(20, 60), "sequences": Slice(2, 4)}
    gates.pass_ms(100)
    answer, _ = bank.call(Call("b", 3, LEASE_MS, lines(20, 2), reading=Reading(10, 2, 1)))
    assert answer.slices == {"blocks": Slice(20, 0), "sequences": Slice(2, 0)}


def test_where_nothing_is_told_of_the_engine_the_missing_are_given_up_after_one_more_lease(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60, promised=60)
    gates.pass_ms(LEASE_MS)
    answer, _ = gates.call("b", 100)
    assert (answer.missing, gates.has["b"]) == (True, 0)
    gates.pass_ms(LEASE_MS // 2)
    gates.call("b", 100)
    gates.pass_ms(LEASE_MS // 2)
    answer, _ = gates.call("b", 100)
    assert (answer.missing, gates.has["b"]) == (False, 100)


def test_nobody_is_missed_for_ever(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60, promised=60)
    gates.pass_ms(LEASE_MS)
    missed_ms = 0
    while gates.call("b", 100, reading=Reading(90, 9, 0))[0].missing:
        gates.pass_ms(LEASE_MS // 2)
        missed_ms += LEASE_MS // 2
    assert missed_ms == MISSING_MS
    assert gates.has["b"] == 100


def test_when_all_left_by_themselves_the_next_gets_what_it_needs_at_once(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60)
    answer, _ = gates.leave("a")
    assert answer == Answer(2, True, False, False, 0, {})
    gates.pass_ms(10 * LEASE_MS)
    answer, _ = gates.call("b", 100)
    assert (answer.settling, gates.has["b"]) == (False, 100)


def test_a_call_that_comes_late_or_twice_is_not_heeded(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 30)
    gates.call("a", 60)
    again = Call("a", 2, LEASE_MS, (Line("blocks", LIMIT, 0, 0, 0, 0),))
    assert bank.call(again) == (None, [])
    assert bank.call(again._replace(number=1, leaves=True)) == (None, [])
    answer, _ = gates.call("b", 50)
    assert gates.has["b"] == 0
    assert answer.branches == 2


def test_a_call_renews_nothing_that_comes_late(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 30)
    gates.call("a", 60)
    for _ in range(3):
        bank.call(Call("a", 1, LEASE_MS, (Line("blocks", LIMIT, 60, 60, 60, 0),)))
        gates.pass_ms(LEASE_MS // 3)
        gates.call("b", 100)
    gates.pass_ms(10)
    answer, _ = gates.call("b", 100, reading=NOTHING_THERE)
    assert (answer.branches, gates.has["b"]) == (1, 100)


def test_the_least_limit_holds_while_a_change_is_not_known_to_all(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 10, limit=50)
    gates.call("b", 41, limit=100)
    assert gates.has["b"] == 0
    gates.call("b", 40, limit=100)
    assert gates.has["b"] == 40


def test_who_knows_of_no_limit_says_nothing_of_it(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 0, limit=0)
    gates.call("b", 70, limit=100)
    assert gates.has["b"] == 70


def test_nobody_loses_what_he_has_when_the_limit_falls(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60)
    gates.call("b", 30, limit=50)
    gates.call("a", 60, limit=50)
    assert gates.has == {"a": 60, "b": 0}


def test_each_is_told_what_the_others_promised(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 60, promised=7)
    gates.call("b", 10, promised=5)
    answer, _ = gates.call("c", 1, promised=3)
    assert answer.slices["blocks"].elsewhere == 12


def test_who_has_more_than_he_needs_is_woken_once_when_another_lacks_it(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 40)
    gates.call("a", 10)  # keeps 40
    gates.call("b", 60)
    _, woken = gates.call("c", 20)
    assert woken == ["a"]
    _, woken = gates.call("c", 20)
    assert woken == []


def test_who_asked_is_woken_when_it_would_get_it_the_first_first(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 100)
    gates.call("b", 30)
    gates.call("c", 30)
    gates.call("d", 30)
    _, woken = gates.call("a", 30, keeps=30)
    assert woken == ["b", "c"]
    _, woken = gates.leave("a")
    assert woken == ["b", "c", "d"]


def test_any_number_of_accounts_and_none(bank: Any) -> None:
    answer, _ = bank.call(Call("a", 1, LEASE_MS, ()))
    assert answer == Answer(1, False, False, False, 1, {})
    lines = tuple(Line(f"account {at}", 10, 0, at, at, 0) for at in range(10))
    answer, _ = bank.call(Call("a", 2, LEASE_MS, lines))
    assert [one.granted for one in answer.slices.values()] == list(range(10))


def test_a_gate_yields_to_who_has_waited_much_longer_at_another_one(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 100)
    gates.call("b", 10, waited_ms=PATIENCE_MS)
    answer, _ = gates.call("a", 0)
    assert answer.yields_to is None
    gates.call("b", 10, waited_ms=PATIENCE_MS + 1)
    answer, _ = gates.call("a", 0)
    assert answer.yields_to == 0
    answer, _ = gates.call("a", 110, waited_ms=1)  # one waits here as well, for not so long
    assert answer.yields_to is None
    answer, _ = gates.call("b", 10, waited_ms=PATIENCE_MS + 1)
    assert answer.yields_to is None


def test_a_gate_yields_to_the_more_urgent_who_waits_at_another_one(bank: Any) -> None:
    gates = Gates(bank)
    gates.call("a", 100)
    gates.call("b", 10, waited_ms=URGENT_MS, priority=-3)
    answer, _ = gates.call("a", 110, waited_ms=5000)
    assert answer.yields_to is None
    gates.call("b", 10, waited_ms=URGENT_MS + 1, priority=-3)
    answer, _ = gates.call("a", 110, waited_ms=5000)
    assert answer.yields_to == -3


def test_everybody_is_short_while_more_is_granted_than_there_is(bank: Any) -> None:
    gates = Gates(bank)
    answer, _ = gates.call("a", 60)
    assert not answer.short
    answer, _ = gates.call("a", 60, limit=50, wants=60)
    assert (answer.short, gates.has["a"]) == (True, 60)
    answer, _ = gates.call("a", 50, keeps=50, limit=50)
    assert not answer.short


def test_what_is_only_told_is_told_to_the_others_and_lent_to_nobody(bank: Any) -> None:
    """As tenants' tokens of a minute are: the bank knows of no limit, and nobody lacks anything for them."""

    def call(branch: str, number: int, taken: int) -> Answer:
        line = Line("tokens acme", 0, taken, 0, 0, taken)
        answer, woken = bank.call(Call(branch, number, LEASE_MS, (line,)))
        assert woken == []
        assert isinstance(answer, Answer)
        return answer

    assert call("a", 1, 70).slices["tokens acme"] == Slice(0, 0)
    answer = call("b", 1, 50)
    assert (answer.slices["tokens acme"], answer.short) == (Slice(0, 70), False)
    assert call("a", 2, 20).slices["tokens acme"] == Slice(0, 50)
    assert call("b", 2, 50).slices["tokens acme"].elsewhere == 20
    bank.now_ms += LEASE_MS // 2
    assert call("b", 3, 50).slices["tokens acme"].elsewhere == 20
    bank.now_ms += LEASE_MS // 2
    assert call("b", 4, 50).slices["tokens acme"].elsewhere == 0  # a is not heard of any more


def asks_beside_one_who_makes_no_use_of_it(bank: Any, ms: int, *, promised: int) -> tuple[int, int]:
    """`a` takes 60 of 100 again and again and has so much promised; `b`, which waits somewhat longer, asks for 60 just
    when `a` has them. What both have when `a` has asked once more."""
    gates = Gates(bank)
    gates.call("a", 60, keeps=0)
    for passed in range(0, ms + 1, 250):
        assert gates.call("b", 60, waited_ms=300 + passed)[0].slices["blocks"].granted == 0
        gates.pass_ms(250)
        gates.call("a", 60, keeps=promised, promised=promised, waited_ms=passed)
    return gates.has["a"], gates.has["b"]


def test_what_is_promised_to_nobody_goes_to_whom_it_was_asked_for_in_vain(bank: Any) -> None:
    assert asks_beside_one_who_makes_no_use_of_it(bank, PATIENCE_MS, promised=10) == (10, 0)
    answer, woken = Gates(bank).bank.call(Call("c", 1, LEASE_MS, ()))
    assert answer is not None
    assert woken == ["b"]


def test_until_then_who_fits_goes_first(bank: Any) -> None:
    assert asks_beside_one_who_makes_no_use_of_it(bank, PATIENCE_MS - 250, promised=10) == (60, 0)


def test_who_lacks_what_is_promised_has_not_asked_in_vain_beside_room(bank: Any) -> None:
    assert asks_beside_one_who_makes_no_use_of_it(bank, 2 * PATIENCE_MS, promised=41) == (60, 0)


def test_a_gate_yields_to_one_who_has_asked_in_vain_beside_room(bank: Any) -> None:
    asks_beside_one_who_makes_no_use_of_it(bank, PATIENCE_MS, promised=10)
    gates = Gates(bank)
    gates.has["d"], gates._numbers["d"] = 0, 0
    answer, _ = gates.call("d", 5, waited_ms=2 * PATIENCE_MS)
    assert answer.yields_to is None  # it has waited longer
    answer, _ = gates.call("d", 5, keeps=0, waited_ms=PATIENCE_MS)
    assert answer.yields_to == 0
