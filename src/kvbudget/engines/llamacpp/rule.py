"""llama.cpp: what llama-server makes of its options, and the cells of its caches.

`src/llama-context.cpp`, `tools/server/server.cpp`, `common/fit.cpp`. The context decides the cache, not the memory:
--ctx-size cells are allocated at start, for all slots together, and each device holds those of its layers. "Blocks" are
cells here: one token each.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from kvbudget.engines.flags import EngineFlags, Settings, refuse_flags
from kvbudget.engines.llamacpp.builds import build_of
from kvbudget.engines.llamacpp.caches import TYPES, Cells, Types, cells_of, padded, type_named
from kvbudget.engines.rule import Held, Pool, Refusal, Stage, Taken
from kvbudget.engines.tokens import SeparatePools, bounds_of, caches_of, refuse_unknown_caches, stored
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.layers import Attention, Latent
from kvbudget.model.read import Model
from kvbudget.pool.groups import Group, LayerKind
from kvbudget.units import GIB, MIB, Blocks, Bytes, Tokens

_LACKING = (
    "num_gpu_blocks_override", "data_parallel_size", "dtype", "async_scheduling", "disable_hybrid_kv_cache_manager",
    "mamba_cache_dtype", "mamba_ssm_cache_dtype", "enforce_eager", "window_pools", "enable_chunked_prefill",
)  # fmt: skip
_BATCH, _MICRO_BATCH = 2048, 512  # common/common.h
_SHARED_SLOTS = 4  # tools/server/server.cpp
_MOST_SLOTS = 256  # src/llama-cparams.h: LLAMA_MAX_SEQ
_MARGIN = GIB  # common/common.h: fit_params_target
_LEAST_FITTED = 4096  # fit_params_min_ctx


class Llamacpp:
    """The rule of one build, the newest unless told otherwise. Stateless."""

    name = "llamacpp"
    needs_memory = False  # --ctx-size decides

    def __init__(self, version: str = "") -> None:
        self._build = build_of(version)
        self.version = version or "b10000"
        self.memory_version = (0, 32)

    def settle(self, model: Model, flags: EngineFlags, device_memory: int, device_name: str) -> Settings:
        """What the server runs with. `max_model_len` is the context of one slot, `max_num_seqs` the slots."""
        refuse_unknown_caches(model, self.name)
        if flags.tensor_parallel_size > 1 or flags.decode_context_parallel_size > 1:
            raise BadValueError(
                "llama.cpp shares layers out over cards, it does not split them",
                fix="use --pipeline-parallel-size for the number of cards",
            )
        for flag, given in (
            ("--gpu-memory-utilization", flags.gpu_memory_utilization),
            ("--block-size", flags.block_size),
        ):
            if given is not None:
                raise BadValueError(
                    f"{flag} {given:g}: llama.cpp sizes its cache by the context, in cells of one token",
                    fix="use --max-model-len (--ctx-size)",
                )
        refuse_flags(flags, "llama.cpp", _LACKING)
        if flags.speculation is not None and not flags.speculation.method.startswith("ngram"):
            raise UnsupportedError(
                f"--speculative-config: what the cache of {flags.speculation.method[:40]!r} takes in llama.cpp is not "
                "known here",
                fix="plan the draft by itself, and add its cache to --overhead",
            )
        slots = flags.max_num_seqs or (_SHARED_SLOTS if self._build.shared_slots else 1)
        if slots > _MOST_SLOTS:
            raise BadValueError(f"n_seq_max must be <= {_MOST_SLOTS}", fix=f"use --max-num-seqs {_MOST_SLOTS}")
        unified = flags.kv_unified
        if unified is None:
            unified = flags.max_num_seqs is None and self._build.shared_slots
        context = self._context(model, flags)
        per_slot = padded(context if unified else padded(context) // slots)
        batch = min(flags.max_num_batched_tokens or _BATCH, padded(context))
        key = type_named(flags.kv_cache_dtype, "--kv-cache-dtype (--cache-type-k)")
        value = type_named(flags.value_cache_dtype or "auto", "--cache-type-v")
        return Settings(
            max_model_len=Tokens(min(per_slot, model.longest_given or per_slot)),
            auto_length=flags.max_model_len is None and self._build.fits and flags.fit_context,
            max_num_seqs=slots,
            max_num_batched_tokens=Tokens(batch),
            max_in_flight_tokens=Tokens(min(batch, flags.micro_batch or _MICRO_BATCH)),
            block_size=Tokens(1),
            kv_cache_dtype=key if key == value else f"{key}/{value}",
            kv_element_bytes=Bytes(-(-TYPES[key][1] // TYPES[key][0])),
            element_bytes=Bytes(2),
            tensor_parallel_size=1,
            pipeline_parallel_size=flags.pipeline_parallel_size,
            gpu_memory_utilization=1.0,
            async_scheduling=False,
            num_gpu_blocks_override=None,
            prefix_caching=flags.enable_prefix_caching is not False,
            pp_layer_partition=flags.pp_layer_partition,
            context_cells=Tokens(per_slot),
            unified_cells=unified,
            full_windows=flags.swa_full,
            gpu_layers=flags.gpu_layers,
            flash_attention=flags.flash_attention,
            tensor_split=flags.tensor_split,
            kv_offload=flags.kv_offload,
        )

    def usable_memory(self, total: int, settings: Settings) -> Bytes:
        """All of it, less the margin that fitting keeps where the context is not given."""
        return Bytes(max(0, total - (_MARGIN if settings.auto_length else 0)))

    def cache_memory(self, total: int, taken: Taken, settings: Settings) -> int:
        """What weights, compute buffers and context leave of a card. Nothing is profiled: the start fails or not."""
        return self.usable_memory(total, settings) - taken.weights - taken.activation - taken.non_torch

    def stages(self, model: Model, settings: Settings) -> tuple[Stage, ...]:
        """One for each card that holds anything, in their order; where none holds a layer, one whose cache lies in the
        machine's memory."""
        layers, types = len(model.layers), _types(settings)

        def stage(first: int, end: int, held: Held, *, on_card: bool) -> Stage:
            cells = cells_of(model.layers[first:end], model, self._build, types)
            return Stage(first, end, _layout(cells, settings), held, on_card)

        cards = self._cards(layers, settings)
        if all(held.first == held.end for held in cards):
            return (stage(0, layers, cards[0] if cards else Held(layers, layers, output=False), on_card=False),)
        return tuple(stage(held.first, held.end, held, on_card=settings.kv_offload) for held in cards)

    def pool(self, model: Model, settings: Settings, stages: Sequence[Stage], available: Sequence[int]) -> Pool:
        """The cells that are allocated; `checked_blocks` are those that memory would hold."""
        types = _types(settings)
        devices = [
            cells_of(model.layers[stage.first : stage.end] if stage.on_card else (), model, self._build, types)
            for stage in stages
        ]
        streams = 1 if settings.unified_cells else settings.max_num_seqs

        def fits(per_slot: int) -> bool:
            return all(
                _needed(cells, settings, per_slot) <= space for cells, space in zip(devices, available, strict=True)
            )

        def is_tighter(index: int) -> tuple[bool, int]:
            """A card with the output layer alone decides nothing."""
            return stages[index].first == stages[index].end, spare[index]

        per_slot = int(settings.context_cells)
        most = _largest(fits)
        if settings.auto_length and most < per_slot:
            per_slot = max(most, min(_LEAST_FITTED, per_slot))
        spare = [space - _needed(cells, settings, per_slot) for cells, space in zip(devices, available, strict=True)]
        tightest = min(range(len(spare)), key=is_tighter)
        blocks = Blocks(per_slot * streams)
        length = Tokens(min(per_slot, settings.max_model_len))
        layout = stages[tightest].layout
        need = layout.blocks_for(length)
        return Pool(
            stage=tightest,
            num_blocks=blocks,
            usable_blocks=blocks,
            bytes=Bytes(_needed(devices[tightest], settings, per_slot)),
            max_model_len=length,
            blocks_per_request=need,
            tokens=blocks,
            concurrency=blocks / need,
            largest_max_model_len=Tokens(min(most, model.longest_given or most)),
            checked_blocks=Blocks(most * streams),
            most_requests=settings.max_num_seqs,
        )

    def refusals(self, model: Model, settings: Settings, stages: Sequence[Stage], pool: Pool) -> list[Refusal]:
        """Everything that would stop the start, in the order in which the engine would meet it."""
        found = _type_refusals(model, settings)
        if pool.checked_blocks < pool.num_blocks:
            found.append(
                Refusal(
                    "no_kv_memory",
                    f"failed to allocate buffer for kv cache ({pool.bytes / MIB:.2f} MiB for {pool.num_blocks} cells on"
                    " the fullest device)",
                    _context_fix(pool, settings),
                )
            )
        return found

    def overruns(self, settings: Settings, total: int, taken: Taken, pool: Pool) -> list[Refusal]:
        """None: `refusals` holds all that is allocated against each card."""
        return []

    def log_line(self, settings: Settings, pool: Pool) -> str:
        """src/llama-context.cpp, tools/server/server-context.cpp."""
        unified = "true" if settings.unified_cells else "false"
        return (
            f"n_seq_max = {settings.max_num_seqs}, n_ctx = {pool.num_blocks}, n_ctx_seq = "
            f"{pool.num_blocks if settings.unified_cells else pool.num_blocks // settings.max_num_seqs}, "
            f"kv_unified = {unified}"
        )

    def _context(self, model: Model, flags: EngineFlags) -> int:
        """--ctx-size: of all slots together; 0 and what is not given is the model's own."""
        if flags.max_model_len is not None and flags.max_model_len < 0:
            raise BadValueError("--max-model-len auto: llama.cpp has no such value", fix="leave it out")
        return flags.max_model_len or model.max_model_len

    def _cards(self, layers: int, settings: Settings) -> list[Held]:
        """What each card holds; those with nothing are left out. src/llama-model.cpp: load_tensors, whose "layers" are
        the model's and behind them the output. Cards are taken as equal unless --tensor-split or a partition is given.
        """
        cards = settings.pipeline_parallel_size
        if settings.pp_layer_partition is not None:
            bounds = bounds_of(layers, cards, settings.pp_layer_partition, extra_last=True)
            return [Held(first, end, end == layers) for first, end in bounds]
        asked = layers + 1 if settings.gpu_layers is None else min(settings.gpu_layers, layers + 1)
        start = max((layers + 1 if self._build.output_counts else layers) - asked, 0)
        split = [*(settings.tensor_split or [1.0] * cards), *[0.0] * cards][:cards]
        ends = [part / sum(split) for part in accumulate(split)] if any(split) else [1.0]
        owners = [bisect_right(ends, (layer - start) / asked) for layer in range(start, min(start + asked, layers + 1))]
        found = []
        for card in sorted(set(owners)):
            first = start + owners.index(card)
            end = first + owners.count(card)
            found.append(Held(first, min(end, layers), end > layers))
        return found


def _context_fix(pool: Pool, settings: Settings) -> str:
    if pool.checked_blocks <= 0:
        return "quantise the weights, keep fewer layers on the card (--n-gpu-layers), or add cards"
    return f"use a context (--ctx-size) of {pool.checked_blocks} or less, or --cache-type-k q8_0 --cache-type-v q8_0"


def _types(settings: Settings) -> Types:
    key, _, value = settings.kv_cache_dtype.partition("/")
    return Types(key, value or key)


def _needed(cells: Cells, settings: Settings, per_slot: int) -> int:
    """Bytes of all caches on one device when each slot (or all together) has `per_slot` cells."""
    slots = settings.max_num_seqs
    streams = 1 if settings.unified_cells else slots
    sliding = per_slot
    if not settings.full_windows:
        sequences = slots if settings.unified_cells else 1
        sliding = padded(min(per_slot, cells.window * sequences + settings.max_in_flight_tokens))
    return streams * (cells.main * per_slot + cells.sliding * sliding) + cells.states * slots


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest padded number of cells that fits; 0 when none does. Bounded where no cache grows."""
    low, high = 0, 2**20
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * 256) else (low, middle - 1)
    return low * 256


def _layout(cells: Cells, settings: Settings) -> SeparatePools:
    """The main cache first; sliding and state caches are sized by slots, so they never run out before it."""
    kind = LayerKind.MLA_INDEXER if cells.indexed else LayerKind.MLA if cells.latent else LayerKind.FULL
    groups = [_group(kind, cells.main_layers, cells.main)]
    window = 0
    if cells.sliding:
        window = 0 if settings.full_windows else cells.window
        most = window + settings.max_in_flight_tokens if window else 0
        sliding = _group(LayerKind.SLIDING, cells.sliding_layers, cells.sliding)
        groups.append(sliding._replace(most_tokens=Tokens(most), window=Tokens(window)))
    if cells.states:
        groups.append(
            _group(LayerKind.MAMBA, cells.state_layers, cells.states)._replace(fixed_blocks=Blocks(1))
        )  # fmt: skip
    main = cells.main + (cells.sliding if not window else 0)
    return SeparatePools(tuple(groups), stored(main, cells.sliding if window else 0, window, cells.states))


def _group(kind: LayerKind, layers: int, size: int) -> Group:
    page = -(-size // layers) if layers else 0
    return Group(kind, layers, Tokens(1), Bytes(page), Bytes(size if layers and size % layers else 0))


def _type_refusals(model: Model, settings: Settings) -> list[Refusal]:
    """src/llama-context.cpp: llama_init_from_model."""
    types = _types(settings)
    caches = caches_of(dict.fromkeys(model.layers))
    if any(isinstance(cache, Latent) for cache in caches) and types.key != types.value:
        return [
            Refusal(
                "cache_types_differ",
                f"model does not support different K ({types.key}) and V ({types.value}) cache types",
                "use the same --cache-type-k and --cache-type-v",
            )
        ]
    if TYPES[types.value][0] > 1 and settings.flash_attention is False:
        return [
            Refusal(
                "cache_type_needs_flash_attention",
                "quantized V cache requires flash_attn to be enabled",
                "leave --flash-attn off out",
            )
        ]
    for cache in caches:
        if not isinstance(cache, Attention):
            continue
        for name, size, part in ((types.key, cache.key_size, "k"), (types.value, cache.value_size, "v")):
            if settings.flash_attention is not False and size % TYPES[name][0]:
                return [
                    Refusal(
                        "cache_type_does_not_divide_head",
                        f"{part.upper()} cache type {name} with block size {TYPES[name][0]} does not divide "
                        f"n_embd_head_{part}={size}",
                        f"use f16 for --cache-type-{part}",
                    )
                ]
    return []
