from collections import OrderedDict
from collections.abc import Mapping
from math import isclose
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.gate.learning.lane import Lane
from kvbudget.gate.learning.pace import Pace
from kvbudget.gate.tenants.accounts import Account
from kvbudget.gate.tenants.kept import Kept
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits, account_name
from kvbudget.gate.tenants.shares import (
    ACTIVE_NS,
    BEHIND_NS,
    CREDIT_NS,
    LANE_TOKENS,
    LANE_TOKENS_BESIDE_URGENT,
    LOOK_NS,
    MOST_TENANTS,
    NEW_NS,
    Shares,
)
from kvbudget.pool.risk import Outlook
from kvbudget.pool.share import GRID, share_of

SECOND = 10**9


def shares_of(tenants: Mapping[str, TenantLimits] = {}, classes: Mapping[int, ClassLimits] = {}) -> Shares:
    return Shares(1000, 100, tenants, classes, Lane(Pace()))


def counting(**tenants: TenantLimits) -> Shares:
    shares = shares_of(tenants)
    shares.arrived("a", 0, 0)
    shares.arrived("b", 0, 0)
    return shares


def forward(
    shares: Shares, name: str, tenant: str, now_ns: int, blocks: float = 100.0, priority: int = 0, prompt: int = 10
) -> None:
    shares.arrived(tenant, priority, now_ns)
    shares.asked(tenant, blocks=blocks, sequences=1, prompt_tokens=prompt, lives_ns=SECOND, now_ns=now_ns)
    shares.forwarded(
        name, tenant, priority, blocks=blocks, sequences=1, prompt_tokens=prompt, lives_ns=SECOND, now_ns=now_ns,
    )  # fmt: skip
    shares.lane.joined(name, tenant, prompt, now_ns, watched=True)


def test_nothing_is_counted_until_a_second_tenant_or_class_comes() -> None:
    shares = shares_of()
    assert shares.arrived("a", 0, 0) is None
    assert shares.arrived("a", 0, 1) is None
    before = shares.counting
    assert shares.arrived("b", 0, 2) == ("a", 0)  # whose living are to be told
    assert (before, shares.counting) == (False, True)
    assert shares.arrived("c", 0, 3) is None


def test_a_second_class_counts_as_well_and_reserved_classes_from_the_start() -> None:
    shares = shares_of()
    shares.arrived("a", 0, 0)
    assert shares.arrived("a", 1, 0) == ("a", 0)
    reserved = shares_of(classes={0: ClassLimits(300, 20)})
    assert reserved.arrived("a", 1, 0) is None
    assert reserved.counting


def test_service_is_what_is_expected_at_first_and_what_it_was_in_the_end() -> None:
    shares = counting(b=TenantLimits(weight=2.0))
    forward(shares, "r1", "a", 0)
    forward(shares, "r2", "b", 0)
    assert isclose(shares.virtual_of("a"), 0.1 * SECOND)
    assert isclose(shares.virtual_of("b"), 0.05 * SECOND)
    assert shares.ended("r1", 50.0, 4 * SECOND) == "a"
    assert isclose(shares.virtual_of("a"), 0.05 * 4 * SECOND)
    assert shares.ended("r2", None, 4 * SECOND) == "b"
    assert isclose(shares.virtual_of("b"), 0.1 * 4 * SECOND / 2)
    assert shares.ended("r2", None, 4 * SECOND) is None


def test_a_request_of_many_sequences_is_charged_for_its_slots() -> None:
    shares = counting()
    shares.forwarded("r", "a", 0, blocks=1.0, sequences=50, prompt_tokens=1, lives_ns=SECOND, now_ns=0)
    assert isclose(shares.virtual_of("a"), 0.5 * SECOND)


def test_who_comes_back_has_hoarded_no_more_than_its_credit() -> None:
    shares = counting()
    for number in range(1000):
        forward(shares, f"r{number}", "a", number)
    before = shares.virtual_of("b")
    shares.arrived("b", 0, 2000)
    behind = shares.virtual_of("a") - shares.virtual_of("b")
    assert shares.virtual_of("b") > before
    assert isclose(behind, CREDIT_NS / 2 + 0.1 * SECOND, rel_tol=1e-3)
    shares.arrived("new", 0, 2000)
    assert shares.virtual_of("new") > shares.virtual_of("b")
    assert shares.virtual_of("nobody") == shares.virtual_of("new")


def test_who_holds_clearly_more_than_its_part_borrows() -> None:
    shares = counting()
    forward(shares, "r1", "a", 0, 100.0)
    forward(shares, "r2", "b", 0, 100.0)
    assert not shares.borrows("a", SECOND)
    forward(shares, "r3", "a", SECOND, 500.0)
    assert shares.borrows("a", 2 * SECOND)
    assert not shares.borrows("b", 2 * SECOND)
    assert not shares.borrows("nobody", 2 * SECOND)


def test_the_weight_decides_what_is_more() -> None:
    shares = counting(a=TenantLimits(weight=9.0))
    forward(shares, "r1", "a", 0, 600.0)
    forward(shares, "r2", "b", 0, 100.0)
    assert not shares.borrows("a", SECOND)
    assert shares.borrows("b", SECOND)


def test_many_small_sequences_are_more_as_well() -> None:
    shares = counting()
    for number in range(20):
        forward(shares, f"r{number}", "a", 0, 1.0)
    forward(shares, "big", "b", 0, 20.0)
    assert shares.borrows("a", SECOND)


def test_who_asks_for_no_more_than_others_does_not_borrow_whatever_it_holds() -> None:
    shares = counting()
    for number in range(4):
        forward(shares, f"r{number}", "a", 0, prompt=1000)
        shares.asked("b", blocks=100.0, sequences=1, prompt_tokens=1000, lives_ns=SECOND, now_ns=0)
        shares.lane.left(f"r{number}", 0)
    forward(shares, "q", "b", 0, prompt=1000)
    assert not shares.borrows("a", SECOND)
    assert shares.prompt_may_go("a", 0, 10_000, SECOND)


def test_who_has_no_more_than_others_does_not_borrow_whatever_it_asks_for() -> None:
    shares = counting()
    forward(shares, "q", "b", 0, prompt=1000)
    for _ in range(9):
        shares.asked("a", blocks=100.0, sequences=1, prompt_tokens=1000, lives_ns=SECOND, now_ns=0)
    forward(shares, "r", "a", 0, prompt=1000)
    shares.lane.left("r", 0)
    assert not shares.borrows("a", SECOND)
    assert shares.prompt_may_go("a", 0, 10_000, SECOND)
    assert not shares.prompt_may_go("b", 0, 10_000, SECOND)  # it would wait for its own


def test_who_is_new_among_old_ones_is_held_to_less_until_it_is_known() -> None:
    shares = counting()
    for number in range(20):
        forward(shares, f"q{number}", "ab"[number % 2], NEW_NS, prompt=1000)
        shares.lane.left(f"q{number}", 0)
    for number in range(8):
        forward(shares, f"n{number}", "new", NEW_NS, prompt=1000)
        shares.lane.left(f"n{number}", 0)
    forward(shares, "q", "a", NEW_NS, prompt=1000)
    assert not shares.prompt_may_go("new", 0, 1000, NEW_NS + 1)
    shares.lane.joined("x", "a", 10**6, 2 * NEW_NS, watched=True)
    assert shares.prompt_may_go("new", 0, 1000, 2 * NEW_NS)
    assert not shares.borrows("new", 2 * NEW_NS)


def test_who_was_there_alone_is_not_new_when_a_second_one_comes() -> None:
    shares = shares_of()
    shares.arrived("a", 0, 0)
    shares.arrived("b", 0, 2 * NEW_NS)
    assert shares._accounts["a"].opened_ns == 0
    assert shares._slack(shares._accounts["a"], 2 * NEW_NS) > shares._slack(shares._accounts["b"], 2 * NEW_NS)
    assert shares_of()._slack(shares._accounts["a"], 0) == shares._slack(shares._accounts["a"], 2 * NEW_NS)


def flooded() -> Shares:
    shares = counting()
    for number in range(8):
        forward(shares, f"r{number}", "a", 0)
    forward(shares, "q1", "b", 0, 200.0)
    shares.kept_from("a", 0, None, SECOND)
    shares.ended("q1", None, 20 * SECOND)
    shares._account("a", 0).virtual += 0.8 * 20 * SECOND  # it was expected to hold so much for so long
    shares.asked("a", blocks=800.0, sequences=1, prompt_tokens=10, lives_ns=SECOND, now_ns=20 * SECOND)
    return shares


def test_who_had_clearly_less_service_for_its_weight_borrows_nothing() -> None:
    shares = flooded()
    assert shares.borrows("a", 20 * SECOND)
    shares._account("a", 0).virtual = shares._virtual - BEHIND_NS
    assert not shares.borrows("a", 20 * SECOND)


def test_a_borrower_leaves_free_what_others_held_and_they_do_not() -> None:
    shares = flooded()
    assert shares.kept_from("b", 0, None, 21 * SECOND) is None
    kept = shares.kept_from("a", 0, None, 21 * SECOND)
    assert kept is not None
    assert all(150 < blocks < 200 for blocks in kept.blocks)
    assert 0.7 < kept.slots < 2.0
    assert kept.variance > 0
    assert kept.most(2.0) > kept.most(0.0) > 150
    assert shares.lends("b", 0, 21 * SECOND)
    assert not shares.lends("a", 0, 21 * SECOND)


def test_what_they_hold_again_need_not_stay_free() -> None:
    shares = flooded()
    forward(shares, "q2", "b", 21 * SECOND, 180.0)
    kept = shares.kept_from("a", 0, None, 21 * SECOND + LOOK_NS)
    assert kept is not None
    assert max(kept.blocks) < 20
    assert kept.slots < 1.0


def test_by_the_outlook_what_stays_free_is_what_newcomers_will_ask_for() -> None:
    shares = flooded()
    forward(shares, "q2", "b", 21 * SECOND, 180.0)
    outlook = Outlook()
    outlook.add("q2", share_of(None, made_tokens=0, limit_tokens=100, held=100.0, per_step=0.0, sequences=1))
    kept = shares.kept_from("a", 0, outlook, 21 * SECOND + LOOK_NS)
    assert kept is not None
    assert kept.blocks[0] == 0.0  # nobody has ended, so nobody's successor is there
    assert kept.blocks[-1] > 150  # by then it has ended
    assert GRID[0] < 100 < GRID[-1]


def test_what_was_held_long_ago_need_not_stay_free() -> None:
    shares = flooded()
    kept = shares.kept_from("a", 0, None, 20 * SECOND + ACTIVE_NS)
    assert kept is None or max(kept.blocks) < 10


def test_a_less_urgent_class_leaves_free_what_the_other_held_and_what_is_reserved() -> None:
    shares = shares_of(classes={0: ClassLimits(300, 20)})
    shares.arrived("a", 0, 0)
    kept = shares.kept_from("a", 1, None, 0)
    assert kept is not None
    assert (set(kept.blocks), kept.slots) == ({300.0}, 20.0)
    assert shares.kept_from("a", 0, None, 0) is None
    forward(shares, "r", "a", 0, 120.0)
    kept = shares.kept_from("a", 1, None, LOOK_NS)
    assert kept is not None
    assert (set(kept.blocks), kept.slots) == ({180.0}, 19.0)
    assert not shares.lends("a", 0, 0)
    forward(shares, "bulk", "a", 0, 120.0, priority=1)
    assert shares.lends("a", 0, 0)


def test_a_borrower_in_a_less_urgent_class_leaves_free_for_both() -> None:
    shares = counting()
    for number in range(8):
        forward(shares, f"r{number}", "a", 0, priority=1)
    forward(shares, "q1", "b", 0, 50.0, priority=1)
    forward(shares, "q2", "c", 0, 70.0, priority=0)
    shares.ended("q1", None, 20 * SECOND)
    shares.ended("q2", None, 20 * SECOND)
    kept = shares.kept_from("a", 1, None, 20 * SECOND)
    assert kept is not None
    assert all(isclose(blocks, 120.0) for blocks in kept.blocks)
    found = shares.kept_from("a", 3, None, 20 * SECOND)
    assert found is not None
    assert found.blocks[0] > 119


def test_the_prompts_of_a_borrower_go_one_by_one() -> None:
    shares = counting()
    for number in range(40):
        forward(shares, f"r{number}", "a", 0, prompt=2000)
    forward(shares, "q", "b", 0, prompt=10)
    assert shares.prompt_may_go("a", 0, 1000, 0)  # for one small prompt nobody is slowed down
    shares.asked("b", blocks=1.0, sequences=1, prompt_tokens=3000, lives_ns=1, now_ns=0)
    assert not shares.prompt_may_go("a", 0, 1000, 0)
    assert shares.prompt_may_go("b", 0, LANE_TOKENS - 10, 0)
    assert not shares.prompt_may_go("b", 0, 1000, 0)  # it would wait for its own
    assert shares.prompt_may_go("nobody", 0, 1000, 0)
    assert not shares.prompt_may_go("b", 1, 1000, 0)  # a less urgent class
    for name in (*[f"r{number}" for number in range(40)], "q"):
        shares.lane.left(name, 0)
    assert shares.prompt_may_go("a", 0, 1000, SECOND)


def test_beside_a_more_urgent_class_fewer_of_them_are_together() -> None:
    shares = counting()
    shares.lane.joined("r", "a", 10, 0, watched=True)
    assert shares.prompt_may_go("a", 1, LANE_TOKENS - 10, 0)
    forward(shares, "q", "b", 0, prompt=10)
    shares.lane.left("q", 0)
    assert shares.prompt_may_go("a", 1, LANE_TOKENS_BESIDE_URGENT - 10, 0)
    assert not shares.prompt_may_go("a", 1, LANE_TOKENS_BESIDE_URGENT - 9, 0)


def test_many_small_requests_hold_up_the_prompts_of_a_borrower_although_they_are_few_tokens() -> None:
    shares = counting()
    for number in range(20):
        forward(shares, f"r{number}", "a", 0, prompt=5000)
        forward(shares, f"q{number}", "b", 0, prompt=10)
    assert not shares.prompt_may_go("a", 0, 5000, 0)


def test_what_the_only_one_asked_for_counts_when_another_comes() -> None:
    shares = shares_of()
    for number in range(20):
        shares.arrived("b", 0, number)
    shares.arrived("b", 1, 20)
    for number in range(2):
        forward(shares, f"r{number}", account_name("b", 1), 20, priority=1, prompt=5000)
    assert not shares.prompt_may_go(account_name("b", 1), 1, 5000, 20)


def test_what_a_class_has_reserved_is_kept_clear_however_little_it_asks() -> None:
    shares = shares_of(classes={-1: ClassLimits(reserved_blocks=1)})
    for number in range(5):
        forward(shares, f"r{number}", "a", 0, prompt=2000)
    forward(shares, "q", "b", 0, priority=-1, prompt=1)
    assert not shares.prompt_may_go("a", 0, 1000, 0)


def test_who_holds_nothing_for_long_is_forgotten_and_who_holds_is_not() -> None:
    shares = counting()
    forward(shares, "r", "b", 0)
    shares.arrived("c", 0, ACTIVE_NS)
    assert list(shares._accounts) == ["c", "b"]
    assert shares._weights == 2.0
    shares.ended("r", None, ACTIVE_NS)
    shares.arrived("c", 0, 3 * ACTIVE_NS)
    assert list(shares._accounts) == ["c"]
    assert not shares.borrows("c", 3 * ACTIVE_NS)
    assert shares.prompt_may_go("c", 0, 10**6, 3 * ACTIVE_NS)
    shares.lane.joined("x", "c", 10, 3 * ACTIVE_NS, watched=True)
    shares.kept_from("c", 0, None, 3 * ACTIVE_NS)
    assert shares.prompt_may_go("c", 0, 10**6, 3 * ACTIVE_NS)
    assert shares._flows == {}


def test_names_beyond_the_most_share_one_account() -> None:
    shares = shares_of()
    for number in range(MOST_TENANTS + 50):
        shares.arrived(f"t{number}", 0, 0)
    assert len(shares._accounts) == MOST_TENANTS + 1
    forward(shares, "r", "t99999", 0)
    assert shares.ended("r", None, 1) == "(others)"


moves = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 300), st.booleans()), max_size=40)


@settings(deadline=None)
@given(moves)
def test_whatever_happens_all_that_is_held_adds_up_and_nothing_is_left_over(
    happened: list[tuple[str, int, int, bool]],
) -> None:
    shares = counting()
    living: list[str] = []
    for number, (tenant, priority, blocks, ends) in enumerate(happened):
        now_ns = number * SECOND // 3
        if ends and living:
            shares.ended(living.pop(blocks % len(living)), None, now_ns)
        else:
            forward(shares, f"r{number}", tenant, now_ns, float(blocks), priority)
            living.append(f"r{number}")
        kept = shares.kept_from(tenant, priority, None, now_ns)
        assert kept is None or (min(kept.blocks) >= 0 and kept.slots >= 0 and kept.variance >= 0)
        by_tenant = sum(account.blocks.now for account in shares._accounts.values())
        by_flow = sum(flow.blocks.now for flow in shares._flows.values())
        held = sum(charge.blocks for charge in shares._charges.values())
        assert by_tenant == by_flow == held == shares._all.blocks.now
    for name in living:
        shares.ended(name, None, 100 * SECOND)
    assert shares._all.blocks.now == shares._all.sequences.now == 0


def test_the_sum_of_what_is_kept_is_kept() -> None:
    one, other = Kept(), Kept()
    one.blocks, one.variance, one.slots = [1.0] * len(GRID), 2.0, 3.0
    other.blocks, other.variance, other.slots = [4.0] * len(GRID), 5.0, 6.0
    both = one + other
    assert (both.blocks[3], both.variance, both.slots) == (5.0, 7.0, 9.0)


class Counted(OrderedDict[str, Account]):
    """Counts who is looked at."""

    looked_at = 0

    def values(self) -> Any:
        for account in super().values():
            self.looked_at += 1
            yield account


def test_who_comes_after_thousands_that_are_forgotten_pays_for_each_of_them_once() -> None:
    shares = counting()
    for number in range(3000):
        shares.arrived(f"t{number}", 0, SECOND)
    counted = shares._accounts = Counted(shares._accounts)
    shares.arrived("a", 0, SECOND + ACTIVE_NS)
    assert list(counted) == ["a"]
    assert shares._weights == 1.0
    assert counted.looked_at == 3002  # and the one who is left
