"""What tenants and classes owe one another, as dialogues with a gate."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived, CapacityChanged, Ended, Progressed, Tick
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, QueueBound, Refusal
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits, account_name, tenant_of
from kvbudget.gate.tenants.turns import AGE_NS, PER_LESS_URGENT
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens

SECOND = 10**9
MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


def done(name: str, tokens: int = 16) -> Ended:
    return Ended(name, Outcome.FINISHED, Tokens(tokens))


def told(commands: list[Command]) -> list[str]:
    return [f"{type(command).__name__} {command.request_id}" for command in commands]


def test_who_had_less_goes_before_a_flood_that_came_earlier(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=4)
    for number in range(4):
        gate.handle(arrive(f"f{number}", tenant="flood"), 0)  # two blocks each
    assert told(gate.handle(arrive("q", tenant="quiet"), 1)) == ["Parked q"]
    assert told(gate.handle(done("f0"), SECOND)) == ["Forward q"]


def test_within_a_tenant_nobody_is_overtaken(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=4)
    gate.handle(arrive("a0", 48, 16, tenant="a"), 0)
    gate.handle(arrive("b0", 48, 16, tenant="b"), 0)
    gate.handle(arrive("b1", 1, 1, tenant="b"), 0)
    assert told(gate.handle(done("a0"), SECOND)) == ["Forward b0"]


def test_a_newcomer_overtakes_those_who_wait_for_their_own_tenants_sake(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, tenants={"a": TenantLimits(max_blocks=Blocks(2))})
    assert told(gate.handle(arrive("a0", tenant="a"), 0)) == ["Forward a0"]
    assert told(gate.handle(arrive("a1", tenant="a"), 0)) == ["Parked a1"]
    assert told(gate.handle(arrive("b0", tenant="b"), 0)) == ["Forward b0"]
    assert told(gate.handle(done("a0"), SECOND)) == ["Forward a1"]


def test_who_asks_for_more_blocks_than_its_tenant_may_reserve_is_told_never(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(blocks=10, tenants={"a": TenantLimits(max_blocks=Blocks(2))})
    (command,) = gate.handle(arrive("a0", 100, 16, tenant="a"), 0)
    assert isinstance(command, Reject)
    assert (command.refusal, command.retry_after_ns) == (Refusal.TENANT_TOO_LARGE, 0)


def test_who_has_taken_its_minute_is_refused_and_what_was_not_used_comes_back(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(blocks=20, tenants={"a": TenantLimits(tokens_per_minute=Tokens(100))})
    gate.handle(arrive("a0", 16, 64, tenant="a"), 0)
    (command,) = gate.handle(arrive("a1", 16, 64, tenant="a"), 0)
    assert isinstance(command, Reject)
    assert command.refusal is Refusal.TENANT_TOKENS
    assert 35 * SECOND < command.retry_after_ns < 37 * SECOND  # 60 are missing
    gate.handle(done("a0", 4), 0)
    assert told(gate.handle(arrive("a2", 16, 64, tenant="a"), 0)) == ["Forward a2"]


@pytest.mark.parametrize("way", ["withdrawn", "expired", "refused"])
def test_who_was_never_let_in_took_no_tokens(make_gate: MakeGate, arrive: Arrive, way: str) -> None:
    limits = {"a": TenantLimits(tokens_per_minute=Tokens(100))}
    gate = make_gate(blocks=2, tenants=limits, queue_requests=0 if way == "refused" else 9, queue_ns=SECOND)
    gate.handle(arrive("b", tenant="b"), 0)
    gate.handle(arrive("a", tenant="a"), 0)
    if way == "withdrawn":
        gate.handle(Ended("a", Outcome.WITHDRAWN), 0)
    gate.handle(Tick(), SECOND)
    assert gate.fairness.limits is not None
    assert gate.fairness.limits.tokens_left("a", 0) == (100, 100)


@pytest.mark.parametrize(("paced", "left"), [(True, 100 - 16 - 3), (False, 100 - 16 - 32)])
def test_of_whom_the_engine_told_nothing_all_counts_that_was_seen_or_may_have_been(
    make_gate: MakeGate, arrive: Arrive, paced: bool, left: int
) -> None:
    gate = make_gate(blocks=9, tenants={"a": TenantLimits(tokens_per_minute=Tokens(100))})
    gate.handle(arrive("a", 16, 32, tenant="a", paced=paced), 0)
    if paced:
        gate.handle(Progressed("a", 3), 0)
    gate.handle(Ended("a", Outcome.CLIENT_GONE, None), 0)
    assert gate.fairness.limits is not None
    assert gate.fairness.limits.tokens_left("a", 0) == (100, left)


@pytest.mark.parametrize(
    ("more_urgent", "wait_ns", "first"),
    [
        (PER_LESS_URGENT, AGE_NS, "Forward bulk"),
        (PER_LESS_URGENT - 1, AGE_NS, "Forward chat"),
        (PER_LESS_URGENT, AGE_NS - 1, "Forward chat"),
    ],
)
def test_a_waiting_class_gets_its_turn_once_it_has_aged_and_many_of_a_more_urgent_one_were_let_in(
    make_gate: MakeGate, arrive: Arrive, more_urgent: int, wait_ns: int, first: str
) -> None:
    gate = make_gate(blocks=2)
    gate.handle(arrive("c0"), 0)
    gate.handle(arrive("bulk", priority=1), 0)
    for number in range(1, more_urgent + 1):
        gate.handle(arrive(f"c{number}"), 1)
        assert told(gate.handle(done(f"c{number - 1}"), 1)) == [f"Forward c{number}"]
    gate.handle(arrive("chat"), 1)
    assert told(gate.handle(done(f"c{more_urgent}"), wait_ns)) == [first]


def test_a_class_that_is_due_has_a_place_in_a_queue_that_is_full_of_more_urgent_ones(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(blocks=2, queue_requests=20, queue_tokens=Tokens(10**6))
    gate.handle(arrive("c0"), 0)
    for number in range(1, 21):
        gate.handle(arrive(f"c{number}"), 0)
    assert told(gate.handle(arrive("bulk", priority=1), 0)) == ["Reject c20", "Parked bulk"]
    assert told(gate.handle(arrive("urgent"), 0)) == ["Reject urgent"]  # it does not take that place
    (bulk,) = gate.handle(arrive("bulk-2", 160, 16, priority=1), 0)
    assert isinstance(bulk, Reject)  # a tenth of the queue, no more


def test_a_class_finds_what_is_reserved_for_it(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, max_num_seqs=4, classes={0: ClassLimits(4, 1)})
    gate.handle(arrive("b0", priority=1), 0)
    for number in range(1, 5):
        gate.handle(arrive(f"b{number}", priority=1), 0)
    assert len(gate.ledger) == 3  # blocks 6 of 10: the rest is reserved, as is one sequence
    assert told(gate.handle(arrive("c0", 48, 16, priority=0), 1)) == ["Forward c0"]


@pytest.mark.parametrize("known", [Tokens(80), None])
def test_what_is_reserved_is_kept_whether_lengths_are_known_or_learned(
    make_gate: MakeGate, arrive: Arrive, known: Tokens | None
) -> None:
    gate = make_gate(20, Policy.LEARNED, classes={0: ClassLimits(9, 0)}, worthwhile_wait_ns=10**15)
    more = {"paced": True, "known_tokens": known}
    assert told(gate.handle(arrive("b0", 80, 80, priority=1, **more), 0)) == ["Forward b0"]
    gate.handle(Progressed("b0", 1), 0)
    assert told(gate.handle(arrive("b1", 80, 80, priority=1, **more), 0)) == ["Parked b1"]
    assert told(gate.handle(arrive("c0", 48, 80, priority=0, **more), 0)) == ["Forward c0"]


def test_the_reserved_slots_alone_hold_back_a_less_urgent_class(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100, max_num_seqs=3, classes={0: ClassLimits(0, 2)})
    assert told(gate.handle(arrive("b0", priority=1), 0)) == ["Forward b0"]
    assert told(gate.handle(arrive("b1", priority=1), 0)) == ["Parked b1"]
    assert told(gate.handle(arrive("c0", priority=0), 0)) == ["Forward c0"]
    assert told(gate.handle(arrive("c1", priority=0), 0)) == ["Forward c1"]


def flood(gate: Gate, arrive: Arrive, *, paced: bool = True) -> list[Command]:
    """One of `quiet`, and six long prompts of `flood`."""
    commands = gate.handle(arrive("q0", 400, 16, tenant="quiet", paced=True), 0)
    gate.handle(Progressed("q0", 1), 0)
    for number in range(6):
        commands += gate.handle(arrive(f"f{number}", 1600, 16, tenant="flood", paced=paced), 0)
    return commands


def test_the_prompts_of_a_flood_join_the_engine_one_by_one(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10_000)
    assert told(flood(gate, arrive))[:4] == ["Forward q0", "Forward f0", "Parked f1", "Parked f2"]
    assert told(gate.handle(Progressed("f0", 1), SECOND)) == ["Forward f1"]
    assert told(gate.handle(Progressed("f0", 1), SECOND)) == []
    assert told(gate.handle(arrive("q1", 1600, 16, tenant="quiet", paced=True), SECOND)) == ["Forward q1"]
    assert told(gate.handle(Progressed("f1", 1), 2 * SECOND)) == []  # another prompt waits to be computed
    assert told(gate.handle(done("q1"), 2 * SECOND)) == ["Forward f2"]


def test_a_prompt_that_nobody_watches_clears_the_lane_by_time(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10_000)
    assert told(flood(gate, arrive, paced=False))[:3] == ["Forward q0", "Forward f0", "Parked f1"]
    gate.handle(Ended("f5", Outcome.WITHDRAWN), 1)
    wake_ns = gate.next_wake_ns
    assert wake_ns is not None
    assert wake_ns == gate.lane.takes_ns(1600)
    assert told(gate.handle(Tick(), wake_ns)) == ["Forward f1"]


def test_an_empty_pool_keeps_nobody_waiting_whatever_others_may_need(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, classes={0: ClassLimits(8, 8)})
    assert told(gate.handle(arrive("bulk", 100, 50, priority=1), 0)) == ["Forward bulk"]


def test_the_full_queue_gives_a_place_of_whoever_has_most_of_it(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=2, queue_requests=3, queue_tokens=10**6)
    for number in range(4):
        gate.handle(arrive(f"f{number}", tenant="flood"), 0)
    commands = gate.handle(arrive("q", tenant="quiet"), 1)
    assert told(commands) == ["Reject f3", "Parked q"]
    assert isinstance(commands[0], Reject)
    assert commands[0].refusal is Refusal.TENANT_SHARE
    assert commands[0].retry_after_ns >= SECOND
    (refused,) = gate.handle(arrive("f9", tenant="flood"), 2)
    assert isinstance(refused, Reject)
    assert refused.refusal is Refusal.QUEUE_FULL


def test_the_full_queue_gives_no_place_that_is_too_small(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=20, queue_tokens=64)
    gate.handle(arrive("x", 300, 20, tenant="flood"), 0)
    gate.handle(arrive("f0", 16, 16, tenant="flood"), 0)
    gate.handle(arrive("f1", 16, 16, tenant="flood"), 0)
    (refused,) = gate.handle(arrive("q", 16, 40, tenant="quiet"), 1)
    assert isinstance(refused, Reject)
    assert (refused.request_id, refused.refusal) == ("q", Refusal.QUEUE_FULL)


def test_a_full_queue_of_one_tenant_refuses_the_newcomer(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=2, queue_requests=1)
    for name in ("a", "b"):
        gate.handle(arrive(name), 0)
    (refused,) = gate.handle(arrive("c"), 0)
    assert isinstance(refused, Reject)
    assert (refused.request_id, refused.refusal) == ("c", Refusal.QUEUE_FULL)


def test_without_fairness_all_tenants_are_one(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=4, fair=False)
    for number in range(4):
        gate.handle(arrive(f"f{number}", tenant="flood"), 0)
    gate.handle(arrive("q", tenant="quiet"), 1)
    assert told(gate.handle(done("f0"), SECOND)) == ["Forward f2"]


def test_shares_are_of_the_pool_that_there_is(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100)
    gate.handle(CapacityChanged(uniform_layout(16), Blocks(7), None), 0)
    assert gate.fairness.shares.capacity_blocks == 7


def test_those_who_live_when_a_second_tenant_comes_are_counted(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100)
    gate.handle(arrive("a0", 600, 16, tenant="a", paced=True), 0)
    gate.handle(arrive("a1", 600, 16, tenant="a", paced=True), 0)
    gate.handle(Progressed("a0", 1), 1)
    gate.handle(arrive("b", tenant="b"), 2)
    assert gate.fairness.shares.borrows("a", 2)
    assert not gate.lane.has_room(600, 600, 2)  # a1 is not read yet
    gate.handle(Progressed("a1", 1), 3)
    gate.handle(Ended("b", Outcome.FINISHED), 3)
    assert gate.lane.has_room(100, 100, 10**12)


@pytest.mark.parametrize("policy", [Policy.WORST_CASE, Policy.TRAJECTORY])
def test_a_borrower_leaves_room_under_every_policy(make_gate: MakeGate, arrive: Arrive, policy: Policy) -> None:
    gate = make_gate(blocks=60, policy=policy)
    for number in range(3):  # quiet held six blocks for a while
        gate.handle(arrive(f"q{number}", tenant="quiet"), 0)
    gate.handle(arrive("f0", 1, 1, tenant="flood"), 0)
    gate.handle(arrive("f1", 600, 100, tenant="flood"), 10 * SECOND)
    for number in range(3):
        gate.handle(done(f"q{number}"), 60 * SECOND)
    assert told(gate.handle(arrive("f2", 100, 60, tenant="flood"), 61 * SECOND)) == ["Parked f2"]
    assert told(gate.handle(arrive("q9", 100, 60, tenant="quiet"), 61 * SECOND)) == ["Forward q9"]


def test_who_waits_for_its_tenants_blocks_is_told_so_when_it_is_not_worthwhile(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(4, Policy.LEARNED, worthwhile_wait_ns=1, tenants={"a": TenantLimits(max_blocks=Blocks(2))})
    gate.handle(arrive("a0", tenant="a"), 0)
    (refused,) = gate.handle(arrive("a1", tenant="a"), 0)
    assert isinstance(refused, Reject)
    assert refused.refusal is Refusal.TENANT_BLOCKS


def test_who_finds_no_place_at_its_own_limit_is_told_the_limit_and_when_its_own_blocks_come_back(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(100, queue_requests=1, tenants={"a": TenantLimits(max_blocks=Blocks(3))})
    gate.handle(arrive("a0", 16, 16, tenant="a"), 0)
    gate.handle(arrive("a1", 16, 16, tenant="a"), 0)
    (refused,) = gate.handle(arrive("a2", 16, 16, tenant="a"), 0)
    assert isinstance(refused, Reject)
    assert (refused.refusal, refused.limit, refused.bound) == (Refusal.TENANT_BLOCKS, 3, None)
    assert refused.free_blocks == 98
    (never,) = gate.handle(arrive("a3", 16, 48, tenant="a"), 0)
    assert isinstance(never, Reject)
    assert (never.refusal, never.limit) == (Refusal.TENANT_TOO_LARGE, 3)


def test_at_its_own_limit_it_is_told_when_its_own_end_and_not_when_there_is_room(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(1000, queue_requests=1, tenants={"a": TenantLimits(max_blocks=Blocks(60))})
    gate.handle(arrive("a0", 16, 800, tenant="a"), 0)
    gate.handle(arrive("a1", 16, 800, tenant="a"), 0)
    (refused,) = gate.handle(arrive("a2", 16, 800, tenant="a"), 0)
    assert isinstance(refused, Reject)
    assert refused.retry_after_ns >= 10 * SECOND  # 800 tokens of 20 ms


@pytest.mark.parametrize(
    ("config", "bound", "limit"),
    [({"queue_requests": 1}, QueueBound.REQUESTS, 1), ({"queue_tokens": 40}, QueueBound.TOKENS, 40)],
)
def test_a_full_queue_says_which_bound_it_met(
    make_gate: MakeGate, arrive: Arrive, config: dict[str, int], bound: QueueBound, limit: int
) -> None:
    gate = make_gate(2, **config)
    gate.handle(arrive("a"), 0)
    gate.handle(arrive("b"), 0)
    (refused,) = gate.handle(arrive("c"), 0)
    assert isinstance(refused, Reject)
    assert (refused.refusal, refused.bound, refused.limit) == (Refusal.QUEUE_FULL, bound, limit)


def test_a_tail_of_a_tenant_that_is_not_counted_ends_quietly(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(abort_tail_ns=SECOND)
    gate.handle(arrive("a0", tenant="a"), 0)
    gate.handle(Ended("a0", Outcome.CLIENT_GONE, engine_done=False), 1)
    gate.handle(arrive("b0", tenant="b"), 2)
    gate.fairness.shares._charges.clear()  # as of one that was promised before anything was counted
    gate.handle(Tick(), 2 * SECOND)
    assert len(gate.ledger) == 1


def test_who_took_less_than_was_charged_comes_earlier_for_it(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=70)
    gate.handle(arrive("b0", 16, 400, tenant="b"), 0)
    gate.handle(arrive("a0", 16, 496, tenant="a"), 0)
    for name, tenant in (("a1", "a"), ("b1", "b")):
        assert told(gate.handle(arrive(name, 1000, 16, tenant=tenant), 1)) == [f"Parked {name}"]
    shares = gate.fairness.shares
    assert shares.virtual_of("a") > shares.virtual_of("b")
    gate.handle(done("a0", 1), 2)  # it lived for no time, and b0 goes on
    assert shares.virtual_of("a") < shares.virtual_of("b")
    assert next(key for key, _ in gate.fairness.turns.order(2)) == (0, 1)


def test_what_a_tenant_does_in_bulk_does_not_count_against_what_is_urgent(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=1000)
    gate.handle(arrive("u0", tenant="a"), 0)
    gate.handle(arrive("q0", tenant="b"), 0)
    for number in range(9):
        gate.handle(arrive(f"b{number}", 12, 164, tenant="a", priority=1), 0)
    shares = gate.fairness.shares
    assert shares.borrows(account_name("a", 1), 1)
    assert not shares.borrows(account_name("a", 0), 1)
    assert shares.weight_of(account_name("a", 1)) == 1.0
    assert tenant_of(account_name("a", 1)) == tenant_of(account_name("a", 0)) == "a"


def test_the_most_urgent_class_that_was_passed_over_is_kept_in_mind(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, classes={-1: ClassLimits(8, 0)})
    for name, priority in (("x", 0), ("p0", 0), ("p1", 1)):
        gate.handle(arrive(name, priority=priority), 0)
    assert gate.handle(Ended("p1", Outcome.WITHDRAWN), 1) == []  # all are looked at once more
    assert gate.fairness._borrower_waits == 0
    gate.handle(arrive("p2", priority=2), 2)
    gate.handle(arrive("p3", priority=1), 2)
    wake_ns = gate.next_wake_ns
    assert wake_ns is not None
    assert gate.handle(Tick(), wake_ns) == []
    assert gate.fairness._borrower_waits == 0


def learned_ahead(gate: Gate, event: Arrived, now_ns: int) -> int:
    """Tokens that are thought to come before it."""
    demand = gate.fairness.ahead_of(event, Footprint(event.prompts, Tokens(16)), gate.queue, now_ns)
    return 0 if demand is None else demand.tokens


def test_how_much_comes_before_a_newcomer_is_told_by_turns(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(4, Policy.LEARNED, worthwhile_wait_ns=10**15, queue_tokens=10**6)
    gate.handle(arrive("x", 48, 16, tenant="flood"), 0)
    gate.handle(arrive("f0", 40, 16, tenant="flood"), 0)
    one = gate.queue.tokens
    assert learned_ahead(gate, arrive("f", tenant="flood"), 0) == one  # a single tenant waits for all of its own
    gate.handle(arrive("q0", 40, 16, tenant="quiet"), 0)
    for number in range(1, 6):
        gate.handle(arrive(f"f{number}", 40, 16, tenant="flood"), 0)
    gate.handle(arrive("u0", 40, 16, tenant="quiet", priority=-1), 0)
    assert gate.fairness.shares.borrows("flood", 0)
    assert learned_ahead(gate, arrive("q", tenant="quiet"), 0) == 2 * one
    assert learned_ahead(gate, arrive("f", tenant="flood"), 0) == 8 * one
    assert 0 < learned_ahead(gate, arrive("u", tenant="flood", priority=-1), 0) <= one  # in this class it is no flood
    assert 0 < learned_ahead(gate, arrive("n", 40, tenant="new", priority=0), 0) <= 2 * one  # takes turns with quiet


requests = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 150), st.integers(1, 60), st.booleans(),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=30,
)  # fmt: skip


@given(requests, st.sampled_from(Policy))
def test_everybody_is_answered_once_and_an_engine_that_works_leaves_nobody_waiting(
    asked: list[tuple[str, int, int, int, bool, int]], policy: Policy
) -> None:
    """With limits, weights and reserves: each ends as Forward or Reject, and all that is counted comes to nothing."""
    config = GateConfig(
        policy=policy,
        max_num_seqs=4,
        abort_tail_ns=SECOND,
        queue_requests=8,
        queue_ns=10**15,
        worthwhile_wait_ns=10**15,
        tenants={"a": TenantLimits(3.0, Blocks(12), Tokens(2000)), "*": TenantLimits(0.5)},
        classes={0: ClassLimits(3, 1)},
    )
    gate = Gate(config, uniform_layout(16), Blocks(16))
    now_ns, running, answered = 0, [], set()

    def take(commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Parked):
                continue
            assert command.request_id not in answered
            answered.add(command.request_id)
            if isinstance(command, Forward):
                running.append(command.request_id)

    for number, (tenant, priority, prompt, new, paced, ends) in enumerate(asked):
        now_ns += SECOND // 10
        take(
            gate.handle(
                Arrived(f"r{number}", (Tokens(prompt),), Tokens(new), Tokens(9), 1, tenant, priority, paced), now_ns
            )
        )
        if running and paced:
            take(gate.handle(Progressed(running[-1], 1), now_ns))
        for _ in range(min(ends, len(running))):
            take(gate.handle(Ended(running.pop(0), Outcome.FINISHED, Tokens(1), engine_done=paced), now_ns))
        assert gate.ledger.sequences <= 4
    while gate.queue or running or len(gate.ledger):
        if running:
            take(gate.handle(Ended(running.pop(), Outcome.FINISHED, Tokens(1)), now_ns))
            continue
        wake_ns = gate.next_wake_ns
        assert wake_ns is not None, "somebody waits and nothing will ever happen"
        assert wake_ns > now_ns - 1
        now_ns = max(now_ns + 1, wake_ns)
        take(gate.handle(Tick(), now_ns))
        assert now_ns < 10**13, "an engine with nothing to do keeps somebody waiting"
    assert len(answered) == len(asked)
    shares, limits = gate.fairness.shares, gate.fairness.limits
    assert limits is not None
    assert (shares._charges, limits._held, limits._taken, limits._blocks) == ({}, {}, {}, {})
    assert abs(shares._all.blocks.now) < 1e-6
    assert gate.lane.has_room(10**9, 0, now_ns + 10**12)


def test_who_comes_back_when_told_is_held_to_its_tenants_limit_all_the_same(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(100, Policy.LEARNED, worthwhile_wait_ns=1, tenants={"a": TenantLimits(max_blocks=Blocks(2))})
    assert told(gate.handle(arrive("a0", tenant="a"), 0)) == ["Forward a0"]
    (refused,) = gate.handle(arrive("a1", tenant="a"), 1)
    assert isinstance(refused, Reject)
    due_ns = 1 + refused.retry_after_ns
    (again,) = gate.handle(arrive("a2", tenant="a"), due_ns)
    assert not isinstance(again, Forward)
    gate.handle(done("a0"), due_ns + 1)
    assert "a2" not in gate.queue
