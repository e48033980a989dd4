"""When vLLM would refuse how a model is split over ranks: stages, tensor-parallel ranks, context-parallel ones."""

from collections.abc import Sequence

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Refusal
from kvbudget.model.layers import Attention, Latent, State
from kvbudget.model.read import Model


def parallel_refusals(model: Model, settings: Settings, *, refines: bool = True) -> list[Refusal]:
    """config/model.py: verify_with_parallel_config; config/parallel.py; assertions of the model classes.

    `refines`: see divisions.py.
    """
    ranks, shards = settings.tensor_parallel_size, settings.decode_context_parallel_size
    found = _division_refusals(model, settings, refines=refines) if ranks * settings.data_parallel_size > 1 else []
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
    found += _draft_refusals(settings)
    if shards > 1:
        found += _context_parallel_refusals(model, caches, ranks, shards)
    return found


def _division_refusals(model: Model, settings: Settings, *, refines: bool) -> list[Refusal]:
    from kvbudget.engines.vllm.divisions import division_refusals, split_of  # one rank needs none of it

    return division_refusals(model, settings.tensor_parallel_size, split_of(model, settings, refines=refines))


def _draft_refusals(settings: Settings) -> list[Refusal]:
    speculation = settings.speculation
    if speculation is None:
        return []
    found = []
    ranks, asked = settings.tensor_parallel_size, speculation.draft_tensor_parallel_size
    if asked not in (0, 1, ranks):  # config/speculative.py: _verify_and_get_draft_tp
        found.append(
            Refusal(
                "draft_tensor_parallel",
                f"speculative_draft_tensor_parallel_size={asked} cannot be other value than 1 or target model "
                "tensor_parallel_size",
                f"leave draft_tensor_parallel_size out of --speculative-config, or give {ranks}",
            )
        )
    if speculation.method == "draft_model" and settings.pipeline_parallel_size > 1:
        # The draft is built on the last stage alone (v1/worker/gpu/model_runner.py), by a model class that takes its
        # layers and its input from the pipeline group of all stages (models/utils.py: make_layers, get_pp_group): it
        # has only the last part of its layers there, and its first run, when memory is profiled, finds no input.
        found.append(
            Refusal(
                "draft_model_pipeline",
                "AssertionError: assert intermediate_tensors is not None (the draft model runs on the last pipeline "
                "stage alone, and waits there for the output of a stage before it)",
                "leave --pipeline-parallel-size out, or speculate with eagle, eagle3, mtp or ngram",
            )
        )
    return found


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
