"""What was asked of an engine, and what the engine makes of it."""

from typing import TYPE_CHECKING, NamedTuple

from kvbudget.errors import UnsupportedError
from kvbudget.model.read import Model
from kvbudget.units import Bytes, Tokens

if TYPE_CHECKING:
    from kvbudget.model.drafts import MedusaHeads
else:  # as a string it would be compiled when this is imported
    MedusaHeads = object

# vLLM's value of --max-model-len for "the largest that fits".
AUTO_LENGTH = -1


class Speculation(NamedTuple):
    """vLLM's --speculative-config. `draft` is the model it names; None for methods that need none (ngram, mtp).

    `method`: "" where neither it nor a model was named. `model`: the name of what it names, a class's path included.
    `heads`: of Medusa, which keep no cache. `any_vocabulary`: use_heterogeneous_vocab.
    """

    method: str
    num_speculative_tokens: int
    draft: Model | None = None
    modules: int = 1  # draft modules that run one after another (multi-layer MTP)
    draft_tensor_parallel_size: int = 0  # 0: not asked for
    model: str = ""
    heads: MedusaHeads | None = None
    any_vocabulary: bool = False


class EngineFlags(NamedTuple):
    """Flags by vLLM's names; None means the engine's own default. `max_model_len` may be AUTO_LENGTH.

    Other engines' flags take the place of vLLM's where they mean the same; the last part are those that vLLM lacks.
    `gpu_memory_utilization` is the share that the engine itself asks for: of the total (vLLM, TGI), of what was free
    before the weights (SGLang --mem-fraction-static), of what is free after them (TensorRT-LLM
    kv_cache_free_gpu_memory_fraction).
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    data_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    async_scheduling: bool | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    num_gpu_blocks_override: int | None = None
    disable_hybrid_kv_cache_manager: bool = False
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    speculation: Speculation | None = None
    enforce_eager: bool = False
    pp_layer_partition: tuple[int, ...] | None = None  # environment variable VLLM_PP_LAYER_PARTITION
    enable_expert_parallel: bool = False
    # Engines other than vLLM
    value_cache_dtype: str | None = None  # llama.cpp --cache-type-v; K is kv_cache_dtype
    kv_unified: bool | None = None  # llama.cpp --kv-unified: one pool of cells for all slots
    swa_full: bool = False  # llama.cpp --swa-full: sliding layers keep the whole context
    gpu_layers: int | None = None  # llama.cpp --n-gpu-layers: of them the output layer is one
    tensor_split: tuple[float, ...] | None = None  # llama.cpp --tensor-split: shares of the cards
    micro_batch: int | None = None  # llama.cpp --ubatch-size
    flash_attention: bool | None = None  # llama.cpp --flash-attn
    window_pools: bool = False  # TensorRT-LLM: max_attention_window is given layer by layer, as config.json has it
    fit_context: bool = True  # llama.cpp --fit: a context that is not given is cut to what memory holds
    kv_offload: bool = True  # llama.cpp --kv-offload: the cache lies where its layers do
    max_pool_tokens: int | None = None  # SGLang --max-total-tokens: the pool holds no more
    allow_long_max_model_len: bool = False  # environment variable VLLM_ALLOW_LONG_MAX_MODEL_LEN


# Flags whose name is not that of their field.
_SPELT = {
    "pp_layer_partition": "VLLM_PP_LAYER_PARTITION",
    "value_cache_dtype": "--cache-type-v",
    "gpu_layers": "--n-gpu-layers",
    "micro_batch": "--ubatch-size",
    "max_pool_tokens": "--max-total-tokens",
    "fit_context": "--fit off",
    "kv_offload": "--no-kv-offload",
    "flash_attention": "--flash-attn",
    "window_pools": "window sizes layer by layer (max_attention_window)",
}
LLAMACPP_ONLY = (
    "value_cache_dtype", "kv_unified", "swa_full", "gpu_layers", "micro_batch", "flash_attention", "tensor_split",
    "fit_context", "kv_offload",
)  # fmt: skip
_SGLANG_ONLY = ("max_pool_tokens",)


def refuse_flags(flags: EngineFlags, engine: str, lacking: tuple[str, ...]) -> None:
    """Raises UnsupportedError for the first field of `lacking` that is not left at its default; what SGLang alone has,
    every other engine lacks."""
    for name in lacking if engine == "SGLang" else (*lacking, *_SGLANG_ONLY):
        value = getattr(flags, name)
        if value != EngineFlags._field_defaults[name]:
            spelt = _SPELT.get(name, "--" + name.replace("_", "-"))
            shown = "" if isinstance(value, bool | tuple) else f" {str(value)[:40]}"
            raise UnsupportedError(f"{spelt}{shown}: {engine} has nothing like it", fix="leave it out")


class Batching(NamedTuple):
    """vLLM: what decides the batch beside max_model_len. `asked_*`: 0 or None where no flag says it. `batches`: so many
    are in flight at once."""

    asked_tokens: int
    asked_seqs: int
    default_tokens: int
    default_seqs: int
    asked_chunks: bool | None
    batches: int


class Settings(NamedTuple):
    """Every value that the engine would run with. `element_bytes`: of one weight; `kv_element_bytes`: of one K or V.

    `hybrid_manager`: layers of different kinds have groups of their own. `conv_state_bytes`, `matrix_state_bytes`: of
    one element of the two parts of a recurrent state, 0 for what each layer asks for. `defaults_known`: the device was
    known, so the batch defaults are those of the engine on it. `latent_block`: what a block of MLA layers is a multiple
    of, by the kernels of the card. `sm100`: it is known to be of compute capability 10.x; `capability`: its compute
    capability, (0, 0) when unknown. `dtype`: as asked. `profiled_seqs`: the most sequences that the engine's memory
    beside weights and pool must do with, where that is not `max_num_seqs`; 0: it is.
    `batching`: by what the batch follows another max_model_len; None: it does not. `longest`: the most that the engine
    takes as max_model_len, whatever the memory; 0: no limit is known.
    """

    max_model_len: Tokens
    auto_length: bool
    max_num_seqs: int
    max_num_batched_tokens: Tokens
    max_in_flight_tokens: Tokens
    block_size: Tokens
    kv_cache_dtype: str
    kv_element_bytes: Bytes
    element_bytes: Bytes
    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpu_memory_utilization: float
    async_scheduling: bool
    num_gpu_blocks_override: int | None
    decode_context_parallel_size: int = 1
    prefix_caching: bool = True
    chunked_prefill: bool = True
    enforce_eager: bool = False
    hybrid_manager: bool = True
    speculation: Speculation | None = None
    conv_state_bytes: Bytes = Bytes(2)
    matrix_state_bytes: Bytes = Bytes(0)
    defaults_known: bool = True
    pp_layer_partition: tuple[int, ...] | None = None
    data_parallel_size: int = 1
    expert_parallel: bool = False
    asked_block_size: int = 0
    latent_block: Tokens = Tokens(64)
    sm100: bool = False
    capability: tuple[int, int] = (0, 0)
    dtype: str = "auto"
    profiled_seqs: int = 0
    batching: Batching | None = None
    longest: Tokens = Tokens(0)
    # llama.cpp: cells of one slot, or of all together where they are unified, and how they are laid out
    context_cells: Tokens = Tokens(0)
    unified_cells: bool = False
    full_windows: bool = False
    gpu_layers: int | None = None
    flash_attention: bool | None = None
    tensor_split: tuple[float, ...] | None = None
    kv_offload: bool = True
    max_pool_tokens: int = 0  # SGLang: the most that its pool holds; 0: what memory leaves
