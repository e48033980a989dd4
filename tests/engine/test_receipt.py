"""A real engine's start-up log and /metrics, read by us, against what it says of itself."""

from typing import Any

import pytest

from kvbudget.edge.budget.report import text_of
from kvbudget.engines.logs.read import receipt_of_text

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def test_log_and_metrics_of_one_start_tell_the_same_pool(vllm: Any) -> None:
    labels = vllm.cache_config()
    log, metrics = receipt_of_text(text_of(str(vllm.output))), receipt_of_text(text_of(vllm.url))
    assert (log.engine, metrics.engine) == ("vllm", "vllm")
    assert log.version is not None
    assert log.version.startswith("0.32")
    assert str(log.num_blocks) == str(metrics.num_blocks) == labels["num_gpu_blocks"]
    assert str(log.tokens) == str(metrics.tokens) == labels["kv_cache_size_tokens"]
    assert log.block_size == metrics.block_size == 32
    assert log.max_model_len == metrics.max_model_len == 1024
    assert metrics.concurrency is not None
    assert log.concurrency == pytest.approx(metrics.concurrency, abs=0.005)
    assert log.blocks_given is True
    assert log.kv_bytes == 1 << 30  # VLLM_CPU_KVCACHE_SPACE=1
