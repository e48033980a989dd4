"""The learned policy in dialogues: what it believes, what it dares, and what it tells."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from kvbudget.errors import BadValueError
from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import (
    Arrived,
    CapacityChanged,
    Ended,
    PaceLost,
    PoolHeld,
    Preempted,
    Progressed,
    Tick,
)
from kvbudget.gate.gate import Gate
from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.gate.learning.lengths import tell_ended
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, QueueBound, Refusal
from kvbudget.gate.refusing.returns import Returns
from kvbudget.gate.waiting.expectation import Expectation
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.risk import EPOCH_STEPS
from kvbudget.units import Blocks, Tokens

SECOND = 10**9
STEP_NS = 10_000_000
MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


class Engine:
    """Decodes everybody's next token in every step; reports every `stride` tokens."""

    def __init__(self, gate: Gate, stride: int = 1) -> None:
        self.gate = gate
        self.stride = stride
        self.now = 0
        self.running: dict[str, list[int]] = {}  # name -> [made, reported, tokens that it will make]
        self.told: list[Command] = []

    def push(self, event: object) -> list[Command]:
        commands = self.gate.handle(event, self.now)  # type: ignore[arg-type]
        self.told += commands
        for command in commands:
            if isinstance(command, Forward):
                self.running[command.request_id] = [0, 0, self.stops[command.request_id]]
        return commands

    stops: dict[str, int]

    def ask(self, event: Arrived, stop: int) -> list[Command]:
        self.stops = {**getattr(self, "stops", {}), event.request_id: stop}
        return self.push(event)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += STEP_NS
            for name, one in list(self.running.items()):
                one[0] += 1
                last = one[0] >= one[2]
                if last or one[0] - one[1] >= self.stride or one[0] == 1:
                    new, one[1] = one[0] - one[1], one[0]
                    self.push(Progressed(name, new))
                if last:
                    del self.running[name]
                    self.push(Ended(name, Outcome.FINISHED, Tokens(one[0])))


def taught(make_gate: MakeGate, arrive: Arrive, tokens: int = 40, answers: int = 60, **config: object) -> Engine:
    """A gate that has seen `answers` answers of `tokens` tokens each by clients who declare 400."""
    engine = Engine(make_gate(policy=Policy.LEARNED, **{"blocks": 100, **config}))
    for number in range(answers):
        engine.ask(arrive(f"teacher-{number}", 64, 400, paced=True), tokens)
        engine.run(tokens + 1)
    assert not engine.running
    return engine


def fill(engine: Engine, arrive: Arrive, most: int = 200, stop: int = 40, **more: object) -> int:
    """Ask for the same until one is not let in at once; how many were."""
    for number in range(most):
        (command,) = engine.ask(arrive(f"fill-{engine.now}-{number}", 64, 400, paced=True, **more), stop)
        if not isinstance(command, Forward):
            return number
    return most


def refused(commands: Sequence[Command]) -> Refusal:
    (command,) = commands
    assert isinstance(command, Reject)
    return command.refusal


# What it dares


def test_it_lets_in_far_more_than_the_declared_limits_allow_once_answers_are_known_to_be_short(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    safe = fill(Engine(make_gate(100, Policy.TRAJECTORY)), arrive)
    learned = fill(taught(make_gate, arrive), arrive)
    clairvoyant = fill(Engine(make_gate(100, Policy.LEARNED)), arrive, known_tokens=Tokens(40))
    assert safe == 3
    assert clairvoyant == 14  # of 7 blocks each
    assert 2 * safe < learned <= clairvoyant + 1


def test_until_enough_answers_were_seen_it_is_as_safe_as_trajectory(make_gate: MakeGate, arrive: Arrive) -> None:
    engine = Engine(make_gate(100, Policy.LEARNED, enough_answers=4.0))
    assert fill(engine, arrive) == 3
    ready = [engine.gate.learned.ready]
    for _ in range(2):
        engine.run(200)
        fill(engine, arrive)
        ready.append(engine.gate.learned.ready)
    engine.run(200)
    assert ready == [False, False, True]
    assert fill(engine, arrive) > 6


def test_by_default_it_decides_from_the_second_answer_on() -> None:
    config = GateConfig()
    policy = LearnedPolicy(uniform_layout(Tokens(16)), config.epsilon, config.enough_answers)
    ready = []
    for _ in range(3):
        ready.append(policy.ready)
        tell_ended(policy.lengths.chain("a", "chat", 2000, 500), 10)
    assert ready == [False, False, True]


def test_what_fits_with_all_peaks_is_let_in_without_asking_for_chances(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(58, Policy.LEARNED)
    assert isinstance(gate.handle(arrive("a", 64, 400), 0)[0], Forward)
    assert isinstance(gate.handle(arrive("b", 64, 400), 0)[0], Forward)


def test_a_preemption_makes_it_more_careful_for_a_while(make_gate: MakeGate, arrive: Arrive) -> None:
    bold, burnt = taught(make_gate, arrive, tokens=120), taught(make_gate, arrive, tokens=120)
    for second in range(0, 40, 5):
        burnt.gate.handle(Preempted(None, 1), burnt.now + second * SECOND)
    assert fill(burnt, arrive) < fill(bold, arrive)


def test_a_smaller_risk_lets_in_fewer(make_gate: MakeGate, arrive: Arrive) -> None:
    counts = [fill(taught(make_gate, arrive, epsilon=epsilon), arrive) for epsilon in (0.0001, 0.4)]
    assert counts[0] < counts[1]


def test_who_outlives_what_was_thought_takes_up_more_as_it_goes_on(make_gate: MakeGate, arrive: Arrive) -> None:
    engine = taught(make_gate, arrive)
    fill(engine, arrive, stop=400)
    before = engine.gate.promised_blocks()
    engine.run(60)  # all are 20 tokens beyond anything that was ever seen
    assert engine.gate.promised_blocks() > 1.3 * before
    assert isinstance(engine.ask(arrive("next", 64, 400, paced=True), 1)[0], Parked | Reject)


# What it believes


def test_between_two_reports_others_tell_how_far_one_is(make_gate: MakeGate, arrive: Arrive) -> None:
    engine = Engine(make_gate(10_000, Policy.LEARNED), stride=8)
    for number in range(24):
        engine.ask(arrive(f"r{number}", 64, 400, paced=True), 300)
        engine.run(1)
    engine.run(30)
    learned, ledger = engine.gate.learned, engine.gate.ledger
    for one in ledger:
        made, reported, _ = engine.running[one.reservation_id]
        believed = learned.batch.made(one, learned.batch.tracked[one.reservation_id])
        assert believed >= reported
        assert abs(believed - made) <= 5  # by its own reports alone it is up to 7 behind


def test_one_that_stood_still_is_behind_the_others(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(1000, Policy.LEARNED)
    for name in "ab":
        gate.handle(arrive(name, 64, 400, paced=True), 0)
        gate.handle(Progressed(name, 1), 1)
    for number in range(100):
        gate.handle(Progressed("a", 1), number * STEP_NS)
    gate.handle(Progressed("b", 1), 101 * STEP_NS)  # preempted for 99 steps
    living = gate.ledger.get("b")
    assert living is not None
    assert gate.learned.batch.made(living, gate.learned.batch.tracked["b"]) == 2


def test_where_nobody_is_watched_time_tells(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(30, Policy.LEARNED, worthwhile_wait_ns=10**12)
    gate.handle(arrive("a", 64, 400, known_tokens=Tokens(100)), 0)
    assert isinstance(gate.handle(arrive("b", 64, 400, known_tokens=Tokens(300)), 1)[0], Forward)
    assert not isinstance(gate.handle(arrive("c", 64, 400, known_tokens=Tokens(300)), 2)[0], Forward)
    promised = gate.promised_blocks()
    gate.handle(Ended("c", Outcome.WITHDRAWN), 3 * SECOND)
    assert gate.learned.pace.step == 0
    assert gate.promised_blocks() > promised - 1
    gate.handle(arrive("d", 64, 400, known_tokens=Tokens(300)), 4 * SECOND)  # 20 ms a token, until one is seen
    assert gate.learned.pace.step == 200


def test_who_is_no_longer_watched_goes_on_with_the_others(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(1000, Policy.LEARNED)
    for name in "abc":
        gate.handle(arrive(name, 64, 400, paced=True), 0)
    for number in range(1, 51):
        for name in "ab":
            gate.handle(Progressed(name, 1), number * STEP_NS)
        if number == 20:
            gate.handle(PaceLost("a"), number * STEP_NS)
            gate.handle(PaceLost("c"), number * STEP_NS)  # nothing was seen of it
            gate.handle(Progressed("a", 1), number * STEP_NS)  # a late report
            break
    for number in range(21, 51):
        gate.handle(Progressed("b", 1), number * STEP_NS)
    living = gate.ledger.get("a")
    assert living is not None
    assert gate.learned.batch.made(living, gate.learned.batch.tracked["a"]) == pytest.approx(50, abs=1)


def test_what_was_cut_off_counts_at_its_peak_until_its_blocks_are_back(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(100, Policy.LEARNED, abort_tail_ns=SECOND)
    gate.handle(arrive("a", 64, 400, paced=True), 0)
    gate.handle(Progressed("a", 1), 1)
    gate.handle(Ended("a", Outcome.CLIENT_GONE, engine_done=False), 2)
    gate.handle(CapacityChanged(uniform_layout(16), Blocks(100), None), 2)
    assert gate.promised_blocks() == 29
    gate.handle(arrive("b", 16, 16), 2 + SECOND)
    assert gate.promised_blocks() < 5


def test_tokens_of_one_that_was_cut_off_may_still_come(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(100, Policy.LEARNED, abort_tail_ns=SECOND)
    for name in "ab":
        gate.handle(arrive(name, 64, 400, paced=True), 0)
        gate.handle(Progressed(name, 1), 1)
    gate.handle(Ended("a", Outcome.CLIENT_GONE, engine_done=False), 2)
    gate.handle(Progressed("a", 8), 3)
    gate.handle(PaceLost("a"), 4)
    assert gate.learned.pace.step == 0
    assert sum(gate.learned.lengths.root.exposure) == 2  # the tokens before it was cut off


def test_an_answer_of_which_nothing_is_known_teaches_nothing(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(100, Policy.LEARNED)
    gate.handle(arrive("a", 64, 400, paced=True), 0)
    gate.handle(Ended("a", Outcome.UPSTREAM_FAILED), 1)
    assert gate.learned.lengths.answers == 0
    gate.handle(arrive("b", 64, 8, paced=True), 1)
    gate.handle(Ended("b", Outcome.FINISHED, Tokens(8)), 2)  # cut by its limit: that is known
    assert gate.learned.lengths.answers == pytest.approx(1, rel=0.01)


def test_the_policy_may_change_while_requests_live(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(100, Policy.TRAJECTORY)
    learned = replace(gate.config, policy=Policy.LEARNED)
    trajectory = gate.config
    gate.handle(arrive("before", 64, 400, paced=True), 0)
    gate.configure(learned)
    gate.handle(arrive("after", 64, 400, paced=True), 1)
    gate.handle(Ended("before", Outcome.FINISHED, Tokens(3)), 2)
    gate.configure(trajectory)
    gate.handle(Ended("after", Outcome.FINISHED, Tokens(3)), 3)
    gate.configure(learned)
    assert not gate.learned.batch.tracked
    assert gate.promised_blocks() == 0


def test_another_layout_counts_everybody_anew(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(100, Policy.LEARNED)
    gate.handle(arrive("a", 640, 400, paced=True), 0)
    gate.promised_blocks()
    before = gate.learned.outlook.held_now()
    gate.handle(CapacityChanged(uniform_layout(32), Blocks(100), None), 1)
    gate.promised_blocks()
    assert gate.learned.outlook.held_now() == pytest.approx(before / 2, abs=1)


def test_the_grid_is_set_up_anew_only_now_and_then(make_gate: MakeGate, arrive: Arrive) -> None:
    engine = Engine(make_gate(1000, Policy.LEARNED))
    engine.ask(arrive("a", 64, 400, paced=True), 390)
    engine.run(1)
    epochs = set()
    for _ in range(10 * EPOCH_STEPS):
        engine.run(1)
        engine.gate.promised_blocks()
        epochs.add(engine.gate.learned.outlook.epoch)
    assert 8 <= len(epochs) <= 12


# What the engine says


def settled(make_gate: MakeGate, arrive: Arrive) -> Gate:
    gate = make_gate(2000, Policy.LEARNED)
    for number in range(10):
        gate.handle(arrive(f"r{number}", 1600, 160, paced=True), 0)
        gate.handle(Progressed(f"r{number}", 1), 1)
    return gate  # 10 x 100.5 blocks are believed to be held


def test_an_engine_that_holds_less_than_is_believed_shares_prompts(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = settled(make_gate, arrive)
    gate.handle(arrive("full", 1600, 400), 2)
    before = gate.learned.size(gate.ledger, arrive("x", 1600, 160), gate.ledger.get("r0").footprint, 0, 2)  # type: ignore[union-attr]
    for number in range(20):
        gate.handle(PoolHeld(Blocks(500)), number)
    assert gate.learned.shared == pytest.approx(0.47, abs=0.03)
    after = gate.learned.size(gate.ledger, arrive("x", 1600, 160), gate.ledger.get("r0").footprint, 0, 3)  # type: ignore[union-attr]
    assert after < 0.65 * before
    for number in range(8):
        gate.handle(PoolHeld(Blocks(1000)), number)  # they are no longer shared
    assert gate.learned.shared < 0.01


def test_after_an_overflow_the_engine_s_word_is_not_taken_for_sharing(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = settled(make_gate, arrive)
    gate.handle(Preempted(None, 5), 10)
    gate.handle(PoolHeld(Blocks(500)), 11)
    assert gate.learned.shared == 0
    gate.handle(PoolHeld(Blocks(500)), 10 * SECOND)
    assert gate.learned.shared > 0


def test_a_few_blocks_tell_nothing_of_sharing_and_other_policies_do_not_ask(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(1000, Policy.LEARNED)
    gate.handle(arrive("small", 160, 160, paced=True), 0)
    gate.handle(Progressed("small", 1), 1)
    gate.handle(arrive("unread", 1600, 160, paced=True), 1)
    gate.handle(PoolHeld(Blocks(0)), 2)
    assert gate.learned.shared == 0
    assert make_gate(1000, Policy.TRAJECTORY).handle(PoolHeld(Blocks(0)), 2) == []


# What it tells


def test_who_would_wait_longer_than_is_worth_it_is_refused_on_arrival(make_gate: MakeGate, arrive: Arrive) -> None:
    short, long = [
        taught(make_gate, arrive, tokens=300, worthwhile_wait_ns=wait_ns) for wait_ns in (SECOND // 10, 60 * SECOND)
    ]
    fill(short, arrive, stop=300)
    fill(long, arrive, stop=300)
    assert refused(short.told[-1:]) is Refusal.QUEUE_FULL
    last = short.told[-1]
    assert isinstance(last, Reject)
    assert (last.bound, last.limit) == (QueueBound.SECONDS, SECOND // 10)
    assert isinstance(long.told[-1], Parked)


def test_a_deadline_counts_instead_of_the_worthwhile_wait(make_gate: MakeGate, arrive: Arrive) -> None:
    engine = taught(make_gate, arrive, tokens=300, worthwhile_wait_ns=SECOND // 10)
    fill(engine, arrive, stop=300)
    patient = arrive("patient", 64, 400, paced=True, deadline_ns=engine.now + 30 * SECOND)
    assert isinstance(engine.ask(patient, 10)[0], Parked)
    hasty = arrive("hasty", 64, 400, paced=True, deadline_ns=engine.now + STEP_NS)
    assert refused(engine.ask(hasty, 10)) is Refusal.QUEUE_FULL


def test_the_predicted_wait_is_about_the_real_one(make_gate: MakeGate, arrive: Arrive) -> None:
    engine = taught(make_gate, arrive, tokens=100, worthwhile_wait_ns=60 * SECOND)
    fill(engine, arrive, stop=100)
    head = engine.gate.queue.head()
    assert head is not None
    begun = engine.now
    while head.arrived.request_id in engine.gate.queue:
        engine.run(1)
    assert 0.3 < head.expected_ns / (engine.now - begun) < 1.7


def test_what_waits_is_counted_at_all_moments_that_can_be_foreseen(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(100_000, Policy.LEARNED, worthwhile_wait_ns=10**15, queue_tokens=Tokens(10**9))
    known = {"known_tokens": Tokens(500_000), "paced": True}
    for name in "abcd":
        gate.handle(arrive(name, 64, 900_000, **known), 0)
    head = gate.queue.head()
    assert head is None or head.demand is None or all(head.demand.blocks)


def test_whoever_waits_behind_more_is_told_a_longer_wait(make_gate: MakeGate, arrive: Arrive) -> None:
    engine = taught(make_gate, arrive, tokens=100, worthwhile_wait_ns=60 * SECOND)
    fill(engine, arrive, stop=100)
    for number in range(12):
        engine.ask(arrive(f"more-{number}", 64, 400, paced=True), 100)
    waits = [one.expected_ns for one in engine.gate.queue]
    assert waits == sorted(waits)
    assert waits[-1] > 2 * waits[0]


def test_places_at_the_engine_are_waited_for_as_well_as_blocks(make_gate: MakeGate, arrive: Arrive) -> None:
    engine = taught(make_gate, arrive, tokens=100, blocks=10_000, max_num_seqs=4, worthwhile_wait_ns=60 * SECOND)
    assert fill(engine, arrive, stop=100) == 4
    head = engine.gate.queue.head()
    assert head is not None
    assert 10 * STEP_NS < head.expected_ns < 200 * STEP_NS


def test_waits_that_turn_out_longer_than_predicted_are_predicted_longer(make_gate: MakeGate) -> None:
    policy = LearnedPolicy(uniform_layout(16), 0.02, 0.0)
    policy.waited(0, 5 * SECOND)  # nothing was predicted
    assert policy.forecast.bias == 1.0
    for _ in range(100):
        policy.waited(SECOND, 3 * SECOND)
    assert policy.forecast.bias == pytest.approx(1.25, abs=0.01)
    for _ in range(200):
        policy.waited(SECOND, SECOND // 2)
    assert policy.forecast.bias < 0.75


def test_who_comes_back_when_told_goes_before_those_who_wait(make_gate: MakeGate, arrive: Arrive) -> None:
    engine = taught(make_gate, arrive, tokens=100, worthwhile_wait_ns=SECOND // 2)
    while True:
        number = len(engine.told)
        fill(engine, arrive, stop=100)
        (command,) = engine.ask(arrive(f"refused-{number}", 70, 400, paced=True), 100)
        if isinstance(command, Reject):
            break
        engine.run(1)
    engine.run(-(-command.retry_after_ns // STEP_NS))
    fill(engine, arrive, stop=100)  # everybody else is before it
    waiting = len(engine.gate.queue)
    assert waiting
    (back,) = engine.ask(arrive("back", 70, 400, paced=True), 100)
    assert isinstance(back, Forward) or (isinstance(back, Parked) and back.position == 1)


def test_who_comes_back_when_told_is_not_refused_again_for_the_wait(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(40, Policy.LEARNED, worthwhile_wait_ns=SECOND)
    known = {"known_tokens": Tokens(500), "paced": True}
    gate.handle(arrive("a", 100, 500, **known), 0)
    (told,) = gate.handle(arrive("b", 100, 500, **known), 0)
    assert isinstance(told, Reject)
    later = told.retry_after_ns  # and a, of which nothing was seen, is still there
    assert isinstance(gate.handle(arrive("new", 101, 500, **known), later)[0], Reject)
    assert gate.handle(arrive("b.2", 100, 500, **known), later) == [Parked("b.2", 1)]


# The clairvoyant


def test_told_every_length_it_lets_in_what_fits_and_no_more(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(40, Policy.LEARNED, worthwhile_wait_ns=10**15)
    known = {"known_tokens": Tokens(100), "paced": True}
    kinds = [type(gate.handle(arrive(f"r{number}", 100, 500, **known), 0)[0]) for number in range(4)]
    assert kinds == [Forward, Forward, Forward, Parked]  # 13 blocks each
    assert gate.learned.ready


def test_what_was_cut_off_stands_in_the_clairvoyant_s_way_too(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(45, Policy.LEARNED, worthwhile_wait_ns=10**15, abort_tail_ns=SECOND)
    known = {"known_tokens": Tokens(100), "paced": True}
    for name in "abc":
        gate.handle(arrive(name, 100, 500, **known), 0)
    assert len(gate.ledger) == 3
    gate.handle(Ended("a", Outcome.CLIENT_GONE, engine_done=False), 1)
    assert isinstance(gate.handle(arrive("d", 100, 500, **known), 2)[0], Parked)
    assert isinstance(gate.handle(Tick(), 2 * SECOND)[0], Forward)


def test_with_one_of_unknown_length_chances_count_again(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(40, Policy.LEARNED, worthwhile_wait_ns=10**15)
    gate.handle(arrive("unknown", 100, 500, paced=True), 0)
    (command,) = gate.handle(arrive("known", 100, 500, known_tokens=Tokens(100), paced=True), 0)
    assert isinstance(command, Forward)
    assert isinstance(gate.handle(arrive("more", 100, 500, known_tokens=Tokens(500), paced=True), 0)[0], Parked)


# The same again


def storm(gate: Gate, arrive: Arrive, seed: int, begin_ns: int = 0) -> list[Command]:
    engine, rng = Engine(gate, stride=4), Random(seed)
    engine.now = begin_ns
    for number in range(150):
        event = arrive(f"{seed}-{number}", rng.randint(1, 400), rng.choice([100, 400]), paced=rng.random() < 0.8)
        engine.ask(event, rng.randint(1, event.max_new_tokens or 1))
        engine.run(rng.randint(0, 12))
    while engine.running:
        engine.run(1)
    return engine.told


def test_the_same_events_give_the_same_decisions(make_gate: MakeGate, arrive: Arrive) -> None:
    first, second = [storm(make_gate(120, Policy.LEARNED), arrive, 5) for _ in range(2)]
    assert first == second
    assert any(isinstance(command, Parked) for command in first)


def test_state_that_was_saved_gives_the_same_decisions(make_gate: MakeGate, arrive: Arrive) -> None:
    # Who had how much is not part of it.
    gate, restored = [make_gate(120, Policy.LEARNED, fair=False) for _ in range(2)]
    storm(gate, arrive, 5)
    gate.handle(Preempted(None, 1), 10**12)
    restored.learned.resume(json.loads(json.dumps(gate.learned.state())))
    assert restored.learned.margin.added > 0
    # Nor is what is believed of the batch, from which it follows when tables are looked at, who was told to return, and
    # how long a pool takes to turn over.
    gate.handle(CapacityChanged(uniform_layout(16), Blocks(120), None), 10**12)
    gate.returns = gate.promises._returns = gate.rejections._returns = Returns()
    gate.learned.batch.hindsight.bias = 0.0
    gate.expectation = gate.rejections._expectation = gate.fairness._expectation = Expectation()
    assert storm(gate, arrive, 6, 10**13) == storm(restored, arrive, 6, 10**13)
    assert storm(make_gate(120, Policy.LEARNED, fair=False), arrive, 6, 10**13) != storm(
        restored, arrive, 6, 2 * 10**13
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"lengths": {}},
        {"margin_added": -1},
        {"margin_added": 1000},
        {"ns_per_step": 0},
        {"wait_bias": "much"},
        {"prefill_ns": True},
        {"prefill_tokens": float("nan")},
    ],
)
def test_state_that_is_broken_changes_nothing(broken: dict[str, object]) -> None:
    policy = LearnedPolicy(uniform_layout(16), 0.02, 0.0)
    before = policy.state()
    with pytest.raises(BadValueError):
        policy.resume({**before, **broken})
    for missing in before:
        with pytest.raises(BadValueError, match=missing):
            policy.resume({name: value for name, value in before.items() if name != missing})
    assert policy.state() == before


def calls_of(decide: Callable[..., object], *arguments: object) -> int:
    calls = 0

    def count(frame: object, what: str, argument: object) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        decide(*arguments)
    finally:
        sys.setprofile(before)
    return calls


def test_a_decision_costs_the_same_after_any_history(make_gate: MakeGate, arrive: Arrive) -> None:
    costs = []
    for answers in (50, 1500):
        engine = taught(make_gate, arrive, answers=answers, tokens=20, blocks=400)
        for number in range(40):
            engine.ask(arrive(f"r{number}", 64, 400, paced=True), 300)
        engine.run(1)
        engine.gate.promised_blocks()
        asked = [arrive(f"last{number}", 64, 400, paced=True) for number in range(5)]
        costs.append(min(calls_of(engine.gate.handle, one, engine.now) for one in asked))
    assert costs[1] <= 1.1 * costs[0]
