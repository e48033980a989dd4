"""How many tokens an image takes in a model, from its size: each model's own rule, as vLLM 0.32 computes it.

Never too few. Where a rule depends on what is not known (an image behind a URL), the largest that it can give.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol, cast

from kvbudget.edge.openai.images import ImageSize
from kvbudget.errors import BadConfigError

# Beside the image's own tokens: markers, line ends and the place-holder's text around it.
AROUND_IMAGE = 16
GEMMA_3N_TOKENS = 256
_LARGEST_RATIO = 200  # of the sides of an image; beyond it Qwen's processor refuses


class ImageRule(Protocol):
    """Tokens of one image."""

    @property
    def told(self) -> str:
        """For the operator."""

    def tokens(self, size: ImageSize | None) -> int:
        """Of an image of that size, the most for None."""


class SmartResize(NamedTuple):
    """Qwen 2-VL to Qwen 3.5: resized to whole cells of `factor` pixels, within a range of pixels; a token for each."""

    factor: int
    min_pixels: int
    max_pixels: int

    @property
    def told(self) -> str:
        """For the operator."""
        return f"one token for {self.factor} x {self.factor} pixels, {self.min_pixels} to {self.max_pixels} pixels"

    def tokens(self, size: ImageSize | None) -> int:
        """As `smart_resize` of the image processor."""
        factor = self.factor
        if size is None:
            return self.most
        if max(size) > _LARGEST_RATIO * min(size):
            return self.most  # the engine refuses it
        rows, columns = round(size.height / factor), round(size.width / factor)
        pixels = size.width * size.height
        if rows * columns * factor**2 > self.max_pixels:
            beta = math.sqrt(pixels / self.max_pixels)
            rows = max(1, math.floor(size.height / beta / factor))
            columns = max(1, math.floor(size.width / beta / factor))
        elif rows * columns * factor**2 < self.min_pixels:
            beta = math.sqrt(self.min_pixels / pixels)
            rows = math.ceil(size.height * beta / factor)
            columns = math.ceil(size.width * beta / factor)
        return rows * columns

    @property
    def most(self) -> int:
        """Of any image: the pixels' share, or a strip one cell wide that is as long as the ratio allows."""
        grown = math.ceil(math.sqrt(self.min_pixels * _LARGEST_RATIO) / self.factor)
        return max(self.max_pixels // self.factor**2, 2 * grown, _LARGEST_RATIO)


class PatchGrid(NamedTuple):
    """Pixtral and Mistral 3: scaled down to `image_size`, a token for each patch and one for the end of each row."""

    image_size: int
    patch_size: int

    @property
    def told(self) -> str:
        """For the operator."""
        return f"one token for {self.patch_size} x {self.patch_size} pixels, images of {self.image_size} pixels at most"

    def tokens(self, size: ImageSize | None) -> int:
        """Patches, with a break behind each row."""
        width, height = size or (self.image_size, self.image_size)
        ratio = max(width, height) / self.image_size
        if ratio > 1:
            width, height = math.floor(width / ratio), math.floor(height / ratio)
        columns, rows = (max(1, (side - 1) // self.patch_size + 1) for side in (width, height))
        return (columns + 1) * rows


class FixedTokens(NamedTuple):
    """The same for every image: Gemma 3, LLaVA; the most that tiles can give: InternVL; or what was told."""

    each: int

    @property
    def told(self) -> str:
        """For the operator."""
        return f"{self.each} tokens each at the most"

    def tokens(self, size: ImageSize | None) -> int:
        """The one number."""
        return self.each


def image_rule_of(config: Mapping[str, object], processor: Mapping[str, object]) -> ImageRule | None:
    """By a model's config.json and preprocessor_config.json; None for models without images or with another rule.

    Raises BadConfigError when the model has a known rule, and what it needs is not there.
    """
    kind = str(config.get("model_type", ""))
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    try:
        if kind.startswith(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")):
            return _smart_resize(vision, processor)
        if kind in ("gemma3", "gemma3n"):
            return FixedTokens(_whole(config, "mm_tokens_per_image") if kind == "gemma3" else GEMMA_3N_TOKENS)
        if kind in ("pixtral", "mistral3") or (kind == "llava" and vision.get("model_type") == "pixtral"):
            merge = config.get("spatial_merge_size", 1)
            return PatchGrid(_whole(vision, "image_size"), _whole(vision, "patch_size") * cast("int", merge))
        if kind == "llava":
            return FixedTokens((_whole(vision, "image_size") // _whole(vision, "patch_size")) ** 2 + 1)
        if kind == "internvl_chat":
            return FixedTokens(_internvl_tokens(config, vision))
    except (KeyError, TypeError, ValueError) as error:
        raise BadConfigError(
            f"the rule for images of {kind} needs a number that the model folder does not have: {error}",
            fix="give --image-tokens N, the most that an image takes",
        ) from None
    return None


def _smart_resize(vision: Mapping[str, object], processor: Mapping[str, object]) -> SmartResize:
    size = processor.get("size")
    sides = size if isinstance(size, Mapping) else {}
    low = processor.get("min_pixels") or sides.get("shortest_edge")
    high = processor.get("max_pixels") or sides.get("longest_edge")
    if not isinstance(low, int) or not isinstance(high, int):
        raise KeyError("min_pixels and max_pixels in preprocessor_config.json")
    factor = _whole(vision, "patch_size") * _whole(vision, "spatial_merge_size")
    return SmartResize(factor, low, high)


def _internvl_tokens(config: Mapping[str, object], vision: Mapping[str, object]) -> int:
    """All tiles that an image may be cut into, and the thumbnail; each of them takes the same."""
    side = _whole(vision, "image_size") // _whole(vision, "patch_size")
    ratio = config.get("downsample_ratio", 0.5)
    if not isinstance(ratio, (int, float)):
        raise TypeError("downsample_ratio")
    tiles = _whole(config, "max_dynamic_patch")
    return math.ceil(side * side * ratio**2) * (tiles + (1 if tiles > 1 else 0))


def _whole(table: Mapping[str, object], name: str) -> int:
    value = table[name]
    if isinstance(value, list) and value:  # [height, width]
        value = max(value)
    if type(value) is not int or value < 1:
        raise ValueError(name)
    return value
