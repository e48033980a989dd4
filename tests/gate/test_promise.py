"""What is promised covers what the engine comes to hold, and stays within the pool."""

from dataclasses import dataclass
from random import Random

import pytest

from kvbudget.gate.commands import Forward
from kvbudget.gate.events import Arrived, CapacityChanged, Ended, Event, PaceLost, Progressed, Tick
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.gate.policies import Policy, promised_blocks, shared_out
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.units import Blocks, Bytes, Tokens

STEP_TOKENS = 1792
STEP_NS = 10_000_000
PLAIN = uniform_layout(16)
HYBRID = Layout((
    Group(LayerKind.FULL, 10, Tokens(64), Bytes(64)),
    Group(LayerKind.MAMBA, 10, Tokens(64), Bytes(64), fixed_blocks=Blocks(2)),
))  # fmt: skip


@dataclass
class Running:
    prompt: int
    limit: int
    streamed: bool
    prefill_steps: int = 0
    made: int = 0


class Batch:
    """An engine that gives every sequence whose prompt it has read one token per step, behind a gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.now = 0
        self.asked: dict[str, Running] = {}
        self.running: dict[str, Running] = {}

    def push(self, event: Event) -> None:
        for command in self.gate.handle(event, self.now):
            if isinstance(command, Forward):
                one = self.asked[command.request_id]
                unread = sum(other.prompt for other in self.running.values() if not other.made)
                one.prefill_steps = -(-(one.prompt + unread) // STEP_TOKENS)
                self.running[command.request_id] = one

    def ask(self, name: str, one: Running, tenant: str) -> None:
        self.asked[name] = one
        self.push(
            Arrived(name, (Tokens(one.prompt),), Tokens(one.limit), Tokens(20), tenant=tenant, paced=one.streamed)
        )

    def step(self) -> None:
        self.now += STEP_NS
        for name, one in list(self.running.items()):
            if one.prefill_steps:
                one.prefill_steps -= 1
                continue
            one.made += 1
            if one.streamed:
                self.push(Progressed(name, 1))
            if one.made == one.limit:
                del self.running[name]
                self.push(Ended(name, Outcome.FINISHED, Tokens(one.made)))
        self.push(Tick())

    def held(self) -> int:
        return sum(self.gate.ledger.layout.blocks_for(one.prompt + one.made) for one in self.running.values())


def storm(seed: int, layout: Layout, blocks: int, lag_steps: int) -> list[int]:
    """Sixty requests at once; gives, for every step, by how much the same sum made anew exceeds the pool."""
    rng = Random(seed)
    config = GateConfig(
        policy=Policy.TRAJECTORY, max_context=Tokens(4096), queue_tokens=Tokens(10**9), queue_ns=10**15,
        prefill_tokens_per_step=STEP_TOKENS, lag_steps=lag_steps, fair=False,
    )  # fmt: skip
    batch = Batch(Gate(config, layout, Blocks(blocks)))
    for number in range(60):
        one = Running(rng.randint(1, 3000), rng.randint(1, 400), rng.random() < 0.5)
        batch.ask(f"r{number}", one, rng.choice(["a", "b", "c"]))
    anew = []
    while batch.running:
        batch.step()
        gate = batch.gate
        promised = gate.promised_blocks()
        assert batch.held() <= promised <= blocks
        assert sum(gate.promised_by_tenant().values()) == promised
        anew.append(promised_blocks(Policy.TRAJECTORY, gate.ledger, gate.skew_steps) - blocks)
    assert batch.gate.promised_blocks() == 0
    return anew


@pytest.mark.parametrize(("seed", "lag_steps"), [(1, 0), (2, 4), (3, 32)])
@pytest.mark.parametrize(("layout", "blocks"), [(PLAIN, 511), (HYBRID, 98)])
def test_the_promise_covers_what_is_held_and_stays_within_the_pool(
    seed: int, lag_steps: int, layout: Layout, blocks: int
) -> None:
    storm(seed, layout, blocks, lag_steps)


def test_a_sum_made_anew_can_exceed_the_pool_though_the_promise_does_not() -> None:
    """Everybody may be out of step once more from where they are seen to be: it would count the same lateness twice."""
    assert max(storm(11, PLAIN, 511, 0)) > 0


def test_a_pool_that_is_told_again_as_it_was_changes_no_promise() -> None:
    config = GateConfig(policy=Policy.TRAJECTORY, max_context=Tokens(100), prefill_tokens_per_step=8, lag_steps=3)
    gate = Gate(config, uniform_layout(4), Blocks(6))
    for name, limit in (("cut", 20), ("other", 1)):
        gate.handle(Arrived(name, (Tokens(1),), Tokens(limit), Tokens(20), tenant="t", paced=True), 0)
    gate.handle(Ended("cut", Outcome.CLIENT_GONE, engine_done=False), 0)
    assert gate.promised_blocks() == 6
    gate.handle(CapacityChanged(uniform_layout(4), Blocks(6), None), 0)
    assert gate.promised_blocks() == 6


def stalled(make: int) -> tuple[Gate, Blocks]:
    gate = Gate(
        GateConfig(max_context=Tokens(200), prefill_tokens_per_step=1000, lag_steps=make),
        uniform_layout(1),
        Blocks(110),
    )
    for name, prompt, new in (("short", 50, 10), ("long", 10, 90)):
        asked = Arrived(name, (Tokens(prompt),), Tokens(new), Tokens(1), tenant=name, paced=True)
        assert isinstance(gate.handle(asked, 0)[0], Forward)
        gate.handle(Progressed(name, 1), 1)
    return gate, promised_blocks(Policy.TRAJECTORY, gate.ledger, gate.skew_steps)


def test_who_is_no_longer_watched_makes_the_promise_no_larger_and_lets_nobody_in() -> None:
    gate, before = stalled(0)
    assert before <= 110
    gate.handle(PaceLost("short"), 2)
    assert promised_blocks(Policy.TRAJECTORY, gate.ledger, gate.skew_steps) > 110
    assert gate.promised_blocks() <= 110
    assert sum(gate.promised_by_tenant().values()) == gate.promised_blocks()
    (command,) = gate.handle(Arrived("next", (Tokens(1),), Tokens(1), Tokens(1), paced=True), 3)
    assert not isinstance(command, Forward)


def test_a_promise_that_was_made_on_a_wrong_belief_is_told_as_large_as_it_is() -> None:
    gate, _ = stalled(0)
    gate.handle(PaceLost("short"), 2)
    gate.handle(CapacityChanged(uniform_layout(1), Blocks(100), None), 3)
    assert gate.promised_blocks() > 100


@pytest.mark.parametrize("blocks", [0, 1, 7, 10])
def test_shares_add_up_and_keep_their_proportion(blocks: int) -> None:
    parts = {"a": Blocks(5), "b": Blocks(0), "c": Blocks(5)}
    shares = shared_out(parts, blocks)
    assert sum(shares.values()) == blocks
    assert shares["b"] == 0
    assert all(0 <= share <= 5 for share in shares.values())
    assert shared_out({}, 0) == {}
