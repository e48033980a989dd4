"""Whatever comes in whichever order, a gate and a fleet keep to what they promise (tests/support/anything.py)."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from anything import Anything, what_is_left
from kvbudget.gate.events import Arrived, Ended, Tick
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.gate.refusing.returns import MOST_ACCOUNTS, MOST_BOOKED
from kvbudget.gate.tenants.settings import ALL_OTHERS, TenantLimits
from kvbudget.gate.tenants.shares import MOST_TENANTS
from kvbudget.units import Tokens

MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]
SECOND = 10**9


@pytest.mark.parametrize("clock", [False, True], ids=["lawful clock", "any clock"])
@pytest.mark.parametrize("lies", [False, True], ids=["honest", "lying"])
@pytest.mark.parametrize("instances", [1, 2, 3])
def test_whatever_comes_every_promise_is_kept_and_nothing_is_left(instances: int, lies: bool, clock: bool) -> None:
    for seed in range(10 if instances == 1 else 5):
        Anything(seed, instances=instances, lies=lies, clock=clock).run(300)


@pytest.mark.parametrize("instances", [1, 2])
def test_the_same_events_give_the_same_decisions(instances: int) -> None:
    def decisions(seed: int) -> list[str]:
        anything = Anything(seed, instances=instances)
        anything.run(300)
        return anything.log

    for seed in range(100, 103):
        assert decisions(seed) == decisions(seed)


@pytest.mark.parametrize("policy", list(Policy))
def test_tenants_that_come_once_are_not_remembered(make_gate: MakeGate, arrive: Arrive, policy: Policy) -> None:
    gate = make_gate(40, policy, tenants={ALL_OTHERS: TenantLimits(tokens_per_minute=Tokens(10**4))})
    now_ns = 0
    for number in range(20_000 if policy is Policy.WORST_CASE else 2_000):
        now_ns += SECOND // 100
        name, tenant = f"r{number}", f"t{number}"
        gate.handle(arrive(name, 100, 60, tenant=tenant, priority=number % 5, paced=True), now_ns)
        ends = f"r{number - 20}"
        if gate.ledger.get(ends) is not None or ends in gate.queue:
            gate.handle(Ended(ends, Outcome.FINISHED, Tokens(30)), now_ns)
    shares, returns = gate.fairness.shares, gate.returns
    assert len(shares._accounts) <= MOST_TENANTS + 1
    assert len(returns._paces) <= MOST_ACCOUNTS
    assert returns._booked <= MOST_BOOKED
    assert len(returns._until) <= 2 * MOST_BOOKED + 64
    for waiting in list(gate.queue):
        gate.handle(Ended(waiting.arrived.request_id, Outcome.WITHDRAWN), now_ns)
    for living in list(gate.ledger):
        gate.handle(Ended(living.reservation_id, Outcome.FINISHED, Tokens(30)), now_ns)
    gate.handle(Tick(), now_ns + 300 * SECOND)
    assert what_is_left(gate) == {}


def test_what_is_kept_after_much_happened_is_what_was_kept_after_a_little(make_gate: MakeGate, arrive: Arrive) -> None:
    def entries(requests: int) -> int:
        gate = make_gate(40, Policy.LEARNED)
        for number in range(requests):
            now_ns = number * SECOND // 10
            gate.handle(arrive(f"r{number}", 100, 60, tenant="ab"[number % 2], paced=True), now_ns)
            ends = f"r{number - 8}"
            if gate.ledger.get(ends) is not None:
                gate.handle(Ended(ends, Outcome.FINISHED, Tokens(number % 50 + 1)), now_ns)
        return sum(len(part) for part in parts_of(gate))

    assert entries(2000) < 1.5 * entries(500)


def parts_of(gate: Gate) -> Iterable[Any]:
    """All that grows with requests."""
    returns, queue, learned = gate.returns, gate.queue, gate.learned
    yield from (returns._of, returns._asked, returns._coming, returns._until, returns._largest, returns._paces)
    yield from (queue._by_key, queue._key_of, queue._order, queue._deadlines, queue._parts, queue._sums)
    yield from (learned.batch.tracked, learned.outlook.shares, learned.lengths._habits, gate.overtaking._heads)
    yield from (gate.fairness.shares._accounts, gate.fairness.shares._charges, gate.fairness.shares._flows)
    yield from (gate.promises._dared, gate.tails.due, gate.tails._names)
