"""The plan, the engine and the gate know one and the same pool."""

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import Engine, Gate

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

PLAN_FLAGS = ("--num-gpu-blocks-override=65", "--block-size=32", "--max-model-len=1024", "--json")


@pytest.fixture
def plan(model: "Path", kvbudget: "Path") -> dict[str, dict[str, float]]:
    """What `kvbudget plan` computes from the model's config.json and the engine's flags."""
    done = subprocess.run(
        [kvbudget, "plan", model, *PLAN_FLAGS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, dict[str, float]] = json.loads(done.stdout)
    return document


def test_the_plan_computes_the_pool_that_the_engine_reports(
    vllm: "Engine", plan: dict[str, dict[str, float]], figures: list[str]
) -> None:
    engine = vllm.cache_config()
    assert plan["pool"]["num_blocks"] == int(engine["num_gpu_blocks"])
    assert plan["pool"]["tokens"] == int(engine["kv_cache_size_tokens"])
    assert plan["concurrency"]["at_max_model_len"] == pytest.approx(float(engine["kv_cache_max_concurrency"]), abs=1e-9)
    assert plan["engine"]["block_size"] == int(engine["block_size"])
    figures.append(
        f"pool: {engine['num_gpu_blocks']} blocks, {engine['kv_cache_size_tokens']} tokens, "
        f"concurrency {engine['kv_cache_max_concurrency']} in the plan and in vllm:cache_config_info"
    )


def test_the_gate_takes_its_pool_from_the_engine(gate: "Gate", plan: dict[str, dict[str, float]]) -> None:
    usable = plan["pool"]["usable_blocks"]
    assert usable == 64
    assert gate.metric("pool_blocks") == usable
    pool = gate.state()["pool"]
    assert (pool["usable_blocks"], pool["block_size"], pool["max_context"]) == (usable, 32, 1024)


def test_the_engine_prints_the_plan_s_numbers_in_its_log(vllm: "Engine", plan: dict[str, dict[str, float]]) -> None:
    written = vllm.output.read_text(errors="replace") + vllm.log.read_text(errors="replace")
    assert f"KV cache size: {plan['pool']['tokens']:,} tokens" in written
    assert f"{plan['concurrency']['at_max_model_len']:.2f}x" in written
