"""Decides which matrices of a quantised checkpoint have which format, from its quantization_config.

One reader for each method that vLLM 0.32 (`model_executor/layers/quantization/`) loads; another one is refused by name.
"""

from collections.abc import Mapping

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.weights.formats import (
    FP8,
    FP8_ROWS,
    INT8,
    INT8_ROWS,
    MXFP4,
    MXFP8,
    NF4,
    NVFP4,
    Format,
    fp8_blocks,
    grouped_int,
)
from kvbudget.model.weights.names import Names

Pairs = list[tuple[Names | None, Format | None]]
_SKIPPED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules", "exclude")
# Classes that compressed-tensors names as targets instead of modules.
_EVERY_LINEAR = ("Linear", "LinearBase", "FusedMoE", "MoE")


def targets_of(section: Mapping[str, object], method: str, expert_dtype: object) -> Pairs:
    """(names, format) in the order in which they decide. Raises UnsupportedError for a format that is not computed."""
    inner = section.get("quantization")
    if isinstance(inner, dict):
        section = {**section, **inner}
    if method == "fp8":
        return _fp8(section, expert_dtype)
    if method in ("modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4", ""):
        return _modelopt(section)
    if method == "compressed-tensors":
        return [(_skipped(section), None), *_config_groups(section)]
    if method in ("awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round", "auto_round", "intel/auto-round"):
        return _integers(section, method)
    if method == "bitsandbytes":
        four = section.get("load_in_4bit") or section.get("_load_in_4bit")
        return [(_skipped(section), None), (None, NF4 if four else INT8_ROWS)]
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return [(_skipped(section), None), (Names(["experts"]), MXFP4)]
    if method == "fbgemm_fp8":
        return [(_skipped(section), None), (None, FP8_ROWS)]
    raise _unknown(method)


def _fp8(section: Mapping[str, object], expert_dtype: object) -> Pairs:
    block = section.get("weight_block_size")
    if block is None:
        base = FP8
    elif isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block):
        base = fp8_blocks(block[0], block[1])
    else:
        raise BadConfigError(
            "config.json: quantization_config.weight_block_size must be two whole numbers", fix="for example [128, 128]"
        )
    # A mixed checkpoint's `ignore` tells what its other format leaves to this one (DeepSeek-V4 with NVFP4 experts).
    mixed = _quantized_layers(section)
    if mixed:
        return [*mixed, (_skipped(section, ("modules_to_not_convert", "ignored_layers")), None), (None, base)]
    experts: Pairs = [(Names(["experts"]), MXFP4)] if expert_dtype == "fp4" else []
    return [(_skipped(section), None), *experts, (None, base)]


def _modelopt(section: Mapping[str, object]) -> Pairs:
    algorithm = str(section.get("quant_algo", "unnamed")).upper()[:40]
    mixed = _quantized_layers(section)
    if mixed:
        return [(_skipped(section), None), *mixed, (None, None)]
    if algorithm == "MIXED_PRECISION":
        return [(_skipped(section), None), *_config_groups(section), (None, None)]
    return [(_skipped(section), None), (None, _algorithm(algorithm, section))]


def _algorithm(name: str, section: Mapping[str, object]) -> Format:
    group = section.get("group_size")
    size = group if type(group) is int and group > 0 else None
    if name in ("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ", "W4A8_NVFP4_FP8"):
        return NVFP4 if size is None else NVFP4._replace(group=size)
    if name in ("FP8", "FP8_PER_TENSOR"):
        return FP8
    if name in ("FP8_PER_CHANNEL_PER_TOKEN",):
        return FP8_ROWS
    if name in ("FP8_PB_WO", "FP8_PB_REAL"):
        return fp8_blocks(128, 128)
    if name == "MXFP8":
        return MXFP8
    if name in ("MXFP4", "W4A8_MXFP4_FP8", "W4A16_MXFP4"):
        return MXFP4
    if name in ("W4A16_AWQ", "W4A8_AWQ", "INT4_AWQ", "W4A16"):
        return grouped_int(4, size or 128, zeros=False)
    if name in ("W8A8_SQ_PER_CHANNEL", "INT8_SQ", "W8A16"):
        return INT8_ROWS
    raise _unknown(name)


def _quantized_layers(section: Mapping[str, object]) -> Pairs:
    listed = section.get("quantized_layers")
    if not isinstance(listed, dict):
        return []
    by_format: dict[Format, list[str]] = {}
    for name, entry in listed.items():
        if not isinstance(entry, dict):
            raise _unknown(f"quantized_layers of {str(name)[:40]}")
        by_format.setdefault(_algorithm(str(entry.get("quant_algo")).upper()[:40], entry), []).append(name)
    return [(Names(names), stored) for stored, names in by_format.items()]


def _config_groups(section: Mapping[str, object]) -> Pairs:
    groups = section.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _unknown("config_groups")
    found: Pairs = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        targets = group.get("targets") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise _unknown("config_groups without weights")
        if not isinstance(targets, list) or any(target in _EVERY_LINEAR for target in targets):
            found.append((None, _described(weights)))
        else:
            found.append((Names(targets), _described(weights)))
    # A target that means all others must come last.
    return [pair for pair in found if pair[0] is not None] + [pair for pair in found if pair[0] is None]


def _described(weights: Mapping[str, object]) -> Format:
    """The format of compressed-tensors: bits, type, and what shares a scale."""
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    group = weights.get("group_size")
    size = group if type(group) is int and group > 0 else 0
    if kind == "float" and bits == 4:
        return MXFP4 if size == 32 else NVFP4
    if kind == "float" and bits == 8:
        if strategy == "block":
            block = weights.get("block_structure")
            if isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block):
                return fp8_blocks(block[0], block[1])
            return fp8_blocks(128, 128)
        if size == 32:
            return MXFP8
        return FP8_ROWS if strategy == "channel" else FP8
    if kind == "int" and type(bits) is int and 2 <= bits <= 8:
        if bits == 8 and not size:
            return INT8 if strategy == "tensor" else INT8_ROWS
        return grouped_int(bits, size or -1, zeros=weights.get("symmetric") is False)
    raise _unknown(f"{str(kind)[:20]}{str(bits)[:20]}")


def _integers(section: Mapping[str, object], method: str) -> Pairs:
    bits = section.get("bits", section.get("w_bit"))
    group = section.get("group_size", section.get("q_group_size"))
    if type(bits) is not int or not 2 <= bits <= 8 or type(group) is not int or group < -1 or group == 0:
        raise _unknown(f"{method} without bits (2 to 8) and group_size (-1, or at least 1)")
    dynamic = section.get("dynamic")
    names: list[object] = []
    if isinstance(dynamic, dict):
        for name in dynamic:
            if not name.startswith("-:"):
                raise _unknown(f"{method} with rules for single modules")
            names.append(f"re:{name[2:]}")
    elif section.get("extra_config"):
        raise _unknown(f"{method} with rules for single modules")
    base = grouped_int(bits, group, zeros=True)
    head: Pairs = [(Names(["lm_head"]), base)] if section.get("lm_head") is True else []
    return [(_skipped(section), None), (Names(names), None), *head, (None, base)]


def _skipped(section: Mapping[str, object], keys: tuple[str, ...] = _SKIPPED) -> Names:
    names: list[object] = []
    for key in keys:
        listed = section.get(key)
        if listed is None:
            continue
        if not isinstance(listed, list):
            raise BadConfigError(f"config.json: quantization_config.{key} is not a list", fix="write a list")
        names.extend(listed)
    return Names(names)


def _unknown(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"its weights are quantised ({what[:60]}), and the bytes of that format are not computed", fix="give --weights"
    )
