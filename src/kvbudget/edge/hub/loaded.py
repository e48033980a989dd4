"""Decides what the weight files beside a config.json take once an engine has loaded them."""

from kvbudget.edge.hub.folder import Checkpoint
from kvbudget.model.parameters import draft_fraction
from kvbudget.model.read import Model
from kvbudget.planner.request import Amount
from kvbudget.units import Bytes


def weights_beside(checkpoint: Checkpoint, model: Model, element_bytes: int) -> Amount | None:
    """Of the whole checkpoint without a built-in draft module; None when no weights are there.

    `element_bytes`: of the type that plain floats are cast to. Where only an index tells the total, the part of its
    draft module is taken out of it by the parameter count.
    """
    tensors = checkpoint.tensors
    if tensors is None:
        return None
    if tensors.draft_unsized and model.parameters is not None:
        tensors = tensors.without_draft(*draft_fraction(model.parameters, model.quantization, element_bytes))
    size = tensors.loaded_bytes(element_bytes, quantised=model.quantization is not None or checkpoint.gguf)
    kind = "GGUF" if checkpoint.gguf else "safetensors"
    return Amount(Bytes(size), "measured", f"{tensors.files} {kind} file(s)")
