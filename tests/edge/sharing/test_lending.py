"""Two gates before one engine, which share its pool through a ledger."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from kvbudget.edge.bank.store import LedgerError
from kvbudget.edge.engine.server import start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import GateService, ServiceSettings, start_service
from kvbudget.gate.bank.bank import Bank
from kvbudget.gate.bank.board import Board, Notes, Put
from kvbudget.gate.bank.terms import BLOCKS, Answer, Call
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.units import Blocks, Tokens

POOL = 64


@dataclass
class Ledger:
    """A bank in this process, that can be struck."""

    bank: Bank = field(default_factory=Bank)
    boards: dict[str, Board] = field(default_factory=dict)
    away: bool = False
    hold: asyncio.Event | None = None
    stores: "list[Store]" = field(default_factory=list)
    calls: int = 0

    def now_ms(self) -> int:
        return time.monotonic_ns() // 10**6

    def store(self) -> "Store":
        self.stores.append(Store(self))
        return self.stores[-1]


class Store:
    """One gate's way to it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.woken: Callable[[str, str], None] = lambda pool, branch: None
        self.away = False
        self.address = "here"

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def of(self, pool: str) -> Ledger:
        return self.ledger

    async def exchange(self, topic: str, put: Put) -> Notes:
        if self.ledger.away or self.away:
            raise LedgerError("the ledger is away")
        return self.ledger.boards.setdefault(topic, Board()).exchange(put, self.ledger.now_ms())

    async def call(self, pool: str, call: Call) -> Answer | None:
        await asyncio.sleep(0)
        ledger = self.of(pool)
        if ledger.hold is not None:
            await ledger.hold.wait()
        if ledger.away or self.away:
            raise LedgerError("the ledger is away")
        ledger.calls += 1
        answer, woken = ledger.bank.call(call, ledger.now_ms())
        for branch in woken:
            for store in ledger.stores:
                store.woken(pool, branch)
        return answer


@dataclass
class Stand:
    ledger: Ledger
    gates: list[GateService]
    clients: list[httpx.AsyncClient]

    async def chat(self, gate: int, max_tokens: int = 16, **more: object) -> httpx.Response:
        ask = {"model": "embedded", "prompt": "hi", "max_tokens": max_tokens, "ignore_eos": True, **more}
        return await self.clients[gate].post("/v1/completions", json=ask)

    def promised(self) -> list[int]:
        return [gate.gate.promised_blocks() for gate in self.gates]

    async def until(self, what: Callable[[], bool], within_s: float = 20.0) -> None:
        async with asyncio.timeout(within_s):
            while not what():
                await asyncio.sleep(0.005)


Scene = Callable[[Stand], Awaitable[None]]


def play(scene: Scene, *, gates: int = 2, step_s: float = 0.005, **serve: Any) -> None:
    async def run() -> None:
        ledger = Ledger()
        ledger.bank = Bank(settling_until_ms=ledger.now_ms() + serve.pop("settles_ms", 0))
        pool = EngineSettings(num_blocks=POOL + 1, block_size=16, max_model_len=1024, step_cost_s=step_s)
        engine = await start_engine(pool)
        config = replace(GateConfig(policy=Policy.WORST_CASE, abort_tail_ns=0), **serve.pop("config", {}))
        settings = ServiceSettings(
            backend_url=engine.url, port=0, admin_port=0, gate=config, lease_seconds=serve.pop("lease_seconds", 5.0),
            **serve,
        )  # fmt: skip
        services = [await start_service(settings, store=ledger.store()) for _ in range(gates)]
        try:
            async with AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(httpx.AsyncClient(base_url=service.url, timeout=30))
                    for service in services
                ]
                await scene(Stand(ledger, services, clients))
        finally:
            for service in services:
                await service.close()
            await engine.close()
        assert [service.gate.promised_blocks() for service in services] == [0] * gates
        assert ledger.away or ledger.bank.granted(BLOCKS) == 0

    asyncio.run(run())


def test_a_gate_alone_before_the_pool_gets_all_of_it() -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(0, max_tokens=16 * POOL - 8)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-kvbudget-reserved-blocks"] == str(POOL)
        assert int(answer.headers["x-kvbudget-queue-ms"]) < 500

    play(scene)


def test_what_one_has_promised_the_other_cannot_and_gets_when_it_ends() -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(0, max_tokens=700))
        await stand.until(lambda: stand.promised()[0] == 44)
        second = asyncio.create_task(stand.chat(1, max_tokens=700))
        await stand.until(lambda: len(stand.gates[1].gate.queue) == 1)
        assert stand.promised() == [44, 0]
        answers = await asyncio.gather(first, second)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert int(answers[1].headers["x-kvbudget-queue-ms"]) > 100

    play(scene)


def test_without_a_queue_room_that_another_gate_holds_idle_is_asked_for_first() -> None:
    async def scene(stand: Stand) -> None:
        answers = await asyncio.gather(*[stand.chat(n % 2, max_tokens=100) for n in range(8)])
        assert [answer.status_code for answer in answers] == [200] * 8

    play(scene, config={"queue_requests": 0})


def test_who_can_never_be_served_is_told_so_whatever_the_slice() -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(0, max_tokens=16 * POOL + 100, prompt="x" * 10)
        assert answer.status_code in (200, 400)
        held = asyncio.create_task(stand.chat(1, max_tokens=900))
        await stand.until(lambda: stand.promised()[1] > 50)
        large = asyncio.create_task(stand.chat(0, max_tokens=900))
        await stand.until(lambda: len(stand.gates[0].gate.queue) == 1)  # not 400: it fits the pool
        assert (await held).status_code == (await large).status_code == 200

    play(scene)


def test_a_storm_at_both_never_promises_more_than_the_pool_and_everybody_is_served() -> None:
    async def scene(stand: Stand) -> None:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, sum(stand.promised()))
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(*[stand.chat(n % 2, max_tokens=20 + 37 * n % 300) for n in range(60)])
        watching.cancel()
        assert {answer.status_code for answer in answers} == {200}
        assert POOL // 2 < most <= POOL

    play(scene, step_s=0.001, config={"queue_tokens": 10**6})


def test_a_ledger_that_does_not_answer_for_a_lease_means_503_and_then_all_is_well_again() -> None:
    async def scene(stand: Stand) -> None:
        assert (await stand.chat(0)).status_code == 200
        stand.ledger.away = True
        running = asyncio.create_task(stand.chat(0, max_tokens=500))  # within the lease, out of its slice
        await stand.until(lambda: stand.promised()[0] > 0 or running.done())
        async with asyncio.timeout(10):
            while (refused := await stand.chat(0)).status_code == 200:
                await asyncio.sleep(0.02)
        assert refused.status_code == 503
        assert 2 <= int(refused.headers["retry-after"]) <= 3
        assert "ledger" in refused.json()["error"]["message"]
        assert stand.gates[0].gateway.metrics.ledger_errors > 0
        began = time.monotonic()
        assert {answer.status_code for answer in [await stand.chat(0) for _ in range(5)]} == {503}
        assert time.monotonic() - began < 2.0  # nobody is held for a ledger that does not answer
        # The other one had no request since: it knows as well.
        await stand.until(lambda: stand.gates[1].gate.ledger_lost)
        async with httpx.AsyncClient(base_url=stand.gates[1].admin_url) as admin:
            answer, live = await admin.get("/ready"), await admin.get("/api/live")
        assert (answer.status_code, answer.json()["problem"]) == (503, "the shared ledger does not answer")
        assert live.json()["problem"] == "the shared ledger does not answer"
        stand.ledger.away = False
        await stand.until(lambda: not stand.gates[0].gate.ledger_lost)
        assert (await stand.chat(0)).status_code == 200
        await running

    play(scene, lease_seconds=1.0)


def test_what_a_gate_has_is_told_to_the_others_and_falls_to_nothing_when_all_are_idle() -> None:
    async def metric(stand: Stand, gate: int, name: str) -> float:
        async with httpx.AsyncClient(base_url=stand.gates[gate].admin_url) as admin:
            text = (await admin.get("/metrics")).text
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))

    async def scene(stand: Stand) -> None:
        running = asyncio.create_task(stand.chat(0, max_tokens=700))
        await stand.until(lambda: stand.gates[1].gate.promises.elsewhere_blocks == 44)
        assert await metric(stand, 1, "kvbudget_ledger_reserved_blocks") == 44
        assert await metric(stand, 0, "kvbudget_ledger_reserved_blocks") == 44
        assert await metric(stand, 1, "kvbudget_pool_blocks") == POOL
        assert stand.gates[1].gateway.fleet.members[0].elsewhere_blocks == 0  # ours, not a stranger's
        await running
        await stand.until(lambda: stand.gates[1].gate.promises.elsewhere_blocks == 0)
        assert await metric(stand, 0, "kvbudget_ledger_reserved_blocks") == 0

    play(scene)


def test_one_who_was_out_of_touch_for_a_lease_has_its_own_again_while_it_runs_in_the_engine() -> None:
    async def scene(stand: Stand) -> None:
        running = asyncio.create_task(stand.chat(0, max_tokens=650))
        await stand.until(lambda: stand.promised()[0] == 41)
        stand.ledger.stores[0].away = True  # only this one's way is cut
        await stand.until(lambda: stand.gates[0].gate.next_wake_ns is None and stand.ledger.bank.granted(BLOCKS) < 41)
        waiting = asyncio.create_task(stand.chat(1, max_tokens=600))
        await stand.until(lambda: len(stand.gates[1].gate.queue) == 1)
        await asyncio.sleep(1.2)  # one more lease: the engine tells that something runs
        assert stand.promised() == [41, 0]
        stand.ledger.stores[0].away = False
        assert (await running).status_code == (await waiting).status_code == 200
        assert stand.gates[0].gateway.metrics.outcomes["lease_lost"] == 0

    play(scene, lease_seconds=1.0, step_s=0.01)


def test_where_the_engine_tells_nothing_the_youngest_end_of_what_was_given_away_meanwhile() -> None:
    async def scene(stand: Stand) -> None:
        for gate in stand.gates:
            gate.instances[0].seen = lambda held, sequences, looked_ns: None
            gate.gateway.lendings[0].replica._looked = None
        old = asyncio.create_task(stand.chat(0, max_tokens=300))
        await stand.until(lambda: stand.promised()[0] == 19)
        young = asyncio.create_task(stand.chat(0, max_tokens=350))
        await stand.until(lambda: stand.promised()[0] == 41)
        stand.ledger.stores[0].away = True
        taken = asyncio.create_task(stand.chat(1, max_tokens=600))
        await stand.until(lambda: stand.promised()[1] == 38)
        assert stand.promised()[0] == 41
        stand.ledger.stores[0].away = False
        broken = await young
        assert broken.status_code == 503
        assert 2 <= int(broken.headers["retry-after"]) <= 3  # as whoever comes while the ledger is lost
        assert stand.gates[0].gateway.metrics.outcomes["lease_lost"] == 1
        assert (await old).status_code == (await taken).status_code == 200

    play(scene, lease_seconds=1.0, step_s=0.03)


def test_a_gate_that_may_go_on_alone_goes_by_an_equal_part_and_ends_nothing_afterwards() -> None:
    async def scene(stand: Stand) -> None:
        await stand.until(lambda: all(lending.replica.branch.branches == 2 for gate in stand.gates
                                      for lending in gate.gateway.lendings))  # fmt: skip
        stand.ledger.away = True
        await stand.until(lambda: stand.gates[0].gate.ledger.slice_blocks == POOL // 2)
        assert (await stand.chat(0, max_tokens=450)).status_code == 200
        stand.ledger.away = False
        await stand.until(lambda: stand.gates[0].gate.ledger.slice_blocks != POOL // 2)
        assert (await stand.chat(0, max_tokens=900)).status_code == 200
        assert stand.gates[0].gateway.metrics.outcomes["lease_lost"] == 0

    play(scene, lease_seconds=1.0, ledger_lost="slice")


def test_who_is_held_for_the_ledger_and_leaves_is_forgotten_and_who_stays_is_answered_when_the_gate_closes() -> None:
    async def scene(stand: Stand) -> None:
        assert (await stand.chat(0)).status_code == 200
        lending = stand.gates[0].gateway.lendings[0]
        await stand.until(lambda: not lending.replica.is_calling)
        stand.ledger.hold = asyncio.Event()
        leaver = asyncio.create_task(stand.chat(0, max_tokens=700))
        await stand.until(lambda: lending.is_waiting)
        stayer = asyncio.create_task(stand.chat(0, max_tokens=800))
        await stand.until(lambda: len(lending._next) == 1)
        leaver.cancel()
        await stand.until(lambda: stand.gates[0].gateway.metrics.outcomes["withdrawn"] == 1)
        stand.ledger.hold.set()
        assert (await stayer).status_code == 200
        await stand.until(lambda: not lending.replica.is_calling)
        stand.ledger.hold = asyncio.Event()
        last = asyncio.create_task(stand.chat(0, max_tokens=800))
        await stand.until(lambda: lending.is_waiting)
        closing = asyncio.create_task(stand.gates[0].close())
        assert (await last).status_code == 503
        stand.ledger.hold.set()
        await closing

    play(scene)


def test_a_drain_waits_for_who_is_held() -> None:
    async def scene(stand: Stand) -> None:
        lending = stand.gates[0].gateway.lendings[0]
        await stand.until(lambda: not lending.replica.is_calling)
        stand.ledger.hold = asyncio.Event()
        held = asyncio.create_task(stand.chat(0, max_tokens=700))
        await stand.until(lambda: lending.is_waiting)
        drained = asyncio.create_task(stand.gates[0].drain(10.0))
        await asyncio.sleep(0.1)
        assert not drained.done()
        stand.ledger.hold.set()
        assert (await held).status_code == 503  # it was not let in before
        assert await drained

    play(scene)


def test_a_tenant_s_limits_are_of_all_gates() -> None:
    limits = {"tenants": {"a": TenantLimits(max_blocks=Blocks(30), tokens_per_minute=Tokens(100_000))}}

    async def scene(stand: Stand) -> None:
        mine = {"x-kvbudget-tenant": "a"}
        ask = {"model": "embedded", "prompt": "hi", "max_tokens": 400, "ignore_eos": True}
        first = asyncio.create_task(stand.clients[0].post("/v1/completions", json=ask, headers=mine))
        await stand.until(lambda: stand.gates[1].gate.fairness.limits._elsewhere.get("a") == 26)  # type: ignore[union-attr]
        second = asyncio.create_task(stand.clients[1].post("/v1/completions", json=ask, headers=mine))
        await stand.until(lambda: len(stand.gates[1].gate.queue) == 1)
        assert (await stand.chat(1, max_tokens=300)).status_code == 200  # others go by
        answers = await asyncio.gather(first, second)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert int(answers[1].headers["x-kvbudget-queue-ms"]) > 50
        limits = stand.gates[1].gate.fairness.limits
        assert limits is not None
        await stand.until(lambda: limits.tokens_left("a", time.monotonic_ns())[0] == 100_000)  # type: ignore[index]

    play(scene, config=limits)


def test_requests_of_a_tenant_at_one_moment_wait_for_a_word_each_and_none_is_refused_while_its_tokens_are_there() -> (
    None
):
    limits = {"tenants": {"a": TenantLimits(tokens_per_minute=Tokens(600))}}

    async def scene(stand: Stand) -> None:
        client, mine = stand.clients[0], {"x-kvbudget-tenant": "a"}
        ask = {"model": "embedded", "prompt": "hi", "max_tokens": 40, "ignore_eos": True}
        many = [client.post("/v1/completions", json=ask, headers=mine) for _ in range(10)]
        answers = await asyncio.gather(*many)
        assert [answer.status_code for answer in answers] == [200] * 10

    play(scene, config=limits, step_s=0.001)


def test_a_gate_is_not_ready_while_a_ledger_without_memory_gives_room_to_nobody() -> None:
    async def scene(stand: Stand) -> None:
        async with httpx.AsyncClient(base_url=stand.gates[0].admin_url) as admin:
            await stand.until(lambda: stand.gates[0].gate.ledger_settles)
            answer = await admin.get("/ready")
            assert answer.status_code == 503
            assert "no room until earlier leases are over" in answer.json()["problem"]
            await stand.until(lambda: not stand.gates[0].gate.ledger_settles)
            assert (await admin.get("/ready")).status_code == 200
        assert (await stand.chat(0)).status_code == 200

    play(scene, lease_seconds=1.0, settles_ms=1_500)


def test_what_one_gate_learns_of_answers_the_other_knows() -> None:
    async def scene(stand: Stand) -> None:
        for _ in range(3):
            assert (await stand.chat(0, max_tokens=64, ignore_eos=False)).status_code == 200
        shared = [gate._ledger.lengths for gate in stand.gates if gate._ledger is not None]
        lengths = [gate.gate.learned.lengths for gate in stand.gates]
        await stand.until(lambda: lengths[0].answers > 2)
        await shared[0].notes.exchange()
        await shared[1].notes.exchange()
        assert abs(lengths[1].answers - lengths[0].answers) < 0.05

    play(scene, config={"policy": Policy.LEARNED})


def test_who_is_told_by_one_gate_to_come_back_is_known_at_the_other() -> None:
    async def scene(stand: Stand) -> None:
        shared = [gate._ledger.returns for gate in stand.gates if gate._ledger is not None]
        one, other = [gate.gate.returns for gate in stand.gates]
        held = [asyncio.create_task(stand.chat(gate, 448)) for gate in (0, 1)]
        await stand.until(lambda: sum(stand.promised()) > POOL // 2)
        refused = await stand.clients[0].post(
            "/v1/completions",
            json={"model": "embedded", "prompt": "hi", "max_tokens": 450, "ignore_eos": True},
            headers={"x-kvbudget-deadline-ms": "50"},
        )
        assert refused.status_code in (429, 503)
        told = one.told_here(9, time.monotonic_ns())
        assert len(told) == 1
        for notes in (shared[0].notes, shared[1].notes):
            await notes.exchange()
        assert other.state[1] == 1
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    play(scene, step_s=0.05, config={"policy": Policy.LEARNED})


def test_two_engines_behind_two_gates_are_two_pools() -> None:
    async def run() -> None:
        ledgers = {name: Ledger() for name in ("a", "b")}

        class Both(Store):
            def of(self, pool: str) -> Ledger:
                return ledgers[pool]

        pool = EngineSettings(num_blocks=POOL + 1, block_size=16, max_model_len=1024, step_cost_s=0.002)
        engines = [await start_engine(pool) for _ in range(2)]
        instances = tuple(InstanceSettings(engine.url, name) for engine, name in zip(engines, "ab", strict=True))
        settings = ServiceSettings(
            "", instances=instances, port=0, admin_port=0,
            gate=GateConfig(policy=Policy.WORST_CASE, abort_tail_ns=0, queue_tokens=Tokens(10**6)),
        )  # fmt: skip
        services = []
        for _ in range(2):
            store = Both(ledgers["a"])
            services.append(await start_service(settings, store=store))
            for ledger in ledgers.values():
                ledger.stores.append(store)
        async with httpx.AsyncClient(timeout=30) as client:
            ask = {"model": "embedded", "prompt": "hi", "ignore_eos": True}
            answers = await asyncio.gather(
                *[client.post(f"{services[n % 2].url}/v1/completions", json={**ask, "max_tokens": 20 + 31 * n % 700})
                  for n in range(40)]
            )  # fmt: skip
        assert {answer.status_code for answer in answers} == {200}
        for service in services:
            await service.close()
        for engine in engines:
            await engine.close()
        assert [ledger.bank.granted(BLOCKS) for ledger in ledgers.values()] == [0, 0]
        assert min(ledger.calls for ledger in ledgers.values()) > 4

    asyncio.run(run())
