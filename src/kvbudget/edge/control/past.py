"""Decides what a gate remembers of its last quarter of an hour: how its pools stood, and which requests came.

In memory, bounded, whoever looks: so that a page that is opened now shows what was before, and one whose line was cut
misses nothing. The data path only adds one row to the requests when one is over.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kvbudget.edge.control.instances_api import held_blocks
from kvbudget.edge.control.recent import KEPT_NS, Recent
from kvbudget.edge.repeated import Repeated
from kvbudget.edge.request.gateway import Gateway
from kvbudget.gate.fleet.member import Member

EVERY_S = 5.0  # while nobody watches; who watches looks once a second
_CLOSEST_NS = 900_000_000  # between two looks, however many watch
MOST_POINTS = 1000  # of an instance


class Point(NamedTuple):
    """Blocks of one instance at one moment. `held_blocks`: the engine's word, None where it does not tell;
    `free_blocks`: neither promised nor taken by others, the margin aside."""

    at_ms: int
    usable_blocks: int
    promised_blocks: int
    held_blocks: int | None
    elsewhere_blocks: int
    free_blocks: int
    waiting: int


class Past:
    """The pools of all instances, and the requests (`recent`), which it has the gateway tell it."""

    def __init__(self, gateway: Gateway, now_ns: Callable[[], int], *, every_s: float = EVERY_S) -> None:
        self.recent = gateway.access_log = Recent(gateway.access_log)
        self._gateway = gateway
        self._now_ns = now_ns
        self._looking = Repeated("past", self.look, every_s, "the pools could not be looked at")
        self._points: dict[str, deque[Point]] = {}
        self._looked_ns: int | None = None

    def start(self) -> None:
        """Look from now on, until `close`."""
        self._looking.start()

    async def close(self) -> None:
        """May be called in any state."""
        await self._looking.close()

    def look(self) -> None:
        """Remember how it stands, unless that was done just now."""
        now_ns = self._now_ns()
        if self._looked_ns is not None and now_ns - self._looked_ns < _CLOSEST_NS:
            return
        self._looked_ns = now_ns
        for member in self._gateway.fleet.members:
            points = self._points.setdefault(member.name, deque(maxlen=MOST_POINTS))
            points.append(self.point(member, now_ns))
        oldest_ms = (now_ns - KEPT_NS) // 1_000_000
        for name, points in list(self._points.items()):
            while points and points[0].at_ms < oldest_ms:
                points.popleft()
            if not points:
                del self._points[name]  # an instance that is gone

    def points(self) -> dict[str, list[tuple[int | None, ...]]]:
        """By instance, the oldest first, as plain tuples."""
        return {name: [tuple(point) for point in points] for name, points in self._points.items()}

    def point(self, member: Member, now_ns: int) -> Point:
        """How one instance stands now."""
        gate = member.gate
        return Point(
            at_ms=now_ns // 1_000_000,
            usable_blocks=gate.ledger.usable_blocks,
            promised_blocks=gate.promised_blocks(),
            held_blocks=held_blocks(self._gateway, member),
            elsewhere_blocks=member.elsewhere_blocks,
            free_blocks=gate.free_blocks(),
            waiting=len(gate.queue),
        )
