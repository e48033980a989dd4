"""Decides by the gateway's own placement which instance a request goes to, and who goes on to another one.

The instances' gates are members of a fleet as in `gate.fleet.fleet`, but each is driven by its instance.
"""

from collections.abc import Sequence
from itertools import islice

from kvbudget.gate.events import Arrived
from kvbudget.gate.fleet.fleet import Fleet
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.moving import LOOKED_AT, next_move
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.fleet.place import Place
from kvbudget.gate.fleet.placement import choose, come
from kvbudget.simulate.clients import Client
from kvbudget.simulate.instance import Instance

_NOWHERE: frozenset[str] = frozenset()


class Placing:
    """The choice among several instances of one kind."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        config = FleetConfig()
        self._instances = instances
        members = [
            Member(str(number), instance.gate, MemberOptions(), config) for number, instance in enumerate(instances)
        ]
        self._members = Fleet(members, config).members  # and what is learned is shared
        self._turn = 0

    def choose(self, event: Arrived, now_ns: int) -> int:
        """The number of the instance for a try of a client."""
        for instance in self._instances:
            instance.tell_all(now_ns)
        _, able = choose(event, self._members, [], now_ns, _NOWHERE)
        if able is None:
            return 0
        come(event, able.member, self._members, now_ns)
        return int(able.member.name)

    def forwarded(self, client: Client) -> None:
        """A try of a client was let in by its instance's gate."""
        if client.event is not None:
            self._turn += 1
            self._members[client.instance].got(client.event, self._turn)

    def move(self, now_ns: int) -> None:
        """Let those who wait go where room has come: at an instance at which a request has ended."""
        targets = [
            member for member, instance in zip(self._members, self._instances, strict=True) if instance.has_ended_one
        ]
        if not targets:
            return
        for instance in self._instances:
            instance.has_ended_one = False
            instance.tell_all(now_ns)
        while True:
            waiting = self._waiting()
            move = next_move(self._members, targets, waiting, now_ns)
            if move is None:
                return
            place = move.place
            client = self._instances[int(place.member.name)].client_of(move.event.request_id)
            if client.waits_since_ns is None:
                client.waits_since_ns = place.since_ns
            self._instances[client.instance].leave(client, now_ns)
            client.instance = int(move.able.member.name)
            self._instances[client.instance].take_over(client, move.event, now_ns)

    def _waiting(self) -> dict[str, Place]:
        """Who waits first at each instance, and since when."""
        waiting: dict[str, Place] = {}
        for member, instance in zip(self._members, self._instances, strict=True):
            for one in islice(member.gate.queue, LOOKED_AT):
                key = one.arrived.request_id
                since_ns = instance.client_of(key).waits_since_ns
                since_ns = one.since_ns if since_ns is None else since_ns
                waiting[key] = Place(member, one.arrived, since_ns, _NOWHERE)
        return waiting
