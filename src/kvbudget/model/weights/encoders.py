"""Decides how many weights the vision or audio part of a multimodal model has, from its nested config.

Exact for the towers below, whose shapes were checked against vLLM 0.32 built without memory; any other tower is counted
as a plain vision transformer and labelled an estimate.
"""

from collections.abc import Mapping

from kvbudget.model.fields import Fields

Counted = tuple[int, int]  # (split over the ranks of tensor parallelism, whole on each)

_QWEN_VL: Mapping[str, object] = {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "in_channels": 3, "patch_size": 14,
                                  "temporal_patch_size": 2, "spatial_merge_size": 2}  # fmt: skip
_QWEN25_VL: Mapping[str, object] = {**_QWEN_VL, "hidden_size": 3584, "intermediate_size": 3420, "out_hidden_size": 3584}
_QWEN3_VL: Mapping[str, object] = {**_QWEN_VL, "depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
                                   "out_hidden_size": 3584, "patch_size": 16,
                                   "num_position_embeddings": 2304}  # fmt: skip
_SIGLIP: Mapping[str, object] = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
                                 "image_size": 896, "patch_size": 14, "num_channels": 3}  # fmt: skip
_CLIP: Mapping[str, object] = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                               "image_size": 336, "patch_size": 14, "num_channels": 3}  # fmt: skip
_PIXTRAL: Mapping[str, object] = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                                  "patch_size": 14, "num_channels": 3}  # fmt: skip
_GEMMA4: Mapping[str, object] = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16,
                                 "patch_size": 16, "position_embedding_size": 10240, "head_dim": 64}  # fmt: skip
_LLAMA4: Mapping[str, object] = {"hidden_size": 768, "intermediate_size": 5632, "num_hidden_layers": 34,
                                 "image_size": 448, "patch_size": 14, "num_channels": 3,
                                 "projector_input_dim": 4096, "projector_output_dim": 4096,
                                 "vision_output_dim": 7680}  # fmt: skip
# Keys by which towers spell depth, width and inner size.
_DEPTHS = ("num_hidden_layers", "depth", "vt_num_hidden_layers", "encoder_layers", "layers", "num_layers")
_WIDTHS = ("hidden_size", "vt_hidden_size", "embed_dim", "d_model", "width")
_INNERS = ("intermediate_size", "vt_intermediate_size", "encoder_ffn_dim", "mlp_dim")


def encoder_of(config: Mapping[str, object], hidden: int) -> tuple[Counted, str]:
    """((split, whole), why it is an estimate or ""). `hidden`: the width of the language model."""
    outer = Fields(config, {}, {})
    model_type = outer.text("model_type")
    vision = outer.section("vision_config")
    known = _KNOWN.get(model_type)
    total = (0, 0)
    guessed = []
    if known is not None:
        counter, defaults = known
        total = counter(Fields(vision or {}, {}, defaults), outer, hidden)
    elif vision is not None:
        total = _plain(vision, hidden)
        guessed.append("vision")
    audio = outer.section("audio_config")
    if audio is not None:
        part = _plain(audio, hidden)
        total = (total[0] + part[0], total[1] + part[1])
        guessed.append("audio")
    if vision is None and audio is None and known is None:
        return total, "its config has no vision or audio part, whose weights are left out"
    return total, f"its {' and '.join(guessed)} part is counted as a plain transformer" if guessed else ""


def _plain(section: Mapping[str, object], hidden: int) -> Counted:
    own = Fields(section, {}, {})
    width, depth = _first(own, _WIDTHS), _first(own, _DEPTHS)
    inner = _first(own, _INNERS) or 4 * width
    projector = width * hidden + hidden * hidden
    return depth * (4 * width * width + 2 * width * inner) + projector, depth * 10 * width + 600 * width


def _first(fields: Fields, keys: tuple[str, ...]) -> int:
    return next((fields.count(key) for key in keys if type(fields.raw.get(key)) is int), 0)


def _block(width: int, inner: int, depth: int, matrices: int = 2, *, norm: int = 2, bias: bool = True) -> Counted:
    """`depth` blocks of attention and MLP; `norm` vectors in each of two norms."""
    split = 4 * width * width + matrices * width * inner
    whole = 2 * norm * width
    if bias:
        split += 3 * width + (matrices - 1) * inner
        whole += 2 * width
    return depth * split, depth * whole


def _patches(fields: Fields, width: int) -> int:
    frames = fields.optional_count("temporal_patch_size") or 1
    channels = fields.optional_count("in_channels") or 3
    return channels * frames * fields.count("patch_size") ** 2 * width


def _merger(width: int, merged: int, out: int) -> Counted:
    return merged * merged + merged + merged * out, out


def _qwen2_vl(fields: Fields, outer: Fields, hidden: int) -> Counted:
    width = fields.count("embed_dim")
    split, whole = _block(width, width * fields.count("mlp_ratio", high=1000), fields.count("depth"))
    out = fields.optional_count("hidden_size") or hidden
    merger = _merger(width, width * fields.count("spatial_merge_size", high=1000) ** 2, out)
    return split + merger[0], whole + merger[1] + _patches(fields, width) + 2 * width


def _qwen25_vl(fields: Fields, outer: Fields, hidden: int) -> Counted:
    width = fields.count("hidden_size")
    split, whole = _block(width, fields.count("intermediate_size"), fields.count("depth"), 3, norm=1)
    merger = _merger(width, width * fields.count("spatial_merge_size", high=1000) ** 2, fields.count("out_hidden_size"))
    return split + merger[0], whole + merger[1] + _patches(fields, width) + width


def _qwen3_vl(fields: Fields, outer: Fields, hidden: int) -> Counted:
    width = fields.count("hidden_size")
    split, whole = _block(width, fields.count("intermediate_size"), fields.count("depth"))
    merged = width * fields.count("spatial_merge_size", high=1000) ** 2
    merger = _merger(width, merged, fields.count("out_hidden_size"))
    deep = len(fields.counts("deepstack_visual_indexes"))
    whole += _patches(fields, width) + width + fields.count("num_position_embeddings") * width + 2 * width
    return split + (1 + deep) * merger[0], whole + (1 + deep) * merger[1] + deep * 2 * merged


def _siglip(fields: Fields, outer: Fields, hidden: int) -> Counted:
    width = fields.count("hidden_size")
    split, whole = _block(width, fields.count("intermediate_size"), fields.count("num_hidden_layers"))
    places = (fields.count("image_size") // fields.count("patch_size")) ** 2
    return split, whole + _patches(fields, width) + width + places * width + 2 * width + width * hidden + width


def _clip(fields: Fields, outer: Fields, hidden: int) -> Counted:
    """LLaVA leaves out the last layer: it reads the hidden state before it (`vision_feature_layer` -2)."""
    width = fields.count("hidden_size")
    layer = outer.given("vision_feature_layer")
    depth = fields.count("num_hidden_layers")
    used = depth + layer + 1 if type(layer) is int and -depth <= layer < 0 else depth - 1
    split, whole = _block(width, fields.count("intermediate_size"), used)
    places = (fields.count("image_size") // fields.count("patch_size")) ** 2 + 1
    projector = width * hidden + hidden + hidden * hidden
    return split + projector, whole + _patches(fields, width) + width + places * width + 2 * width + hidden


def _pixtral(fields: Fields, outer: Fields, hidden: int) -> Counted:
    width = fields.count("hidden_size")
    split, whole = _block(
        width, fields.count("intermediate_size"), fields.count("num_hidden_layers"), 3, norm=1, bias=False
    )
    merge = outer.optional_count("spatial_merge_size", high=1000) or 2
    whole += _patches(fields, width) + width + width * width * merge * merge + width
    return split + width * hidden + hidden * hidden, whole


def _gemma4(fields: Fields, outer: Fields, hidden: int) -> Counted:
    """Nothing of it is split (vLLM 0.32 runs the tower of transformers)."""
    width, depth = fields.count("hidden_size"), fields.count("num_hidden_layers")
    block = _block(width, fields.count("intermediate_size"), depth, 3, bias=False)
    whole = sum(block) + 2 * depth * fields.count("head_dim")
    whole += 3 * fields.count("patch_size") ** 2 * width + 2 * fields.count("position_embedding_size") * width
    return 0, whole + width * hidden


def _llama4(fields: Fields, outer: Fields, hidden: int) -> Counted:
    width = fields.count("hidden_size")
    split, whole = _block(width, fields.count("intermediate_size"), fields.count("num_hidden_layers"))
    places = (fields.count("image_size") // fields.count("patch_size")) ** 2 + 1
    adapter = fields.count("projector_input_dim") * fields.count("intermediate_size")
    adapter += fields.count("projector_input_dim") * fields.count("projector_output_dim")
    split += _patches(fields, width) + adapter + fields.count("vision_output_dim") * hidden
    return split, whole + width + places * width + 4 * width


_KNOWN = {
    "qwen2_vl": (_qwen2_vl, _QWEN_VL),
    "qwen2_5_vl": (_qwen25_vl, _QWEN25_VL),
    "qwen3_vl": (_qwen3_vl, _QWEN3_VL),
    "qwen3_vl_moe": (_qwen3_vl, _QWEN3_VL),
    "qwen3_5": (_qwen3_vl, _QWEN3_VL),
    "qwen3_5_moe": (_qwen3_vl, _QWEN3_VL),
    "gemma3": (_siglip, _SIGLIP),
    "llava": (_clip, _CLIP),
    "mistral3": (_pixtral, _PIXTRAL),
    "gemma4": (_gemma4, _GEMMA4),
    "llama4": (_llama4, _LLAMA4),
}
