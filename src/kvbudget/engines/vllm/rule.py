"""vLLM 0.32: what it makes of its flags, and the blocks of its KV pool."""

from collections.abc import Sequence
from math import ceil

from kvbudget.engines.flags import AUTO_LENGTH, LLAMACPP_ONLY, EngineFlags, Settings, Speculation, refuse_flags
from kvbudget.engines.rule import Pool, Refusal, Stage, Taken
from kvbudget.engines.vllm.architectures import architecture_refusals
from kvbudget.engines.vllm.batches import batch_at, batching_of
from kvbudget.engines.vllm.devices import capability_of, device_refusals
from kvbudget.engines.vllm.formats import common_element_bytes, element_bytes, kv_format, state_bytes
from kvbudget.engines.vllm.layout import promotion_refusal, stage_layouts
from kvbudget.engines.vllm.lengths import Need, largest_length
from kvbudget.engines.vllm.pages import LATENT_KERNEL_BLOCK, Ranks, block_size_of, caches_of
from kvbudget.engines.vllm.refusals import refusals_of, whole_model_refusals
from kvbudget.engines.vllm.versions import numbers_of, traits_of
from kvbudget.errors import BadValueError
from kvbudget.model.layers import Attention, Latent, State
from kvbudget.model.read import Model
from kvbudget.model.same import Same
from kvbudget.pool.groups import Layout
from kvbudget.units import GIB, Blocks, Bytes, Tokens, whole_blocks

# What a process's own CUDA context leaves less free: 0.51 GiB on an H100 (public logs of vLLM 0.19); on no card less
# than a quarter.
_USUAL_CONTEXT, _LEAST_CONTEXT = 51 * GIB // 100, GIB // 4
NULL_BLOCKS = 1  # v1/core/block_pool.py: one block is never given out
_UNLIMITED = Blocks(10**15)  # a stage without caches; the refusals say that there can be none
# config/speculative.py
_WITH_TARGET_STATES = ("eagle", "eagle3", "mtp", "dflash", "dspark")  # use_eagle
_SYNCHRONOUS = ("ngram", "suffix", "medusa", "mlp_speculator", "custom_class")  # async scheduling is off by default


class Vllm:
    """The rule of one version, 0.32 unless told otherwise. Stateless."""

    name = "vllm"
    needs_memory = True

    def __init__(self, version: str = "") -> None:
        self.traits = traits_of(version)
        self.version = version or "0.32"
        self._numbers = numbers_of(version)
        self.memory_version = self._numbers[:2]

    def settle(self, model: Model, flags: EngineFlags, device_memory: int, device_name: str) -> Settings:
        """What the engine runs with. `device_memory` in bytes, 0 when unknown, as vLLM does when it cannot ask.

        Raises BadValueError and UnsupportedError for values that no start could use.
        """
        refuse_flags(flags, "vLLM", (*LLAMACPP_ONLY, "window_pools"))
        if flags.pipeline_parallel_size > len(model.layers):
            raise BadValueError(
                f"--pipeline-parallel-size {flags.pipeline_parallel_size}: the model has {len(model.layers)} layers, "
                "a stage would hold none",
                fix=f"at most {len(model.layers)}",
            )
        speculation = _speculation(model, flags, exact=self.traits.exact)
        auto = flags.max_model_len == AUTO_LENGTH
        asked = None if auto else flags.max_model_len
        length = asked or model.max_model_len
        asynchronous = flags.async_scheduling
        if asynchronous is None:
            asynchronous = self.traits.async_scheduling and (
                speculation is None or speculation.method not in _SYNCHRONOUS
            )
        batching = batching_of(self.traits, flags, speculation, device_memory, device_name, asynchronous=asynchronous)
        tokens, seqs, chunked = batch_at(self.traits, model, speculation, batching, length)
        caching = flags.enable_prefix_caching
        if caching is None:  # engine/arg_utils.py: default_prefix_caching
            caching = self.traits.hybrid_prefix_caching or not _has(model, State)
        capability = capability_of(device_name)
        sm100 = capability[0] == 10
        model_bytes = element_bytes(model, flags.dtype, capability)
        dtype = kv_format(model, flags, sm100=sm100)
        conv = state_bytes(flags.mamba_cache_dtype, model_bytes, "--mamba-cache-dtype")
        matrix = 0
        if flags.mamba_ssm_cache_dtype not in ("auto", ""):
            matrix = state_bytes(flags.mamba_ssm_cache_dtype, model_bytes, "--mamba-ssm-cache-dtype")
        settings = Settings(
            max_model_len=Tokens(length),
            auto_length=auto,
            max_num_seqs=seqs,
            max_num_batched_tokens=Tokens(tokens),
            max_in_flight_tokens=Tokens(batching.batches * tokens),
            block_size=Tokens(0),
            kv_cache_dtype=dtype,
            kv_element_bytes=Bytes(common_element_bytes(dtype, model_bytes)),
            element_bytes=Bytes(model_bytes),
            tensor_parallel_size=flags.tensor_parallel_size,
            pipeline_parallel_size=flags.pipeline_parallel_size,
            gpu_memory_utilization=(
                self.traits.gpu_memory_utilization
                if flags.gpu_memory_utilization is None
                else flags.gpu_memory_utilization
            ),
            async_scheduling=asynchronous,
            num_gpu_blocks_override=flags.num_gpu_blocks_override,
            decode_context_parallel_size=flags.decode_context_parallel_size,
            prefix_caching=caching,
            chunked_prefill=chunked,
            enforce_eager=flags.enforce_eager,
            hybrid_manager=(
                self.traits.hybrid_groups
                and (self.traits.chunked_groups or not _has_chunks(model))
                and not flags.disable_hybrid_kv_cache_manager
                and not _turns_off_hybrid(model, speculation)
            ),
            speculation=speculation,
            conv_state_bytes=Bytes(conv),
            matrix_state_bytes=Bytes(matrix),
            defaults_known=device_memory > 0 or flags.max_num_seqs is not None,
            pp_layer_partition=flags.pp_layer_partition,
            data_parallel_size=flags.data_parallel_size,
            expert_parallel=flags.enable_expert_parallel,
            sm100=sm100,
            latent_block=self._latent_block(model, dtype, flags.block_size or 0, device_name),
            capability=capability,
            dtype=flags.dtype,
            asked_block_size=flags.block_size or 0,
            batching=batching,
            longest=Tokens(0 if flags.allow_long_max_model_len else model.longest_given or 0),
        )
        block_size = block_size_of(model, self._ranks(settings), flags.block_size)
        return settings._replace(block_size=Tokens(block_size))

    def _latent_block(self, model: Model, kv_format: str, asked: int, device_name: str) -> Tokens:
        if not device_name or not _has(model, Latent):
            return Tokens(LATENT_KERNEL_BLOCK)
        from kvbudget.engines.vllm.kernels import latent_block  # most models have no latents

        return Tokens(latent_block(Same(model), device_name, kv_format, asked, self.traits.exact))

    def usable_memory(self, total: int, settings: Settings) -> Bytes:
        """Share of the TOTAL memory that the engine may use (v1 worker utils.py: request_memory)."""
        return Bytes(ceil(total * settings.gpu_memory_utilization))

    def cache_memory(self, total: int, taken: Taken, settings: Settings) -> int:
        """v1 worker gpu_worker.py: determine_available_memory; CUDA graphs are taken off before sizing since 0.20."""
        if not self.traits.graphs_before_pool:
            taken = taken._replace(cuda_graphs=0)
        return self.usable_memory(total, settings) - sum(taken)

    def stages(self, model: Model, settings: Settings) -> tuple[Stage, ...]:
        """Pipeline stages in order, each with the groups of one tensor-parallel rank."""
        bounds = _stage_bounds(len(model.layers), settings)
        layouts = stage_layouts(
            model, settings, self._ranks(settings), bounds, near_equal=self.traits.near_equal_groups
        )
        return tuple(Stage(first, end, layout) for (first, end), layout in zip(bounds, layouts, strict=True))

    def pool(self, model: Model, settings: Settings, stages: Sequence[Stage], available: Sequence[int]) -> Pool:
        """The pool when stage `i` has `available[i]` bytes for it: every rank uses the smallest number of blocks."""
        counts = [
            whole_blocks(max(0, space), stage.layout.bytes_per_block) if stage.layout.bytes_per_block else _UNLIMITED
            for stage, space in zip(stages, available, strict=True)
        ]
        tightest = counts.index(min(counts))
        layout = stages[tightest].layout
        blocks = counts[tightest]
        if settings.num_gpu_blocks_override is not None:
            blocks = Blocks(settings.num_gpu_blocks_override)
        usable = Blocks(max(0, blocks - (NULL_BLOCKS if self.traits.null_block else 0)))
        checked = usable if self.traits.checks_usable_blocks else blocks

        def rebuilt(other: Settings) -> Layout:
            return self.stages(model, other)[tightest].layout

        largest = largest_length(Need(self.traits, model, settings, layout, rebuilt), checked)
        if self._checks_whole_model(stages):
            largest = min(largest, self._longest_of_whole_model(model, settings, blocks * layout.bytes_per_block))
        length = settings.max_model_len
        if settings.auto_length:  # v1/core/kv_cache_utils.py: _auto_fit_max_model_len; the batch stays that of the most
            length = Tokens(max(1, layout.largest_length(checked, length)))
            if self._checks_whole_model(stages):
                length = Tokens(max(1, min(length, largest)))
        need = layout.blocks_for(length)
        concurrency = blocks / need  # v1/core/kv_cache_utils.py: get_max_concurrency_for_kv_cache_config
        return Pool(
            stage=tightest,
            num_blocks=blocks,
            usable_blocks=usable,
            bytes=Bytes(blocks * layout.bytes_per_block),
            max_model_len=length,
            blocks_per_request=need,
            tokens=_tokens(layout, blocks) if self.traits.tokens_per_group else int(concurrency * length),
            concurrency=concurrency,
            largest_max_model_len=largest,
            checked_blocks=checked,
            stage_blocks=tuple(counts) if settings.num_gpu_blocks_override is None else (blocks,) * len(stages),
            stage_bytes=(
                tuple(available)
                if settings.num_gpu_blocks_override is None
                else tuple(blocks * stage.layout.bytes_per_block for stage in stages)
            ),
        )

    def refusals(self, model: Model, settings: Settings, stages: Sequence[Stage], pool: Pool) -> list[Refusal]:
        """Everything that would stop the start, in the order in which the engine would meet it."""
        found = architecture_refusals(model, self.memory_version, exact=self.traits.exact)
        if not _is_named_alike(model):
            from kvbudget.engines.vllm.classes import class_refusals

            found += class_refusals(model)
        if not self.traits.exact:  # a table that the newest version does without
            from kvbudget.engines.vllm.arrivals import arrival_refusals

            found += arrival_refusals(model, self._numbers)
        found += device_refusals(model, settings, exact=self.traits.exact)
        if said := promotion_refusal(model, settings, self._ranks(settings)):
            fix = "leave --disable-hybrid-kv-cache-manager out"
            found.append(Refusal("hybrid_manager_needed", said, fix))
        found += refusals_of(model, settings, stages, pool, self.traits, self._numbers)
        if self._checks_whole_model(stages):
            found = [refusal for refusal in found if refusal.code != "max_model_len_too_large"]
            found += whole_model_refusals(self._whole_model(model, settings), pool)
        return found

    def _checks_whole_model(self, stages: Sequence[Stage]) -> bool:
        return self.traits.whole_model_check and len(stages) > 1

    def _whole_model(self, model: Model, settings: Settings) -> Layout:
        """All layers on one stage."""
        (stage,) = self.stages(model, settings._replace(pipeline_parallel_size=1, pp_layer_partition=None))
        return stage.layout

    def _longest_of_whole_model(self, model: Model, settings: Settings, size: int) -> Tokens:
        """Longest max_model_len of which one request in all layers takes at most `size` bytes."""
        whole = self._whole_model(model, settings)
        need = Need(self.traits, model, settings, whole, lambda other: self._whole_model(model, other))
        return largest_length(need, size // whole.bytes_per_block if whole.bytes_per_block else 0)

    def overruns(self, settings: Settings, total: int, taken: Taken, pool: Pool) -> list[Refusal]:
        """v1 worker utils.py: request_memory; a full batch is profiled before the pool is sized, so nothing else can.

        Only of a card that is known by name: memory that somebody gave may be what is free.
        """
        usable = self.usable_memory(total, settings)
        if settings.capability == (0, 0) or usable <= total - _LEAST_CONTEXT:
            return []
        share = (total - _USUAL_CONTEXT) * 100 // total / 100
        return [
            Refusal(
                "free_memory_below_share",
                f"Free memory on device cuda:0 (about {(total - _USUAL_CONTEXT) / GIB:.2f}/{total / GIB:.2f} GiB) on "
                f"startup is less than desired GPU memory utilization ({settings.gpu_memory_utilization}, "
                f"{usable / GIB:.2f} GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
                "processes.",
                f"use --gpu-memory-utilization {share:g}: the CUDA context alone takes about half a GiB",
            )
        ]

    def log_line(self, settings: Settings, pool: Pool) -> str:
        """v1/core/kv_cache_utils.py: update_kv_cache_capacity."""
        return (
            f"GPU KV cache size: {pool.tokens:,} tokens, Maximum concurrency for {pool.max_model_len:,} tokens per "
            f"request: {pool.concurrency:.2f}x"
        )

    def _ranks(self, settings: Settings) -> Ranks:
        speculation = settings.speculation
        return Ranks(
            tensor_parallel=settings.tensor_parallel_size,
            block_size=settings.block_size,
            kv_format=settings.kv_cache_dtype,
            model_bytes=settings.element_bytes,
            conv_bytes=settings.conv_state_bytes,
            matrix_bytes=settings.matrix_state_bytes,
            speculative_tokens=speculation.num_speculative_tokens if speculation else 0,
            aligned=settings.prefix_caching,
            max_model_len=settings.max_model_len,
            batched_tokens=settings.max_num_batched_tokens,
            sm100=settings.sm100,
            latent_block=settings.latent_block,
            asked_block_size=settings.asked_block_size,
            aligned_states=self.traits.aligned_states,
            checkpoint_states=self.traits.checkpoint_states,
        )


def _is_named_alike(model: Model) -> bool:
    """Whether config.json's first architecture is the model_type in other letters: most are."""
    names = model.architectures
    return not names or names[0].lower() == model.model_type.replace("_", "") + "forcausallm"


def _tokens(layout: Layout, blocks: int) -> int:
    """The log line up to 0.20: (blocks // groups) x the smallest block."""
    return blocks // len(layout.groups) * min(group.block_size for group in layout.groups)


def _speculation(model: Model, flags: EngineFlags, *, exact: bool) -> Speculation | None:
    if flags.speculation is None:
        return None
    from kvbudget.engines.vllm.speculation import settled  # most plans have none

    return settled(model, flags.speculation, exact=exact)


def _turns_off_hybrid(model: Model, speculation: Speculation | None) -> bool:
    """config/vllm.py: chunked local attention beside a draft that reads the target's states."""
    if speculation is None or speculation.method not in _WITH_TARGET_STATES:
        return False
    return _has_chunks(model)


def _has_chunks(model: Model) -> bool:
    return any(isinstance(c, Attention) and c.chunk for c in caches_of(model))


def _has(model: Model, kind: type) -> bool:
    return any(isinstance(cache, kind) for cache in caches_of(model))


def _stage_bounds(layers: int, settings: Settings) -> list[tuple[int, int]]:
    """(first, end) of each stage, distributed/utils.py: get_pp_indices: extra layers go to stages before the last."""
    stages = settings.pipeline_parallel_size
    sizes = list(settings.pp_layer_partition or ())
    if not sizes:
        sizes = [layers // stages] * stages
        for back in range(2, layers % stages + 2):
            sizes[-back] += 1
    if len(sizes) != stages or sum(sizes) != layers or min(sizes) < 1:
        raise BadValueError(
            f"VLLM_PP_LAYER_PARTITION {','.join(map(str, sizes))[:60]} does not share {layers} layers out over "
            f"{stages} pipeline stages",
            fix=f"{stages} numbers that add up to {layers}",
        )
    bounds, first = [], 0
    for size in sizes:
        bounds.append((first, first + size))
        first += size
    return bounds
