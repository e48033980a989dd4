"""Decides what the weight files beside a config.json take once an engine has loaded them, and whether to believe it."""

from kvbudget.edge.hub.folder import Checkpoint
from kvbudget.model.rank_weights import draft_fraction
from kvbudget.model.read import Model
from kvbudget.planner.request import Amount
from kvbudget.units import Bytes, format_size

# Files and count differ by a third at most (small models that store their tied head too); other files by far more.
_DOUBTED = 3, 2
# Where config.json does not tell how they are quantised: published weights have no less than two bits.
_LEAST_BITS = 2
_FLOATS = ("F64", "F32", "F16", "BF16")


def weights_beside(
    checkpoint: Checkpoint, model: Model, element_bytes: int, *, own_embedding: bool = True
) -> Amount | None:
    """Of the whole checkpoint without a built-in draft module; None when no weights are there.

    `element_bytes`: of the type that plain floats are cast to. Where only an index tells the total, the part of its
    draft module is taken out of it by the parameter count. `own_embedding` False: of a draft model, which may
    borrow embedding and head from its target, so that its files are rightly smaller than its config.json says.
    """
    size = _size(checkpoint, model, element_bytes)
    if size is None or checkpoint.tensors is None:
        return None
    kind = "GGUF" if checkpoint.gguf else "safetensors"
    note = f"{checkpoint.tensors.files} {kind} file(s)"
    doubt = _doubt(checkpoint, model, element_bytes) if own_embedding else ""
    return Amount(Bytes(size), "measured", note, doubt=doubt)


def _doubt(checkpoint: Checkpoint, model: Model, element_bytes: int) -> str:
    """Why the files beside config.json do not look like its weights, "" where they do or nothing can be compared."""
    size = _size(checkpoint, model, element_bytes)
    if size is None or model.parameters is None or checkpoint.tensors is None or checkpoint.gguf:
        return ""  # a GGUF file is its own config.json
    parameters = model.parameters
    draft, whole = draft_fraction(parameters, model.quantization, element_bytes)
    counted = whole - draft
    least, most = counted, counted
    if parameters.head is None:
        most += parameters.embedding * element_bytes  # tied, and stored twice all the same
    kinds = checkpoint.tensors.by_dtype
    unnamed = model.quantization is None and (
        bool(model.named_quantisation) or any(kind not in _FLOATS for kind in kinds)
    )
    if unnamed:
        least = min(least, parameters.total * _LEAST_BITS // 8)
    over, under = _DOUBTED
    if least * under <= size * over and size * under <= most * over:
        return ""
    than = "less" if size < counted else "more"
    return f"far {than} than the {format_size(counted)} that config.json describes: are they its weights, and all?"


def _size(checkpoint: Checkpoint, model: Model, element_bytes: int) -> int | None:
    tensors = checkpoint.tensors
    if tensors is None:
        return None
    if tensors.draft_unsized and model.parameters is not None:
        tensors = tensors.without_draft(*draft_fraction(model.parameters, model.quantization, element_bytes))
    return tensors.loaded_bytes(element_bytes, quantised=model.quantization is not None or checkpoint.gguf)
