"""Decides the groups of each pipeline stage: the model's groups, cut to the layers that the stage holds.

`v1/core/kv_cache_utils.py: get_kv_cache_configs`: groups are formed once over the whole model and projected to the
stages; a group without layers on a stage still takes blocks there.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from math import lcm

from kvbudget.engines.flags import Settings
from kvbudget.engines.vllm.grouping import LayerGroup, PromotionError, groups_of
from kvbudget.engines.vllm.pages import Ranks, packs, specs_of
from kvbudget.engines.vllm.spec import Family, Spec
from kvbudget.errors import UnsupportedError
from kvbudget.model.layers import Layer
from kvbudget.model.read import Model
from kvbudget.model.same import Same
from kvbudget.pool.groups import Content, Group, LayerKind, Layout
from kvbudget.units import Blocks, Bytes, Tokens

_CHAINED = ("inkling_model", "inkling_text")  # models/inkling/nvidia/mtp.py: no more modules than tokens
_KINDS = {
    Family.FULL: LayerKind.FULL,
    Family.MLA: LayerKind.MLA,
    Family.SLIDING: LayerKind.SLIDING,
    Family.SLIDING_MLA: LayerKind.SLIDING,
    Family.CHUNKED: LayerKind.CHUNKED,
    Family.MAMBA: LayerKind.MAMBA,
    Family.CROSS: LayerKind.CROSS,
    Family.RING: LayerKind.COMPRESSOR,
}
# by the kind of the cache, of DeepSeek-V4's and V4.1's; vectors and their indexers share a group
_COMPRESSING: dict[object, LayerKind] = {"compressor": LayerKind.COMPRESSOR, "sliding": LayerKind.SLIDING}


_LAYOUTS_KEPT = 64
# Settings that no layout depends on, at any value: plans that differ in these alone share one.
_ANY: dict[str, object] = {
    "max_model_len": 0, "auto_length": False, "max_num_seqs": 0, "max_num_batched_tokens": 0, "longest": 0,
    "gpu_memory_utilization": 0, "num_gpu_blocks_override": None,
}  # fmt: skip


def stage_layouts(
    model: Model, settings: Settings, ranks: Ranks, bounds: Sequence[tuple[int, int]], *, near_equal: bool = True
) -> tuple[Layout, ...]:
    """The layout of each stage whose layers are `bounds` (first, end); the last one holds the draft's layers too.

    Raises UnsupportedError when no layer keeps a cache, or the engine itself finds no grouping.
    """
    if ranks.aligned and ranks.aligned_states:  # else a state's blocks follow it (pages.py: _state)
        ranks = ranks._replace(max_model_len=0)
    settings = settings._replace(**_ANY)  # type: ignore[arg-type] # of their own types
    speculation = settings.speculation
    if speculation is None or speculation.draft is None:
        return _laid_out(Same(model), None, settings, ranks, tuple(bounds), near_equal)
    draft = Same(speculation.draft)
    settings = settings._replace(speculation=speculation._replace(draft=None))
    return _laid_out(Same(model), draft, settings, ranks, tuple(bounds), near_equal)


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _laid_out(
    same: "Same[Model]",
    draft: "Same[Model] | None",
    settings: Settings,
    ranks: Ranks,
    bounds: tuple[tuple[int, int], ...],
    near_equal: bool,
) -> tuple[Layout, ...]:
    model = same.value
    if draft is not None and settings.speculation is not None:
        settings = settings._replace(speculation=settings.speculation._replace(draft=draft.value))
    stage_specs = _stage_specs(model, settings, ranks, bounds)
    specs = list(chain.from_iterable(stage_specs))
    if not specs:
        raise UnsupportedError(
            f"{model.name[:80]}: no layer keeps a cache, so there is no pool to plan",
            fix="encoder-only models need no KV budget",
        )
    packed = packs(model)
    try:
        groups = groups_of(specs, hybrid_manager=settings.hybrid_manager, packed=packed, near_equal=near_equal)
    except PromotionError:  # `promotion_refusal` says so; the figures are those with the manager
        groups = groups_of(specs, hybrid_manager=True, packed=packed, near_equal=near_equal)
    layouts = []
    start = 0
    for own in stage_specs:
        layouts.append(_layout(groups, settings, start, start + len(own), packed=packed))
        start += len(own)
    return tuple(layouts)


def promotion_refusal(model: Model, settings: Settings, ranks: Ranks) -> str:
    """Why the engine would not start without its hybrid manager, in its own words; "" where it would."""
    if settings.hybrid_manager:
        return ""
    specs = _stage_specs(model, settings, ranks, [(0, len(model.layers))])[0]
    try:
        groups_of(specs, hybrid_manager=False, packed=packs(model))
    except PromotionError as error:
        return str(error)
    return ""


def _stage_specs(model: Model, settings: Settings, ranks: Ranks, bounds: Sequence[tuple[int, int]]) -> list[list[Spec]]:
    drafts, draft_model = _draft_layers(model, settings)
    stage_specs = [specs_of(model.layers[first:end], model, ranks, first) for first, end in bounds]
    if settings.speculation is not None and settings.speculation.method == "draft_model":
        drafts = _last_part(drafts, settings.pipeline_parallel_size)
    stage_specs[-1] += specs_of(drafts, draft_model, ranks)
    return stage_specs


def _last_part(layers: tuple[Layer, ...], stages: int) -> tuple[Layer, ...]:
    """What the last of several stages builds of an independent draft (models/utils.py: make_layers); see parallel.py:
    with more than one stage it does not start."""
    return layers[len(layers) - len(layers) // stages :]


def _draft_layers(model: Model, settings: Settings) -> tuple[tuple[Layer, ...], Model]:
    """The draft's layers that keep a cache, and the model that they belong to."""
    speculation = settings.speculation
    if speculation is None:
        return (), model
    if speculation.draft is not None:
        return speculation.draft.draft_layers or speculation.draft.layers, speculation.draft
    if speculation.method != "mtp":
        return (), model
    if model.model_type in _CHAINED:
        return model.draft_layers[: speculation.num_speculative_tokens], model
    return model.draft_layers, model


def _layout(groups: tuple[LayerGroup, ...], settings: Settings, first: int, end: int, *, packed: bool) -> Layout:
    """Only the caches first..end of each group."""
    if end - first == sum(len(group) for group in groups):
        here = groups
    else:
        here = tuple(tuple(m for m in group if first <= m.place < end) for group in groups)
    stored: dict[tuple[int, int], int] = {}
    constant = 0
    for group in here:
        for _, spec in group:
            content = spec.content
            if content.size:
                shards = 1 if spec.replicated else settings.decode_context_parallel_size
                key = content.window, content.per_tokens * shards
                stored[key] = stored.get(key, 0) + content.size
            constant += content.constant_bytes
    contents = [Content(size, window, 0, per) for (window, per), size in stored.items()]
    if constant:
        contents.append(Content(0, 0, constant))
    return Layout(
        tuple(_group(whole[0].spec, own, settings, packed=packed) for whole, own in zip(groups, here, strict=True)),
        tuple(contents),
        lcm(*(spec.stride for group in here for _, spec in group)) if packed else 1,
    )


def _group(spec: Spec, members: LayerGroup, settings: Settings, *, packed: bool) -> Group:
    """`spec` stands for all of the group; `members` are those on this stage. `packed`: their pages count as one."""
    pages = {member.spec.page_bytes for member in members}
    page = max(pages, default=spec.page_bytes)
    mixed = sum(member.spec.page_bytes for member in members) if packed or len(pages) > 1 else 0
    shards = 1 if spec.replicated else settings.decode_context_parallel_size
    most = extra = 0
    if spec.family in (Family.SLIDING, Family.SLIDING_MLA):  # SlidingWindowSpec.max_admission_blocks_per_request
        most, extra = spec.window - 1 + _retained(settings) + settings.max_in_flight_tokens, 1
    elif spec.family is Family.CHUNKED:  # ChunkedLocalAttentionSpec.max_admission_blocks_per_request
        most = spec.window + settings.max_in_flight_tokens
    return Group(
        kind=_kind(spec, members),
        layers=len(members),
        block_size=Tokens(spec.block_size * shards),
        page_size_bytes=Bytes(page),
        mixed_block_bytes=Bytes(mixed),
        most_tokens=Tokens(most),
        extra_blocks=Blocks(extra),
        fixed_blocks=Blocks(spec.fixed_blocks),
        window=Tokens(spec.window if most else 0),
        sharing_ranks=shards,
    )


def _kind(spec: Spec, members: LayerGroup) -> LayerKind:
    if spec.identity[:1] == ("compressed",):
        return _COMPRESSING.get(spec.identity[1], LayerKind.COMPRESSED)
    if any(member.spec.identity[:1] == ("indexer",) for member in members):
        full = any(member.spec.family is Family.FULL for member in members)
        return LayerKind.FULL if full else LayerKind.MLA_INDEXER
    return _KINDS[spec.family]


def _retained(settings: Settings) -> int:
    """config/vllm.py: num_prefill_lookahead_tokens - 1; only chains of several draft modules keep more."""
    speculation = settings.speculation
    if speculation is None or speculation.method != "mtp":
        return 0
    return max(0, speculation.num_speculative_tokens - 1) if speculation.modules > 1 else 0
