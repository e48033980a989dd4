import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.openai.images import ImageSize
from kvbudget.edge.tokens.image_rules import FixedTokens, PatchGrid, SmartResize, image_rule_of
from kvbudget.errors import BadConfigError

QWEN_VISION = {"patch_size": 14, "spatial_merge_size": 2}
QWEN = SmartResize(28, 56 * 56, 14 * 14 * 4 * 1280)
SIZES = st.builds(ImageSize, st.integers(1, 9000), st.integers(1, 9000))


@pytest.mark.parametrize(
    ("rule", "width", "height", "tokens"),
    [
        # As transformers 5.19's smart_resize gives them for the processors of Qwen 2.5-VL and Qwen 3-VL.
        (QWEN, 28, 28, 4),  # grown to 56 x 56
        (QWEN, 64, 64, 4),
        (QWEN, 280, 280, 100),
        (QWEN, 1795, 2397, 1230),
        (QWEN, 3571, 1000, 1206),
        (SmartResize(32, 65_536, 16_777_216), 64, 64, 64),
        (SmartResize(32, 65_536, 16_777_216), 1795, 2397, 4200),
        (PatchGrid(1024, 16), 1024, 1024, 64 * 65),
        (PatchGrid(1024, 16), 2048, 1024, 32 * 65),
        (PatchGrid(1540, 28), 100, 50, 2 * 5),
        (FixedTokens(256), 5000, 1, 256),
    ],
)
def test_an_image_takes_what_its_model_says(
    rule: SmartResize | PatchGrid | FixedTokens, width: int, height: int, tokens: int
) -> None:
    assert rule.tokens(ImageSize(width, height)) == tokens


@given(SIZES)
def test_no_image_takes_more_than_one_of_unknown_size(size: ImageSize) -> None:
    for rule in (QWEN, SmartResize(32, 65_536, 16_777_216), PatchGrid(1024, 16), FixedTokens(7)):
        assert 0 < rule.tokens(size) <= rule.tokens(None)


@given(SIZES)
def test_turning_an_image_changes_nothing_in_qwen(size: ImageSize) -> None:
    assert QWEN.tokens(size) == QWEN.tokens(ImageSize(size.height, size.width))


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_qwen_keeps_within_its_pixels(width: int, height: int) -> None:
    if max(width, height) <= 20 * min(width, height):
        pixels = QWEN.tokens(ImageSize(width, height)) * 28 * 28
        assert pixels <= QWEN.max_pixels
        assert pixels >= QWEN.min_pixels or math.isclose(pixels, QWEN.min_pixels)


def test_the_rule_is_found_by_the_models_own_files() -> None:
    size = {"size": {"shortest_edge": 3136, "longest_edge": 1_003_520}}
    assert image_rule_of({"model_type": "qwen2_5_vl", "vision_config": QWEN_VISION}, size) == QWEN
    pixels = {"min_pixels": 3136, "max_pixels": 1_003_520}
    assert image_rule_of({"model_type": "qwen2_vl", "vision_config": QWEN_VISION}, pixels) == QWEN
    assert image_rule_of({"model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": {}}, {}) == FixedTokens(
        256
    )
    llava = {"model_type": "llava", "vision_config": {"image_size": 336, "patch_size": 14}}
    assert image_rule_of(llava, {}) == FixedTokens(577)
    pixtral = {"model_type": "pixtral", "image_size": 1024, "patch_size": 16}
    assert image_rule_of({"model_type": "llava", "vision_config": pixtral}, {}) == PatchGrid(1024, 16)
    mistral = {
        "model_type": "mistral3",
        "spatial_merge_size": 2,
        "vision_config": {"image_size": 1540, "patch_size": 14},
    }
    assert image_rule_of(mistral, {}) == PatchGrid(1540, 28)
    vision = {"image_size": 448, "patch_size": 14}
    internvl = {
        "model_type": "internvl_chat",
        "downsample_ratio": 0.5,
        "max_dynamic_patch": 12,
        "vision_config": vision,
    }
    assert image_rule_of(internvl, {}) == FixedTokens(13 * 256)
    assert image_rule_of({"model_type": "llama"}, {}) is None
    assert image_rule_of({"model_type": "unheard_of", "vision_config": {}}, {}) is None


def test_a_rule_without_its_numbers_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(BadConfigError, match="min_pixels") as caught:
        image_rule_of({"model_type": "qwen2_vl", "vision_config": QWEN_VISION}, {})
    assert "--image-tokens" in str(caught.value.fix)
