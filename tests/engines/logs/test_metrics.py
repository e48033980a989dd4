"""Receipts from /metrics."""

import pytest

from kvbudget.engines.logs.metrics import labels_of, receipt_of_metrics
from kvbudget.errors import BadValueError, UnsupportedError

VLLM = (
    "# HELP vllm:cache_config_info Information\n# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="32",'
    'cache_dtype="auto",engine="%d",gpu_memory_utilization="0.92",kv_cache_max_concurrency="2.03125",'
    'kv_cache_size_tokens="2080",num_gpu_blocks="%d",num_gpu_blocks_override="None"} 1.0\n'
)


def test_vllm_tells_blocks_tokens_and_the_longest_request() -> None:
    receipt = receipt_of_metrics(VLLM % (0, 65))
    assert (receipt.engine, receipt.num_blocks, receipt.block_size) == ("vllm", 65, 32)
    assert (receipt.tokens, receipt.concurrency, receipt.max_model_len) == (2080, 2.03125, 1024)
    assert dict(receipt.flags)["gpu_memory_utilization"] == "0.92"


def test_of_data_parallel_engines_the_smallest_pool_is_told() -> None:
    assert receipt_of_metrics(VLLM % (0, 80) + VLLM % (1, 65)).num_blocks == 65


@pytest.mark.parametrize(
    ("text", "engine", "tokens"),
    [
        ('sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 46611.0\n', "sglang", 46611),
        ("tgi_batch_max_total_tokens 19056\n", "tgi", 19056),
        ("trtllm_kv_cache_max_blocks 631.0\ntrtllm_kv_cache_tokens_per_block 64.0\n", "trtllm", 40384),
    ],
)
def test_other_engines_tell_what_they_have(text: str, engine: str, tokens: int) -> None:
    receipt = receipt_of_metrics(text)
    assert (receipt.engine, receipt.tokens) == (engine, tokens)


def test_an_engine_that_tells_nothing_of_a_pool_is_said() -> None:
    with pytest.raises(UnsupportedError, match="no metric here"):
        receipt_of_metrics("llamacpp:requests_processing 1\n")


def test_a_damaged_line_is_an_error_of_input() -> None:
    with pytest.raises(BadValueError, match="line 1"):
        receipt_of_metrics("tgi_batch_max_total_tokens\n")


def test_labels_may_hold_quotes_commas_and_braces() -> None:
    assert labels_of('m{a="x,}\\"y\\\\",b="1\\n2"} 1') == {"a": 'x,}"y\\', "b": "1\n2"}
    assert labels_of('m{a="never closed') == {}
