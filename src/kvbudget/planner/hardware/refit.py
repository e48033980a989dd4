"""Decides how far a user's own receipts move the public estimates of activation, CUDA graphs and non-torch memory."""

from typing import NamedTuple

from kvbudget.planner.hardware.estimates import CONSTANTS, Constants, Overheads, Run, Shape, overheads
from kvbudget.units import GIB, Bytes


class Receipt(NamedTuple):
    """What one start of an engine reported, in bytes on one GPU; None: not printed.

    `total` is activation, CUDA graphs taken off and non-torch together: usable - weights - pool. It is enough alone.
    """

    shape: Shape
    run: Run
    activation: Bytes | None = None
    cuda_graphs: Bytes | None = None
    non_torch: Bytes | None = None
    total: Bytes | None = None


def refit(receipts: list[Receipt], constants: Constants = CONSTANTS, prior: float = 1.0) -> Constants:
    """A user's own constants from what their engines reported; without receipts, the given ones.

    Each part moves from the public fit towards the receipts' mean ratio (non-torch: difference), as if the public fit
    were `prior` receipts; a receipt that tells only the sum moves non-torch. Spreads shrink the more receipts agree.
    """
    activation, graphs, other, errors = [], [], [], []
    for receipt in receipts:
        told = overheads(receipt.shape, receipt.run, constants)
        parts = (receipt.activation, receipt.cuda_graphs, receipt.non_torch)
        if receipt.activation is not None and told.activation.best:
            activation.append(_bounded(receipt.activation / told.activation.best, 0.1, 10.0))
        if receipt.cuda_graphs is not None and told.cuda_graphs.best:
            graphs.append(_bounded(receipt.cuda_graphs / told.cuda_graphs.best, 0.05, 20.0))
        if receipt.non_torch is not None:
            other.append((receipt.non_torch - told.non_torch.best) / GIB)
        elif receipt.total is not None:
            rest = told.total.best - sum(
                part.best for part, given in zip(told[:3], parts, strict=True) if given is not None
            )
            seen = receipt.total - sum(part for part in parts if part is not None)
            other.append((seen - rest) / GIB)
        errors.append(_distance(receipt, told))
    return constants._replace(
        activation_factor=constants.activation_factor * _shrunk(activation, 1.0, prior),
        graphs_factor=constants.graphs_factor * _shrunk(graphs, 1.0, prior),
        non_torch_gib=constants.non_torch_gib + _shrunk(other, 0.0, prior),
        spread_factor=constants.spread_factor * _narrowed(errors, other, prior),
    )


def _shrunk(values: list[float], start: float, prior: float) -> float:
    return (start * prior + sum(values)) / (prior + len(values))


def _bounded(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _distance(receipt: Receipt, told: Overheads) -> float:
    """How far a receipt lies outside of what was told, in half-widths; 1 is the edge of the interval."""
    pairs = [
        (seen, part)
        for seen, part in zip(
            (receipt.activation, receipt.cuda_graphs, receipt.non_torch, receipt.total),
            (told.activation, told.cuda_graphs, told.non_torch, told.total),
            strict=True,
        )
        if seen is not None and part.high > part.low
    ]
    return max(
        (abs(seen - part.best) / max(part.high - part.best, part.best - part.low) for seen, part in pairs), default=1.0
    )


def _narrowed(errors: list[float], other: list[float], prior: float) -> float:
    """Half of the width at most is lost, and only as far as the receipts agree with one another."""
    if not errors:
        return 1.0
    scatter = max(other) - min(other) if len(other) > 1 else 0.0
    agreement = prior / (prior + len(errors)) if scatter < 0.3 else 1.0
    return max(0.5, agreement) if max(errors) <= 1.5 else 1.0
