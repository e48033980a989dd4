"""Settings that change while requests live: the new ones hold at once, and nothing that was promised is lost."""

from collections.abc import Callable
from dataclasses import replace

from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.events import Arrived, CapacityChanged, Ended
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits
from kvbudget.pool.chains import chain_keys
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Tokens

MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]
SECOND = 10**9


def configured(gate: Gate, **changed: object) -> list[Command]:
    gate.configure(replace(gate.config, **changed))  # type: ignore[arg-type]
    return gate.handle(CapacityChanged(gate.ledger.layout, gate.ledger.usable_blocks, None), 0)


def refusal_of(commands: list[Command]) -> Refusal | None:
    last = commands[-1]
    return last.refusal if isinstance(last, Reject) else None


def test_blocks_of_those_who_live_count_against_a_limit_that_is_set_later(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(10)
    assert isinstance(gate.handle(arrive("a", tenant="acme"), 0)[-1], Forward)  # two blocks
    configured(gate, tenants={"acme": TenantLimits(max_blocks=Blocks(3))})
    assert isinstance(gate.handle(arrive("b", tenant="acme"), 0)[-1], Parked)
    assert isinstance(gate.handle(arrive("c", tenant="other"), 0)[-1], Forward)
    assert [command.request_id for command in gate.handle(Ended("a", Outcome.FINISHED), 1)] == ["b"]
    configured(gate, tenants={"acme": TenantLimits(max_blocks=Blocks(4))})
    assert isinstance(gate.handle(arrive("d", tenant="acme"), 2)[-1], Forward)
    configured(gate, tenants={})
    assert isinstance(gate.handle(arrive("e", tenant="acme"), 2)[-1], Forward)
    for name in "bcde":
        gate.handle(Ended(name, Outcome.FINISHED), 3)
    assert gate.promised_blocks() == 0
    assert gate.fairness.limits is not None
    assert gate.fairness.limits.blocks_of("acme") == 0


def test_a_minute_s_tokens_are_not_given_anew_with_other_limits(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(100, tenants={name: TenantLimits(tokens_per_minute=Tokens(40)) for name in ("acme", "free")})
    for name in ("acme", "free"):
        assert isinstance(gate.handle(arrive(name, tenant=name), 0)[-1], Forward)  # 32 tokens
    configured(gate, tenants={"acme": TenantLimits(tokens_per_minute=Tokens(50)), "free": TenantLimits()})
    assert refusal_of(gate.handle(arrive("b", tenant="acme"), 0)) is Refusal.TENANT_TOKENS
    assert isinstance(gate.handle(arrive("c", tenant="free"), 0)[-1], Forward)
    # 8 were left: 24 more take 24/50 of a minute, and not 24/40 of it
    assert isinstance(gate.handle(arrive("d", tenant="acme"), 29 * SECOND)[-1], Forward)


def test_weights_reserves_policy_and_risk_hold_from_then_on(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(10, Policy.WORST_CASE)
    for name in ("a", "b"):
        gate.handle(arrive(name, tenant=name), 0)
    configured(
        gate,
        policy=Policy.LEARNED,
        tenants={"a": TenantLimits(weight=3.0)},
        max_num_seqs=7,
        epsilon=0.3,
        enough_answers=2.0,
        lag_steps=5,
        margin_blocks=1,
    )
    shares = gate.fairness.shares
    assert (shares.weight_of("a"), shares.weight_of("b"), shares.capacity_blocks) == (3.0, 1.0, 9)
    assert shares._weights == 4.0
    assert shares._slots == 7
    assert gate.learned.margin.rest == make_gate(10, epsilon=0.3).learned.margin.rest
    assert (gate.learned.enough_answers, gate.skew_steps) == (2.0, 5 + 1)
    assert isinstance(gate.handle(arrive("c", tenant="c"), 0)[-1], Forward)


def test_what_is_reserved_later_is_kept_from_the_only_tenant_and_class_that_ever_came(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(10, Policy.WORST_CASE)
    assert isinstance(gate.handle(arrive("a"), 0)[-1], Forward)
    configured(gate, classes={-1: ClassLimits(reserved_blocks=7)})
    assert isinstance(gate.handle(arrive("b"), 0)[-1], Parked)  # 2 + 2 and 7 kept are more than 10
    assert isinstance(gate.handle(arrive("c", priority=-1), 0)[-1], Forward)
    assert gate.handle(Ended("a", Outcome.FINISHED), SECOND)[-1].request_id == "b"


def test_who_waits_while_the_block_size_changes_is_credited_nothing_by_keys_of_the_old_one(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    keys = chain_keys(range(64), 16)
    gate = make_gate(8, sharing=Sharing.SCHEDULED)
    gate.handle(arrive("a", 64, 48, prefix=keys), 0)  # 7 blocks
    for name in ("b", "c"):  # 4 more each, three of them shared
        assert isinstance(gate.handle(arrive(name, 64, 64, prefix=keys), 0)[-1], Parked)
    gate.handle(CapacityChanged(uniform_layout(32), Blocks(6), None), 1)
    assert [waiting.arrived.prefix for waiting in gate.queue] == [(), ()]
    gate.handle(Ended("a", Outcome.FINISHED), 2)
    assert gate.ledger.shared_prefix_blocks == 0
    assert gate.promised_blocks() == 4  # one of them; both were thought to share 96 tokens of 64
    gate.handle(CapacityChanged(uniform_layout(32), Blocks(8), None), 3)
    assert gate.promised_blocks() == 8


def test_who_waits_for_more_than_its_tenant_may_have_now_is_told_at_once(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(3, tenants={"acme": TenantLimits(max_blocks=Blocks(3))})
    gate.handle(arrive("a"), 0)
    assert isinstance(gate.handle(arrive("b", tenant="acme"), 0)[-1], Parked)
    assert (
        refusal_of(configured(gate, tenants={"acme": TenantLimits(max_blocks=Blocks(1))})) is Refusal.TENANT_TOO_LARGE
    )
    assert not gate.queue
