"""A tenant's tokens of a minute are of all gates together, by use: what each takes, the others know soon."""

import random
from collections import deque

import pytest

from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.gate.tenants.limits import MINUTE_NS, SOON_NS, STALE_NS, Limits
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.units import Tokens

MS = 10**6
SECOND = 10**9
PER_MINUTE = 60_000
TENANTS = {"a": TenantLimits(tokens_per_minute=Tokens(PER_MINUTE))}
WORD_NS = 50 * MS


class Gates:
    """Each says every 50 ms what it has taken, and hears what the others said last; each begins at another moment."""

    def __init__(self, count: int) -> None:
        self.limits = [Limits(TENANTS) for _ in range(count)]
        self.said = [dict[str, int]() for _ in range(count)]
        self.next_ns = [at * WORD_NS // count for at in range(count)]
        self.number = 0

    def word(self, at: int, now_ns: int) -> None:
        self.said[at] = {tenant: taken for tenant, (taken, _) in self.limits[at].taken_by_tenant(now_ns, 64).items()}
        others = [said for other, said in enumerate(self.said) if other != at]
        elsewhere = {tenant: sum(said.get(tenant, 0) for said in others) for tenant in self.said[at]}
        self.limits[at].shared({}, len(self.limits), elsewhere, now_ns)

    def words(self, now_ns: int) -> None:
        for at, due_ns in enumerate(self.next_ns):
            if due_ns <= now_ns:
                self.word(at, now_ns)
                self.next_ns[at] = now_ns + WORD_NS

    def left(self, at: int, now_ns: int) -> list[int]:
        """(tokens a minute, tokens left)."""
        return list(self.limits[at].tokens_left("a", now_ns) or ())

    def asks(self, at: int, tokens: int, now_ns: int, uses: int | None = None) -> int:
        """Tokens that it takes."""
        if self.limits[at].refusal("a", tokens, 0, now_ns) is not None:
            return 0
        self.number += 1
        self.limits[at].accepted(str(self.number), "a", tokens, now_ns)
        if uses is not None:
            self.limits[at].used(str(self.number), uses, now_ns)
        return tokens if uses is None else uses


def flood(gates: Gates, at: list[int], minutes: int, request: int, seed: int = 1) -> tuple[float, int]:
    """(tokens a minute, most in any minute) where more is asked for than there is."""
    chance, taken, in_minute = random.Random(seed), 0, deque[tuple[int, int]]()
    most, sum_in_minute = 0, 0
    for tick in range(minutes * 60 * 100):
        now_ns = tick * 10 * MS
        gates.words(now_ns)
        if chance.random() < 0.25:
            got = gates.asks(chance.choice(at), chance.randint(request // 2, request), now_ns)
            taken += got
            in_minute.append((now_ns, got))
            sum_in_minute += got
        while in_minute and in_minute[0][0] <= now_ns - MINUTE_NS:
            sum_in_minute -= in_minute.popleft()[1]
        most = max(most, sum_in_minute)
    return (taken - PER_MINUTE) / minutes, most  # beside the full bucket with which it begins


@pytest.mark.parametrize("at", [[0], [0, 1], [0, 1, 2, 3]])
@pytest.mark.parametrize("request_tokens", [300, 6_000])
def test_all_gates_take_what_one_would_wherever_the_requests_come(at: list[int], request_tokens: int) -> None:
    one, _ = flood(Gates(1), [0], 6, request_tokens)
    four, most = flood(Gates(4), at, 6, request_tokens)
    assert one == pytest.approx(PER_MINUTE, rel=0.04)
    assert four == pytest.approx(one, rel=0.05)
    # A full bucket and a minute's filling, and what several take before they know of one another.
    assert most <= 2 * PER_MINUTE + 3 * max(request_tokens, PER_MINUTE // 4)


def test_a_burst_at_all_gates_at_one_moment_is_bounded_by_parts() -> None:
    gates = Gates(4)
    gates.words(0)
    for at in range(4):
        gates.word(at, 0)
    taken = sum(gates.asks(at, 500, MS) for _ in range(200) for at in range(4))
    assert taken == PER_MINUTE
    one = Gates(4)
    one.word(0, 0)
    assert sum(one.asks(0, 500, MS) for _ in range(200)) == PER_MINUTE // 4
    assert one.limits[0].lacks_word("a", 500, MS)
    assert one.limits[0].refusal("a", 500, 0, MS) == (Refusal.TENANT_TOKENS, SOON_NS)
    one.word(0, 2 * MS)
    assert not one.limits[0].lacks_word("a", 500, 2 * MS)
    assert one.asks(0, 500, 2 * MS) == 500


def test_one_request_may_be_larger_than_a_part() -> None:
    gates = Gates(4)
    gates.word(0, 0)
    assert gates.asks(0, PER_MINUTE, MS) == PER_MINUTE
    gates.word(0, 2 * MS)
    gates.word(1, 2 * MS)
    assert gates.asks(1, 1000, 3 * MS) == 0


def test_what_was_not_used_comes_back_also_where_others_have_taken_since() -> None:
    gates = Gates(2)
    for at in (0, 1):
        gates.word(at, 0)
    gates.limits[0].accepted("large", "a", 20_000, MS)
    gates.limits[1].accepted("other", "a", 30_000, MS)
    gates.word(0, 2 * MS)
    gates.word(1, 2 * MS)
    gates.word(0, 3 * MS)
    for second in range(1, 16):  # 15,000 are filled, in proportion
        for at in (0, 1):
            gates.word(at, second * SECOND)
    later_ns = 15 * SECOND
    assert gates.left(0, later_ns) == pytest.approx([PER_MINUTE, 25_000], abs=1000)  # words are old by up to a second
    gates.limits[0].used("large", 1_000, later_ns)
    assert gates.left(0, later_ns) == pytest.approx([PER_MINUTE, 44_000], abs=1000)  # words are old by up to a second
    gates.limits[0].used("other one", 0, later_ns)
    assert gates.limits[0].taken_by_tenant(later_ns, 64)["a"][0] == 0
    much_later_ns = later_ns + MINUTE_NS // 2
    gates.limits[0].shared({}, 2, {"a": 0}, much_later_ns)
    assert gates.limits[0].tokens_left("a", much_later_ns) == (PER_MINUTE, PER_MINUTE)


def test_without_words_a_gate_goes_by_an_equal_part() -> None:
    gates = Gates(4)
    gates.limits[0].shared({}, 4)
    assert gates.limits[0].tokens_left("a", 0) == (PER_MINUTE // 4, PER_MINUTE // 4)
    gates.word(0, 0)
    assert gates.limits[0].tokens_left("a", 0) == (PER_MINUTE, PER_MINUTE)
    gates.asks(0, 10_000, 0)
    stale_ns = STALE_NS + 1
    assert gates.left(0, stale_ns) == pytest.approx(
        [PER_MINUTE // 4, 8_000], abs=1000
    )  # words are old by up to a second
    gates.word(0, stale_ns)
    assert gates.left(0, stale_ns) == pytest.approx([PER_MINUTE, 53_000], abs=1000)  # words are old by up to a second


def test_what_was_taken_stays_taken_when_gates_come_and_limits_change() -> None:
    gates = Gates(2)
    gates.word(0, 0)
    gates.asks(0, 10_000, 0)
    gates.limits[0].shared({}, 3, {}, 0)
    assert gates.limits[0].tokens_left("a", 0) == (20_000, 10_000)
    gates.limits[0].shared({}, 3, {"a": 5_000}, 0)
    assert gates.limits[0].tokens_left("a", 0) == (PER_MINUTE, PER_MINUTE - 15_000)
    gates.limits[0].configure({"a": TenantLimits(tokens_per_minute=Tokens(90_000))})
    assert gates.limits[0].tokens_left("a", 0) == (90_000, 75_000)
    gates.limits[0].configure({"a": TenantLimits()})
    gates.limits[0].shared({}, 3, {"a": 5_000}, 0)
    assert gates.limits[0].tokens_left("a", 0) is None


def test_a_gate_tells_of_those_who_took_something_and_of_the_named_and_of_so_many_at_most() -> None:
    tenants = {"*": TenantLimits(tokens_per_minute=Tokens(600)), "named": TenantLimits(tokens_per_minute=Tokens(60))}
    limits = Limits({**tenants, "free": TenantLimits()})
    assert limits.taken_by_tenant(0, 3) == {"named": (0, 60)}
    for number in range(5):
        limits.accepted(f"r{number}", f"tenant {number}", 10, 0)
    limits.accepted("r", "named", 7, 0)
    assert limits.taken_by_tenant(0, 3) == {"named": (7, 60), "tenant 4": (10, 600), "tenant 3": (10, 600)}
    limits.shared({}, 2, {"free": 5}, 0)  # by a gate that knows of a limit
    assert limits.tokens_left("free", 0) is None
    assert limits.taken_by_tenant(MINUTE_NS, 3) == {"named": (0, 60)}
