"""The ring of keys that are not compressed yet: how long it is, and that it has to divide a block."""

import pytest

from kvbudget.engines.flags import EngineFlags, Speculation
from kvbudget.engines.vllm.rings import ring_spec
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.engines.vllm.spec import Family
from kvbudget.errors import UnsupportedError
from kvbudget.model.layers import Ring
from kvbudget.model.read import model_from_config

MODEL = model_from_config({"model_type": "glm5_next", "architectures": ["Glm5NextForCausalLM"]})
VISION = MODEL._replace(architectures=("Qwen4ExpForConditionalGeneration",))


@pytest.mark.parametrize(
    ("family", "ratio", "drafts", "slots"),
    [
        ("deepseek_v41", 2, 0, 8),
        ("deepseek_v41", 2, 6, 8),
        ("deepseek_v41", 2, 7, 16),
        ("glm5_next", 16, 0, 16),
        ("glm5_next", 16, 1, 32),
        ("glm5_next", 4, 5, 16),  # two and a quarter pools of 4, to a power of two
        ("qwen4_exp", 4, 9, 16),
        ("qwen4_exp", 4, 5, 12),
    ],
)
def test_the_ring_holds_an_open_group_and_every_draft(family: str, ratio: int, drafts: int, slots: int) -> None:
    spec = ring_spec(Ring(family, 128, 2, ratio), MODEL, 48 * 32, drafts)
    assert (spec.family, spec.block_size, spec.page, spec.fixed_blocks) == (Family.RING, slots, 256 * slots, 1)
    assert spec.content.bytes_for(1) == spec.content.bytes_for(10**6) == 256 * slots


def test_only_a_multimodal_model_keeps_positions() -> None:
    ring = Ring("qwen4_exp", 128, 2, 16, positions=24)
    assert ring_spec(ring, MODEL, 64, 0).page == 16 * 256
    assert ring_spec(ring, VISION, 64, 0).page == 16 * (256 + 24)


def test_a_ring_that_does_not_divide_the_block_is_refused() -> None:
    model = model_from_config(
        {
            "model_type": "qwen4_exp_text",
            "indexer_n_heads": 16,
            "indexer_head_dim": 128,
            "indexer_compress_ratio": 16,
        }
    )
    flags = EngineFlags(max_model_len=4096, speculation=Speculation("mtp", 2))
    settings = Vllm().settle(model, flags, 0, "")
    assert settings.block_size == 560
    with pytest.raises(UnsupportedError, match=r"ring of 32 uncompressed keys does not divide .* 560"):
        Vllm().stages(model, settings)
