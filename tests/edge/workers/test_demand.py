"""Demand at several workers: promised by all alike, waiting and refused at each."""

import asyncio
from typing import Any

import orjson

from kvbudget.edge.workers.asking import Said
from kvbudget.edge.workers.demand import WorkersDemand

MINUTE = 60 * 10**9


class Told:
    """Workers that tell of one instance: (promised, waiting, refused) of each."""

    def __init__(self) -> None:
        self.each: list[tuple[int, int, int]] = []
        self.silent = False

    async def get(self, target: str) -> list[Said]:
        assert target == "/v1/forecast"
        said = []
        for number, (promised, waiting, refused) in enumerate(self.each):
            demand = {"promised": promised, "waiting": waiting, "refused": refused}
            told: dict[str, Any] = {"instances": [{"name": "a", "capacity_tokens": 1000, "demand": demand}]}
            said.append(Said(number, 200, orjson.dumps(told)))
        return [*said, Said(9, 503, b"not yet")]


def value(demand: WorkersDemand, name: str) -> float:
    (family,) = [family for family in demand.families() if family.name == name]
    return family.samples[0].value


def test_what_is_promised_counts_once_and_what_waits_and_was_refused_adds_up() -> None:
    workers = Told()
    demand = WorkersDemand(workers, lambda: 0)
    assert demand.families() == []
    workers.each = [(500, 10, 1), (480, 20, 2)]
    asyncio.run(demand.look())
    assert value(demand, "kvbudget_demand_tokens") == 500 + 30 + 3
    (instance,) = demand.document()["instances"]
    assert instance["name"] == "a"
    assert instance["capacity_tokens"] == 1000
    assert instance["demand"] == {"promised": 500, "waiting": 30, "refused": 3}
    assert instance["forecast"] is None


def test_every_minute_of_all_is_one_of_the_forecast() -> None:
    workers, clock = Told(), [0]
    demand = WorkersDemand(workers, lambda: clock[0])
    workers.each = [(500, 100, 0), (500, 200, 0)]

    async def minutes() -> None:
        for _ in range(40):
            await demand.look()
            clock[0] += MINUTE // 2

    asyncio.run(minutes())
    (instance,) = demand.document()["instances"]
    assert instance["minutes"] == [800] * 19
    assert instance["forecast"]["tokens"] == 800
    assert value(demand, "kvbudget_forecast_alarm") in (0.0, 1.0)


def test_it_looks_until_it_is_closed_whatever_it_is_told() -> None:
    async def run() -> None:
        workers = Told()
        workers.each = [(1, 2, 3)]
        demand = WorkersDemand(workers, lambda: 0, every_s=0.001)
        demand.start()
        async with asyncio.timeout(10):
            while not demand.families():
                await asyncio.sleep(0.001)
        await demand.close()
        await demand.close()

    asyncio.run(run())
