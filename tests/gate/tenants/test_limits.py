from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.gate.tenants.limits import MINUTE_NS, MOST_BUCKETS, Limits
from kvbudget.gate.tenants.settings import ALL_OTHERS, TenantLimits
from kvbudget.units import Blocks, Tokens


def limits(**more: TenantLimits) -> Limits:
    return Limits({"a": TenantLimits(tokens_per_minute=Tokens(600)), "b": TenantLimits(max_blocks=Blocks(10)), **more})


def test_who_has_taken_the_minutes_tokens_is_told_when_there_are_enough_again() -> None:
    all_of_them = limits()
    assert all_of_them.refusal("a", 500, 1, 0) is None
    all_of_them.accepted("r1", "a", 500, 0)
    refused = all_of_them.refusal("a", 200, 1, 0)
    assert refused is not None
    assert refused[0] is Refusal.TENANT_TOKENS
    assert refused[1] == MINUTE_NS // 6 + 1  # 100 are missing, 10 come in a second
    assert all_of_them.refusal("a", 200, 1, refused[1]) is None
    assert all_of_them.tokens_left("a", refused[1]) == (600, 200)


def test_what_was_not_used_comes_back_once() -> None:
    all_of_them = limits()
    all_of_them.accepted("r1", "a", 500, 0)
    all_of_them.used("r1", 50, 0)
    all_of_them.used("r1", 50, 0)
    assert all_of_them.tokens_left("a", 0) == (600, 550)


def test_no_minute_holds_more_than_its_tokens() -> None:
    all_of_them = limits()
    all_of_them.accepted("r1", "a", 500, 0)
    all_of_them.used("r1", 0, MINUTE_NS)
    assert all_of_them.tokens_left("a", 2 * MINUTE_NS) == (600, 600)


def test_one_that_is_larger_than_the_minute_passes_when_it_is_full_and_is_paid_back() -> None:
    all_of_them = limits()
    assert all_of_them.refusal("a", 6000, 1, 0) is None
    all_of_them.accepted("r1", "a", 6000, 0)
    refused = all_of_them.refusal("a", 1, 1, 0)
    assert refused is not None
    assert refused[1] > 9 * MINUTE_NS - 1
    assert all_of_them.tokens_left("a", 0) == (600, 0)


def test_blocks_are_counted_until_they_are_back() -> None:
    all_of_them = limits()
    assert all_of_them.has_blocks("b", 10)
    all_of_them.reserved("r1", "b", 6)
    all_of_them.reserved("r2", "b", 4)
    assert not all_of_them.has_blocks("b", 1)
    all_of_them.gone("r1")
    all_of_them.gone("r1")
    assert all_of_them.has_blocks("b", 6)
    assert not all_of_them.has_blocks("b", 7)
    all_of_them.gone("r2")
    assert all_of_them._blocks == {}


def test_what_exceeds_the_limit_alone_is_never_served() -> None:
    assert limits().refusal("b", 1, 11, 0) == (Refusal.TENANT_TOO_LARGE, 0)
    assert limits().refusal("b", 1, 10, 0) is None


def test_who_is_not_named_has_no_limits_or_those_of_all_others() -> None:
    assert limits().refusal("c", 10**9, 10**9, 0) is None
    assert limits().tokens_left("c", 0) is None
    all_of_them = limits(**{ALL_OTHERS: TenantLimits(max_blocks=Blocks(5), tokens_per_minute=Tokens(60))})
    assert all_of_them.refusal("c", 1, 6, 0) == (Refusal.TENANT_TOO_LARGE, 0)
    all_of_them.accepted("r1", "c", 60, 0)
    assert all_of_them.tokens_left("c", 0) == (60, 0)
    assert all_of_them.tokens_left("d", 0) == (60, 60)  # each by itself
    assert all_of_them.tokens_left("a", 0) == (600, 600)


def test_names_that_nobody_knows_do_not_fill_the_memory() -> None:
    all_of_them = limits(**{ALL_OTHERS: TenantLimits(tokens_per_minute=Tokens(60))})
    for number in range(MOST_BUCKETS + 10):
        all_of_them.tokens_left(f"t{number}", 0)
    assert len(all_of_them._buckets) == MOST_BUCKETS


def test_who_was_accepted_and_comes_again_has_its_tokens_and_takes_none() -> None:
    all_of_them = limits()
    all_of_them.accepted("r1", "a", 500, 0)
    assert all_of_them.refusal("a", 500, 1, 0, "r1") is None
    all_of_them.accepted("r1", "a", 500, 0)
    assert all_of_them.tokens_left("a", 0) == (600, 100)
    assert all_of_them.refusal("a", 500, 1, 0, "r2") is not None
