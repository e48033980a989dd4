"""Of those who wait it is told why, as the last look decided it, and for how long still."""

import random
from collections.abc import Callable

import pytest

from kvbudget.gate.commands import Command
from kvbudget.gate.events import Arrived, Ended, EngineBusy, Progressed, Tick
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits
from kvbudget.gate.waiting.expectation import MAX_WAIT_NS
from kvbudget.gate.waiting.why import Why, who_waits
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Tokens

SECOND = 10**9
MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


def whys(gate: Gate, now_ns: int = 0) -> dict[str, Why]:
    return {one.waiting.arrived.request_id: one.why for one in who_waits(gate, 99, now_ns)}


def done(name: str) -> Ended:
    return Ended(name, Outcome.FINISHED, Tokens(16))


def test_the_first_lacks_room_in_the_pool_and_the_next_waits_its_turn(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=4)
    for name in ("a", "b", "c", "d"):
        gate.handle(arrive(name), 0)  # two blocks each
    assert whys(gate) == {"c": Why.POOL, "d": Why.TURN}
    gate.handle(done("a"), SECOND)
    assert whys(gate, SECOND) == {"d": Why.POOL}
    assert [one.waiting.arrived.request_id for one in who_waits(gate, 0, SECOND)] == []


def test_as_many_run_as_may(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100, max_num_seqs=1)
    gate.handle(arrive("a"), 0)
    gate.handle(arrive("b"), 0)
    assert whys(gate) == {"b": Why.SEQUENCES}
    gate.handle(Tick(), 1)
    gate.look(1)
    assert whys(gate, 1) == {"b": Why.SEQUENCES}


def test_its_tenant_has_all_its_blocks(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100, tenants={"a": TenantLimits(max_blocks=Blocks(2))})
    gate.handle(arrive("a0", tenant="a"), 0)
    gate.handle(arrive("a1", tenant="a"), 0)
    assert whys(gate) == {"a1": Why.TENANT_BLOCKS}
    gate.look(1)
    assert whys(gate) == {"a1": Why.TENANT_BLOCKS}


def test_who_comes_back_when_told_waits_for_its_tenants_blocks_all_the_same(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(100, Policy.LEARNED, worthwhile_wait_ns=20 * SECOND, tenants={"a": TenantLimits(Blocks(2))})
    gate.handle(arrive("a0", tenant="a"), 0)
    event = arrive("a1", tenant="a")
    resolved = gate.resolver.resolve(event)
    assert isinstance(resolved, tuple)
    told_ns = gate.rejections.retry_after_ns(event, resolved[0], 0)
    gate.handle(event._replace(request_id="again"), told_ns)
    assert whys(gate, told_ns) in ({"again": Why.TENANT_BLOCKS}, {})


def test_what_is_free_is_kept_for_others(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100, max_num_seqs=3, classes={0: ClassLimits(0, 2)})
    gate.handle(arrive("b0", priority=1), 0)
    gate.handle(arrive("b1", priority=1), 0)
    gate.handle(arrive("b2", priority=1), 0)
    assert whys(gate) == {"b1": Why.TENANT_SHARE, "b2": Why.TURN}
    gate.look(1)
    assert whys(gate) == {"b1": Why.TENANT_SHARE, "b2": Why.TURN}


def test_the_prompts_of_a_flood_wait_for_those_at_the_engine(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10_000)
    gate.handle(arrive("q0", 400, 16, tenant="quiet", paced=True), 0)
    gate.handle(Progressed("q0", 1), 0)
    for number in range(4):
        gate.handle(arrive(f"f{number}", 1600, 16, tenant="flood", paced=True), 0)
    assert whys(gate) == {"f1": Why.PROMPTS, "f2": Why.TURN, "f3": Why.TURN}
    gate.look(1)
    assert whys(gate)["f1"] is Why.PROMPTS


def test_the_engine_said_that_it_is_overloaded_until_then(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100)
    gate.handle(arrive("a"), 0)
    gate.handle(EngineBusy(5 * SECOND), 0)
    gate.handle(arrive("b"), 0)
    (one,) = who_waits(gate, 9, SECOND)
    assert (one.why, one.left_ns) == (Why.ENGINE_BUSY, 4 * SECOND)


def test_one_that_could_be_first_but_for_the_prompts_there_says_so(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(10_000, Policy.LEARNED, worthwhile_wait_ns=4 * SECOND)
    gate.handle(arrive("a", 100_000, 16, paced=True), 0)
    late = arrive("b", 16, 16)
    resolved = gate.resolver.resolve(late)
    assert isinstance(resolved, tuple)
    assert gate.trial.of(late, *resolved, None, 0) == (None, False)
    assert gate.trial.why is Why.PROMPTS


def test_waits_follow_the_ends_of_those_that_run(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=22, queue_tokens=Tokens(10**6))
    gate.expectation.ns_per_token, gate.expectation.learned = 0.1 * SECOND, True
    gate.handle(arrive("short", 16, 16), 0)  # 1.6 s, two blocks
    gate.handle(arrive("long", 16, 304), 0)  # 30.4 s, twenty
    for number in range(300):
        gate.handle(arrive(f"w{number}", 16, 16), 0)
    left = [one.left_ns / SECOND for one in who_waits(gate, 999, 0)]
    assert left[:3] == pytest.approx([1.6, 30.4, 30.4])
    assert left == sorted(left)
    assert left[-1] > 30.4, "all that run are not enough"


def test_who_waits_for_its_tenants_limit_waits_for_its_own_to_end(make_gate: MakeGate, arrive: Arrive) -> None:
    tenants = {"a": TenantLimits(max_blocks=Blocks(4))}
    gate = make_gate(blocks=100, queue_tokens=Tokens(10**6), tenants=tenants)
    gate.expectation.ns_per_token, gate.expectation.learned = 0.1 * SECOND, True
    gate.handle(arrive("b", 16, 16, tenant="b"), 0)
    gate.handle(arrive("short", 16, 16, tenant="a"), 0)  # 1.6 s, two blocks
    gate.handle(arrive("middle", 16, 16, tenant="a"), SECOND)  # the same, later
    for number in range(4):
        gate.handle(arrive(f"w{number}", 16, 16, tenant="a"), SECOND)
    waits = who_waits(gate, 99, SECOND)
    assert [one.why for one in waits] == [Why.TENANT_BLOCKS, *[Why.TURN] * 3]
    left = [one.left_ns / SECOND for one in waits]
    assert left[:2] == pytest.approx([0.6, 1.6])
    assert left == sorted(left)
    assert left[3] > 1.6, "all that run are not enough"
    event = arrive("late", 16, 16, tenant="a")
    resolved = gate.resolver.resolve(event)
    assert isinstance(resolved, tuple)
    assert gate.rejections.retry_after_ns(event, resolved[0], SECOND) >= waits[3].left_ns


def test_a_limit_gets_back_all_that_it_counted_shared_prompts_too(make_gate: MakeGate, arrive: Arrive) -> None:
    tenants = {"a": TenantLimits(max_blocks=Blocks(17))}
    gate = make_gate(100, sharing=Sharing.SCHEDULED, tenants=tenants)
    gate.expectation.ns_per_token, gate.expectation.learned = 0.1 * SECOND, True
    for name, new in (("long", 47), ("a", 15), ("b", 15), ("w", 15)):  # seven blocks and five, four of which they share
        gate.handle(arrive(name, 65, new, tenant="a", prefix=(1, 2, 3, 4)), 0)
    (one,) = who_waits(gate, 9, 0)
    assert (one.why, one.left_ns) == (Why.TENANT_BLOCKS, 3 * SECOND // 2)
    gate.handle(done("a"), 3 * SECOND // 2)
    assert len(gate.queue) == 0


def test_where_a_tenants_blocks_are_at_other_gates_its_own_length_is_what_is_known(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(blocks=100, queue_tokens=Tokens(10**6), tenants={"a": TenantLimits(max_blocks=Blocks(4))})
    gate.expectation.ns_per_token, gate.expectation.learned = 0.1 * SECOND, True
    assert gate.fairness.limits is not None
    gate.fairness.limits.shared({"a": 4}, 2)
    gate.handle(arrive("w", 16, 48, tenant="a"), 0)
    (one,) = who_waits(gate, 9, 0)
    assert one.why is Why.TENANT_BLOCKS
    assert one.left_ns == pytest.approx(4.8 * SECOND)
    gate.expectation.ns_per_token = 1000 * SECOND
    assert who_waits(gate, 9, 0)[0].left_ns == MAX_WAIT_NS


def test_with_nothing_that_ends_the_wait_is_the_longest_that_is_told(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10)
    gate.handle(EngineBusy(SECOND), 0)
    gate.handle(arrive("a"), 0)
    gate.promises.room_taken(Blocks(10))
    (one,) = who_waits(gate, 9, 0)
    assert one.left_ns == MAX_WAIT_NS


def test_what_was_foreseen_counts_until_it_is_over(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(12, Policy.LEARNED, worthwhile_wait_ns=10**12, queue_ns=10**12)
    for number in range(8):
        gate.handle(arrive(f"r{number}", 16, 64, paced=True), 0)
    waits = [one for one in who_waits(gate, 99, 0) if one.waiting.expected_ns]
    assert waits
    first = waits[0].waiting
    assert waits[0].left_ns == first.expected_ns
    later = {one.waiting.key: one.left_ns for one in who_waits(gate, 99, first.expected_ns // 2)}
    assert later[first.key] == first.expected_ns - first.expected_ns // 2
    late = {one.waiting.key: one.left_ns for one in who_waits(gate, 99, first.expected_ns + 1)}
    assert late[first.key] > 0


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("seed", range(8))
def test_asking_changes_nothing(make_gate: MakeGate, arrive: Arrive, policy: Policy, seed: int) -> None:
    def play(ask: bool) -> list[Command]:
        rng = random.Random(seed)
        gate = make_gate(24, policy, max_num_seqs=6, queue_requests=12, classes={0: ClassLimits(4, 1)})
        told: list[Command] = []
        living: list[str] = []
        now_ns = 0
        for number in range(200):
            now_ns += rng.randrange(SECOND)
            if rng.random() < 0.6 or not living:
                event = arrive(
                    f"r{number}", rng.randrange(1, 90), rng.randrange(1, 90), tenant=rng.choice("abc"),
                    priority=rng.choice([0, 0, 1]), paced=rng.random() < 0.7,
                )  # fmt: skip
                commands = gate.handle(event, now_ns)
            else:
                name = rng.choice(living)
                over = rng.random() < 0.5
                commands = gate.handle(done(name) if over else Progressed(name, rng.randrange(1, 5)), now_ns)
                living = [one for one in living if not over or one != name]
            told += commands
            living += [one.request_id for one in commands if type(one).__name__ == "Forward"]
            gate.free_blocks()  # as every scrape asks for
            if ask:
                who_waits(gate, 50, now_ns)
            if (wake_ns := gate.next_wake_ns) is not None and wake_ns <= now_ns:
                more = gate.handle(Tick(), now_ns)
                told += more
                living += [one.request_id for one in more if type(one).__name__ == "Forward"]
        return told

    assert play(ask=True) == play(ask=False)
