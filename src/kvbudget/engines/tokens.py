"""Decides what engines without vLLM's shared block table have in common: pools of their own for layers of one kind,
which stage holds which layers, and the size of a recurrent state."""

from collections.abc import Iterable, Sequence

from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.layers import Attention, Cache, Indexer, Latent, Layer, State
from kvbudget.model.read import Model
from kvbudget.pool.groups import Content, Layout
from kvbudget.units import Blocks, Bytes, Tokens

WEIGHT_ELEMENTS = {"auto": 2, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
STATE_ELEMENTS = {"float32": 4, "float16": 2, "bfloat16": 2}
Bounds = tuple[tuple[int, int], ...]


class SeparatePools(Layout):
    """Groups that have pools of their own. Blocks are those of the first group's pool; the others are sized with it."""

    __slots__ = ()

    @property
    def bytes_per_block(self) -> Bytes:
        """Bytes of one block of the first pool."""
        return self.groups[0].bytes_per_block

    def blocks_for(self, tokens: int) -> Blocks:
        """Blocks of the first pool that one sequence of `tokens` tokens holds."""
        return self.groups[0].blocks_for(tokens)


def caches_of(layers: Iterable[Layer]) -> list[Cache]:
    """All caches of `layers`, in order."""
    return [cache for layer in layers for cache in layer.caches]


def refuse_unknown_caches(model: Model, engine: str) -> None:
    """Raises UnsupportedError for kinds of cache whose pools in `engine` are not known here, and for none at all."""
    known = set(caches_of(dict.fromkeys(model.layers)))
    if not known:
        raise UnsupportedError(
            f"{model.name[:80]}: no layer keeps a cache, so there is no pool to plan",
            fix="encoder-only models need no KV budget",
        )
    for cache in known:
        plain_keys = isinstance(cache, Indexer) and cache.plain
        if plain_keys or not isinstance(cache, Attention | Latent | Indexer | State):
            raise UnsupportedError(
                f"--engine {engine}: how it lays out a {cache.kind} cache is not known here",
                fix="plan this model with --engine vllm@0.32",
            )


def refuse_context_parallel(ranks: int, engine: str) -> None:
    """Raises UnsupportedError where ranks share one sequence, which is known of vLLM only."""
    if ranks > 1:
        raise UnsupportedError(
            f"--decode-context-parallel-size {ranks}: what it does to the pool of {engine} is not known here",
            fix="leave it out, or plan with --engine vllm@0.32",
        )


def refuse_stages_without_cache(layouts: Iterable[Layout], bounds: Bounds, engine: str) -> None:
    """Raises UnsupportedError for a pipeline stage whose layers keep nothing: what `engine` makes of it is not known
    (vLLM 0.32 divides by zero)."""
    for layout, (first, end) in zip(layouts, bounds, strict=True):
        if not layout.groups:
            raise UnsupportedError(
                f"the pipeline stage of layers {first} to {end - 1} keeps no cache: what {engine} makes of it is not "
                "known here",
                fix="use fewer pipeline stages",
            )


def length_of(model: Model, asked: int | None, engine: str) -> Tokens:
    """The longest request; `asked` may not be vLLM's auto."""
    if asked is not None and asked < 0:
        raise BadValueError(
            f"--max-model-len auto: {engine} has no such value", fix="give a number; largest_max_model_len says which"
        )
    return Tokens(asked or model.max_model_len)


def weight_element_bytes(dtype: str) -> Bytes:
    """Bytes of one weight in the type of `--dtype`."""
    if dtype not in WEIGHT_ELEMENTS:
        raise BadValueError(f"--dtype: {dtype[:40]!r} is unknown", fix=f"use one of {', '.join(WEIGHT_ELEMENTS)}")
    return Bytes(WEIGHT_ELEMENTS[dtype])


def bounds_of(layers: int, stages: int, partition: Sequence[int] | None, *, extra_last: bool) -> Bounds:
    """(first, end) of each pipeline stage. `partition`: given sizes; else even, and what is over goes to the last
    stages (`extra_last`) or to the first.

    Raises BadValueError when the sizes do not share the layers out.
    """
    sizes = list(partition or ())
    if not sizes:
        base, over = divmod(layers, stages)
        plain, larger = [base] * (stages - over), [base + 1] * over
        sizes = plain + larger if extra_last else larger + plain
    if len(sizes) != stages or sum(sizes) != layers or min(sizes) < 1:
        raise BadValueError(
            f"{layers} layers cannot be shared out over {stages} stages as {','.join(map(str, sizes))[:60]}",
            fix=f"{stages} positive numbers that add up to {layers}",
        )
    ends = [sum(sizes[: index + 1]) for index in range(stages)]
    return tuple((end - size, end) for end, size in zip(ends, sizes, strict=True))


def state_bytes(cache: State, ranks: int, conv_bytes: int, matrix_bytes: int) -> int:
    """Bytes of one recurrent state on one of `ranks` tensor-parallel ranks: past inputs of the convolution, matrices.

    Groups that the ranks do not divide are copied, so that every rank has one of its own.
    """
    groups = ranks if cache.groups % ranks else cache.groups
    channels = cache.conv_channels + groups * cache.group_channels
    for count, what in ((channels, "convolution channels"), (cache.matrix_elements, "recurrent state elements")):
        if count % ranks:
            raise UnsupportedError(
                f"{count} {what} cannot be divided by --tensor-parallel-size {ranks}",
                fix="use a tensor-parallel size that divides them",
            )
    return channels // ranks * cache.conv_taps * conv_bytes + cache.matrix_elements // ranks * matrix_bytes


def stored(token_bytes: int, window_bytes: int, window: int, constant: int) -> tuple[Content, ...]:
    """What is stored logically: of every token, of those in a window, and whatever the length."""
    found = []
    if token_bytes:
        found.append(Content(token_bytes))
    if window_bytes:
        found.append(Content(window_bytes, window))
    if constant:
        found.append(Content(0, 0, constant))
    return tuple(found)
