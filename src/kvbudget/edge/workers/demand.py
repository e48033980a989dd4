"""Decides what demand is at several workers before the same engines, and what is foretold of it: all of it as one.

What is promised each worker knows of all, by the ledger's last word; who waits and who was refused is its own.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from prometheus_client.core import Metric

from kvbudget.edge.demand import EVERY_S, HORIZON_MINUTES, SCHEMA, Demand, Watched, families_of
from kvbudget.edge.repeated import Repeated
from kvbudget.edge.workers.asking import Said

_NS_PER_MINUTE = 60 * 10**9


class Asked(Protocol):
    """Who asks all workers; `edge.workers.asking`."""

    async def get(self, target: str) -> list[Said]:
        """What those say who answer."""


class _Instance:
    """What the workers told of one, when they were asked last."""

    def __init__(self, name: str) -> None:
        self.capacity_tokens = 0
        self.demand = Demand(0, 0, 0)
        self.watched = Watched(name, lambda: self.capacity_tokens)


class WorkersDemand:
    """Looks every few seconds from `start` until `close`."""

    def __init__(self, asking: Asked, now_ns: Callable[[], int], *, every_s: float = EVERY_S) -> None:
        self._asking = asking
        self._now_ns = now_ns
        self._looking = Repeated("demand of all workers", self.look, every_s, "demand could not be looked at")
        self._instances: dict[str, _Instance] = {}
        self._minute = now_ns() // _NS_PER_MINUTE

    def start(self) -> None:
        """Look from now on."""
        self._looking.start()

    async def close(self) -> None:
        """May be called in any state."""
        await self._looking.close()

    async def look(self) -> None:
        """Ask all once; with a new minute, the one that is over goes to the forecast."""
        said = await self._asking.get("/v1/forecast")
        minute = self._now_ns() // _NS_PER_MINUTE
        if minute > self._minute:
            for one in self._instances.values():
                one.watched.minute_over(self._minute, one.demand.refused)
            self._minute = minute
        self._take([one.document() for one in said if one.status == 200])

    def families(self) -> list[Metric]:
        """As those of one gate."""
        return families_of([(one.watched, one.demand) for one in self._instances.values()])

    def document(self) -> dict[str, Any]:
        """As that of one gate, without `drain`."""
        told = [one.watched.document(one.demand) for one in self._instances.values()]
        return {"schema": SCHEMA, "horizon_minutes": HORIZON_MINUTES, "instances": told}

    def _take(self, documents: Iterable[dict[str, Any]]) -> None:
        told: dict[str, list[dict[str, Any]]] = {}
        for document in documents:
            for one in document["instances"]:
                told.setdefault(one["name"], []).append(one)
        for name, each in told.items():
            instance = self._instances.setdefault(name, _Instance(name))
            instance.capacity_tokens = max(one["capacity_tokens"] for one in each)
            own = [one["demand"] for one in each]
            instance.demand = Demand(
                max(one["promised"] for one in own),
                sum(one["waiting"] for one in own),
                sum(one["refused"] for one in own),
            )
            instance.watched.look(instance.demand)
