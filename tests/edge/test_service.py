"""Whose word decides how large the pool is, and by which groups requests are charged."""

import asyncio
import logging
from dataclasses import replace

import pytest

from kvbudget.edge.service import GateService, ServiceSettings, _usable_blocks, _why_unusable
from kvbudget.engines.vllm_metrics import EnginePool
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.pool.ledger import Ledger
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

    with caplog.at_level(logging.WARNING, "kvbudget.service"):
        assert asyncio.run(looks()).gate.ledger.usable_blocks == 512
    warned = [record.getMessage() for record in caplog.records if "fewer than" in record.getMessage()]
    assert [text.split()[3] for text in warned] == ["512", "400", "512"]
    assert "512 usable blocks, fewer than the 1000" in warned[0]


def test_the_log_says_the_blocks_that_requests_are_charged_by(caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> None:
        service = GateService(ServiceSettings("http://127.0.0.1:1", pool_blocks=98, layout=HYBRID))
        pool = engine_pool(512, single_group=True)
        service._looked(replace(service.backend.facts, up=True, pool=pool, max_context=Tokens(4096)))

    with caplog.at_level(logging.INFO, "kvbudget.service"):
        asyncio.run(look())
    assert "pool: 98 usable blocks of 16 and 32 tokens (2 groups of caches), context 4096" in caplog.text


def test_what_was_told_wins_over_a_larger_pool_and_stands_alone_when_the_engine_is_silent() -> None:
    assert _usable_blocks(400, engine_pool(512, single_group=True)) == 400
    assert _usable_blocks(400, None) == 400
    assert _usable_blocks(None, engine_pool(512, single_group=True)) == 512
    assert _usable_blocks(None, None) is None


def test_an_engine_with_several_groups_needs_the_budget_that_knows_them() -> None:
    pool = engine_pool(512, single_group=False)
    assert "--config" in _why_unusable(pool, None)
    assert _why_unusable(pool, HYBRID) == ""


def test_requests_are_charged_by_the_groups_of_the_budget() -> None:
    async def ledger_of() -> Ledger:
        return GateService(ServiceSettings("http://127.0.0.1:1", layout=HYBRID, pool_blocks=1000)).gate.ledger

    ledger = asyncio.run(ledger_of())
    # 8,192 tokens: 256 blocks of 32, and the window's 3,071 tokens in 192 blocks of 16, and one more
    assert ledger.layout.blocks_for(8192) == 256 + 193
    assert ledger.usable_blocks == 1000
