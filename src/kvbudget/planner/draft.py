"""Decides what the weights of a speculative draft take on a rank of the last pipeline stage, where the draft runs."""

from kvbudget.engines.flags import Settings, Speculation
from kvbudget.model.drafts import MedusaHeads
from kvbudget.model.rank_weights import draft_on_rank, even_share, share_of_checkpoint, weights_on_rank
from kvbudget.model.read import Model
from kvbudget.planner.request import Amount, PlanRequest
from kvbudget.units import Bytes

# Drafts that have no embedding of their own, and those that have no head either: they take the target's
# (vLLM 0.32 v1/spec_decode/llm_base_proposer.py: _maybe_share_embeddings, _maybe_share_lm_head).
_SHARES_EMBEDDING = ("eagle", "eagle3", "dflash", "dspark", "mtp")
_SHARES_HEAD = ("eagle", "mtp")


def draft_weights(request: PlanRequest, speculation: Speculation, settings: Settings) -> Amount | None:
    """None for a method without weights of its own, and for a draft of which nothing tells them.

    A draft is split over the ranks as its target is. The module that is built into a checkpoint (MTP) is loaded without
    the rest of it. Files beside a draft's config.json are measured.
    """
    ranks, element_bytes = settings.tensor_parallel_size, settings.element_bytes
    model = speculation.draft
    if speculation.heads is not None:
        return _heads(request, speculation, speculation.heads, settings)
    if model is None:
        if speculation.method != "mtp":
            return None
        return _module(request.model, ranks, element_bytes)
    if model.draft_layers:
        return _module(model, ranks, element_bytes)
    known, note = request.draft_weights, f"the draft {model.name[-60:]}"
    layers = len(model.layers)
    if known is not None and model.parameters is not None:
        size = share_of_checkpoint(model.parameters, model.quantization, known.bytes, 0, layers, ranks, element_bytes)
        return Amount(size, known.source, note)
    if known is not None:
        return Amount(even_share(None, layers, known.bytes, 0, layers, ranks), known.source, note)
    if model.parameters is None:
        return None
    size = weights_on_rank(model.parameters, model.quantization, 0, layers, ranks, element_bytes)
    size = Bytes(size - _shared(model, speculation.method, settings))
    return Amount(size, "estimated" if model.parameters.estimated else "computed", note)


def _heads(request: PlanRequest, speculation: Speculation, heads: MedusaHeads, settings: Settings) -> Amount:
    """Medusa's: files beside its config.json hold as many heads as that says, the engine as many as it speculates."""
    ranks, vocabulary = settings.tensor_parallel_size, request.model.vocab_size
    whole, shared = heads.parameters(speculation.num_speculative_tokens, vocabulary)
    elements = whole + -(-shared // ranks)
    note = f"{speculation.num_speculative_tokens} Medusa heads"
    if request.draft_weights is None:
        return Amount(Bytes(elements * settings.element_bytes), "computed", note)
    stored = sum(heads.parameters(heads.number, vocabulary))
    return Amount(Bytes(request.draft_weights.bytes * elements // stored), request.draft_weights.source, note)


def _module(model: Model, ranks: int, element_bytes: int) -> Amount | None:
    if model.parameters is None or not model.draft_layers:
        return None
    size = draft_on_rank(model.parameters, model.quantization, ranks, element_bytes)
    return Amount(size, "computed", "its draft module (MTP)")


def _shared(model: Model, method: str, settings: Settings) -> int:
    parameters = model.parameters
    if parameters is None or method not in _SHARES_EMBEDDING:
        return 0
    # The last of several stages holds no embedding that could be shared.
    elements = parameters.embedding if settings.pipeline_parallel_size == 1 else 0
    if method in _SHARES_HEAD and parameters.head is not None:
        elements += parameters.head.parameters
    return elements * settings.element_bytes // settings.tensor_parallel_size
