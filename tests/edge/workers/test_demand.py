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
        self.names: list[list[str]] = [["a"], ["a"]]
        self.drains = [{"pool_blocks": 60, "free_blocks": 10, "free_blocks_in_10_s": 14, "free_blocks_in_60_s": 40}] * 2
        self.silent = False

    async def get(self, target: str) -> list[Said]:
        assert target == "/v1/forecast"
        said = []
        for number, (promised, waiting, refused) in enumerate(self.each):
            demand = {"promised": promised, "waiting": waiting, "refused": refused}
            own = {"capacity_tokens": 1000, "demand": demand, "drain": self.drains[number]}
            told: dict[str, Any] = {"instances": [{"name": name, **own} for name in self.names[number]]}
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


def test_what_comes_free_is_what_all_see_free_and_what_each_expects_of_its_own_at_most_the_pool() -> None:
    workers = Told()
    demand = WorkersDemand(workers, lambda: 0)
    workers.each = [(0, 0, 0), (0, 0, 0)]
    workers.drains[1] = {"pool_blocks": 60, "free_blocks": 12, "free_blocks_in_10_s": 12, "free_blocks_in_60_s": 50}
    asyncio.run(demand.refresh())
    (instance,) = demand.document()["instances"]
    assert instance["drain"] == {
        "pool_blocks": 60, "free_blocks": 10, "free_blocks_in_10_s": 14, "free_blocks_in_60_s": 60,
    }  # fmt: skip
    workers.each = []
    asyncio.run(demand.refresh())
    (instance,) = demand.document()["instances"]
    assert instance["drain"] is None  # nobody says


def test_an_instance_that_no_worker_tells_of_any_more_is_forgotten() -> None:
    workers = Told()
    demand = WorkersDemand(workers, lambda: 0)
    workers.each = [(1, 0, 0), (1, 0, 0)]
    seen = []
    for names in ([["a", "b"], ["a"]], [["a"], ["b", "c"]], [["c"], ["c"]]):
        workers.names = names
        asyncio.run(demand.look())
        seen.append([one["name"] for one in demand.document()["instances"]])
    assert seen == [["a", "b"], ["a", "b", "c"], ["c"]]
    workers.each = []  # they are started anew
    asyncio.run(demand.look())
    assert len(demand.document()["instances"]) == 1


def test_who_asks_between_two_looks_does_not_count_as_one() -> None:
    workers, clock = Told(), [0]
    demand = WorkersDemand(workers, lambda: clock[0])
    workers.each = [(500, 0, 0)]
    asyncio.run(demand.look())
    workers.each = [(900, 0, 0)]
    asyncio.run(demand.refresh())
    assert demand.document()["instances"][0]["demand_tokens"] == 900
    clock[0] = MINUTE
    asyncio.run(demand.look())
    assert demand.document()["instances"][0]["minutes"] == [500]


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
