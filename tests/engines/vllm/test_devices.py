"""What a GPU's generation rules out in vLLM 0.32."""

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.engines.rule import Refusal
from kvbudget.engines.vllm.devices import capability_of
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB


def llama(head_dim: int = 128) -> Model:
    return model_from_config(
        {"model_type": "llama", "num_hidden_layers": 4, "head_dim": head_dim, "max_position_embeddings": 4096}
    )


GEMMA3 = model_from_config({"model_type": "gemma3_text", "max_position_embeddings": 4096})
GPT_OSS = model_from_config({"model_type": "gpt_oss", "max_position_embeddings": 4096})
DEEPSEEK = model_from_config({"model_type": "deepseek_v3", "max_position_embeddings": 4096})


def refused(model: Model, device: str, version: str = "", **flags: str) -> list[Refusal]:
    engine = Vllm(version)
    settings = engine.settle(model, EngineFlags(max_model_len=2048, **flags), 80 * GIB, device)  # type: ignore[arg-type]
    stages = engine.stages(model, settings)
    pool = engine.pool(model, settings, stages, [60 * GIB] * len(stages))
    return engine.refusals(model, settings, stages, pool)


def codes(model: Model, device: str, version: str = "", **flags: str) -> list[str]:
    return [refusal.code for refusal in refused(model, device, version, **flags)]


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("V100 16GB", (7, 0)), ("T4", (7, 5)), ("RTX 2080 Ti 22GB", (7, 5)), ("A100 PCIe 40GB", (8, 0)),
        ("A30", (8, 0)), ("A10G", (8, 6)), ("RTX A6000 48GB", (8, 6)), ("RTX 3090", (8, 6)), ("L4", (8, 9)),
        ("L40S", (8, 9)), ("RTX 6000 Ada 48GB", (8, 9)), ("RTX 4070 Ti SUPER", (8, 9)), ("H100 NVL 94GB", (9, 0)),
        ("NVIDIA H200", (9, 0)), ("B200 180GB", (10, 0)), ("GB300 288GB", (10, 3)), ("RTX 5090", (12, 0)),
        ("RTX PRO 6000 Blackwell 96GB", (12, 0)), ("GB10 128GB (DGX Spark)", (12, 1)),
        ("MI300X", (0, 0)), ("RX 7900 XTX", (0, 0)), ("Jetson AGX Thor 128GB", (0, 0)), ("", (0, 0)),
    ],
)  # fmt: skip
def test_the_name_of_a_card_tells_its_compute_capability(name: str, capability: tuple[int, int]) -> None:
    assert capability_of(name) == capability


@pytest.mark.parametrize(("device", "known"), [("T4", True), ("V100 32GB", True), ("A10", False), ("MI250X", False)])
def test_bf16_needs_compute_capability_8(device: str, known: bool) -> None:
    assert ("dtype_unsupported" in codes(llama(), device, dtype="bfloat16")) is known
    assert codes(llama(), device) == []  # "auto" becomes float16
    assert codes(llama(), device, dtype="half") == []


def test_the_refusal_names_the_capability_in_the_engine_s_words() -> None:
    (refusal,) = refused(llama(), "T4", "0.8", dtype="bfloat16")
    assert refusal.message.startswith(
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your GPU has compute capability "
        "7.5."
    )
    assert refusal.fix == "use --dtype half"


def test_models_that_do_not_work_in_float16_refuse_it_and_run_in_float32_without_bf16() -> None:
    (refusal,) = refused(GEMMA3, "H100 80GB", dtype="half")
    assert (refusal.code, refusal.fix) == ("dtype_unsupported", "use --dtype bfloat16")
    flags = EngineFlags(max_model_len=2048)
    assert Vllm().settle(GEMMA3, flags, 0, "T4").element_bytes == 4
    assert Vllm().settle(GEMMA3, flags, 0, "A100 80GB").element_bytes == 2
    assert Vllm().settle(llama(), flags, 0, "T4").element_bytes == 2


@pytest.mark.parametrize(
    ("device", "head_dim", "refused"),
    [("T4", 128, True), ("A100 80GB", 128, False), ("A100 80GB", 96, True), ("RTX 3090", 80, True),
     ("L40S", 96, False), ("H100 80GB", 96, False), ("", 96, False), ("MI300X", 96, False)],
)  # fmt: skip
def test_an_fp8_cache_needs_a_kernel_on_the_card(device: str, head_dim: int, refused: bool) -> None:
    found = codes(llama(head_dim), device, kv_cache_dtype="fp8")
    assert found == (["kv_cache_dtype_unsupported"] if refused else [])


def test_attention_sinks_leave_an_ampere_card_no_kernel_for_an_fp8_cache() -> None:
    assert codes(GPT_OSS, "A100 80GB", kv_cache_dtype="fp8") == ["kv_cache_dtype_unsupported"]
    assert codes(GPT_OSS, "L40S", kv_cache_dtype="fp8") == []
    assert codes(GPT_OSS, "A100 80GB", "0.20", kv_cache_dtype="fp8") == []  # those kernels were not read


def test_images_that_look_ahead_leave_an_ampere_card_no_kernel_for_an_fp8_cache() -> None:
    """vLLM 0.32 model_arch_config_convertor.py: is_mm_prefix_lm; not so where only the text model is served."""
    images = model_from_config({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})
    for model, device, expected in ((images, "A100 80GB", 1), (GEMMA3, "A100 80GB", 0), (images, "L40S", 0)):
        found = codes(model, device, kv_cache_dtype="fp8")
        assert found == ["kv_cache_dtype_unsupported"] * expected


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "refused"),
    [("T4", "nvfp4", 128, True), ("A100 80GB", "nvfp4", 128, False), ("H100 80GB", "nvfp4", 64, True),
     ("H100 80GB", "nvfp4_4over6", 128, True), ("B200 180GB", "nvfp4_4over6", 128, False),
     ("B200 180GB", "nvfp4", 64, False), ("RTX 5090", "nvfp4", 64, True), ("", "nvfp4", 64, False)],
)  # fmt: skip
def test_an_nvfp4_cache_is_flashinfer_s_alone(device: str, dtype: str, head_dim: int, refused: bool) -> None:
    found = codes(llama(head_dim), device, kv_cache_dtype=dtype)
    assert found == (["kv_cache_dtype_unsupported"] if refused else [])


def test_latents_are_not_judged_by_the_kernels_of_heads() -> None:
    assert codes(DEEPSEEK, "A100 80GB", kv_cache_dtype="fp8", dtype="auto") == []
