"""A real Prometheus scrapes our gate and its embedded engine under load: every panel of the gate has data."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from kvbudget.edge.engine.server import start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.service import GateService, ServiceSettings, start_service
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.report.monitoring.files import GROUPS
from kvbudget.report.monitoring.gate_panels import GATE_BOARD
from kvbudget.report.monitoring.rule_files import RULES_FILE, rules_text
from kvbudget.report.monitoring.stack import scrape_configs
from prometheus import empty_panels, running_prometheus

SCRAPES = 5
CLIENTS = 16
RATE_INTERVAL = "5s"
# Findings and the forecast need minutes of history; their panels are checked where the gate told of them in time.
LATER = (
    "kvbudget_finding",
    "kvbudget_demand_tokens",
    "kvbudget_forecast_alarm",
    "kvbudget_forecast_demand_tokens",
    "kvbudget_forecast_saturation_probability",
)


@asynccontextmanager
async def gate_under_load() -> AsyncIterator[GateService]:
    """A pool of 64 blocks, a queue of 6 requests, and more clients than both take."""
    engine = await start_engine(EngineSettings(num_blocks=65, max_model_len=512, step_cost_s=0.005))
    settings = ServiceSettings(
        engine.url,
        port=0,
        admin_port=0,
        gate=GateConfig(policy=Policy.TRAJECTORY, queue_requests=6, max_num_seqs=32),
    )
    service = await start_service(settings)
    try:
        async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:
            clients = [asyncio.create_task(_client(http, number)) for number in range(CLIENTS)]
            try:
                yield service
            finally:
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)
    finally:
        await service.close()
        await engine.close()


async def _client(http: httpx.AsyncClient, number: int) -> None:
    """One after the other; a tenth is too long for any pool. Who is refused comes back soon."""
    for turn in range(10_000):
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"{number} {turn} " + "words " * (20 + 7 * (turn % 5))}],
            "max_tokens": 9999 if turn % 10 == 9 else 60,
            "stream": turn % 2 == 0,
        }
        headers = {"x-kvbudget-tenant": f"tenant-{number % 3}"}
        answer = await http.post("/v1/chat/completions", json=body, headers=headers)
        await asyncio.sleep(0.05 if answer.status_code == 429 else 0)


@pytest.mark.timeout(120)
def test_no_panel_of_the_gate_is_empty_and_every_rule_can_be_computed(tmp_path: Path) -> None:
    async def run() -> Looked:
        async with gate_under_load() as service:
            loop = asyncio.get_running_loop()
            service.gateway.set_shadow(True)

            def leave_shadow() -> None:
                loop.call_soon_threadsafe(service.gateway.set_shadow, False)

            engines = {"static_configs": [{"targets": [_address(service.backend.url)]}]}
            config = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [RULES_FILE],
                "scrape_configs": scrape_configs([_address(service.admin_url)], engines),
            }
            (tmp_path / RULES_FILE).write_text(rules_text(GROUPS, "runbooks"))
            return await asyncio.to_thread(_look, tmp_path, config, leave_shadow)

    looked = asyncio.run(run())
    assert looked.empty == []
    assert looked.broken == []
    assert looked.engines == looked.gates == 1.0
    assert "KvbudgetScrapeLabels" not in looked.alerts


class Looked(NamedTuple):
    """Panels without data, rules that cannot be computed, how many engines the gate's gauges tell apart, alerts."""

    empty: list[str]
    broken: list[str]
    engines: float
    gates: float
    alerts: list[str]


def _look(folder: Path, config: dict[str, Any], leave_shadow: Callable[[], object]) -> Looked:
    """`leave_shadow`: from then on the gate refuses."""
    with running_prometheus(folder, config) as prometheus:
        prometheus.wait_for(f"min(count_over_time(kvbudget_pool_blocks[1m])) >= {SCRAPES}")
        prometheus.wait_for("kvbudget_shadow_refusals_total > 0")
        leave_shadow()
        prometheus.wait_for('sum(rate(kvbudget_refusals_total{reason="queue_full"}[5s])) > 0')
        prometheus.wait_for(f"min(count_over_time(vllm:num_requests_running[1m])) >= {SCRAPES}")
        prometheus.wait_for('ALERTS{alertname="KvbudgetRefusing", alertstate="pending"}')
        later = {name for name in LATER if not prometheus.ask(name)}
        empty = empty_panels(
            prometheus, GATE_BOARD, RATE_INTERVAL, absent=later, truly_zero={"vllm:prefix_cache_hits_total"}
        )  # the embedded engine has no prefix cache
        rules = prometheus.rules()
        return Looked(
            empty,
            [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] == "err"],
            prometheus.ask("count(kvbudget_pool_blocks)")[0][1],
            prometheus.ask("count(count by (gate) (kvbudget_pool_blocks))")[0][1],
            [rule["name"] for rule in rules if rule.get("state", "inactive") != "inactive"],
        )


def _address(url: str) -> str:
    return url.removeprefix("http://")
