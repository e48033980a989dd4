"""What gates keep in common by the rules of `gate.bank.bank`, in memory, over a socket, in Redis and Valkey alike."""

from typing import Any

from bank_time import let_pass
from kvbudget.gate.bank.terms import Answer, Call, Line, Reading, Slice

LEASE_MS = 3000
LIMIT = 100


class Sharers:
    """Gates that keep beginnings of prompts in common, and ask for blocks."""

    def __init__(self, bank: Any) -> None:
        self.bank = bank
        self._numbers: dict[str, int] = {}

    def call(
        self,
        name: str,
        blocks: int,
        *,
        limit: int = LIMIT,
        needs: int | None = None,
        reading: Reading | None = None,
        **commons: int,
    ) -> Answer:
        """`blocks`: of its slice, all promised. `commons`: blocks by name."""
        self._numbers[name] = number = self._numbers.get(name, 0) + 1
        needs = blocks if needs is None else needs
        lines = [Line("blocks", limit, blocks, needs, needs, blocks)]
        lines += [Line(f"prefix {one}", 0, most, 0, 0, most) for one, most in commons.items()]
        answer: Answer | None
        answer, _ = self.bank.call(Call(name, number, LEASE_MS, tuple(lines), reading=reading))
        assert answer is not None
        return answer

    def gets(self, name: str, blocks: int, **more: Any) -> list[int]:
        return [one.granted for one in self.call(name, blocks, **more).slices.values()]

    def pass_ms(self, ms: int) -> None:
        let_pass(self.bank, ms, LEASE_MS)


def test_what_several_keep_in_common_is_charged_once(bank: Any) -> None:
    gates = Sharers(bank)
    assert gates.gets("a", 0, needs=60) == [60]
    assert gates.gets("b", 0, needs=40) == [40]
    assert gates.gets("a", 30, x=30) == [30, 30]  # out of its slice: nothing was free
    assert gates.gets("c", 0, needs=1) == [0]
    assert gates.gets("b", 10, x=30) == [10, 30]
    assert gates.gets("c", 0, needs=30) == [30]  # what both paid for
    assert gates.gets("d", 0, needs=1) == [0]
    assert gates.gets("a", 30) == [30]  # it gives it up, and b keeps it
    assert gates.gets("d", 0, needs=1) == [0]
    assert gates.gets("b", 10) == [10]
    assert gates.gets("d", 0, needs=30) == [30]


def test_the_others_are_told_of_what_is_kept_in_common_and_who_keeps_it(bank: Any) -> None:
    gates = Sharers(bank)
    gates.call("a", 0, needs=40)
    gates.call("a", 20, x=20)
    answer = gates.call("b", 0, x=20)
    assert answer.slices == {"blocks": Slice(0, 20 + 20), "prefix x": Slice(20, 20)}
    assert gates.call("a", 20, x=20).slices == {"blocks": Slice(20, 20), "prefix x": Slice(20, 20)}


def test_what_was_common_is_claimed_for_a_slice_before_others_get_it(bank: Any) -> None:
    gates = Sharers(bank)
    gates.call("a", 0, needs=60)
    gates.call("a", 20, x=40)
    gates.call("b", 0, needs=40)
    gates.call("c", 0, needs=10)
    assert gates.gets("a", 60, needs=80) == [60]  # all of it lives, and what it needs beyond is not there
    assert gates.gets("c", 0, needs=10) == [0]


def test_what_is_claimed_for_a_slice_is_not_taken_out_for_another_name_as_well(bank: Any) -> None:
    gates = Sharers(bank)
    gates.call("a", 0, needs=60)
    gates.call("a", 20, x=40)
    gates.call("b", 0, needs=40)
    assert gates.gets("a", 60, y=40) == [60, 0]
    assert gates.gets("a", 20, y=40) == [20, 40]


def test_a_beginning_that_has_no_room_is_not_kept_in_part(bank: Any) -> None:
    gates = Sharers(bank)
    gates.call("a", 0, needs=80)
    assert gates.gets("b", 0, x=30) == [0, 0]
    assert gates.gets("b", 0, x=20) == [0, 20]
    assert gates.gets("a", 50, x=20, y=30) == [50, 20, 30]
    assert gates.gets("a", 49, x=20, y=30, z=2) == [49, 20, 30, 0]  # more than it gave up


def test_it_stays_charged_until_the_fence_of_the_last_who_kept_it_is_down(bank: Any) -> None:
    gates = Sharers(bank)
    gates.call("a", 0, needs=60)
    gates.call("a", 30, x=30)
    gates.call("b", 0, x=30)
    for _ in range(2):
        gates.pass_ms(LEASE_MS // 2)
        gates.call("b", 0, x=30)
    assert gates.gets("b", 0) == [0]
    assert gates.gets("c", 0, needs=41) == [0]  # what a had is kept for it, and x
    assert gates.gets("c", 0, needs=40) == [40]
    gates.pass_ms(LEASE_MS)
    assert gates.gets("c", 0, needs=100) == [100]


def test_who_comes_back_has_what_it_kept_in_common(bank: Any) -> None:
    gates = Sharers(bank)
    gates.call("a", 0, needs=60)
    gates.call("a", 30, x=30)
    gates.pass_ms(LEASE_MS)
    gates.call("b", 0, needs=40)
    assert gates.gets("a", 30, x=30) == [30, 30]


def test_where_there_is_too_little_what_was_given_up_may_still_be_kept_in_common(bank: Any) -> None:
    gates = Sharers(bank)
    gates.call("a", 0, needs=60)
    gates.call("b", 0, needs=40)
    assert gates.gets("b", 20, limit=50, x=20) == [20, 20]


def test_a_look_that_finds_no_more_than_what_is_kept_in_common_finds_nothing_of_those_who_are_missing(
    bank: Any,
) -> None:
    gates = Sharers(bank)
    gates.call("a", 0, needs=20)
    gates.call("b", 0, needs=60)
    for _ in range(3):
        gates.pass_ms(LEASE_MS // 2)
        gates.call("b", 30, x=30)
    assert gates.call("b", 30, x=30, reading=Reading(61, 0, 1)).missing
    gates.pass_ms(10)
    assert not gates.call("b", 30, x=30, reading=Reading(60, 0, 1)).missing
