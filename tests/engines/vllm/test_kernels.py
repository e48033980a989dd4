"""Which card's MLA kernels read which blocks."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.model.read import model_from_config
from kvbudget.units import GIB

DENSE: dict[str, Any] = {"model_type": "deepseek_v3", "num_hidden_layers": 4, "num_nextn_predict_layers": 0}
SPARSE: dict[str, Any] = {**DENSE, "model_type": "deepseek_v32"}
WIDE: dict[str, Any] = {**DENSE, "qk_nope_head_dim": 96}


def block_size(config: dict[str, Any], card: str, version: str = "", **flags: Any) -> int:
    engine = Vllm(version)
    return engine.settle(model_from_config(config), EngineFlags(**flags), 80 * GIB, card).block_size


def refusals(config: dict[str, Any], card: str, version: str = "", **flags: Any) -> list[str]:
    engine, model = Vllm(version), model_from_config(config)
    settings = engine.settle(model, EngineFlags(max_model_len=2048, **flags), 80 * GIB, card)
    stages = engine.stages(model, settings)
    return [r.message for r in engine.refusals(model, settings, stages, engine.pool(model, settings, stages, [GIB]))]


@pytest.mark.parametrize(
    ("card", "plain", "fp8"),
    [
        ("", 64, 64),
        ("A100 SXM4 80GB", 16, 16),  # TRITON_MLA
        ("L40S", 16, 16),
        ("RTX 4090", 16, 16),
        ("H100 80GB", 16, 64),  # FLASH_ATTN_MLA, and FLASHMLA for what that does not store
        ("H200 141GB", 16, 64),
        ("B200 180GB", 32, 32),  # FLASHINFER_MLA
        ("RTX PRO 6000 Blackwell", 16, 16),
        ("MI300X", 16, 16),
        ("Radeon AI PRO R9700", 16, 16),
        ("Gaudi 3", 64, 64),
    ],
)
def test_the_card_decides_the_block_of_mla_layers(card: str, plain: int, fp8: int) -> None:
    """vLLM 0.32 platforms/cuda.py, platforms/rocm.py: _get_backend_priorities."""
    assert block_size(DENSE, card) == plain
    assert block_size(DENSE, card, kv_cache_dtype="fp8") == fp8


def test_heads_that_flashinfer_does_not_take_go_to_cutlass() -> None:
    assert block_size(WIDE, "B200 180GB") == 128
    assert block_size(WIDE, "H100 80GB") == 16


@pytest.mark.parametrize(("card", "block"), [("H100 80GB", 64), ("B200 180GB", 64), ("MI300X", 16), ("", 64)])
def test_sparse_kernels_have_blocks_of_their_own(card: str, block: int) -> None:
    assert block_size(SPARSE, card) == block


@pytest.mark.parametrize("card", ["H100 80GB", "B200 180GB", "A100 SXM4 80GB"])
@pytest.mark.parametrize("asked", [16, 48, 64, 128])
def test_a_block_size_that_is_asked_for_finds_a_backend_on_every_card(card: str, asked: int) -> None:
    """Where the first backends do not take it TRITON_MLA does."""
    for kv in ("auto", "fp8"):
        assert block_size(DENSE, card, block_size=asked, kv_cache_dtype=kv) == asked
        assert refusals(DENSE, card, block_size=asked, kv_cache_dtype=kv) == []


def test_a_block_size_that_no_backend_takes_is_refused() -> None:
    (found,) = refusals(DENSE, "H100 80GB", block_size=8)
    assert found.startswith("No valid attention backend found for cuda with block_size=8")
    (found,) = refusals(SPARSE, "H100 80GB", block_size=16)
    assert found == "No common block size for 16 (FLASHMLA: [64])"


@pytest.mark.parametrize(("card", "refused"), [("A100 SXM4 80GB", True), ("L40S", True), ("H100 80GB", False)])
def test_sparse_attention_needs_hopper(card: str, refused: bool) -> None:
    found = refusals(SPARSE, card)
    assert any("use_sparse=True" in words for words in found) is refused
    assert refusals(SPARSE, card, "0.28") == []
    assert refusals(DENSE, card) == []


@pytest.mark.parametrize(("card", "block"), [("H100 80GB", 64), ("B200 180GB", 64), ("A100 SXM4 80GB", 16)])
def test_older_versions_take_flashmla_where_it_has_a_kernel(card: str, block: int) -> None:
    assert block_size(DENSE, card, "0.19") == block
