"""Start-up logs of vLLM. Lines shortened from a run of 0.32 on CPU, and figures from public issues."""

import pytest

from kvbudget.engines.logs.read import receipt_of_log
from kvbudget.engines.logs.receipt import Receipt
from kvbudget.units import GIB

CPU_0_32 = """\
(APIServer pid=17361) INFO 11-29 20:15:11 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0
(APIServer pid=17361) INFO 11-29 20:15:11 [api_utils.py:347]   █▄█▀ █     █     █     █  model   /models/tiny-llama
(APIServer pid=17361) INFO 11-29 20:15:11 [api_utils.py:286] non-default args: {'model_tag': '/models/tiny-llama', \
'host': '127.0.0.1', 'api_key': ['secret'], 'dtype': 'bfloat16', 'max_model_len': 1024, 'enforce_eager': True, \
'served_model_name': ['tiny'], 'block_size': 32, 'num_gpu_blocks_override': 65}
(APIServer pid=17361) INFO 11-29 20:15:11 [model.py:2152] Using max model len 1024
(EngineCore pid=17371) INFO 11-29 20:15:17 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
model='/models/tiny-llama', speculative_config=None, dtype=torch.bfloat16, max_seq_len=1024, tensor_parallel_size=1, \
pipeline_parallel_size=1, quantization=None, enforce_eager=True, kv_cache_dtype=auto, enable_prefix_caching=True
(Worker pid=17379) INFO 11-29 20:15:24 [weight_utils.py:1108] Checkpoint size: 0.01 GiB. Available RAM: 20.52 GiB.
(Worker pid=17379) INFO 11-29 20:15:25 [cpu_worker.py:260] Explicitly set (1.0/10.59) GiB for KV cache on node 0.
(EngineCore pid=17371) INFO 11-29 20:15:25 [kv_cache_utils.py:2619] Overriding num_gpu_blocks=16384 with \
num_gpu_blocks_override=65
(EngineCore pid=17371) INFO 11-29 20:15:25 [kv_cache_utils.py:2327] CPU KV cache size: 2,080 tokens, Maximum \
concurrency for 1,024 tokens per request: 2.03x
"""
V0 = """\
INFO 03-21 20:15:40 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.1) with config: model='m', \
max_seq_len=2048, tensor_parallel_size=2, pipeline_parallel_size=1
(VllmWorkerProcess pid=507) INFO 03-21 20:15:45 [worker.py:267] Memory profiling takes 34.26 seconds
(VllmWorkerProcess pid=507) INFO 03-21 20:15:45 [worker.py:267] the current vLLM instance can use total_gpu_memory \
(79.19GiB) x gpu_memory_utilization (0.90) = 71.27GiB
(VllmWorkerProcess pid=507) INFO 03-21 20:15:45 [worker.py:267] model weights take 12.55GiB; non_torch_memory takes \
0.16GiB; PyTorch activation peak memory takes 2.38GiB; the rest of the memory reserved for KV Cache is 56.18GiB.
INFO 03-21 20:15:45 [worker.py:267] model weights take 12.55GiB; non_torch_memory takes 0.36GiB; PyTorch activation \
peak memory takes 2.38GiB; the rest of the memory reserved for KV Cache is 55.98GiB.
INFO 03-21 20:15:46 [executor_base.py:111] # cuda blocks: 7191, # CPU blocks: 512
INFO 03-21 20:15:46 [executor_base.py:116] Maximum concurrency for 2048 tokens per request: 56.18x
INFO 03-21 20:16:06 [model_runner.py:1570] Graph capturing finished in 20 secs, took 0.91 GiB
"""


def gib(amount: float) -> int:
    return round(amount * GIB)


def test_the_log_of_0_32_tells_version_model_flags_and_pool() -> None:
    receipt = receipt_of_log(CPU_0_32)
    assert (receipt.engine, receipt.version, receipt.model) == ("vllm", "0.32.0", "/models/tiny-llama")
    assert (receipt.num_blocks, receipt.block_size, receipt.blocks_given) == (65, 32, True)
    assert (receipt.tokens, receipt.concurrency, receipt.max_model_len) == (2080, 2.03, 1024)
    assert receipt.kv_bytes == GIB
    assert dict(receipt.flags)["max_model_len"] == "1024"
    assert receipt.graphs_counted is True


def test_each_value_says_which_line_told_it() -> None:
    receipt = receipt_of_log(CPU_0_32)
    lines = {told.field: told.line for told in receipt.told}
    assert CPU_0_32.splitlines()[lines["tokens"] - 1].endswith("per request: 2.03x")


def test_a_secret_among_the_arguments_is_not_kept() -> None:
    assert "secret" not in str(receipt_of_log(CPU_0_32))


def test_the_tightest_rank_sizes_the_pool_of_v0() -> None:
    receipt = receipt_of_log(V0)
    assert receipt.kv_bytes == pytest.approx(gib(55.98), abs=1)
    assert receipt.kv_bytes_most == pytest.approx(gib(56.18), abs=1)
    assert receipt.weights_bytes == pytest.approx(gib(12.55), abs=1)
    assert receipt.non_torch_bytes == pytest.approx(gib(0.36), abs=1)  # of the fullest rank
    assert receipt.activation_bytes == pytest.approx(gib(2.38), abs=1)
    assert receipt.total_bytes == pytest.approx(gib(79.19), abs=1)
    assert receipt.cuda_graphs_bytes == pytest.approx(gib(0.91), abs=1)
    assert (receipt.num_blocks, receipt.ranks, receipt.version, receipt.graphs_counted) == (7191, 2, "0.8.1", False)


def test_the_peak_of_torch_in_0_6_2_gives_the_activation() -> None:
    receipt = receipt_of_log(
        "INFO 11-21 worker.py:232] Loading model weights took 14.9888 GB\n"
        "INFO 11-21 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB "
        "peak_torch_memory=17.06GiB memory_usage_post_profile=15.53GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB "
        "gpu_memory_utilization=0.90\nINFO gpu_executor.py:122] # GPU blocks: 1952, # CPU blocks: 2048\n"
    )
    assert receipt.num_blocks == 1952
    assert receipt.kv_bytes == pytest.approx(gib(3.81), abs=1)
    assert receipt.activation_bytes == pytest.approx(gib(17.06 - 14.9888), abs=2)


def test_0_6_4_told_the_same_on_lines_of_their_own() -> None:
    receipt = receipt_of_log(
        "INFO 12-13 19:54:18 worker.py:243] model weights take\t14.96GiB\n"
        "INFO 12-13 19:54:18 worker.py:243] non_torch_memory\t1.79GiB\n"
        "INFO 12-13 19:54:18 worker.py:243] PyTorch activation peak memory\t1.26GiB\n"
        "INFO 12-13 19:54:18 worker.py:243] available_kv_cache_memory\t53.29GiB\n"
    )
    assert receipt.kv_bytes == pytest.approx(gib(53.29), abs=1)
    assert receipt.non_torch_bytes == pytest.approx(gib(1.79), abs=1)


def test_ranks_that_write_at_once_are_told_apart() -> None:
    receipt = receipt_of_log(
        "(Worker_TP0 pid=92375) INFO [gpu_model_runner.py:4960] Model loading took 15.26 GiB memory and 23.1 seconds\n"
        "(Worker_TP1 pid=92376) INFO [gpu_model_runner.py:4960] Model loading took 15.20 GiB memory and 23.4 seconds\n"
        "(Worker_TP0 pid=92375) INFO [interface.py:645] Setting attention block size to 544 tokens to ensure that\n"
        "(Worker_TP1 pid=92376) INFO [gpu_worker.py:349] Available KV cache memory: 2.44 GiB\n"
        "(Worker_TP0 pid=92375) INFO [gpu_worker.py:349] Available KV cache memory: 2.30 GiB\n"
        "(EngineCore_DP0 pid=26283) INFO [kv_cache_utils.py:1229] GPU KV cache size: 75,840 tokens\n"
        "(EngineCore_DP0 pid=26283) INFO [utils.py:1234] Maximum concurrency for 120,000 tokens per request: 2.48x\n"
    )
    assert receipt.kv_bytes == pytest.approx(gib(2.30), abs=1)
    assert receipt.kv_bytes_most == pytest.approx(gib(2.44), abs=1)
    assert receipt.weights_bytes == pytest.approx(gib(15.26), abs=1)
    assert (receipt.tokens, receipt.concurrency, receipt.max_model_len, receipt.block_size) == (
        75840,
        2.48,
        120000,
        544,
    )
    assert receipt.ranks == 2


def test_memory_that_was_in_use_before_is_seen() -> None:
    receipt = receipt_of_log(
        "(Worker pid=1) INFO [worker.py:575] Free memory on device (60.86/61.27 GiB) on startup. Desired GPU memory "
        "utilization is (0.9, 55.14 GiB). Actual usage is 1.14 GiB for weight, 0.22 GiB for peak activation, 0.13 GiB "
        "for non-torch memory, and 0.04 GiB for CUDAGraph memory.\n"
        "(EngineCore pid=1) INFO [kv_cache_utils.py:1229] GPU KV cache size: 75,840 tokens\n"
    )
    assert [receipt.free_bytes, receipt.total_bytes] == pytest.approx([gib(60.86), gib(61.27)], abs=1)
    assert receipt.usable_bytes == pytest.approx(gib(55.14), abs=1)
    assert receipt.activation_bytes == pytest.approx(gib(0.22), abs=1)
    assert receipt.non_torch_bytes == pytest.approx(gib(0.13), abs=1)


@pytest.mark.parametrize(
    ("line", "begins", "field", "value"),
    [
        (
            "ValueError: To serve at least one request with the models's max seq len (221000), (10.12 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (5.59 GiB). Based on the available memory, the "
            "estimated maximum model length is 122080. Try increasing `gpu_memory_utilization`.",
            "To serve at least one request",
            "estimated_max_model_len",
            122080,
        ),
        (
            "ValueError: The model's max seq len (20000) is larger than the maximum number of tokens that can be "
            "stored in KV cache (16528). Try increasing `gpu_memory_utilization`",
            "The model's max seq len",
            "tokens",
            16528,
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing",
            "No available memory",
            "kv_bytes",
            None,
        ),
    ],
)
def test_a_refusal_to_start_is_told_with_its_numbers(line: str, begins: str, field: str, value: int | None) -> None:
    receipt = receipt_of_log(f"vLLM API server version 0.11.0\n(EngineCore_DP0 pid=7) ERROR 09-21 [core.py:708] {line}")
    assert receipt.refusal is not None
    assert receipt.refusal.startswith(begins)
    assert getattr(receipt, field) == value


def test_of_two_starts_in_one_log_the_last_counts() -> None:
    second = CPU_0_32.replace("2,080 tokens", "4,160 tokens").replace("override=65", "override=130")
    receipt = receipt_of_log(CPU_0_32 + "some crash\n" + second)
    assert (receipt.tokens, receipt.num_blocks, receipt.version) == (4160, 130, "0.32.0")


def test_a_log_cut_in_the_middle_of_a_line_gives_what_it_told_before() -> None:
    receipt = receipt_of_log(V0[: V0.index("# cuda blocks") + 3])
    assert receipt.num_blocks is None
    assert receipt.kv_bytes == pytest.approx(gib(55.98), abs=1)


def test_a_receipt_is_a_value() -> None:
    assert isinstance(receipt_of_log(V0), Receipt)
    assert receipt_of_log(V0) == receipt_of_log(V0)
