"""Decides what a GPU's generation rules out: types of weights and of the KV cache that no kernel has there.

Compute capabilities are those of the maker's list; the rest is `platforms/cuda.py` and `v1/attention/backends`.
"""

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Refusal
from kvbudget.engines.vllm.formats import FLOAT16_UNSTABLE
from kvbudget.model.layers import Attention, Indexer, Latent
from kvbudget.model.read import Model

Capability = tuple[int, int]
_UNKNOWN: Capability = (0, 0)
_BF16: Capability = (8, 0)  # platforms/cuda.py: check_if_supports_dtype
_FP8: Capability = (8, 9)
_SPARSE: Capability = (9, 0)  # v1/attention/backends/mla/*_sparse.py: supports_compute_capability
# a word of the card's name
_BY_WORD: dict[str, Capability] = {
    "v100": (7, 0), "t4": (7, 5),
    "a100": (8, 0), "a800": (8, 0), "a30": (8, 0),
    "a40": (8, 6), "a10": (8, 6), "a10g": (8, 6), "a16": (8, 6), "a2": (8, 6),
    "a6000": (8, 6), "a5000": (8, 6), "a4000": (8, 6), "a2000": (8, 6),
    "orin": (8, 7),
    "l40s": (8, 9), "l40": (8, 9), "l20": (8, 9), "l4": (8, 9), "ada": (8, 9),
    "h100": (9, 0), "h200": (9, 0), "h800": (9, 0), "h20": (9, 0), "gh200": (9, 0),
    "b100": (10, 0), "b200": (10, 0), "gb200": (10, 0), "b300": (10, 3), "gb300": (10, 3),
    "blackwell": (12, 0), "gb10": (12, 1),
}  # fmt: skip
# GeForce RTX by the first digits of its number
_BY_SERIES: dict[str, Capability] = {"20": (7, 5), "30": (8, 6), "40": (8, 9), "50": (12, 0)}
# v1/attention/backends/flashinfer.py: get_supported_head_sizes
_FLASHINFER_HEADS = (64, 128, 256, 512)
_SINKS = ("gpt_oss",)  # FlashInfer has attention sinks from 9.0 on
# model_arch_config_convertor.py: is_mm_prefix_lm; FlashInfer cannot look ahead within an image, Triton can
_IMAGE_PREFIX = ("bagel", "gemma3", "molmo2", "moondream3", "paligemma")
_FP8_FORMATS = ("fp8", "fp8_e4m3", "fp8_e5m2")


def capability_of(device_name: str) -> Capability:
    """(9, 0) of "H100 80GB"; (0, 0) where the name does not tell."""
    words = device_name.lower().replace("-", " ").split()
    for word in words:
        if word in _BY_WORD:
            return _BY_WORD[word]
    if "rtx" in words:
        for word in words:
            if len(word) == 4 and word.isdigit() and word[:2] in _BY_SERIES:
                return _BY_SERIES[word[:2]]
    return _UNKNOWN


def device_refusals(model: Model, settings: Settings, *, exact: bool) -> list[Refusal]:
    """`exact`: the version is the one whose kernels were read; older ones are only refused what none could do."""
    found = _dtype_refusals(model, settings)
    if settings.capability != _UNKNOWN:
        found += _cache_refusals(model, settings, exact=exact)
        if exact and settings.capability < _SPARSE and _is_sparse(model):
            found.append(_without_sparse(settings.capability))
    return found


def _is_sparse(model: Model) -> bool:
    kinds = {type(cache) for layer in dict.fromkeys(model.layers) for cache in layer.caches}
    return {Latent, Indexer} <= kinds


def _without_sparse(capability: Capability) -> Refusal:
    """platforms/cuda.py: get_attn_backend_cls."""
    return Refusal(
        "attention_unsupported",
        "No valid attention backend found for cuda with use_mla=True, use_sparse=True. Reasons: "
        "{FLASH_ATTN_MLA_SPARSE: [compute capability not supported], FLASHMLA_SPARSE: [compute capability not "
        f"supported], TRITON_MLA: [sparse not supported]}}. (this card has {capability[0]}.{capability[1]})",
        "use a card from Hopper on (compute capability 9.0), or a model without sparse attention",
    )


def _dtype_refusals(model: Model, settings: Settings) -> list[Refusal]:
    capability = settings.capability
    if settings.dtype == "bfloat16" and _UNKNOWN < capability < _BF16:
        return [
            Refusal(
                "dtype_unsupported",
                "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your GPU has compute "
                f"capability {capability[0]}.{capability[1]}. You can use float16 instead by explicitly setting the "
                "`dtype` flag in CLI, for example: --dtype=half.",
                "use --dtype half",
            )
        ]
    if settings.dtype in ("half", "float16") and model.model_type in FLOAT16_UNSTABLE:
        return [
            Refusal(
                "dtype_unsupported",
                f"The model type '{model.model_type}' does not support float16. Reason: Numerical instability. Please "
                "use bfloat16 or float32 instead.",
                "use --dtype bfloat16",
            )
        ]
    return []


def _cache_refusals(model: Model, settings: Settings, *, exact: bool) -> list[Refusal]:
    """Attention heads only: MLA kernels check less before they run."""
    sizes = {c.key_size for layer in dict.fromkeys(model.layers) for c in layer.caches if isinstance(c, Attention)}
    if not sizes:
        return []
    if settings.kv_cache_dtype.startswith("nvfp4"):
        reason = _without_nvfp4(settings, sizes)
        if reason:
            return [_no_backend(settings, reason)]
        return []
    if not exact:
        return []
    fp8 = settings.kv_cache_dtype in _FP8_FORMATS and not _has_fp8(model, settings.capability, sizes)
    if fp8 or (settings.kv_cache_dtype == "bfloat16" and settings.capability < _BF16):
        return [_cannot_store(settings)]
    return []


def _without_nvfp4(settings: Settings, sizes: set[int]) -> str:
    """v1/attention/backends/flashinfer.py: supports_kv_cache_dtype, supports_combination: the one backend with it."""
    if settings.capability < _BF16:
        return "compute capability not supported"
    if settings.capability[0] == 10:
        return ""
    if settings.kv_cache_dtype != "nvfp4":
        return "kv_cache_dtype not supported"
    return "fa2 prefill misreads an NVFP4 KV cache at head_size 64" if 64 in sizes else ""


def _has_fp8(model: Model, capability: Capability, sizes: set[int]) -> bool:
    """FlashAttention has it from 9.0 on, FlashInfer from 8.0 on for its head sizes, Triton from 8.9 on."""
    if capability >= _FP8:
        return True
    triton_alone = model.model_type in _SINKS or (model.multimodal and model.config_type in _IMAGE_PREFIX)
    return capability >= _BF16 and not triton_alone and sizes <= set(_FLASHINFER_HEADS)


def _no_backend(settings: Settings, reason: str) -> Refusal:
    return Refusal(
        "kv_cache_dtype_unsupported",
        f"No valid attention backend found for cuda with kv_cache_dtype={settings.kv_cache_dtype}. Reasons: "
        f"{{FLASHINFER: [{reason}]}}.",
        "use --kv-cache-dtype fp8 or auto" if settings.capability >= _FP8 else "use --kv-cache-dtype auto",
    )


def _cannot_store(settings: Settings) -> Refusal:
    """v1/attention/ops/triton_reshape_and_cache_flash.py: what is left for this card is the Triton backend."""
    return Refusal(
        "kv_cache_dtype_unsupported",
        f"Triton reshape-and-cache cannot store kv_cache_dtype={settings.kv_cache_dtype} on this device: an FP8 KV "
        "cache needs native fp8e4nv (SM89+). Use --kv-cache-dtype bfloat16 (or float16 on SM75).",
        "leave --kv-cache-dtype out, or give it as auto where the checkpoint prescribes none",
    )
