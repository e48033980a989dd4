"""Several instances as one: each with its own gate, and no request waits at one while another has room for it.

`handle` takes the events of requests, `handle_at` those of one instance; both give the commands that follow, of any of
the gates. Who is parked belongs to one gate, and moves when another has room (`moving`); who is forwarded belongs to
the instance that `placed` names, until it ends. One instance that takes any model is its gate and nothing else, unless
others may join it: then there is a `home`, which is no instance and stays while instances come and go.
"""

from collections.abc import Sequence

from kvbudget.errors import AccountingError
from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.events import (
    Arrived,
    BackendChanged,
    CapacityChanged,
    DrainStarted,
    Ended,
    Event,
    PaceLost,
    Progressed,
    RoomTaken,
    SliceChanged,
    Tick,
)
from kvbudget.gate.fleet.events import Drained, Gone, Heard, HeldElsewhere, Joined, Leaving, Restarted, Serves
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.moving import next_move
from kvbudget.gate.fleet.options import FleetConfig
from kvbudget.gate.fleet.place import Place
from kvbudget.gate.fleet.placement import Verdict, choose, come
from kvbudget.gate.fleet.tiers import Able
from kvbudget.gate.promises import RECHECK_NS
from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.units import Blocks, Tokens

InstanceEvent = Serves | Drained | HeldElsewhere | Restarted | Joined | Leaving | Gone
_TICK = Tick()
_NOWHERE: frozenset[str] = frozenset()
_ROOM_CHANGED = (CapacityChanged, SliceChanged)
_MOST_MOVES = 64  # for one event: a recheck soon goes on


class Fleet:
    """All instances. All state changes happen inside `handle`, `handle_at`, `again` and `heard`, which never wait."""

    def __init__(self, members: Sequence[Member], config: FleetConfig, home: Member | None = None) -> None:
        """`home`: of a fleet whose members come and go, who has what is common to all of them (what is learned of
        lengths, tenants' own limits) and words a refusal while there is nobody; None: the first of `members`."""
        self.members = list(members)
        self.home = self.members[0] if home is None else home
        self.config = config
        self.draining = False
        self._by_name = {member.name: member for member in members}
        self._places: dict[str, Place] = {}
        self._turn = 0
        self._now_ns = 0
        self._recheck_ns: int | None = None
        alone = home is None and len(self.members) == 1 and not self.home.options.models
        self.only = self.home if alone else None
        self.share()

    def share(self) -> None:
        """What is learned of lengths, and a tenant's own limits, are of all of them; do it again after a change."""
        common = self.home.gate
        for member in self.members:
            if member is not self.home:
                member.gate.learned.lengths = common.learned.lengths
                member.gate.fairness.share_limits(common.fairness.limits)

    def named(self, name: str) -> Member | None:
        """The instance of that name."""
        return self._by_name.get(name)

    def placed(self, request_id: str) -> Member:
        """Where a request that was forwarded, or waits, is. Raises KeyError if it does not live."""
        return self.only or self._places[request_id].member

    @property
    def key_tokens(self) -> Tokens:
        """Tokens for which one key of `Arrived.prefix` stands; 0 where the instances differ in that."""
        sizes = {member.gate.ledger.key_tokens for member in self.members}
        return sizes.pop() if len(sizes) == 1 else Tokens(0)

    @property
    def backend_up(self) -> bool:
        """Whether any instance takes requests."""
        return any(member.in_service for member in self.members)

    @property
    def waiting(self) -> int:
        """Requests that wait, at all of them."""
        return sum([len(member.gate.queue) for member in self.members])

    @property
    def next_wake_ns(self) -> int | None:
        """When to push a Tick, if nothing else happens before; None if never."""
        if self.only is not None:
            return self.only.gate.next_wake_ns
        wakes = [member.gate.next_wake_ns for member in self.members]
        wakes.append(self._recheck_ns)
        return min([wake for wake in wakes if wake is not None], default=None)

    def _come_to(self, now_ns: int) -> int:
        """The time by which all of them go: it never goes back."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns

    def serves(self, model: str | None) -> bool:
        """Whether any instance is asked for by this name, as far as is known."""
        return any(member.serves(model) or member.stands_in_for(model) for member in self.members)

    # Requests

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Take in an event of one request, or of all instances; returns what the driver has to do, in order.

        Raises AccountingError, with nothing changed, for an event about a request that does not live. A time before
        that of the last event counts as that one.
        """
        if self.only is not None:
            return self.only.gate.handle(event, now_ns)
        now_ns = self._come_to(now_ns)
        if isinstance(event, Arrived):
            return self.again(event, _NOWHERE, now_ns)
        if isinstance(event, Tick):
            return self._tick(now_ns)
        if isinstance(event, Ended | Progressed | PaceLost):
            place = self._places.get(event.request_id)
            member = self.home if place is None else place.member  # which says that it does not live
            commands = self._taken(member, member.gate.handle(event, now_ns), now_ns)
            if isinstance(event, Ended):
                member.circuit.withdrawn(event.request_id)  # on trial there, it was sent elsewhere, or nowhere
                self._places.pop(event.request_id).over()
                if self.waiting:
                    commands += self._after_end(member, now_ns)
                return commands
            if self._recheck_ns is None and self.waiting:
                self._recheck_ns = now_ns + RECHECK_NS  # its progress may have made room for who waits elsewhere
            return commands
        assert isinstance(event, DrainStarted)  # noqa: S101 - what else is of one instance goes to `handle_at`
        self.draining = True
        commands = []
        for member in self.members:
            commands += self._taken(member, member.gate.handle(event, now_ns), now_ns)
        return commands

    def again(self, event: Arrived, avoid: frozenset[str], now_ns: int, since_ns: int | None = None) -> list[Command]:
        """It arrives, for the first time or again. `avoid`: instances that it must not go to; `since_ns`: when it
        arrived first."""
        if self.only is not None:
            return self.only.gate.handle(event, now_ns)
        now_ns = self._come_to(now_ns)
        if event.request_id in self._places:
            return self._places[event.request_id].member.gate.handle(event, now_ns)  # which says that it lives
        since_ns = now_ns if since_ns is None else since_ns
        due = self._tick(now_ns) if self._is_due(now_ns) else []
        own = [member for member in self.members if member.serves(event.model)]
        standing_in = [member for member in self.members if member.stands_in_for(event.model) and member not in own]
        if self.draining:
            return [*due, self._refused(event, Refusal.DRAINING, now_ns, since_ns)]
        if not own and not standing_in:  # nor may one unseen
            refusal = Refusal.UNKNOWN_MODEL if self.members else Refusal.NO_BACKEND
            return [*due, self._refused(event, refusal, now_ns, since_ns)]
        own, standing_in = [[one for one in kind if one.reads(event)] for kind in (own, standing_in)]
        if not own and not standing_in:
            return [*due, self._refused(event, Refusal.NO_BACKEND, now_ns, since_ns)]  # another model is loaded there
        verdict, able = choose(event, own, standing_in, now_ns, avoid)
        if able is None or verdict is Verdict.NOBODY:
            lost = any(member.gate.ledger_lost for member in (*own, *standing_in))
            refusal = Refusal.LEDGER_LOST if lost else Refusal.NO_BACKEND
            return [*due, self._refused(event, refusal, now_ns, since_ns)]
        come(event, able.member, self.members, now_ns)
        return due + self._give(able, event, avoid, now_ns, since_ns)

    def _give(self, able: Able, event: Arrived, avoid: frozenset[str], now_ns: int, since_ns: int) -> list[Command]:
        """Let it arrive at an instance."""
        member = able.member
        place = self._places[event.request_id] = Place(member, event, since_ns, avoid)
        place.lent_by(able)
        return self._taken(member, member.gate.handle(member.own(event), now_ns), now_ns)

    def _taken(self, member: Member, commands: list[Command], now_ns: int) -> list[Command]:
        """Commands of one gate, as the driver is to see them: with the whole wait."""
        for number, command in enumerate(commands):
            place = self._places.get(command.request_id)
            if place is not None and place.since_ns < now_ns and not isinstance(command, Parked):
                commands[number] = command._replace(waited_ns=now_ns - place.since_ns)
            if place is None:
                continue
            if type(command) is Reject:
                self._places.pop(command.request_id).over()
            elif type(command) is Forward:
                self._turn += 1
                member.got(member.counted(place.event), self._turn)
        return commands

    def _refused(self, event: Arrived, refusal: Refusal, now_ns: int, since_ns: int) -> Command:
        return self.home.gate.refuse(event, refusal, now_ns, waited_ns=now_ns - since_ns)

    # Room comes

    def _move(self, only_to: Member | None, now_ns: int) -> list[Command]:
        """Let those who wait go where there is room. `only_to`: the one that may have got some."""
        commands: list[Command] = []
        targets = self.members if only_to is None else [only_to]
        targets = [member for member in targets if member.takes(now_ns)]
        for _ in range(_MOST_MOVES):
            move = next_move(self.members, targets, self._places, now_ns)
            if move is None:
                return commands
            place, able, event = move
            commands += self._take_away(place.member, event.request_id, now_ns)
            self._places.pop(event.request_id).over()
            commands += self._give(able, event, place.avoid, now_ns, place.since_ns)
        self._recheck_ns = now_ns + RECHECK_NS
        return commands

    def _after_end(self, member: Member, now_ns: int) -> list[Command]:
        """Somebody waits, and one has ended at an instance: that has room now. A tenant's own limits are of all
        instances, so where there are any, who waits may go where it waits, and to any that has room."""
        if member.gate.fairness.limits is None:
            return self._move(member, now_ns)
        commands: list[Command] = []
        for other in self.members:
            if other is not member:
                commands += self._taken(other, other.gate.look(now_ns), now_ns)
        return commands + self._move(None, now_ns)

    def _take_away(self, member: Member, request_id: str, now_ns: int) -> list[Command]:
        """From the queue of an instance."""
        return self._taken(member, member.gate.move_away(request_id, now_ns), now_ns)

    def _scatter(self, member: Member, now_ns: int) -> list[Command]:
        """An instance gives no more room: who waits there waits, or goes, elsewhere; or is told that there is none."""
        gate = member.gate
        commands: list[Command] = []
        was_up, gate.backend_up = gate.backend_up, False  # nobody who leaves lets another one in
        for waiting in list(gate.queue):
            event = waiting.arrived._replace(deadline_ns=waiting.deadline_ns)
            if event.request_id not in gate.queue:
                continue  # its time was up
            commands += self._take_away(member, event.request_id, now_ns)
            place = self._places.pop(event.request_id)
            place.over()
            commands += self.again(event, place.avoid, now_ns, place.since_ns)
        gate.backend_up = was_up
        return commands

    def _is_due(self, now_ns: int) -> bool:
        wake_ns = self.next_wake_ns
        return wake_ns is not None and wake_ns <= now_ns

    def _tick(self, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        for member in self.members:
            wake_ns = member.gate.next_wake_ns
            if wake_ns is not None and wake_ns <= now_ns:
                commands += self._taken(member, member.gate.handle(_TICK, now_ns), now_ns)
            if member.taken_blocks(now_ns) != member.gate.promises.taken_blocks:
                commands += self._tell_taken(member, now_ns)
        self._recheck_ns = None
        if self.waiting:
            commands += self._move(None, now_ns)
        dues = [member.ramp.due_ns(now_ns) for member in self.members]
        dues += [member.circuit.due_ns(now_ns) for member in self.members]
        dues.append(self._recheck_ns)
        if self.waiting and self._recheck_ns is None:
            dues.append(now_ns + 10 * RECHECK_NS)
        self._recheck_ns = min([due for due in dues if due is not None], default=None)
        return commands

    def _tell_taken(self, member: Member, now_ns: int) -> list[Command]:
        taken = RoomTaken(member.taken_blocks(now_ns))
        return self._taken(member, member.gate.handle(taken, now_ns), now_ns)

    def _look_soon(self, now_ns: int) -> None:
        self._recheck_ns = now_ns

    # Instances

    def handle_at(self, member: Member, event: Event | InstanceEvent, now_ns: int) -> list[Command]:
        """Take in an event of one instance."""
        now_ns = self._come_to(now_ns)
        match event:
            case Serves():
                member.served = event.models
                return []
            case HeldElsewhere():
                member.elsewhere_blocks = Blocks(event.blocks)
                return self._tell_taken(member, now_ns) + self._after(member, now_ns)
            case Restarted():
                member.affinity.clear()
                return self._taken(member, member.gate.end_tails(now_ns), now_ns) + self._after(member, now_ns)
            case Drained():
                return self._drained(member, event.out, now_ns)
            case Joined():
                return self._joined(member, now_ns)
            case Leaving():
                return self._leaving(member, now_ns)
            case Gone():
                self._gone(member)
                return []
            case BackendChanged() if self.only is None:
                return self._up_or_down(member, event, now_ns)
            case _:
                commands = self._taken(member, member.gate.handle(event, now_ns), now_ns)
                return commands + (self._after(member, now_ns) if isinstance(event, _ROOM_CHANGED) else [])

    def heard(self, request_id: str, heard: Heard, now_ns: int, at: Member | None = None) -> list[Command]:
        """How a forwarded request ended, before its Ended is pushed. `at`: the instance that it was sent to, where that
        was done without a promise: it may wait at another one, or have no place at all."""
        if self.only is not None:
            return []
        now_ns = self._come_to(now_ns)
        member = self._places[request_id].member if at is None else at
        circuit = member.circuit
        if heard is Heard.NOTHING:
            circuit.withdrawn(request_id)
        elif heard is Heard.WELL:
            if circuit.did_well():
                member.ramp.begin(now_ns)
                self._look_soon(now_ns)
                return self._tell_taken(member, now_ns)
        elif circuit.failed(now_ns, may_open=self._may_eject(member)):
            self._look_soon(now_ns)
            return self._scatter(member, now_ns)
        return []

    def _may_eject(self, member: Member) -> bool:
        """Never so many at once that the rest, which may be just as ill, gets all the work; and never the last."""
        others = [other for other in self.members if other is not member]
        ejected = [other for other in others if other.circuit.is_open]
        if not any(other.in_service and not other.circuit.is_open for other in others):
            return False
        return len(ejected) + 1 <= max(1, int(self.config.most_ejected * len(self.members)))

    def _drained(self, member: Member, out: bool, now_ns: int) -> list[Command]:
        if out == member.draining:
            return []
        member.draining = out
        if self.only is not None:
            member.gate.draining = out or self.draining  # there is nowhere else to go
            return []
        return self._scatter(member, now_ns) if out else self._after(member, now_ns)

    def _joined(self, member: Member, now_ns: int) -> list[Command]:
        if self._by_name.get(member.name) is member:
            was_leaving, member.leaving = member.leaving, False
            return self._after(member, now_ns) if was_leaving else []
        if member.name in self._by_name or self.only is not None:
            why = "the name is taken" if self.only is None else "this fleet was made for one"
            raise AccountingError(f"instance {member.name!r} cannot join: {why}", fix="let the other one go first")
        member.was_up = self.backend_up  # while others do the work, it takes it up step by step
        member.gate.draining = self.draining
        self._by_name[member.name] = member
        self.members.append(member)
        self.share()
        return []

    def _leaving(self, member: Member, now_ns: int) -> list[Command]:
        if member.leaving:
            return []
        member.leaving = True
        return self._scatter(member, now_ns)

    def _gone(self, member: Member) -> None:
        if not member.leaving or not member.empty:
            raise AccountingError(
                f"instance {member.name!r} is not to be taken away: it is not leaving, or somebody lives there",
                fix="push Leaving, and wait until it is empty",
            )
        self.members.remove(member)
        del self._by_name[member.name]

    def _up_or_down(self, member: Member, event: BackendChanged, now_ns: int) -> list[Command]:
        if event.up == member.gate.backend_up:
            return []
        if not event.up:
            return self._scatter(member, now_ns) + self._taken(member, member.gate.handle(event, now_ns), now_ns)
        if member.was_up:
            member.ramp.begin(now_ns)
        member.was_up = True
        commands = self._tell_taken(member, now_ns)
        commands += self._taken(member, member.gate.handle(event, now_ns), now_ns)
        return commands + self._after(member, now_ns)

    def _after(self, member: Member, now_ns: int) -> list[Command]:
        """It may have got room."""
        if self.only is not None:
            return []
        self._look_soon(now_ns)
        return self._move(member, now_ns) if self.waiting else []
