"""Start-up logs of llama.cpp, new and old, with sliding and recurrent layers."""

import pytest

from kvbudget.engines.logs.read import receipt_of_log
from kvbudget.units import MIB

LOG = """\
build: 6710 (be3bbd62) with GNU 11.4.0
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4080 SUPER) (0000:01:00.0) - 15035 MiB free
print_info: general.name          = Gemma 3 4B
load_tensors:   CPU_Mapped model buffer size =   545.63 MiB
load_tensors:        CUDA0 model buffer size =  4717.38 MiB
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 32768
llama_context: n_ctx_per_seq = 8192
llama_kv_cache_iswa: creating non-SWA KV cache, size = 32768 cells
llama_kv_cache: size =  640.00 MiB ( 32768 cells,   5 layers,  4/1 seqs), K (f16):  320.00 MiB, V (f16):  320.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 4608 cells
llama_kv_cache: size =  522.00 MiB (  4608 cells,  29 layers,  4/1 seqs), K (f16):  261.00 MiB, V (f16):  261.00 MiB
llama_context:      CUDA0 compute buffer size =   517.00 MiB
llama_context:  CUDA_Host compute buffer size =    84.51 MiB
"""


def test_both_caches_add_up_and_the_whole_context_is_the_pool() -> None:
    receipt = receipt_of_log(LOG)
    assert (receipt.engine, receipt.version, receipt.model) == ("llamacpp", "b6710", "Gemma 3 4B")
    assert receipt.kv_bytes == 1162 * MIB
    assert (receipt.tokens, receipt.max_model_len, receipt.max_num_seqs) == (32768, 8192, 4)
    assert receipt.free_bytes == 15035 * MIB


def test_buffers_of_the_host_are_not_counted_on_the_card() -> None:
    receipt = receipt_of_log(LOG)
    assert receipt.weights_bytes == pytest.approx(4717.38 * MIB, abs=1)
    assert receipt.activation_bytes == 517 * MIB


def test_a_recurrent_state_is_memory_but_no_room_for_tokens() -> None:
    receipt = receipt_of_log(
        f"{LOG}llama_memory_recurrent: size =   50.00 MiB (     1 cells,  32 layers,  1 seqs), R (f32):    2.00 MiB\n"
    )
    assert receipt.kv_bytes == 1212 * MIB
    assert receipt.tokens == 32768


def test_the_wording_before_2025_is_read() -> None:
    receipt = receipt_of_log(
        "llama_new_context_with_model: n_ctx      = 163840\n"
        "llama_kv_cache_init:      CUDA0 KV buffer size =   144.00 MiB\n"
        "llama_init_from_model: KV self size  =  144.00 MiB, K (f16):   72.00 MiB, V (f16):   72.00 MiB\n"
    )
    assert (receipt.tokens, receipt.kv_bytes) == (163840, 144 * MIB)


def test_colours_and_time_stamps_of_a_terminal_do_not_matter() -> None:
    coloured = "\n".join(f"\x1b[34m0.00.612.795\x1b[0m \x1b[32mI \x1b[0m{line}" for line in LOG.splitlines())
    assert receipt_of_log(coloured)._replace(told=()) == receipt_of_log(LOG)._replace(told=())
