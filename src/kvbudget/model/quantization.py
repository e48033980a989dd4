"""Decides what a checkpoint's quantization_config says about weight bytes and about the dtype of the KV cache."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.errors import BadConfigError

# Modules that fp8 checkpoints leave unquantised and that our parameter count already keeps apart from the linears.
_UNQUANTISED = ("lm_head", "gate", "shared_expert_gate", "e_score_correction_bias", "embed_tokens", "norm",
                "input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "mlp.gate")  # fmt: skip
# vLLM 0.32 `utils/torch_utils.py: get_kv_cache_quant_algo_string`.
_MODELOPT_KV = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}

# Words by which public checkpoints tell their weight format; whole words only, between any separators.
_NAMED = re.compile(
    r"(?<![A-Za-z0-9])"
    r"(?:(?:NV|MX)?FP[468]|NF4|INT[2-8]|[2-8]-?BIT|W[0-9]{1,2}A[0-9]{1,2}(?:KV[0-9]{1,2})?|AWQ|GPTQ|HQQ|AQLM|EXL[23]|BNB|"
    r"AutoRound|SmoothQuant|bitsandbytes|quanti[sz]ed)"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)


class Quantization(NamedTuple):
    """What was read. `kv_cache_dtype`: "" when the checkpoint prescribes none, "?" when it is not clear.

    `fp8_block`: side lengths of one scale's block; (0, 0) one scale a matrix; None when the weight format is not simple
    fp8, and then `weights_unknown` says why its bytes are not computed.
    """

    method: str
    kv_cache_dtype: str
    fp8_block: tuple[int, int] | None
    weights_unknown: str


def quantization_of(config: Mapping[str, object], text: Mapping[str, object]) -> Quantization | None:
    """The checkpoint's quantisation, None for a plain one. Raises BadConfigError for a damaged section."""
    section = config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")
    if section is None or section == {}:
        return None
    if not isinstance(section, dict):
        raise BadConfigError(
            "config.json: quantization_config is not a JSON object", fix="correct or remove quantization_config"
        )
    method = section.get("quant_method", "")
    if not isinstance(method, str):
        raise BadConfigError("config.json: quantization_config.quant_method is not a string", fix="name the method")
    method = method.lower().replace("compressed_tensors", "compressed-tensors")[:40] or _modelopt_method(section)
    block, unknown = _simple_fp8(section, method)
    return Quantization(method, _kv_cache_dtype(section, method), block, unknown)


def quantisation_named(*names: object) -> str:
    """The first word among `names` that says the weights are quantised, "" when none does. Only strings count."""
    found = (_NAMED.search(name) for name in names if isinstance(name, str))
    return next((match[0] for match in found if match), "")


def _modelopt_method(section: Mapping[str, object]) -> str:
    """ModelOpt's own hf_quant_config.json names no method (vLLM 0.32 `_normalize_quantization_config`)."""
    producer, inner = section.get("producer"), section.get("quantization")
    if not isinstance(inner, dict) or not isinstance(producer, dict) or producer.get("name") != "modelopt":
        return ""
    algorithm = str(inner.get("quant_algo")).upper()
    return {"NVFP4": "modelopt_fp4"}.get(algorithm, "modelopt" if algorithm.startswith("FP8") else "")


def _simple_fp8(section: Mapping[str, object], method: str) -> tuple[tuple[int, int] | None, str]:
    if method != "fp8":
        named = method or str(section.get("quant_algo", "unnamed"))[:40]
        return None, f"its weights are quantised ({named}), and the bytes of that format are not computed yet"
    skipped = section.get("modules_to_not_convert") or section.get("ignored_layers") or []
    if not isinstance(skipped, list):
        raise BadConfigError(
            "config.json: quantization_config.modules_to_not_convert is not a list", fix="write a list"
        )
    for name in skipped:
        if not isinstance(name, str) or not name.endswith(_UNQUANTISED):
            return None, f"its fp8 checkpoint keeps {str(name)[:40]!r} unquantised, which is not computed yet"
    block = section.get("weight_block_size")
    if block is None:
        return (0, 0), ""
    if not isinstance(block, list) or len(block) != 2 or not all(type(side) is int and side > 0 for side in block):
        raise BadConfigError(
            "config.json: quantization_config.weight_block_size must be two whole numbers", fix="for example [128, 128]"
        )
    return (block[0], block[1]), ""


def _kv_cache_dtype(section: Mapping[str, object], method: str) -> str:
    """The dtype that `--kv-cache-dtype auto` becomes in vLLM 0.32 for this checkpoint."""
    inner = section.get("quantization")
    nested = inner if isinstance(inner, dict) else {}
    scheme = next(
        (
            value
            for value in (
                nested.get("kv_cache_scheme"),
                section.get("kv_cache_scheme"),
                nested.get("kv_cache_quant_algo"),
                section.get("kv_cache_quant_algo"),
            )
            if value
        ),
        None,
    )
    if scheme is None:
        return ""
    if method.startswith("modelopt"):
        if isinstance(scheme, str):
            return _MODELOPT_KV.get(scheme.lower(), "")
        if isinstance(scheme, dict) and scheme.get("type") == "float":
            if scheme.get("num_bits") == 8 and scheme.get("dynamic") is False:
                return "fp8_e4m3"
            if scheme.get("num_bits") == 4:
                return "nvfp4"
        return ""
    if method == "compressed-tensors":  # `model_executor/layers/attention/attention.py`: any scheme means fp8
        return "fp8"
    return "?"
