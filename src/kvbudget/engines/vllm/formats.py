"""How many bytes the KV formats of `--kv-cache-dtype` take (`config/cache.py: CacheDType`)."""

from math import ceil

from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.layers import Attention, Indexer, Latent, State
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
# quantization/turboquant/config.py: bits of a key's and of a value's element; 8 are fp8, fewer have 2 bytes of norm;
# a value has 4 bytes of scale and zero
TURBOQUANT = {
    "turboquant_k8v4": (8, 4), "turboquant_4bit_nc": (4, 4), "turboquant_k3v4_nc": (3, 4), "turboquant_3bit_nc": (3, 3),
}  # fmt: skip
_NORM_BYTES, _SCALE_AND_ZERO_BYTES = 2, 4
_KEPT_PLAIN = 2  # layers at either end that TurboQuant leaves in the model's type
_ROCM_ONLY = ("ultraquant_4bit",)  # platforms/cuda.py: _get_backend_priorities does not have its backend
KNOWN = ("auto", *_ELEMENTS, *_PACKED_LATENT, *_PER_TOKEN_HEAD, *_NVFP4, *TURBOQUANT)
# config/model.py: _resolve_auto_dtype runs float32 checkpoints in a 16-bit type
_WEIGHT_ELEMENTS = {"auto": 2, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
# config/model.py: _FLOAT16_NOT_SUPPORTED_MODELS
FLOAT16_UNSTABLE = ("gemma2", "gemma3", "gemma3_text", "glm4")
_STATE_ELEMENTS = {"float32": 4, "float16": 2, "bfloat16": 2}
# v1/attention/backends: the sparse indexer keeps fp8 keys and one float32 scale for each 128 of them
_INDEXER_SCALED = 128


# model_executor/models/config.py: GlmMoeDsaForCausalLM
_FP8_ON_SM100 = ("glm_moe_dsa",)


def kv_format(model: Model, flags: EngineFlags, *, sm100: bool = False) -> str:
    """The format that `flags.kv_cache_dtype` becomes; "auto" stays where the model's own type is used."""
    asked = flags.kv_cache_dtype
    if asked == "auto":
        prescribed = model.quantization.kv_cache_dtype if model.quantization else ""
        asked = prescribed or ("fp8_e4m3" if sm100 and model.model_type in _FP8_ON_SM100 else "auto")
    if asked in _ROCM_ONLY:
        raise UnsupportedError(
            f"--kv-cache-dtype {asked}: No valid attention backend found for cuda; vLLM has this format on ROCm only",
            fix=f"use one of {', '.join(KNOWN)}",
        )
    if asked in TURBOQUANT:
        _refuse_beside_turboquant(model, flags)
    if asked not in KNOWN:
        raise BadValueError(
            f"--kv-cache-dtype: {asked[:40]!r} is not one of vLLM 0.32", fix=f"use one of {', '.join(KNOWN)}"
        )
    if asked.startswith("fp8") and not sm100 and _is_packed_when_quantised(model):
        return "fp8_ds_mla"
    return asked


def plain_layers(model: Model, dtype: str) -> frozenset[int]:
    """Layers that keep the model's own type whatever the format (turboquant/config.py: get_boundary_skip_layers)."""
    if dtype not in TURBOQUANT or any(isinstance(c, State) for layer in model.layers for c in layer.caches):
        return frozenset()
    count = len(model.layers)
    kept = min(_KEPT_PLAIN, count // 2)
    return frozenset((*range(kept), *range(count - kept, count)))


def _refuse_beside_turboquant(model: Model, flags: EngineFlags) -> None:
    """Its pages beside those of other kinds are not known here: the engine makes them equal by rules of their own."""
    asked = flags.kv_cache_dtype
    caches = [cache for layer in dict.fromkeys(model.layers) for cache in layer.caches]
    if any(isinstance(cache, Latent | Indexer) for cache in caches):
        raise UnsupportedError(
            f"--kv-cache-dtype {asked}: No valid attention backend found for cuda; none for MLA has this format",
            fix="use fp8 or auto",
        )
    plain = [c for c in caches if isinstance(c, Attention) and not c.window and not c.chunk]
    known = all(cache in plain or isinstance(cache, State) for cache in caches)
    # a stage whose first layer is packed has larger blocks than one whose first layer is not
    staged = flags.pipeline_parallel_size > 1
    drafted = flags.speculation is not None and flags.speculation.method not in ("ngram", "ngram_gpu", "suffix")
    if not known or drafted or staged or any(cache.key_size != cache.value_size for cache in plain):
        raise UnsupportedError(
            f"--kv-cache-dtype {asked}: the packed pages of this format are known for full attention only, with keys "
            "and values of one size, without draft model or pipeline stages",
            fix="use fp8 or auto",
        )


def _is_packed_when_quantised(model: Model) -> bool:
    """mla_attention.py: _canonicalize_sparse_mla_kv_cache_dtype: FlashMLA's sparse kernels, which Hopper takes for a
    latent of 512 + 64 (platforms/cuda.py: _get_backend_priorities); SM100 takes FlashInfer's, with plain fp8."""
    layers = [layer for layer in dict.fromkeys(model.layers) if any(isinstance(c, Indexer) for c in layer.caches)]
    latents = [cache for layer in layers for cache in layer.caches if isinstance(cache, Latent)]
    return any(cache.latent_size + cache.rope_size == _PACKED_LATENT_SIZE for cache in latents)


def element_bytes(model: Model, dtype: str, capability: tuple[int, int] = (0, 0)) -> int:
    """Bytes of one weight in the type of `--dtype`. Without bf16 (before 8.0) "auto" is float16, or float32 where the
    model does not work in it (config/model.py: _resolve_auto_dtype)."""
    if dtype not in _WEIGHT_ELEMENTS:
        raise BadValueError(f"--dtype: {dtype[:40]!r} is unknown", fix=f"use one of {', '.join(_WEIGHT_ELEMENTS)}")
    if dtype == "auto" and (0, 0) < capability < (8, 0) and model.model_type in FLOAT16_UNSTABLE:
        return _WEIGHT_ELEMENTS["float32"]
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
    if dtype in TURBOQUANT:
        keys, values = TURBOQUANT[dtype]
        slot = cache.key_size if keys == 8 else ceil(cache.key_size * keys / 8) + _NORM_BYTES
        slot += ceil(cache.value_size * values / 8) + _SCALE_AND_ZERO_BYTES
        return heads * (slot + slot % 2)
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
    if dtype in _PER_TOKEN_HEAD or dtype in _NVFP4:  # v1/attention/backends/mla: supported_kv_cache_dtypes of all
        raise UnsupportedError(
            f"--kv-cache-dtype {dtype}: No valid attention backend found for cuda; none for MLA has this format",
            fix="use fp8 or auto",
        )
    return size * _ELEMENTS.get(dtype, model_bytes)


def indexer_token_bytes(cache: Indexer, model_bytes: int) -> int:
    """Bytes of one key of a sparse-attention indexer, whatever --kv-cache-dtype: fp8 and its scales, or as it is."""
    if cache.plain:
        return cache.head_size * model_bytes
    return cache.head_size + -(-cache.head_size // _INDEXER_SCALED) * _SCALE_BYTES


def common_element_bytes(dtype: str, model_bytes: int) -> int:
    """Bytes of one stored value, for people and for figures that need one number; packed formats count as one."""
    return _ELEMENTS.get(dtype, model_bytes if dtype == "auto" else 1)
