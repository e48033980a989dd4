"""TensorRT-LLM: what it makes of its flags, and the blocks of its pools.

The engine takes kv_cache_free_gpu_memory_fraction of what is FREE after weights and the largest forward pass, not of
the card. Up to 0.21 the C++ runtime sizes the pool (`cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp:
calculateMaxNumBlocks`): whole tokens first, then blocks rounded UP, so the last block may lie beyond the share. From
1.0 on the PyTorch one does (`tensorrt_llm/_torch/pyexecutor/resource_manager.py`): blocks rounded down. CUDA graphs
must do with what is left.
"""

from collections.abc import Sequence

from kvbudget.engines.flags import LLAMACPP_ONLY, EngineFlags, Settings, refuse_flags
from kvbudget.engines.rule import Pool, Refusal, Stage, Taken
from kvbudget.engines.tokens import (
    SeparatePools,
    bounds_of,
    caches_of,
    length_of,
    refuse_context_parallel,
    refuse_stages_without_cache,
    refuse_unknown_caches,
    stored,
    weight_element_bytes,
)
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.layers import Attention, Indexer, Latent, Layer, State
from kvbudget.model.read import Model
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.units import GIB, Blocks, Bytes, Tokens, blocks_for, is_digits

NEWEST = (1, 2)
_OLDEST = (0, 8)
_PYTORCH = (1, 0)
_FRACTION = 0.9  # KvCacheConfig::kDefaultGpuMemFraction
_SEQUENCES = 2048  # max_batch_size of trtllm-serve
_BATCHED_TOKENS = 8192  # max_num_tokens
# tokens_per_block: plugin/plugin.py (64), llmapi/llm_args.py: KvCacheConfig (32)
_ENGINE_BLOCK, _PYTORCH_BLOCK = 64, 32
_ELEMENTS = {"fp8": 1, "fp8_e4m3": 1, "int8": 1, "float16": 2, "bfloat16": 2, "float32": 4}
_INDEXER_SCALED = 128
_LACKING = (
    *LLAMACPP_ONLY, "disable_hybrid_kv_cache_manager", "mamba_cache_dtype", "mamba_ssm_cache_dtype",
    "enable_chunked_prefill",
)  # fmt: skip


class WindowPools(SeparatePools):
    """Pools by window, each with an equal share of the memory (calculate_max_num_blocks_for_vswa).

    Blocks are those of the first group's pool, that of the longest window.
    """

    __slots__ = ()

    def blocks_for(self, tokens: int) -> Blocks:
        """Blocks of the first pool, or what those of the tightest other pool are worth in them."""
        first = self.groups[0].bytes_per_block
        return Blocks(max(-(-g.blocks_for(tokens) * g.bytes_per_block // first) for g in self.groups))


class Trtllm:
    """The rule of one version, 1.2 unless told otherwise. Stateless."""

    name = "trtllm"
    needs_memory = True

    def __init__(self, version: str = "") -> None:
        self._pytorch = _minor_of(version) >= _PYTORCH
        self.version = version or "1.2"
        self.memory_version = (0, 15) if self._pytorch else (0, 8)  # of about the same time

    def settle(self, model: Model, flags: EngineFlags, device_memory: int, device_name: str) -> Settings:
        """What the engine runs with. `gpu_memory_utilization` is the share of free memory."""
        refuse_unknown_caches(model, self.name)
        refuse_flags(flags, "TensorRT-LLM", _LACKING)
        refuse_context_parallel(flags.decode_context_parallel_size, self.name)
        if any(isinstance(cache, State) for cache in caches_of(dict.fromkeys(model.layers))):
            raise UnsupportedError(
                "--engine trtllm: how it lays out recurrent states is not known here",
                fix="plan this model with --engine vllm@0.32 or sglang",
            )
        if flags.speculation is not None and flags.speculation.method not in ("ngram", "suffix"):
            raise UnsupportedError(
                f"--speculative-config: what {flags.speculation.method[:40]!r} costs in TensorRT-LLM is not known here",
                fix="leave it out",
            )
        fraction = _FRACTION if flags.gpu_memory_utilization is None else flags.gpu_memory_utilization
        if not 0 < fraction < 1:
            raise BadValueError(
                f"Invalid freeMemFraction, freeMemFraction ({fraction:g}) must be smaller than 1.0f",
                fix="use --gpu-memory-utilization 0.9",
            )
        element = weight_element_bytes(flags.dtype)
        dtype = _kv_format(model, flags.kv_cache_dtype)
        batched = flags.max_num_batched_tokens or _BATCHED_TOKENS
        return Settings(
            max_model_len=length_of(model, flags.max_model_len, "TensorRT-LLM"),
            auto_length=False,
            max_num_seqs=flags.max_num_seqs or _SEQUENCES,
            max_num_batched_tokens=Tokens(batched),
            max_in_flight_tokens=Tokens(batched),
            block_size=Tokens(flags.block_size or (_PYTORCH_BLOCK if self._pytorch else _ENGINE_BLOCK)),
            kv_cache_dtype=dtype,
            kv_element_bytes=Bytes(_ELEMENTS.get(dtype, element)),
            element_bytes=element,
            tensor_parallel_size=flags.tensor_parallel_size,
            pipeline_parallel_size=flags.pipeline_parallel_size,
            gpu_memory_utilization=fraction,
            async_scheduling=flags.async_scheduling is not False,
            num_gpu_blocks_override=flags.num_gpu_blocks_override,
            prefix_caching=flags.enable_prefix_caching is not False,
            enforce_eager=flags.enforce_eager,
            hybrid_manager=flags.window_pools and self._pytorch,
            speculation=flags.speculation,
            pp_layer_partition=flags.pp_layer_partition,
        )

    def usable_memory(self, total: int, settings: Settings) -> Bytes:
        """All of it: the share is taken of what is free later."""
        return Bytes(total)

    def cache_memory(self, total: int, taken: Taken, settings: Settings) -> int:
        """_util.py: _cal_max_memory: the share of what weights and the peak of one forward pass leave."""
        free = total - taken.weights - taken.activation - taken.non_torch
        return int(free * settings.gpu_memory_utilization)

    def stages(self, model: Model, settings: Settings) -> tuple[Stage, ...]:
        """mapping.py: pp_layers: layers that are over go to the first stages."""
        bounds = bounds_of(
            len(model.layers), settings.pipeline_parallel_size, settings.pp_layer_partition, extra_last=False
        )
        layouts = [_layout(model.layers[first:end], settings) for first, end in bounds]
        refuse_stages_without_cache(layouts, bounds, "TensorRT-LLM")
        return tuple(Stage(first, end, layout) for (first, end), layout in zip(bounds, layouts, strict=True))

    def pool(self, model: Model, settings: Settings, stages: Sequence[Stage], available: Sequence[int]) -> Pool:
        """Blocks of the primary pool: the smallest of all ranks; of the longest window where there are several."""
        sized = [self._blocks(stage.layout, settings, space) for stage, space in zip(stages, available, strict=True)]
        tightest = sized.index(min(sized))
        layout, blocks = stages[tightest].layout, Blocks(min(sized))
        if settings.num_gpu_blocks_override is not None:
            blocks = Blocks(settings.num_gpu_blocks_override)
        largest = Tokens(min(layout.largest_length(blocks), model.longest_given or blocks * settings.block_size))
        # _validate_and_adjust_attention_windows: a longer max_seq_len is cut, with a warning
        length = Tokens(min(settings.max_model_len, blocks * settings.block_size or settings.max_model_len))
        need = layout.blocks_for(length)
        share = available[tightest] // len(layout.groups)
        return Pool(
            stage=tightest,
            num_blocks=blocks,
            usable_blocks=blocks,
            bytes=Bytes(
                blocks * layout.bytes_per_block
                + sum(max(0, share) // g.bytes_per_block * g.bytes_per_block for g in layout.groups[1:])
            ),
            max_model_len=length,
            blocks_per_request=need,
            tokens=blocks * settings.block_size,
            concurrency=blocks / need,
            largest_max_model_len=largest,
            checked_blocks=blocks,
        )

    def refusals(self, model: Model, settings: Settings, stages: Sequence[Stage], pool: Pool) -> list[Refusal]:
        """Everything that would stop the start. A pool smaller than max_seq_len does not: the length is cut."""
        found = []
        ranks, heads = settings.tensor_parallel_size, model.attention_heads
        if heads % ranks:
            fitting = next(n for n in range(min(ranks, heads), 0, -1) if heads % n == 0)
            found.append(
                Refusal(
                    "heads_not_divisible",
                    f"{heads} attention heads cannot be divided by tensor parallel size {ranks}.",
                    f"use --tensor-parallel-size {fitting}",
                )
            )
        if pool.num_blocks <= 0:
            found.append(
                Refusal(
                    "no_kv_memory",
                    "Impossible to fit in any sequence in kvCache",
                    "quantise the weights or use more tensor-parallel ranks",
                )
            )
        return found

    def overruns(self, settings: Settings, total: int, taken: Taken, pool: Pool) -> list[Refusal]:
        """None: a full forward pass runs before the pool is sized."""
        return []

    def log_line(self, settings: Settings, pool: Pool) -> str:
        """batch_manager/kvCacheManager.cpp: allocatePools."""
        return (
            f"[MemUsageChange] Allocated {pool.bytes / GIB:.2f} GiB for max tokens in paged KV cache ({pool.tokens})."
        )

    def _blocks(self, layout: Layout, settings: Settings, available: int) -> int:
        group = layout.groups[0]
        share = max(0, available) // len(layout.groups)
        if self._pytorch:
            return share // group.bytes_per_block
        tokens = share * group.block_size // group.bytes_per_block
        return blocks_for(tokens, group.block_size)


def _minor_of(version: str) -> tuple[int, int]:
    """(1, 2) of "1.2.1"; "" is the newest. Raises UnsupportedError."""
    if not version:
        return NEWEST
    parts = version.removeprefix("v").split(".")
    known = len(parts) >= 2 and all(is_digits(p) and len(p) <= 3 for p in parts[:2])
    found = (int(parts[0]), int(parts[1])) if known else (-1, -1)
    if not _OLDEST <= found <= NEWEST:
        raise UnsupportedError(
            f"--engine trtllm@{version[:20]}: its pool rule is not known; known are {_OLDEST[0]}.{_OLDEST[1]} to "
            f"{NEWEST[0]}.{NEWEST[1]}",
            fix="use --engine trtllm@1.2 or the version that you run",
        )
    return found


def _kv_format(model: Model, asked: str) -> str:
    if asked == "auto":
        prescribed = model.quantization.kv_cache_dtype if model.quantization else ""
        return "fp8" if prescribed.startswith("fp8") else "auto"
    if asked not in _ELEMENTS:
        raise BadValueError(
            f"--kv-cache-dtype: {asked[:40]!r} is not one that is known of TensorRT-LLM",
            fix=f"use one of auto, {', '.join(_ELEMENTS)}",
        )
    return asked


def _layout(layers: Sequence[Layer], settings: Settings) -> Layout:
    """One pool for all layers, which all keep all tokens; or one for each window, the longest first."""
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}
    kind = LayerKind.FULL
    for cache in caches_of(layers):
        window = 0
        if isinstance(cache, Attention):
            window = (cache.window or cache.chunk or 0) if settings.hybrid_manager else 0
            # resource_manager.py: num_kv_heads_per_layer: rounded up
            heads = -(-cache.kv_heads // settings.tensor_parallel_size)
            token = heads * (cache.key_size + cache.value_size) * settings.kv_element_bytes
        elif isinstance(cache, Latent):
            kind = LayerKind.MLA if kind is LayerKind.FULL else kind
            token = (cache.latent_size + cache.rope_size) * settings.kv_element_bytes
        elif isinstance(cache, Indexer):
            kind = LayerKind.MLA_INDEXER
            token = cache.head_size + cache.head_size // _INDEXER_SCALED * 4
        else:
            raise UnsupportedError(f"--engine trtllm: {cache} is not known here", fix="use --engine vllm@0.32")
        sizes[window] = sizes.get(window, 0) + token
        counts[window] = counts.get(window, 0) + (0 if isinstance(cache, Indexer) else 1)
    order = sorted(sizes, key=lambda window: window or 10**12, reverse=True)
    groups = tuple(_group(kind if not w else LayerKind.SLIDING, counts[w], sizes[w], settings, w) for w in order)
    windows = [window for window in order if window]
    contents = stored(sizes.get(0, 0), sizes[windows[0]] if windows else 0, windows[0] if windows else 0, 0)
    return (SeparatePools if len(groups) == 1 else WindowPools)(groups, contents)


def _group(kind: LayerKind, layers: int, token: int, settings: Settings, window: int) -> Group:
    size = token * settings.block_size
    mixed = Bytes(size if size % layers else 0)
    page = Bytes(-(-size // layers))
    return Group(kind, layers, settings.block_size, page, mixed, most_tokens=Tokens(window), window=Tokens(window))
