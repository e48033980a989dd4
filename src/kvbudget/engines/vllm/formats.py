"""How many bytes the KV formats of `--kv-cache-dtype` take (`config/cache.py: CacheDType`)."""

from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.layers import Attention, Indexer, Latent
from kvbudget.model.read import Model

# utils/torch_utils.py: STR_DTYPE_TO_TORCH_DTYPE; formats whose page holds nothing but keys and values
_ELEMENTS = {"float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}
# v1/attention/backends/triton_attn.py: one float32 scale beside each head's key and value
_PER_TOKEN_HEAD = {"int4_per_token_head": 2, "int8_per_token_head": 1, "fp8_per_token_head": 1}  # values in one byte
_SCALE_BYTES = 4
# model_executor/layers/attention/mla_attention.py: opaque bytes of one token of a 512 + 64 latent
_PACKED_LATENT = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_PACKED_LATENT_SIZE = 512 + 64
_NVFP4 = ("nvfp4", "nvfp4_4over6")  # utils/torch_utils.py: nvfp4_kv_cache_full_dim: 4 bits and a byte for each 16
_NVFP4_SCALED = 16
_UNKNOWN_PAGES = (
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit",
)  # fmt: skip
KNOWN = ("auto", *_ELEMENTS, *_PACKED_LATENT, *_PER_TOKEN_HEAD, *_NVFP4)
# config/model.py: _resolve_auto_dtype runs float32 checkpoints in a 16-bit type
_WEIGHT_ELEMENTS = {"auto": 2, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
_STATE_ELEMENTS = {"float32": 4, "float16": 2, "bfloat16": 2}
# v1/attention/backends: the sparse indexer keeps fp8 keys and one float32 scale for each 128 of them
_INDEXER_SCALED = 128


# GPUs of compute capability 10.x; the other Blackwell cards (RTX) are 12.x
_SM100 = ("b100", "b200", "b300")
# model_executor/models/config.py: GlmMoeDsaForCausalLM
_FP8_ON_SM100 = ("glm_moe_dsa",)


def is_sm100(device_name: str) -> bool:
    """Whether `is_device_capability_family(100)` is known to be true of the device."""
    return any(name in device_name.lower() for name in _SM100)


def kv_format(model: Model, flags: EngineFlags, *, sm100: bool = False) -> str:
    """The format that `flags.kv_cache_dtype` becomes; "auto" stays where the model's own type is used."""
    asked = flags.kv_cache_dtype
    if asked == "auto":
        prescribed = model.quantization.kv_cache_dtype if model.quantization else ""
        if prescribed == "?":
            raise UnsupportedError(
                "the checkpoint prescribes a KV cache format whose meaning for --kv-cache-dtype auto is not known",
                fix="say --kv-cache-dtype bfloat16 or fp8",
            )
        asked = prescribed or ("fp8_e4m3" if sm100 and model.model_type in _FP8_ON_SM100 else "auto")
    if asked in _UNKNOWN_PAGES:
        raise UnsupportedError(
            f"--kv-cache-dtype {asked}: the packed page of this format is not computed yet",
            fix=f"use one of {', '.join(KNOWN)}",
        )
    if asked not in KNOWN:
        raise BadValueError(
            f"--kv-cache-dtype: {asked[:40]!r} is not one of vLLM 0.32", fix=f"use one of {', '.join(KNOWN)}"
        )
    if asked.startswith("fp8") and not sm100 and _is_packed_when_quantised(model):
        return "fp8_ds_mla"
    return asked


def _is_packed_when_quantised(model: Model) -> bool:
    """mla_attention.py: _canonicalize_sparse_mla_kv_cache_dtype: FlashMLA's sparse kernels, which Hopper takes for a
    latent of 512 + 64 (platforms/cuda.py: _get_backend_priorities); SM100 takes FlashInfer's, with plain fp8."""
    layers = [layer for layer in dict.fromkeys(model.layers) if any(isinstance(c, Indexer) for c in layer.caches)]
    latents = [cache for layer in layers for cache in layer.caches if isinstance(cache, Latent)]
    return any(cache.latent_size + cache.rope_size == _PACKED_LATENT_SIZE for cache in latents)


def element_bytes(dtype: str) -> int:
    """Bytes of one weight in the type of `--dtype`."""
    if dtype not in _WEIGHT_ELEMENTS:
        raise BadValueError(f"--dtype: {dtype[:40]!r} is unknown", fix=f"use one of {', '.join(_WEIGHT_ELEMENTS)}")
    return _WEIGHT_ELEMENTS[dtype]


def state_bytes(dtype: str, model_bytes: int, flag: str) -> int:
    """Bytes of one element of a recurrent state; "auto" and "" are the model's own type."""
    if dtype in ("auto", ""):
        return model_bytes
    if dtype not in _STATE_ELEMENTS:
        raise BadValueError(f"{flag}: {dtype[:40]!r} is unknown", fix=f"use one of auto, {', '.join(_STATE_ELEMENTS)}")
    return _STATE_ELEMENTS[dtype]


def attention_token_bytes(cache: Attention, heads: int, dtype: str, model_bytes: int) -> int:
    """Bytes of one token in one layer with `heads` KV heads on the rank."""
    size = cache.key_size + cache.value_size
    if dtype in _PER_TOKEN_HEAD:
        return heads * (size // _PER_TOKEN_HEAD[dtype] + 2 * _SCALE_BYTES)
    if dtype in _NVFP4:
        if cache.key_size != cache.value_size:
            raise UnsupportedError(
                f"--kv-cache-dtype {dtype} needs keys and values of one size, this model has {cache.key_size} and "
                f"{cache.value_size}",
                fix="use fp8",
            )
        if cache.key_size % _NVFP4_SCALED:
            raise UnsupportedError(
                f"--kv-cache-dtype {dtype} scales groups of {_NVFP4_SCALED}, which do not divide a head of "
                f"{cache.key_size}",
                fix="use fp8",
            )
        return heads * 2 * (cache.key_size // 2 + cache.key_size // _NVFP4_SCALED)
    if dtype in _PACKED_LATENT:
        raise UnsupportedError(
            f"--kv-cache-dtype {dtype} is a format for MLA, this model has attention heads", fix="use fp8"
        )
    return heads * size * _ELEMENTS.get(dtype, model_bytes)


def latent_token_bytes(cache: Latent, dtype: str, model_bytes: int) -> int:
    """Bytes of one token in one MLA layer, the same on every rank."""
    size = cache.padded_size or cache.latent_size + cache.rope_size
    if dtype in _PACKED_LATENT:
        if size != _PACKED_LATENT_SIZE:
            raise UnsupportedError(
                f"--kv-cache-dtype {dtype} is made for a latent of {_PACKED_LATENT_SIZE}, this model has {size}",
                fix="use fp8 or auto",
            )
        return _PACKED_LATENT[dtype]
    if dtype in _PER_TOKEN_HEAD or dtype in _NVFP4:
        raise UnsupportedError(f"--kv-cache-dtype {dtype} is not made for MLA", fix="use fp8 or auto")
    return size * _ELEMENTS.get(dtype, model_bytes)


def indexer_token_bytes(cache: Indexer, model_bytes: int) -> int:
    """Bytes of one key of a sparse-attention indexer, whatever --kv-cache-dtype: fp8 and its scales, or as it is."""
    if cache.plain:
        return cache.head_size * model_bytes
    return cache.head_size + -(-cache.head_size // _INDEXER_SCALED) * _SCALE_BYTES


def common_element_bytes(dtype: str, model_bytes: int) -> int:
    """Bytes of one stored value, for people and for figures that need one number; packed formats count as one."""
    return _ELEMENTS.get(dtype, model_bytes if dtype == "auto" else 1)
