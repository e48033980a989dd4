"""Whose word decides how large the pool is, and by which groups requests are charged."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvbudget.edge.instances.instance import usable_blocks, why_unusable
from kvbudget.edge.instances.scrape import EngineReading
from kvbudget.edge.service import GateService, ServiceSettings
from kvbudget.engines.vllm_metrics import EnginePool
from kvbudget.gate.events import PoolHeld, Preempted
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.pool.ledger import Ledger
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Bytes, Tokens

HYBRID = Layout(
    (
        Group(LayerKind.FULL, 5, Tokens(32), Bytes(131072)),
        Group(LayerKind.SLIDING, 5, Tokens(16), Bytes(131072), most_tokens=Tokens(3071), extra_blocks=Blocks(1)),
    )
)


def engine_pool(usable: int, *, single_group: bool | None) -> EnginePool:
    return EnginePool(Blocks(usable + 1), Blocks(usable), Tokens(16), None, None, None, None, single_group, True)


def test_the_engine_s_smaller_pool_wins_over_what_a_budget_hoped_for_and_is_said_once_for_each_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def looks() -> GateService:
        service = GateService(ServiceSettings("http://127.0.0.1:1", pool_blocks=1000))
        for usable in (512, 512, 512, 400, 1000, 512):
            pool = engine_pool(usable, single_group=True)
            service._looked(replace(service.backend.facts, up=True, pool=pool, max_context=Tokens(4096)))
        return service

    with caplog.at_level(logging.WARNING, "kvbudget.instance"):
        assert asyncio.run(looks()).gate.ledger.usable_blocks == 512
    warned = [record.getMessage() for record in caplog.records if "fewer than" in record.getMessage()]
    assert [text.split()[3] for text in warned] == ["512", "400", "512"]
    assert "512 usable blocks, fewer than the 1000" in warned[0]


def test_the_log_says_the_blocks_that_requests_are_charged_by(caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> None:
        service = GateService(ServiceSettings("http://127.0.0.1:1", pool_blocks=98, layout=HYBRID))
        pool = engine_pool(512, single_group=True)
        service._looked(replace(service.backend.facts, up=True, pool=pool, max_context=Tokens(4096)))

    with caplog.at_level(logging.INFO, "kvbudget.instance"):
        asyncio.run(look())
    assert "pool: 98 usable blocks of 16 and 32 tokens (2 groups of caches), context 4096" in caplog.text


def test_what_was_told_wins_over_a_larger_pool_and_stands_alone_when_the_engine_is_silent() -> None:
    assert usable_blocks(400, engine_pool(512, single_group=True)) == 400
    assert usable_blocks(400, None) == 400
    assert usable_blocks(None, engine_pool(512, single_group=True)) == 512
    assert usable_blocks(None, None) is None


def test_an_engine_with_several_groups_needs_the_budget_that_knows_them() -> None:
    pool = engine_pool(512, single_group=False)
    assert "--config" in why_unusable(pool, None)
    assert why_unusable(pool, HYBRID) == ""


def test_requests_are_charged_by_the_groups_of_the_budget() -> None:
    async def ledger_of() -> Ledger:
        return GateService(ServiceSettings("http://127.0.0.1:1", layout=HYBRID, pool_blocks=1000)).gate.ledger

    ledger = asyncio.run(ledger_of())
    # 8,192 tokens: 256 blocks of 32, and the window's 3,071 tokens in 192 blocks of 16, and one more
    assert ledger.layout.blocks_for(8192) == 256 + 193
    assert ledger.usable_blocks == 1000


def only(kind: type[Any], told: list[int]) -> Callable[[object, Any], None]:
    """Notes the figure of events of one kind."""

    def push(member: object, event: Any) -> None:
        if type(event) is kind:
            told.append(getattr(event, "requests" if kind is Preempted else "blocks"))

    return push


def test_the_gate_hears_of_preemptions_since_the_last_look_and_of_none_that_were_there_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []

    async def looks() -> None:
        service = GateService(ServiceSettings("http://127.0.0.1:1", pool_blocks=512, block_size=16))
        monkeypatch.setattr(service.instances[0], "push", only(Preempted, told))
        for count in (5, 5, 7, None, 7, 2, 0, 0):  # 2: the engine was restarted
            reading = None if count is None else EngineReading(None, None, None, None, count)
            service._looked(replace(service.backend.facts, up=True, reading=reading))

    asyncio.run(looks())
    assert told == [2, 2]


def test_the_gate_hears_what_the_engine_holds_only_from_a_gauge_that_is_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    engine = engine_pool(200, single_group=True)

    async def looks() -> None:
        service = GateService(ServiceSettings("http://127.0.0.1:1", pool_blocks=100, block_size=16))
        monkeypatch.setattr(service.instances[0], "push", only(PoolHeld, told))

        def look(pool: EnginePool | None, usage: float | None, running: int | None) -> None:
            reading = EngineReading(pool, usage, running, 0, 0)
            service._looked(replace(service.backend.facts, up=True, reading=reading))

        ledger = service.gate.ledger
        for name in "ab":
            ledger.reserve(name, "t", Footprint((Tokens(16),), Tokens(16)), paced=True, now_ns=0)
        look(engine, 0.5, 2)  # nobody was seen to run yet
        for name in "ab":
            ledger.progress(name, 1, 1)
        look(engine, 0.5, 1)  # of before, or of an engine that was restarted
        look(None, 0.5, 2)  # it does not tell how large its pool is
        look(engine, None, 2)
        look(engine, 0.5, None)
        assert told == []
        look(engine, 0.5, 2)
        look(engine, 0.25, 7)

    asyncio.run(looks())
    assert told == [100, 50]  # of the pool that the engine has, not of the part that we use


@pytest.mark.parametrize(
    ("sharing", "assumed", "told", "given"),
    [
        (Sharing.COMPUTED, False, True, True),
        (Sharing.COMPUTED, False, False, False),
        (Sharing.COMPUTED, False, None, False),
        (Sharing.SCHEDULED, True, None, True),
        (Sharing.SCHEDULED, True, False, False),
        (Sharing.OFF, True, True, False),
    ],
)
def test_prompts_are_credited_where_the_engine_or_the_operator_says_that_it_shares(
    sharing: Sharing, assumed: bool, told: bool | None, given: bool
) -> None:
    async def credited() -> bool:
        settings = ServiceSettings(
            "http://127.0.0.1:1", pool_blocks=100, gate=GateConfig(sharing=sharing), prefix_cache_assumed=assumed
        )
        service = GateService(settings)
        pool = engine_pool(200, single_group=True)._replace(prefix_caching=told)
        service._looked(replace(service.backend.facts, up=True, pool=pool))
        return service.gateway.prefix_credit

    assert asyncio.run(credited()) is given


@pytest.mark.parametrize(("policy", "times"), [(Policy.LEARNED, 1), (Policy.TRAJECTORY, 0)])
def test_an_engine_that_hides_its_preemptions_is_said_once_where_they_matter(
    policy: Policy, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def looks() -> None:
        settings = ServiceSettings("http://127.0.0.1:1", pool_blocks=100, gate=GateConfig(policy=policy))
        service = GateService(settings)
        for reading in (None, *[EngineReading(None, None, None, None, None)] * 3):
            service._looked(replace(service.backend.facts, up=True, reading=reading))

    asyncio.run(looks())
    assert caplog.text.count("does not tell its preemptions") == times


def test_a_preemption_makes_the_learned_policy_more_careful() -> None:
    async def caution() -> float:
        service = GateService(ServiceSettings("http://127.0.0.1:1", pool_blocks=512, block_size=16))
        service.gateway.push(Preempted(None, 3))
        return service.gate.learned.margin.added

    assert asyncio.run(caution()) > 0
