"""Start-up logs of SGLang; lines as in public issues and repositories."""

import pytest

from kvbudget.engines.logs.read import receipt_of_log
from kvbudget.units import GIB

LOG = """\
[2025-03-08 12:28:50] server_args=ServerArgs(model_path='Qwen/Qwen2.5-32B', tp_size=2, mem_fraction_static=0.85, \
page_size=1, context_length=None, api_key='secret', kv_cache_dtype='auto')
[2025-03-08 12:29:01 TP0] Init torch distributed ends. mem usage=0.21 GB
[2025-03-08 12:29:02 TP0] Load weight begin. avail mem=21.63 GB
[2025-03-08 12:29:21 TP1] Load weight end. type=Qwen2ForCausalLM, avail mem=6.09 GB, mem usage=15.54 GB.
[2025-03-08 12:29:21 TP0] Load weight end. type=Qwen2ForCausalLM, avail mem=6.09 GB, mem usage=15.54 GB.
[2025-03-08 12:29:21 TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB
[2025-03-08 12:29:21 TP1] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB
[2025-03-08 12:29:21 TP0] Memory pool end. avail mem=2.09 GB
[2025-03-08 12:29:41 TP0] Capture cuda graph end. Time elapsed: 5.37 s. mem usage=1.44 GB. avail mem=0.65 GB.
[2025-03-08 12:29:42 TP0] max_total_num_tokens=46611, chunked_prefill_size=2048, max_prefill_tokens=16384, \
max_running_requests=2049, context_len=32768, available_gpu_mem=0.65 GB
"""


def test_the_pool_its_bytes_and_limits_are_read() -> None:
    receipt = receipt_of_log(LOG)
    assert (receipt.engine, receipt.model, receipt.ranks) == ("sglang", "Qwen/Qwen2.5-32B", 2)
    assert (receipt.tokens, receipt.max_model_len, receipt.max_num_seqs) == (46611, 32768, 2049)
    assert receipt.kv_bytes == pytest.approx(2.84 * GIB, abs=4)
    assert receipt.weights_bytes == pytest.approx(15.54 * GIB, abs=1)
    assert receipt.cuda_graphs_bytes == pytest.approx(1.44 * GIB, abs=1)
    assert (receipt.block_size, receipt.num_blocks, receipt.graphs_counted) == (1, 46611, False)
    assert "secret" not in str(receipt)


def test_states_and_further_caches_of_a_rank_add_up() -> None:
    receipt = receipt_of_log(
        "[2026-09-09 11:57:18] Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state size: 0.09GB, "
        "ssm_state size: 6.46GB\n"
        "[2026-09-09 11:57:18] KV Cache is allocated. #tokens: 2618868, K size: 19.98 GB, V size: 19.98 GB\n"
    )
    assert receipt.kv_bytes == pytest.approx((0.09 + 6.46 + 2 * 19.98) * GIB, abs=8)
    assert receipt.tokens == 2618868


def test_an_address_range_is_no_memory() -> None:
    receipt = receipt_of_log(
        "[kvcached][INFO] VirtualKV Cache is allocated. #tokens: 248479, K size: 7.99 GB, V size: 7.99 GB\n"
        "[2025-09-04 10:00:00] KV Cache is allocated. #tokens: 1000, K size: 1.00 GB, V size: 1.00 GB\n"
    )
    assert (receipt.tokens, receipt.kv_bytes) == (1000, 2 * GIB)


def test_too_little_memory_is_a_refusal() -> None:
    receipt = receipt_of_log(f"{LOG}RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n")
    assert receipt.refusal == "Not enough memory. Please try to increase --mem-fraction-static."
