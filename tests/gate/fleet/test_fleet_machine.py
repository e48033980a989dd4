"""A fleet before model engines that come, go, are drained and fail: whatever comes in whichever order."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.events import Arrived, BackendChanged, CapacityChanged, Ended, EngineBusy, Event, Progressed, Tick
from kvbudget.gate.fleet.events import Drained, Gone, Heard, HeldElsewhere, Joined, Leaving, Restarted
from kvbudget.gate.fleet.fleet import Fleet, InstanceEvent
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.gate.waiting.prospect import room_for
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens

BLOCK = 4
MOST_WAIT = 60
MODELS = st.sampled_from([None, "a", "a", "a", "b", "c", "nobody's"])


@dataclass
class Inside:
    member: str
    prompt: int
    limit: int
    made: int = 0


class FleetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.names = self.found = 0
        self.asked: dict[str, tuple[int, str | None]] = {}  # parked: name -> (prompt, model)
        self.inside: dict[str, Inside] = {}
        self.ended: set[str] = set()
        self.shrunk: set[str] = set()

    @initialize(data=st.data(), policy=st.sampled_from(Policy), limited=st.booleans())
    def start(self, data: st.DataObject, policy: Policy, limited: bool) -> None:
        config = FleetConfig(failures=2, open_ns=10, longest_open_ns=40, ramp_ns=data.draw(st.sampled_from([0, 16])))
        self.policy, self.tenants = policy, {"t": TenantLimits(max_blocks=Blocks(12))} if limited else {}
        members = [self.made(name, data, config) for name in "xyz"[: data.draw(st.integers(1, 3))]]
        home = self.made("home", data, config) if data.draw(st.booleans()) else None
        self.changes = home is not None
        self.fleet = Fleet(members, config, home)
        for member in members:
            self.begin(member, data)

    def made(self, name: str, data: st.DataObject, config: FleetConfig) -> Member:
        gate = Gate(
            GateConfig(
                policy=self.policy, max_num_seqs=data.draw(st.sampled_from([6, 1, 3])), queue_requests=4,
                queue_ns=MOST_WAIT, abort_tail_ns=0, lag_steps=2, tenants=self.tenants,
            ),
            uniform_layout(BLOCK), Blocks(0),
        )  # fmt: skip
        gate.backend_up = False
        options = MemberOptions(
            models=data.draw(st.sampled_from([frozenset("a"), frozenset[str](), frozenset("ab")])),
            fallback=data.draw(st.sampled_from([frozenset[str](), frozenset("c")])),
            borrow=data.draw(st.sampled_from([1.0, 1.0, 0.3])),
            fallback_share=data.draw(st.sampled_from([1.0, 1.0, 0.3])),
            weight=data.draw(st.sampled_from([1.0, 2.0])),
        )
        return Member(name, gate, options, config)

    def begin(self, member: Member, data: st.DataObject) -> None:
        blocks = Blocks(data.draw(st.sampled_from([24, 20, 30, 6])))
        self.push_at(member, CapacityChanged(uniform_layout(BLOCK), blocks, None))
        self.push_at(member, BackendChanged(True))

    @precondition(lambda self: self.changes)
    @rule(data=st.data())
    def one_is_found(self, data: st.DataObject) -> None:
        self.found += 1
        member = self.made(f"n{self.found}", data, self.fleet.config)
        self.push_at(member, Joined())
        if data.draw(st.booleans()):
            self.begin(member, data)

    @precondition(lambda self: self.changes and self.fleet.members)
    @rule(data=st.data())
    def one_is_found_no_more(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.fleet.members))
        self.push_at(member, Leaving())
        assert not member.gate.queue

    @precondition(lambda self: any(member.leaving for member in self.fleet.members))
    @rule(data=st.data(), stays=st.booleans())
    def one_that_leaves_stays_or_has_gone(self, data: st.DataObject, stays: bool) -> None:
        member = data.draw(st.sampled_from([member for member in self.fleet.members if member.leaving]))
        if stays:
            self.push_at(member, Joined())
        elif member.empty:
            self.push_at(member, Gone())

    def push(self, event: Event) -> None:
        self.obey(self.fleet.handle(event, self.now))

    def push_at(self, member: Member, event: Event | InstanceEvent) -> None:
        self.obey(self.fleet.handle_at(member, event, self.now))

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            name = command.request_id
            assert name not in self.ended, "a command for somebody who is gone"
            assert name not in self.inside, "a command for somebody who was forwarded"
            prompt, model = self.asked[name]
            if isinstance(command, Parked):
                continue
            del self.asked[name]
            if isinstance(command, Reject):
                self.ended.add(name)
                continue
            assert isinstance(command, Forward)
            member = self.fleet.placed(name)
            assert member.gate.backend_up, "sent to one that is away"
            assert self.fleet.only or not member.draining, "sent to one that is drained"
            assert not member.leaving, "sent to one that leaves"
            assert member.serves(model) or member.stands_in_for(model)
            assert member.gate.ledger.get(name) is not None
            self.inside[name] = Inside(member.name, prompt, command.max_new_tokens)

    @rule(data=st.data(), many=st.integers(1, 6))
    def burst(self, data: st.DataObject, many: int) -> None:
        for _ in range(many):
            model, tenant = data.draw(MODELS), data.draw(st.sampled_from("tuv"))
            self.arrive(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40)), model, tenant)

    def arrive(self, prompt: int, new: int, model: str | None, tenant: str) -> None:
        self.names += 1
        name = f"r{self.names}"
        self.asked[name] = (prompt, model)
        event = Arrived(name, (Tokens(prompt),), Tokens(new), Tokens(20), 1, tenant, paced=True, model=model)
        could = [m for m in self.fleet.members if m.serves(model) and m.takes(self.now)]
        commands = self.fleet.handle(event, self.now)
        for command in commands:
            hopeless = isinstance(command, Reject) and command.refusal in (Refusal.NEVER_FITS, Refusal.CONTEXT_EXCEEDED)
            if hopeless and command.request_id == name:
                assert all(isinstance(m.gate.resolver.resolve(event), Refusal) for m in could)
        self.obey(commands)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), steps=st.integers(1, 10))
    def step(self, data: st.DataObject, steps: int) -> None:
        self.now += steps
        for name, one in list(self.inside.items()):
            more = min(steps, one.limit - one.made)
            one.made += more
            if more:
                self.push(Progressed(name, more))
            if one.made >= one.limit or data.draw(st.integers(0, 9)) == 0:
                self.end(name, Outcome.FINISHED, Heard.WELL)
        self.push(Tick())

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), heard=st.sampled_from([Heard.FAILED, Heard.FAILED, Heard.NOTHING]), again=st.booleans())
    def fail(self, data: st.DataObject, heard: Heard, again: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.inside)))
        one = self.inside[name]
        self.end(name, Outcome.UPSTREAM_FAILED, heard)
        if again:
            retry = f"{name}'"
            self.asked[retry] = (one.prompt, None)
            event = Arrived(retry, (Tokens(one.prompt),), Tokens(one.limit), Tokens(20), paced=True)
            self.obey(self.fleet.again(event, frozenset({one.member}), self.now, self.now))
            placed = self.inside.get(retry)
            assert placed is None or self.fleet.only or placed.member != one.member

    def end(self, name: str, outcome: Outcome, heard: Heard) -> None:
        self.obey(self.fleet.heard(name, heard, self.now))
        one = self.inside.pop(name)
        self.ended.add(name)
        self.push(Ended(name, outcome, Tokens(one.made)))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked)))
        del self.asked[name]
        self.ended.add(name)
        self.push(Ended(name, Outcome.WITHDRAWN))

    @precondition(lambda self: self.fleet.members)
    @rule(data=st.data(), what=st.sampled_from(["down", "up", "drain", "resume", "busy", "restart", "taken", "resize"]))
    def something_happens_to_one(self, data: st.DataObject, what: str) -> None:
        member = data.draw(st.sampled_from(self.fleet.members))
        blocks = data.draw(st.integers(12, 30))
        events: dict[str, Event | InstanceEvent] = {
            "down": BackendChanged(False), "up": BackendChanged(True), "drain": Drained(True), "resume": Drained(False),
            "busy": EngineBusy(self.now + 5), "restart": Restarted(), "taken": HeldElsewhere(blocks // 2),
            "resize": CapacityChanged(uniform_layout(BLOCK), Blocks(blocks), None),
        }  # fmt: skip
        if what == "resize" and blocks < member.gate.ledger.usable_blocks:
            self.shrunk.add(member.name)
        self.push_at(member, events[what])

    @rule(pause=st.integers(1, 30))
    def time_passes(self, pause: int) -> None:
        until = self.now + pause
        while (wake := self.fleet.next_wake_ns) is not None and wake <= until:
            self.now = max(self.now, wake)
            self.push(Tick())
            again = self.fleet.next_wake_ns
            assert again is None or again > self.now, "it would wake for ever"
        self.now = until

    @invariant()
    def no_instance_is_over_promised(self) -> None:
        for member in self.fleet.members:
            gate = member.gate
            inside = {name for name, one in self.inside.items() if one.member == member.name}
            assert {one.reservation_id for one in gate.ledger} == inside
            if member.name not in self.shrunk and gate.config.policy is not Policy.LEARNED:
                assert gate.promised_blocks() <= gate.ledger.capacity_blocks

    @invariant()
    def nobody_is_forgotten_and_nobody_waits_twice(self) -> None:
        waiting = [one.arrived.request_id for member in self.fleet.members for one in member.gate.queue]
        assert sorted(waiting) == sorted(self.asked)

    @invariant()
    def what_is_lent_is_what_lives_of_it(self) -> None:
        for member in self.fleet.members:
            gate, options = member.gate, member.options
            assert member.lent_blocks + member.stand_in_blocks >= 0
            if not len(gate.ledger) and not gate.queue:
                assert (member.lent_blocks, member.stand_in_blocks) == (0, 0)
            if member.name not in self.shrunk:
                whole = gate.ledger.capacity_blocks
                assert options.borrow == 1.0 or member.lent_blocks <= options.borrow * whole
                assert options.fallback_share == 1.0 or member.stand_in_blocks <= options.fallback_share * whole

    @invariant()
    def nobody_waits_while_one_that_serves_it_is_idle(self) -> None:
        """Looked at when all that is due has happened."""
        while (wake := self.fleet.next_wake_ns) is not None and wake <= self.now:
            self.push(Tick())
        for member in self.fleet.members:
            for one in member.gate.queue:
                if one.arrived.request_id.endswith("'"):
                    continue  # it must not go back
                for other in self.fleet.members:
                    idle = not len(other.gate.ledger) and not other.gate.queue and other.takes(self.now)
                    asked = one.arrived.max_new_tokens or 0
                    whole = len(one.arrived.prompts) == 1 and (
                        sum(one.arrived.prompts) + asked <= other.gate.max_context
                    )
                    if idle and whole and other.serves(one.arrived.model):
                        assert room_for(other.gate, other.own(one.arrived), self.now) is None or not _may(other, one)

    def teardown(self) -> None:
        for name in list(self.inside):
            self.end(name, Outcome.FINISHED, Heard.WELL)
        for _ in range(200):
            self.now += MOST_WAIT
            self.push(Tick())
            for name in list(self.inside):
                self.end(name, Outcome.FINISHED, Heard.WELL)
        assert self.asked == {}
        for member in self.fleet.members:
            assert (member.gate.promised_blocks(), member.gate.ledger.peak_sum_blocks) == (0, 0)


def _may(other: Member, one: object) -> bool:
    return other.options.borrow == 1.0 and other.options.fallback_share == 1.0


FleetMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFleetMachine = FleetMachine.TestCase
