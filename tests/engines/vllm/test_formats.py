"""KV formats: what the GPU makes of them, and what a key of a sparse-attention indexer takes."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.engines.vllm.devices import capability_of
from kvbudget.engines.vllm.formats import attention_token_bytes, indexer_token_bytes, kv_format
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.errors import UnsupportedError
from kvbudget.model.layers import Attention, Indexer
from kvbudget.model.read import model_from_config

GLM5 = model_from_config({"model_type": "glm_moe_dsa"})
DEEPSEEK = model_from_config({"model_type": "deepseek_v32"})
GLM5_NEXT = model_from_config({"model_type": "glm5_next"})


@pytest.mark.parametrize(
    ("name", "known"),
    [("NVIDIA B200", True), ("GB300 288GB", True), ("b300", True), ("NVIDIA H100 80GB HBM3", False), ("", False),
     ("NVIDIA RTX PRO 6000 Blackwell", False), ("NVIDIA A100", False)],
)  # fmt: skip
def test_a_device_is_of_compute_capability_10_by_its_name(name: str, known: bool) -> None:
    assert (capability_of(name)[0] == 10) is known


def test_glm_5_is_kept_in_fp8_on_sm100_unless_asked_otherwise() -> None:
    """model_executor/models/config.py: GlmMoeDsaForCausalLM."""
    auto, plain = EngineFlags(max_model_len=4096), EngineFlags(max_model_len=4096, kv_cache_dtype="bfloat16")
    assert Vllm().settle(GLM5, auto, 0, "NVIDIA B200").kv_cache_dtype == "fp8_e4m3"
    assert Vllm().settle(GLM5, auto, 0, "NVIDIA H200").kv_cache_dtype == "auto"
    assert Vllm().settle(GLM5, plain, 0, "NVIDIA B200").kv_cache_dtype == "bfloat16"
    assert Vllm().settle(DEEPSEEK, auto, 0, "NVIDIA B200").kv_cache_dtype == "auto"


def test_glm_5_in_fp8_takes_half_as_much_on_sm100() -> None:
    def page(device: str) -> int:
        settings = Vllm().settle(GLM5, EngineFlags(max_model_len=4096), 0, device)
        return Vllm().stages(GLM5, settings)[0].layout.bytes_per_block

    indexers = 78 * 132 * 64
    assert page("NVIDIA B200") == 78 * 576 * 64 + indexers
    assert page("NVIDIA H200") == 78 * 1152 * 64 + indexers


@pytest.mark.parametrize("asked", ["fp8", "fp8_e4m3"])
def test_sparse_latents_of_512_and_64_are_packed_off_sm100(asked: str) -> None:
    flags = EngineFlags(kv_cache_dtype=asked)
    assert kv_format(DEEPSEEK, flags) == "fp8_ds_mla"
    assert kv_format(DEEPSEEK, flags, sm100=True) == asked
    assert kv_format(DEEPSEEK, EngineFlags(kv_cache_dtype="fp8_ds_mla"), sm100=True) == "fp8_ds_mla"
    assert kv_format(GLM5_NEXT, flags) == asked


def test_plain_indexer_keys_have_no_scale() -> None:
    assert indexer_token_bytes(Indexer(128), 2) == 132
    assert indexer_token_bytes(Indexer(128, plain=True), 2) == 256


def test_nvfp4_needs_whole_groups_of_sixteen() -> None:
    assert attention_token_bytes(Attention(2, 128, 128), 2, "nvfp4", 2) == 2 * 2 * (64 + 8)
    with pytest.raises(UnsupportedError, match="do not divide a head of 72"):
        attention_token_bytes(Attention(2, 72, 72), 2, "nvfp4", 2)


LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072}


@pytest.mark.parametrize(
    ("dtype", "flags", "change", "blocks"),
    [
        ("turboquant_k8v4", {}, {}, 13357),
        ("turboquant_3bit_nc", {}, {}, 20526),
        ("turboquant_k3v4_nc", {"tensor_parallel_size": 2}, {}, 37617),
        ("turboquant_k8v4", {"block_size": 64}, {}, 6678),
        ("turboquant_3bit_nc", {}, {"head_dim": 80, "num_hidden_layers": 12}, 55676),
    ],
)
def test_turboquant_packs_all_but_the_outer_layers(
    dtype: str, flags: dict[str, Any], change: dict[str, int], blocks: int
) -> None:
    """24 GiB in vLLM 0.32's own code, with the packing of the format's own backend: two layers at either end stay in
    the model's type, and blocks are as large as makes an unpacked page of 16 tokens fit."""
    model = model_from_config({**LLAMA, **change})
    settings = Vllm().settle(model, EngineFlags(max_model_len=8192, kv_cache_dtype=dtype, **flags), 0, "")
    stages = Vllm().stages(model, settings)
    assert Vllm().pool(model, settings, stages, [24 * 2**30]).num_blocks == blocks


@pytest.mark.parametrize("model", ["gemma3_text", "deepseek_v3", "gpt_oss"])
def test_turboquant_is_refused_by_name_beside_other_kinds_of_cache(model: str) -> None:
    with pytest.raises(UnsupportedError, match="turboquant_k8v4"):
        kv_format(model_from_config({"model_type": model}), EngineFlags(kv_cache_dtype="turboquant_k8v4"))


@pytest.mark.parametrize("dtype", ["int8_per_token_head", "fp8_per_token_head"])
def test_no_kernel_for_latents_has_scales_for_each_head(dtype: str) -> None:
    settings = Vllm().settle(DEEPSEEK, EngineFlags(max_model_len=4096), 0, "")._replace(kv_cache_dtype=dtype)
    with pytest.raises(UnsupportedError, match="No valid attention backend found"):
        Vllm().stages(DEEPSEEK, settings)
