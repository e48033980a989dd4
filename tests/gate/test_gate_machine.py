"""The gate against a model engine that decodes one token per step: promises hold whatever comes in whichever order."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.events import Arrived, BackendChanged, CapacityChanged, Ended, Event, PaceLost, Progressed, Tick
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens

BLOCK = 4
TAIL_NS = 3
# What a step of the model engine may hold back: reports come late by at most this many tokens.
LATE_REPORTS = 2


@dataclass
class AtEngine:
    prompt: int
    limit: int
    stop: int  # it ends by itself after so many tokens
    sequences: int
    paced: bool
    prefill_steps: int
    made: int = 0
    unreported: int = 0
    aborted_ns: int | None = None

    def held(self) -> int:
        return -(-(self.prompt + self.made) // BLOCK) * self.sequences


class GateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.names = 0
        self.engine: dict[str, AtEngine] = {}
        self.asked: dict[str, tuple[AtEngine, int]] = {}  # parked: name -> (what it will be, deadline)
        self.arrival_order: dict[str, tuple[int, int]] = {}
        self.waited: dict[str, int] = {}  # who waited before the event, with its blocks
        self.ended: set[str] = set()
        self.shrunk = self.resized = False

    @initialize(policy=st.sampled_from(Policy), blocks=st.integers(3, 40), seqs=st.integers(1, 6))
    def start(self, policy: Policy, blocks: int, seqs: int) -> None:
        config = GateConfig(
            policy=policy,
            max_num_seqs=seqs,
            max_context=Tokens(100),
            queue_requests=5,
            queue_ns=40,
            prefill_tokens_per_step=8,
            lag_steps=LATE_REPORTS + 1,
            abort_tail_ns=TAIL_NS,
        )
        self.gate = Gate(config, uniform_layout(BLOCK), Blocks(blocks))

    def push(self, event: Event) -> None:
        self.waited = {waiting.arrived.request_id: waiting.peak_blocks for waiting in self.gate.queue}
        if isinstance(event, CapacityChanged):
            self.waited.clear()  # their blocks are others by now
        for command in self.gate.handle(event, self.now):
            self.obey(command)

    def obey(self, command: Command) -> None:
        name = command.request_id
        assert name not in self.ended, "a command for somebody who is gone"
        wanted, deadline = self.asked[name]
        if isinstance(command, Parked):
            assert command.position >= 1
            return
        del self.asked[name]
        if isinstance(command, Reject):
            self.ended.add(name)
            assert command.refusal is not Refusal.DRAINING
            return
        assert isinstance(command, Forward)
        assert self.now < deadline or command.waited_ns == 0, "kept past the deadline"
        before = [other for other in self.waited if other in self.asked]
        first = min(before, key=self.arrival_order.__getitem__, default=name)
        if self.arrival_order[first] < self.arrival_order[name]:
            assert command.reserved_blocks < self.waited[first], "overtaken by one that is no smaller"
        wanted.limit = command.max_new_tokens
        unfinished = sum(one.prompt * one.sequences for one in self.engine.values() if not one.made)
        wanted.prefill_steps = -(-(unfinished + wanted.prompt * wanted.sequences) // 8)
        self.engine[name] = wanted

    @rule(
        prompt=st.integers(1, 60),
        new=st.one_of(st.none(), st.integers(1, 60)),
        stop=st.integers(1, 80),
        sequences=st.sampled_from([1, 1, 1, 2]),
        paced=st.booleans(),
        priority=st.sampled_from([0, 0, 0, 1]),
        deadline=st.one_of(st.none(), st.integers(0, 30)),
    )
    def arrive(
        self, prompt: int, new: int | None, stop: int, sequences: int, paced: bool, priority: int, deadline: int | None
    ) -> None:
        self.names += 1
        name = f"r{self.names}"
        paced = paced and sequences == 1
        until = None if deadline is None else self.now + deadline
        self.asked[name] = (AtEngine(prompt, 0, stop, sequences, paced, 0), min(until or 10**9, self.now + 40))
        self.arrival_order[name] = (priority, self.names)
        limit = None if new is None else Tokens(new)
        self.push(
            Arrived(name, (Tokens(prompt),), limit, Tokens(20), sequences, "t", priority, paced, deadline_ns=until)
        )

    @rule(steps=st.integers(1, 12), data=st.data())
    def step(self, steps: int, data: st.DataObject) -> None:
        """All that decode advance together; what is in prefill stands still; reports may come a little late."""
        for _ in range(steps):
            self.now += 1
            for name, one in list(self.engine.items()):
                if one.aborted_ns is not None:
                    if self.now - one.aborted_ns >= TAIL_NS:
                        del self.engine[name]
                    continue
                if one.prefill_steps > 0:
                    one.prefill_steps -= 1
                    continue
                one.made += 1
                one.unreported += 1
                late = data.draw(st.integers(0, LATE_REPORTS)) if one.made > 1 else 0
                if one.paced and one.unreported > late and name in self.engine:
                    report, one.unreported = one.unreported - late, late
                    self.push(Progressed(name, report))
                if one.made >= min(one.limit, one.stop):
                    del self.engine[name]
                    self.ended.add(name)
                    told = Tokens(one.made * one.sequences) if data.draw(st.booleans()) else None
                    self.push(Ended(name, Outcome.FINISHED, told))
            self.check_physical()
            self.push(Tick())

    @precondition(lambda self: self.engine)
    @rule(data=st.data())
    def cut_off(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.engine)))
        one = self.engine[name]
        if one.aborted_ns is None:
            one.aborted_ns = self.now
            self.ended.add(name)
            self.push(Ended(name, Outcome.CLIENT_GONE, engine_done=False))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked)))
        del self.asked[name]
        self.ended.add(name)
        self.push(Ended(name, Outcome.WITHDRAWN))

    @precondition(lambda self: any(one.paced and one.aborted_ns is None for one in self.engine.values()))
    @rule(data=st.data())
    def stall(self, data: st.DataObject) -> None:
        paced = sorted(name for name, one in self.engine.items() if one.paced and one.aborted_ns is None)
        name = data.draw(st.sampled_from(paced))
        self.engine[name].paced = False
        self.push(PaceLost(name))

    @rule(blocks=st.integers(3, 40))
    def resize(self, blocks: int) -> None:
        self.resized = True
        self.shrunk = self.shrunk or blocks < self.gate.ledger.usable_blocks
        self.push(CapacityChanged(uniform_layout(BLOCK), Blocks(blocks), None))

    @rule()
    def engine_goes_and_comes(self) -> None:
        self.push(BackendChanged(False))
        assert not self.asked, "somebody waits for an engine that is gone"
        self.push(BackendChanged(True))

    def check_physical(self) -> None:
        """The engine never needs more blocks than it has: no preemption. `learned` promises that but for a risk
        (test_learned.py); what it says of the batch is a belief, below the sum of peaks, which nothing exceeds."""
        held = sum(one.held() for one in self.engine.values())
        gate = self.gate
        if not self.resized:
            assert held <= gate.ledger.peak_sum_blocks
        assert gate.promised_blocks() <= gate.ledger.peak_sum_blocks
        if not self.shrunk and gate.config.policy is not Policy.LEARNED:
            assert held <= gate.promised_blocks() <= gate.ledger.usable_blocks

    @invariant()
    def promises_are_those_of_the_living_and_within_the_capacity(self) -> None:
        gate = self.gate
        assert {one.reservation_id for one in gate.ledger} == set(self.engine)
        promised = gate.promised_blocks()
        assert sum(gate.promised_by_tenant().values()) == promised
        if not self.shrunk:
            if gate.config.policy is not Policy.LEARNED:
                assert promised <= gate.ledger.capacity_blocks
            assert gate.ledger.sequences <= gate.config.max_num_seqs

    @invariant()
    def nobody_is_forgotten(self) -> None:
        assert {waiting.arrived.request_id for waiting in self.gate.queue} == set(self.asked)

    @invariant()
    def an_empty_pool_keeps_nobody_waiting(self) -> None:
        if len(self.gate.ledger) == 0:
            assert len(self.gate.queue) == 0

    @invariant()
    def nobody_waits_past_the_deadline(self) -> None:
        assert all(waiting.deadline_ns > self.now - 1 for waiting in self.gate.queue)
        head = self.gate.queue.head()
        assert head is None or self.gate.next_wake_ns is not None

    def teardown(self) -> None:
        """Everything ends: nothing stays promised."""
        for name, one in list(self.engine.items()):
            if one.aborted_ns is None:
                del self.engine[name]
                self.ended.add(name)
                self.push(Ended(name, Outcome.FINISHED))
        self.now += 1000
        self.push(Tick())
        for name in list(self.engine):
            if self.engine[name].aborted_ns is None:
                del self.engine[name]
                self.push(Ended(name, Outcome.FINISHED))
            else:
                del self.engine[name]
        self.now += 1000
        self.push(Tick())
        assert self.gate.promised_blocks() == 0
        assert len(self.gate.queue) == 0
        assert (self.gate.ledger.peak_sum_blocks, self.gate.ledger.unseen_prompt_tokens) == (0, 0)


GateMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestGateMachine = GateMachine.TestCase
