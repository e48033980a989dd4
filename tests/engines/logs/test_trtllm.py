"""Start-up logs of TensorRT-LLM, C++ and PyTorch flow."""

import pytest

from kvbudget.engines.logs.read import receipt_of_log
from kvbudget.units import GIB

LOG = """\
[TensorRT-LLM] TensorRT-LLM version: 1.0.0
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.54 GiB for max tokens in paged KV cache (16576).
[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: \
14.99 GiB
[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 65 [window size=2051], tokens per block=32, \
primary blocks=4352, secondary blocks=0
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 17.02 GiB for max tokens in paged KV cache (139264).
[02/14/2025-09:38:53] [TRT-LLM] [I] max_seq_len=131072, max_num_requests=2048, max_num_tokens=8192
"""


def test_the_pool_that_was_only_made_to_measure_does_not_count() -> None:
    receipt = receipt_of_log(LOG)
    assert (receipt.engine, receipt.version) == ("trtllm", "1.0.0")
    assert (receipt.tokens, receipt.num_blocks, receipt.block_size) == (139264, 4352, 32)
    assert receipt.kv_bytes == pytest.approx(17.02 * GIB, abs=1)
    assert receipt.weights_bytes == pytest.approx(14.99 * GIB, abs=1)
    assert (receipt.max_model_len, receipt.max_num_seqs) == (131072, 2048)


def test_the_old_wording_gives_bytes_and_tokens() -> None:
    receipt = receipt_of_log(
        "[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache. \n"
        "[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.\n"
    )
    assert (receipt.kv_bytes, receipt.tokens) == (69524783104, 132608)


def test_the_c_flow_tells_blocks_and_free_memory() -> None:
    receipt = receipt_of_log(
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 39.39 GiB, available: "
        "21.89 GiB\n[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 631\n"
    )
    assert receipt.num_blocks == 631
    assert receipt.total_bytes == pytest.approx(39.39 * GIB, abs=1)
    assert receipt.free_bytes == pytest.approx(21.89 * GIB, abs=1)
