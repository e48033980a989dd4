"""When vLLM would refuse how a model is split over ranks: stages, tensor-parallel ranks, context-parallel ones."""

from collections.abc import Sequence

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Refusal
from kvbudget.model.layers import Attention, Latent, State
from kvbudget.model.read import Model

# Every block and group of published formats divides it, so that one rank has whole ones of such widths.
_ANY_BLOCK = 256


def parallel_refusals(model: Model, settings: Settings, *, refines: bool = True, strict: bool = True) -> list[Refusal]:
    """config/model.py: verify_with_parallel_config; config/parallel.py; assertions of the model classes.

    `refines`, `strict`: see divisions.py; `strict` is of the version that was read.
    """
    ranks, shards = settings.tensor_parallel_size, settings.decode_context_parallel_size
    found = []
    if ranks * settings.data_parallel_size > 1 or _is_cut_oddly(model):
        found = _division_refusals(model, settings, refines=refines, strict=strict)
    caches = [cache for layer in dict.fromkeys(model.layers) for cache in layer.caches]
    if settings.pipeline_parallel_size > 1 and any(isinstance(c, State) and c.replicated for c in caches):
        found.append(  # model_executor/models/config.py: Qwen4ExpForConditionalGenerationConfig
            Refusal(
                "pipeline_parallel_embedding",
                "Qwen4Exp N-gram PLE embedding requires pipeline_parallel_size=1 because non-first pipeline ranks do "
                "not receive the raw input_ids it needs. Please run with PP=1.",
                "leave --pipeline-parallel-size out and raise --tensor-parallel-size",
            )
        )
    found += _draft_refusals(model, settings, exact=strict)
    if shards > 1:
        found += _context_parallel_refusals(model, caches, ranks, shards)
    return found


def _is_cut_oddly(model: Model) -> bool:
    """Whether one rank alone may have a part of a quantised matrix that its format does not take."""
    widths = model.hidden_size, model.intermediate_size, model.expert_intermediate_size
    return model.quantization is not None and any(width % _ANY_BLOCK for width in widths)


def _division_refusals(model: Model, settings: Settings, *, refines: bool, strict: bool) -> list[Refusal]:
    from kvbudget.engines.vllm.divisions import division_refusals, split_of  # most single ranks need none of it

    split = split_of(model, settings, refines=refines, strict=strict)
    return division_refusals(model, settings.tensor_parallel_size, split)


def _draft_refusals(model: Model, settings: Settings, *, exact: bool) -> list[Refusal]:
    if settings.speculation is None:
        return []
    from kvbudget.engines.vllm.speculation import speculation_refusals  # most plans have none

    return speculation_refusals(model, settings, settings.speculation, exact=exact)


def _context_parallel_refusals(model: Model, caches: Sequence[object], ranks: int, shards: int) -> list[Refusal]:
    from kvbudget.engines.vllm.divisions import largest_divisor

    if ranks % shards:
        return [
            Refusal(
                "context_parallel_not_divisible",
                f"tp_size={ranks} must be divisible by dcp_size={shards}.",
                f"use --decode-context-parallel-size {largest_divisor(ranks, shards)}",
            )
        ]
    if any(isinstance(cache, Attention) and cache.window for cache in caches):
        return [
            Refusal(
                "context_parallel_sliding_window",
                "DCP not support sliding window.",
                "leave --decode-context-parallel-size out for this model",
            )
        ]
    attention = [cache for cache in caches if isinstance(cache, Attention)]
    if not attention or any(isinstance(cache, Latent) for cache in caches):
        return []
    heads = attention[0].kv_heads
    if ranks <= heads:
        return [
            Refusal(
                "context_parallel_needs_replicas",
                f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({ranks}) to be greater "
                f"than the model's total number of KV heads ({heads}). Increase `--tensor-parallel-size` or set "
                "`--decode-context-parallel-size 1`.",
                f"use --tensor-parallel-size {heads * shards} or leave --decode-context-parallel-size out",
            )
        ]
    if shards > ranks // heads or (model.attention_heads // heads) % shards:
        return [
            Refusal(
                "context_parallel_too_large",
                f"`--decode-context-parallel-size` ({shards}) exceeds the maximum supported value ({ranks // heads}) "
                f"for `--tensor-parallel-size` ({ranks}) and {heads} model KV heads, or does not divide the "
                f"{model.attention_heads // heads} query heads of each.",
                f"use --decode-context-parallel-size {largest_divisor(ranks // heads, shards)}",
            )
        ]
    return []
