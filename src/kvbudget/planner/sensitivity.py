"""Decides what the usual changes of a model or of flags would do to pool, memory and ceiling.

Changes of the model hold the bytes of the pool; changes of flags plan the whole card again, weights and all.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import InputError
from kvbudget.model.layers import Attention, Cache, CrossAttention, Latent, Layer
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.units import Bytes

# Names of an 8-bit cache, by engine: vLLM and SGLang, TensorRT-LLM, llama.cpp.
_EIGHT_BIT = ("fp8", "fp8_e4m3", "q8_0")


class Change(NamedTuple):
    """One change and the plan that it gives. All of one GPU rank.

    `needed` is what `requests` requests of `length` tokens take of a pool in bytes, `tokens` the pool as the engine
    prints it, `ceiling` whole requests of `length` tokens at once. `refused`: code of the first error, "" when the
    engine would start.
    """

    code: str
    what: str
    before: str
    after: str
    length: int
    requests: int
    needed: Bytes
    tokens: int
    ceiling: int
    refused: str


def sensitivity(plan: Plan) -> tuple[Change, ...]:
    """The plan itself first (code "plan"), then each change alone. Changes that make no sense here are left out."""
    requests = plan.request.target_concurrency or max(1, plan.ceilings.ceiling)
    found = [_change(plan, ("plan", "as planned", "", ""), requests)]
    for names, request, factor in _variants(plan):
        try:
            changed = make_plan(request)
        except InputError:
            continue
        found.append(_change(changed, names, requests * factor))
    return tuple(found)


_Names = tuple[str, str, str, str]
_Variant = tuple[_Names, PlanRequest, int]


def _change(plan: Plan, names: _Names, requests: int) -> Change:
    errors = [finding.code for finding in plan.findings if finding.severity == "error"]
    needed = plan.pool.blocks_per_request * plan.stage.layout.bytes_per_block * requests
    return Change(
        *names,
        length=plan.pool.max_model_len,
        requests=requests,
        needed=Bytes(needed),
        tokens=plan.pool.tokens,
        ceiling=plan.ceilings.ceiling,
        refused=errors[0] if errors else "",
    )


def _variants(plan: Plan) -> Iterator[_Variant]:
    """(names, request, factor on the number of requests)."""
    asked = plan.request
    flags = asked.flags._replace(max_model_len=plan.pool.max_model_len)
    pool_given = asked.kv_cache_memory
    if flags.num_gpu_blocks_override is not None:  # a number of blocks says nothing once their size changes
        flags, pool_given = flags._replace(num_gpu_blocks_override=None), plan.pool.bytes
    base = asked._replace(
        flags=flags,
        kv_cache_memory=pool_given,
        gpus=None,
        target_concurrency=None,
        prompt_lengths=None,
        output_lengths=None,
    )
    if plan.memory.kv.bytes > 0:
        yield from _model_variants(plan, base._replace(kv_cache_memory=plan.memory.kv.bytes))
    yield from _flag_variants(plan, base)


def _model_variants(plan: Plan, base: PlanRequest) -> Iterator[_Variant]:
    model = base.model
    layers, heads = model.layers, model.attention_heads
    count = len(layers)

    def changed(names: _Names, layers: tuple[Layer, ...]) -> _Variant:
        # The pool is given here: the parameters would not match these layers, and nothing asks for them.
        weights = plan.request.weights or plan.memory.weights
        return names, base._replace(model=model._replace(layers=layers, parameters=None), weights=weights), 1

    yield changed(("layers_double", "layers", f"{count}", f"{2 * count}"), layers * 2)
    if count > 1:
        yield changed(("layers_half", "layers", f"{count}", f"{count // 2}"), layers[: count // 2])
    counts = sorted({cache.kv_heads for cache in _heads(layers)})
    if counts:
        before = "/".join(map(str, counts))
        if all(count % 4 == 0 for count in counts):
            quarter = "/".join(str(count // 4) for count in counts)
            yield changed(("kv_heads_quarter", "KV heads", before, quarter), _with_heads(layers, divisor=4))
        if counts != [heads]:
            after = f"{heads} (one for each attention head)"
            yield changed(("kv_heads_all", "KV heads", before, after), _with_heads(layers, number=heads))
        sizes = "/".join(str(size) for size in sorted({cache.key_size for cache in _heads(layers)}))
        for code, numerator, denominator in (("head_size_half", 1, 2), ("head_size_double", 2, 1)):
            resized = _with_size(layers, numerator, denominator)
            after = "/".join(str(size) for size in sorted({cache.key_size for cache in _heads(resized)}))
            yield changed((code, "head_dim", sizes, after), resized)
    latent = next((cache for layer in layers for cache in layer.caches if isinstance(cache, Latent)), None)
    if latent is not None:
        before, after = f"{latent.latent_size}", f"{latent.latent_size * 2}"
        yield changed(("latent_double", "kv_lora_rank", before, after), _with_latent(layers, 2))


def _flag_variants(plan: Plan, base: PlanRequest) -> Iterator[_Variant]:
    settings, flags, length = plan.settings, base.flags, plan.pool.max_model_len

    def changed(names: _Names, changed_flags: EngineFlags, factor: int = 1) -> _Variant:
        return names, base._replace(flags=changed_flags), factor

    for code, new in (("context_half", length // 2), ("context_double", 2 * length)):
        if new:
            yield changed((code, "max_model_len", f"{length:,}", f"{new:,}"), flags._replace(max_model_len=new))
    seqs, twice = settings.max_num_seqs, 2 * (plan.request.target_concurrency or max(1, plan.ceilings.ceiling))
    names = ("requests_double", "requests at once", "", "")
    yield changed(names, flags._replace(max_num_seqs=max(seqs, twice)), 2)
    batch = settings.max_num_batched_tokens
    for code, new in (("batch_quarter", batch // 4), ("batch_double", 2 * batch)):
        if new >= seqs:
            names = (code, "max_num_batched_tokens", f"{batch:,}", f"{new:,}")
            yield changed(names, flags._replace(max_num_batched_tokens=new))
    yield from _dtype_variant(plan, base)
    ranks = settings.tensor_parallel_size
    if ranks > 1:
        names = ("ranks_half", "tensor_parallel_size", f"{ranks}", f"{ranks // 2}")
        yield changed(names, flags._replace(tensor_parallel_size=ranks // 2))
    names = ("ranks_double", "tensor_parallel_size", f"{ranks}", f"{2 * ranks}")
    yield changed(names, flags._replace(tensor_parallel_size=2 * ranks))


def _dtype_variant(plan: Plan, base: PlanRequest) -> Iterator[_Variant]:
    """An 8-bit cache for a 16-bit one, and the model's own type for any other."""
    dtype, now = plan.settings.kv_cache_dtype, plan.stage.layout.bytes_for(plan.pool.max_model_len)
    for name in (*_EIGHT_BIT, "bfloat16", "f16"):
        request = base._replace(flags=base.flags._replace(kv_cache_dtype=name))
        try:
            changed = make_plan(request)
        except InputError:
            continue
        if changed.stage.layout.bytes_for(plan.pool.max_model_len) != now:
            yield ("kv_dtype", "kv_cache_dtype", dtype, name), request, 1
            return


def _heads(layers: tuple[Layer, ...]) -> tuple[Attention | CrossAttention, ...]:
    return tuple(c for layer in layers for c in layer.caches if isinstance(c, Attention | CrossAttention))


def _with_heads(layers: tuple[Layer, ...], *, divisor: int = 1, number: int = 0) -> tuple[Layer, ...]:
    def change(cache: Cache) -> Cache:
        if isinstance(cache, Attention | CrossAttention):
            return cache._replace(kv_heads=number or cache.kv_heads // divisor)
        return cache

    return tuple(layer._replace(caches=tuple(map(change, layer.caches))) for layer in layers)


def _with_size(layers: tuple[Layer, ...], numerator: int, denominator: int) -> tuple[Layer, ...]:
    def change(cache: Cache) -> Cache:
        if isinstance(cache, Attention | CrossAttention):
            key, value = (max(1, s * numerator // denominator) for s in (cache.key_size, cache.value_size))
            return cache._replace(key_size=key, value_size=value)
        return cache

    return tuple(layer._replace(caches=tuple(map(change, layer.caches))) for layer in layers)


def _with_latent(layers: tuple[Layer, ...], factor: int) -> tuple[Layer, ...]:
    def change(cache: Cache) -> Cache:
        return cache._replace(latent_size=cache.latent_size * factor) if isinstance(cache, Latent) else cache

    return tuple(layer._replace(caches=tuple(map(change, layer.caches))) for layer in layers)
