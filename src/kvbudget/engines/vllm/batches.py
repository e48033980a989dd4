"""Decides how many tokens and sequences a batch has, which follows max_model_len where no flag says it.

`engine/arg_utils.py: _set_default_max_num_seqs_and_batched_tokens_args`; `config/vllm.py: max_in_flight_tokens`.
"""

from functools import lru_cache

from kvbudget.engines.flags import Batching, EngineFlags, Settings, Speculation
from kvbudget.engines.vllm.versions import Traits
from kvbudget.model.layers import Attention, CrossAttention
from kvbudget.model.read import Model
from kvbudget.model.same import Same
from kvbudget.units import GIB, Tokens

_MODELS_KEPT = 64
_WHOLE_PROMPTS = 2048  # batched tokens where prompts are not cut and short
_LARGE_DEVICE = 160 * GIB  # from here on an A100 would count by its memory; there is none
_V1_RUNNER = ("suffix", "medusa", "mlp_speculator", "custom_class")


def batching_of(
    traits: Traits,
    flags: EngineFlags,
    speculation: Speculation | None,
    device_memory: int,
    device_name: str,
    *,
    asynchronous: bool,
) -> Batching:
    """What is known before the length is. `device_memory` in bytes, 0 when unknown."""
    small = traits.a100_is_small and "a100" in device_name.lower() and device_memory < _LARGE_DEVICE
    memory = 0 if small else device_memory
    tokens, seqs = next((tokens, seqs) for floor, tokens, seqs in traits.batch_defaults if memory >= floor)
    batches = 1
    if traits.batches_in_flight:
        batches = _concurrent_batches(flags.pipeline_parallel_size, speculation, asynchronous=asynchronous)
    return Batching(
        asked_tokens=flags.max_num_batched_tokens or 0,
        asked_seqs=flags.max_num_seqs or 0,
        default_tokens=tokens,
        default_seqs=seqs,
        asked_chunks=flags.enable_chunked_prefill,
        batches=batches,
    )


def batch_at(
    traits: Traits, model: Model, speculation: Speculation | None, batching: Batching, length: int
) -> tuple[int, int, bool]:
    """(max_num_batched_tokens, max_num_seqs, whether prompts are cut) for a max_model_len of `length`."""
    chunked = _chunked_prefill(traits, model, speculation, batching.asked_chunks, length)
    tokens = batching.default_tokens
    seqs = batching.asked_seqs or batching.default_seqs
    if not chunked:  # a batch holds a whole prompt
        tokens = max(length, tokens, _WHOLE_PROMPTS)
    tokens = batching.asked_tokens or min(seqs * length, tokens)
    return tokens, batching.asked_seqs or min(seqs, tokens), chunked


def at_length(traits: Traits, model: Model, settings: Settings, length: int) -> Settings:
    """The settings that the same flags give with another --max-model-len."""
    batching = settings.batching
    if batching is None:
        return settings._replace(max_model_len=Tokens(length), auto_length=False)
    tokens, seqs, chunked = batch_at(traits, model, settings.speculation, batching, length)
    return settings._replace(
        max_model_len=Tokens(length),
        auto_length=False,
        max_num_seqs=seqs,
        max_num_batched_tokens=Tokens(tokens),
        max_in_flight_tokens=Tokens(batching.batches * tokens),
        chunked_prefill=chunked,
    )


def _concurrent_batches(stages: int, speculation: Speculation | None, *, asynchronous: bool) -> int:
    """config/vllm.py: max_concurrent_batches; the V1 runner only for what V2 lacks."""
    if not asynchronous:
        return stages
    if speculation is not None and speculation.method in _V1_RUNNER:
        return 2 if stages == 1 else stages
    return stages + 1


@lru_cache(maxsize=_MODELS_KEPT)
def _reads_an_encoder(same: "Same[Model]") -> bool:
    return any(isinstance(c, CrossAttention) for layer in dict.fromkeys(same.value.layers) for c in layer.caches)


def _chunked_prefill(
    traits: Traits, model: Model, speculation: Speculation | None, asked: bool | None, length: int
) -> bool:
    """config/model.py: is_chunked_prefill_supported; before 0.8 engine/arg_utils.py: use_long_context."""
    if asked is not None:
        return asked
    if _reads_an_encoder(Same(model)):
        return False
    if not traits.chunked_beyond:
        return True
    plain = (
        not model.multimodal
        and speculation is None
        and not any(isinstance(c, Attention) and c.window for layer in model.layers for c in layer.caches)
    )
    return plain and length > traits.chunked_beyond
