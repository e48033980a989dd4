"""Decides what demand is at several workers before the same engines, and what is foretold of it: all of it as one.

What is promised each worker knows of all, by the ledger's last word; who waits and who was refused is its own.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from prometheus_client.core import Metric

from kvbudget.edge.control.demand import DRAINS_S, EVERY_S, HORIZON_MINUTES, SCHEMA, Demand, Watched, families_of
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
        self.drain: dict[str, int] | None = None  # None: nobody says
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
        told = await self._told()
        minute = self._now_ns() // _NS_PER_MINUTE
        if minute > self._minute:
            for one in self._instances.values():
                one.watched.minute_over(self._minute, one.demand.refused)
            self._minute = minute
        self._take(told)
        for one in self._instances.values():
            if one.drain is not None:
                one.watched.look(one.demand)

    async def refresh(self) -> None:
        """Ask all how it stands now, for whoever is about to be told."""
        self._take(await self._told())

    async def _told(self) -> list[dict[str, Any]]:
        return [one.document() for one in await self._asking.get("/v1/forecast") if one.status == 200]

    def families(self) -> list[Metric]:
        """As those of one gate."""
        return families_of([(one.watched, one.demand) for one in self._instances.values()])

    def document(self) -> dict[str, Any]:
        """As that of one gate. `drain`: None where nobody says."""
        told = [{**one.watched.document(one.demand), "drain": one.drain} for one in self._instances.values()]
        return {"schema": SCHEMA, "horizon_minutes": HORIZON_MINUTES, "instances": told}

    def _take(self, documents: Iterable[dict[str, Any]]) -> None:
        told: dict[str, list[dict[str, Any]]] = {}
        for document in documents:
            for one in document["instances"]:
                told.setdefault(one["name"], []).append(one)
        for name in [name for name in self._instances if name not in told]:
            self._instances[name].drain = None
            if told:  # else nobody answers, which says nothing of instances
                del self._instances[name]
        for name, each in told.items():
            instance = self._instances.setdefault(name, _Instance(name))
            instance.capacity_tokens = max(one["capacity_tokens"] for one in each)
            own = [one["demand"] for one in each]
            instance.demand = Demand(
                max(one["promised"] for one in own),
                sum(one["waiting"] for one in own),
                sum(one["refused"] for one in own),
            )
            instance.drain = _drain([one["drain"] for one in each])


def _drain(each: list[dict[str, int]]) -> dict[str, int]:
    """Blocks of the pool that are free by whoever sees the fewest, and those that each expects of its own to end."""
    pool, free = max(one["pool_blocks"] for one in each), min(one["free_blocks"] for one in each)
    later = {name: free + sum(one[name] - one["free_blocks"] for one in each) for name in DRAINS_S}
    return {"pool_blocks": pool, "free_blocks": free, **{name: min(pool, blocks) for name, blocks in later.items()}}
