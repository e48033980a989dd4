"""SGLang: what it makes of its flags, and the tokens of its pools.

`model_executor/pool_configurator.py`, `mem_cache/kv_cache_configurator.py`. The pool is what is free after the weights,
minus the share of what was free before them that --mem-fraction-static leaves to activation and CUDA graphs: neither
is measured. Tokens are given out one by one, or in pages; slot 0 is a dummy beside the pool, not in it.
"""

from collections.abc import Sequence

from kvbudget.engines.flags import LLAMACPP_ONLY, EngineFlags, Settings, Speculation, refuse_flags
from kvbudget.engines.rule import Pool, Refusal, Stage, Taken
from kvbudget.engines.sglang.memory import batch_of, static_fraction, version_of
from kvbudget.engines.sglang.refusals import overruns_of, refusals_of
from kvbudget.engines.tokens import (
    STATE_ELEMENTS,
    SeparatePools,
    bounds_of,
    caches_of,
    length_of,
    refuse_context_parallel,
    refuse_stages_without_cache,
    refuse_unknown_caches,
    state_bytes,
    stored,
    weight_element_bytes,
)
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.layers import Attention, Indexer, Latent, Layer, State
from kvbudget.model.read import Model
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.units import GIB, MIB, Blocks, Bytes, Tokens, blocks_for

# arg_groups/fields/model.py: choices of --kv-cache-dtype; the packed four-bit ones are not computed here
_ELEMENTS = {"bf16": 2, "bfloat16": 2, "fp8_e5m2": 1, "fp8_e4m3": 1}
# configs/model_config.py: is_hybrid_swa_model; every other model keeps all tokens in its sliding layers too
_WINDOWED = (
    "gpt_oss", "llama4", "llama4_text", "mimo_v2", "mimo_v2_flash", "step3p5", "step3p7", "gemma4_text",
    "gemma4_unified_text", "diffusion_gemma_text", "laguna", "mellum", "muse_glimmer_text", "granite_swa",
    "granitemoe_swa",
)  # fmt: skip
_WINDOWS_SINCE = (0, 5, 1)
_SWA_RATIO = 0.8  # arg_groups/fields/schedule.py: swa_full_tokens_ratio
_SWA_RATIO_PART, _SWA_RATIO_WHOLE = 4, 5  # the same, exact
_STATE_RATIO = 0.9  # mamba_full_memory_ratio
_PADDED_STATES = (0, 5, 17)  # the state pool has a slot more than it counts
_OVERLAPPED_STATES = (0, 5, 16)  # "auto" keeps two more states a request for the overlapped schedule
_DRAFT_COUNTED = (0, 5, 14)  # the draft's layers are charged to the pool
_INDEXER_SCALED = 128
_SPARSE_PAGE = 64  # arg_groups/model_overrides/deepseek_v2.py
_CACHELESS = ("ngram", "ngram_gpu", "suffix")
_MAX_PREFILL_TOKENS = 16384
_REQUESTS = 4096  # what --max-running-requests is at most when it is not given; 2,048 in a small pool


class SlidingPools(SeparatePools):
    """A full pool, and a sliding one of 0.8 times its tokens: a request that fits into the window is worth more."""

    __slots__ = ()

    def blocks_for(self, tokens: int) -> Blocks:
        """Blocks of the full pool, or what the sliding ones are worth in them."""
        full, sliding = self.groups[0].blocks_for(tokens), self.groups[1].blocks_for(tokens)
        return Blocks(max(full, -(-sliding * _SWA_RATIO_WHOLE // _SWA_RATIO_PART)))


class Sglang:
    """The rule of one version, 0.5.23 unless told otherwise. Stateless."""

    name = "sglang"
    needs_memory = True

    def __init__(self, version: str = "") -> None:
        self._version = version_of(version)
        self.version = version or "0.5.23"
        # Whatever its age: no sampling is profiled, no logits are sorted (layers/sampler.py), and graphs are captured.
        self.memory_version = (0, 32)

    def settle(self, model: Model, flags: EngineFlags, device_memory: int, device_name: str) -> Settings:
        """What the engine runs with. `max_num_seqs` is 2,048 or more when not given: it grows with the pool."""
        refuse_unknown_caches(model, self.name)
        refuse_flags(flags, "SGLang", (*LLAMACPP_ONLY, "window_pools", "mamba_cache_dtype", "enable_chunked_prefill"))
        refuse_context_parallel(flags.decode_context_parallel_size, self.name)
        caches = caches_of(dict.fromkeys(model.layers))
        latent = any(isinstance(cache, Latent) for cache in caches)
        sparse = any(isinstance(cache, Indexer) for cache in caches)
        speculation = _speculation(model, flags.speculation)
        if speculation is not None and any(isinstance(cache, State) for cache in caches):
            raise UnsupportedError(
                "--speculative-config with recurrent states: how SGLang shares out their memory is not known here",
                fix="leave it out",
            )
        memory = device_memory // MIB
        batch = batch_of(self._version, memory, flags.tensor_parallel_size)
        if flags.max_num_seqs is not None and self._version >= (0, 5, 22):
            batch = batch._replace(graph_batch=min(batch.graph_batch, flags.max_num_seqs))
        if flags.max_num_batched_tokens:
            batch = batch._replace(chunk=flags.max_num_batched_tokens)
        fraction = flags.gpu_memory_utilization
        if fraction is None:
            fraction = static_fraction(
                self._version,
                memory,
                batch,
                tensor=flags.tensor_parallel_size,
                stages=flags.pipeline_parallel_size,
                latent=latent,
                graphs=not flags.enforce_eager,
                drafts=speculation is not None and speculation.method not in _CACHELESS,
            )
        element = weight_element_bytes(flags.dtype)
        dtype = _kv_format(model, flags)
        return Settings(
            max_model_len=length_of(model, flags.max_model_len, "SGLang"),
            auto_length=False,
            max_num_seqs=flags.max_num_seqs or _REQUESTS,
            max_num_batched_tokens=Tokens(batch.chunk),
            max_in_flight_tokens=Tokens(batch.chunk),
            block_size=Tokens(flags.block_size or (_SPARSE_PAGE if sparse else 1)),
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
            hybrid_manager=(
                self._version >= _WINDOWS_SINCE
                and model.model_type in _WINDOWED
                and not flags.disable_hybrid_kv_cache_manager
            ),
            speculation=speculation,
            matrix_state_bytes=Bytes(_state_elements(flags.mamba_ssm_cache_dtype)),
            defaults_known=device_memory > 0 or flags.gpu_memory_utilization is not None,
            pp_layer_partition=flags.pp_layer_partition,
            max_pool_tokens=flags.max_pool_tokens or 0,
            profiled_seqs=min(batch.graph_batch, flags.max_num_seqs or batch.graph_batch),
        )

    def usable_memory(self, total: int, settings: Settings) -> Bytes:
        """The share that --mem-fraction-static means, of a card that nobody else uses."""
        return Bytes(int(total * settings.gpu_memory_utilization))

    def cache_memory(self, total: int, taken: Taken, settings: Settings) -> int:
        """kv_cache_configurator.py: _profile_available_bytes, in the engine's own floating-point GiB.

        What was free before the weights is the card without CUDA context and communication; activation and graphs must
        do with what the fraction leaves.
        """
        before = (total - taken.non_torch) / GIB
        after = (total - taken.non_torch - taken.weights) / GIB
        return int((after - before * (1 - settings.gpu_memory_utilization)) * GIB)

    def stages(self, model: Model, settings: Settings) -> tuple[Stage, ...]:
        """distributed/utils.py: get_pp_indices: layers that are over go to the last stages."""
        bounds = bounds_of(
            len(model.layers), settings.pipeline_parallel_size, settings.pp_layer_partition, extra_last=True
        )
        drafts = self._draft_cells(model, settings)
        layouts = [
            _layout(model.layers[first:end], settings, drafts if end == bounds[-1][1] else 0) for first, end in bounds
        ]
        refuse_stages_without_cache(layouts, bounds, "SGLang")
        return tuple(Stage(first, end, layout) for (first, end), layout in zip(bounds, layouts, strict=True))

    def pool(self, model: Model, settings: Settings, stages: Sequence[Stage], available: Sequence[int]) -> Pool:
        """max_total_num_tokens: the smallest of all stages."""
        sized = [
            self._tokens(model, settings, stage.layout, space) for stage, space in zip(stages, available, strict=True)
        ]
        tightest = min(range(len(sized)), key=lambda index: sized[index][0])
        tokens, states = sized[tightest]
        page, layout = settings.block_size, stages[tightest].layout
        blocks = Blocks(tokens // page)
        if settings.num_gpu_blocks_override is not None:
            blocks = Blocks(min(blocks, settings.num_gpu_blocks_override) if blocks else 0)
        if settings.max_pool_tokens:  # kv_cache_configurator.py: _apply_token_constraints, in whole pages
            blocks = Blocks(min(blocks, settings.max_pool_tokens // page))
        tokens = blocks * page
        largest = Tokens(min(layout.largest_length(blocks), model.longest_given or tokens))
        # managers/tp_worker.py: max_req_len; without any token nothing starts, and the length stays that of the request
        length = Tokens(min(settings.max_model_len, tokens or settings.max_model_len))
        need = layout.blocks_for(length)
        return Pool(
            stage=tightest,
            num_blocks=blocks,
            usable_blocks=blocks,
            bytes=Bytes(_pool_bytes(layout, tokens, states)),
            max_model_len=length,
            blocks_per_request=need,
            tokens=tokens,
            concurrency=blocks / need,
            largest_max_model_len=largest,
            checked_blocks=blocks,
            most_requests=self._most_requests(settings, tokens, states),
        )

    def refusals(self, model: Model, settings: Settings, stages: Sequence[Stage], pool: Pool) -> list[Refusal]:
        """Everything that would stop the start, in the order in which the engine would meet it."""
        return refusals_of(model, settings, stages[pool.stage].layout, pool)

    def overruns(self, settings: Settings, total: int, taken: Taken, pool: Pool) -> list[Refusal]:
        """Activation and graphs are not measured: what the static fraction leaves must hold them."""
        return overruns_of(settings, total, taken, pool)

    def log_line(self, settings: Settings, pool: Pool) -> str:
        """managers/scheduler.py; available_gpu_mem, which follows, is not planned."""
        return (
            f"max_total_num_tokens={pool.tokens}, chunked_prefill_size={settings.max_num_batched_tokens}, "
            f"max_prefill_tokens={_MAX_PREFILL_TOKENS}, max_running_requests={pool.most_requests}, "
            f"context_len={settings.max_model_len}"
        )

    def _draft_cells(self, model: Model, settings: Settings) -> int:
        """How many more layers like the model's own the draft costs; they are on the last stage."""
        speculation = settings.speculation
        if speculation is None or speculation.method in _CACHELESS or self._version < _DRAFT_COUNTED:
            return 0
        draft = speculation.draft
        return len((draft.draft_layers or draft.layers) if draft is not None else model.draft_layers)

    def _tokens(self, model: Model, settings: Settings, layout: Layout, available: int) -> tuple[int, int]:
        """(max_total_num_tokens, state slots) of one stage."""
        page = settings.block_size
        slots = 0
        states = next((group for group in layout.groups if group.kind is LayerKind.MAMBA), None)
        if states is not None:
            slots, available = self._states(settings, states.bytes_per_block, available)
        first = layout.groups[0]
        if first is states:
            return settings.max_model_len // page * page, slots
        cell = first.bytes_per_block // page
        if isinstance(layout, SlidingPools):
            sliding = layout.groups[1].bytes_per_block // page
            priced = cell + _SWA_RATIO * sliding
            if self._version < (0, 5, 11):  # first as if all layers kept all tokens, then shared out anew
                available = max(0, available) // (cell + sliding) * (cell + sliding)
            return int(max(0, available) // priced) // page * page, slots
        return max(0, available) // cell // page * page, slots

    def _states(self, settings: Settings, state: int, available: int) -> tuple[int, int]:
        """(state slots, bytes left for tokens): kv_cache_configurator.py: _handle_max_mamba_cache."""
        padding = 1 if self._version >= _PADDED_STATES else 0
        if not settings.prefix_caching and settings.max_num_seqs != _REQUESTS:
            slots = settings.max_num_seqs
        else:
            budget = available / GIB * _STATE_RATIO / (1 + _STATE_RATIO) * GIB
            slots = int((budget - padding * state) // state)
        slots = max(0, slots)
        left = available - (slots + padding) * state
        return (slots, left) if left > 0 else (0, 0)

    def _most_requests(self, settings: Settings, tokens: int, states: int) -> int:
        """max_running_requests: resolve_max_num_reqs."""
        most = max(min(int(tokens / settings.max_model_len * 512), _REQUESTS), 2048)
        if settings.max_num_seqs != _REQUESTS:
            most = settings.max_num_seqs
        if self._version >= (0, 5, 9):
            most = min(most, tokens // 2)
        if states:
            most = min(most, states // self._states_per_request(settings))
        return max(1, most)

    def _states_per_request(self, settings: Settings) -> int:
        """_calculate_mamba_ratio: three with prefix caching, and two more for an overlapped schedule."""
        if not settings.prefix_caching:
            return 1
        return 5 if settings.async_scheduling and self._version >= _OVERLAPPED_STATES else 3


def _kv_format(model: Model, flags: EngineFlags) -> str:
    asked = flags.kv_cache_dtype
    if asked == "auto":
        prescribed = model.quantization.kv_cache_dtype if model.quantization else ""
        return "fp8_e4m3" if prescribed.startswith("fp8") else "auto"
    asked = {"fp8": "fp8_e4m3", "float16": "auto"}.get(asked, asked)
    if asked != "auto" and asked not in _ELEMENTS:
        raise BadValueError(
            f"--kv-cache-dtype: {asked[:40]!r} is not one that is known of SGLang",
            fix=f"use one of auto, {', '.join(_ELEMENTS)}",
        )
    return asked


def _state_elements(dtype: str) -> int:
    """--mamba-ssm-dtype; 0: what config.json says, float32 without (configs/mamba_utils.py)."""
    if dtype in ("auto", ""):
        return 0
    if dtype not in STATE_ELEMENTS:
        raise BadValueError(
            f"--mamba-ssm-cache-dtype: {dtype[:40]!r} is unknown", fix=f"use one of auto, {', '.join(STATE_ELEMENTS)}"
        )
    return STATE_ELEMENTS[dtype]


def _speculation(model: Model, asked: Speculation | None) -> Speculation | None:
    if asked is None:
        return None
    method = asked.method.lower()
    method = "mtp" if method == "nextn" or method.endswith("_mtp") else method
    if method not in (*_CACHELESS, "eagle", "eagle3", "mtp", "draft_model", "standalone"):
        raise UnsupportedError(
            f"--speculative-config: method {asked.method[:40]!r} is not known of SGLang",
            fix="use eagle, eagle3, mtp, draft_model or ngram",
        )
    if method == "mtp" and asked.draft is None and not model.draft_layers:
        raise UnsupportedError(
            f"--speculative-config method mtp: {model.model_type} has no draft module that is known here",
            fix="give its draft model's folder as model, or leave --speculative-config out",
        )
    return asked._replace(method=method)


def _layout(layers: Sequence[Layer], settings: Settings, drafts: int) -> Layout:
    """Groups of one stage: layers that keep all tokens, sliding ones in a pool of their own, states."""
    ranks, page = settings.tensor_parallel_size, settings.block_size
    full = sliding = states = window = 0
    counts = [0, 0, 0]
    kind = LayerKind.FULL
    for cache in caches_of(layers):
        if isinstance(cache, State):
            matrix = settings.matrix_state_bytes or STATE_ELEMENTS.get(cache.matrix_dtype, 4)
            states += state_bytes(cache, ranks, settings.conv_state_bytes, matrix)
            counts[2] += 1
        elif isinstance(cache, Attention) and settings.hybrid_manager and (cache.window or cache.chunk):
            sliding += _token_bytes(cache, settings)
            window = max(window, cache.window or cache.chunk or 0)
            counts[1] += 1
        else:
            full += _token_bytes(cache, settings)
            if isinstance(cache, Indexer):
                kind = LayerKind.MLA_INDEXER
            else:
                counts[0] += 1
                if isinstance(cache, Latent) and kind is LayerKind.FULL:
                    kind = LayerKind.MLA
    if counts[0]:
        full += full * drafts // counts[0]
    groups = []
    if full:
        groups.append(_group(kind, counts[0] + drafts, full, page, 0))
    if sliding:
        groups.append(
            _group(LayerKind.SLIDING, counts[1], sliding, page, window + page)._replace(window=Tokens(window))
        )
    if states:
        group = Group(LayerKind.MAMBA, counts[2], Tokens(1), Bytes(states // counts[2]), Bytes(states))
        groups.append(group._replace(fixed_blocks=Blocks(1)))
    contents = stored(full, sliding, window, states)
    if full and sliding:
        return SlidingPools(tuple(groups), contents)
    return SeparatePools(tuple(groups), contents)


def _group(kind: LayerKind, layers: int, token: int, page: int, most: int) -> Group:
    size = token * page
    even = size % layers == 0
    return Group(
        kind, layers, Tokens(page), Bytes(-(-size // layers)), Bytes(0 if even else size), most_tokens=Tokens(most)
    )


def _token_bytes(cache: object, settings: Settings) -> int:
    """Bytes of one token in one layer: pool_configurator.py: _compute_cell_size."""
    element = settings.kv_element_bytes
    if isinstance(cache, Attention):
        # configs/model_config.py: get_num_kv_heads: split over the ranks, and one each where there are fewer
        return max(1, cache.kv_heads // settings.tensor_parallel_size) * (cache.key_size + cache.value_size) * element
    if isinstance(cache, Latent):
        return (cache.latent_size + cache.rope_size) * element
    if isinstance(cache, Indexer):
        return cache.head_size + cache.head_size // _INDEXER_SCALED * 4
    raise UnsupportedError(f"a {cache} in SGLang is not known here", fix="plan this model with --engine vllm@0.32")


def _pool_bytes(layout: Layout, tokens: int, states: int) -> int:
    """Bytes of all pools, without the dummy slots beside them."""
    total = 0
    for group in layout.groups:
        if group.kind is LayerKind.MAMBA:
            total += states * group.bytes_per_block
            continue
        held = tokens
        if group is not layout.groups[0]:
            held = int(tokens * _SWA_RATIO) // group.block_size * group.block_size
        total += blocks_for(held, group.block_size) * group.bytes_per_block
    return total
