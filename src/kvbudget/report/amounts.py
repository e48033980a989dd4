"""Decides how sizes, ratios and what a plan knows of its memory are written."""

from typing import NamedTuple

from kvbudget.planner.request import Amount, Plan
from kvbudget.units import GIB


class Part(NamedTuple):
    """One row of the memory table. `key` is the field of Memory that it shows."""

    key: str
    name: str
    amount: Amount


def parts_of(plan: Plan) -> tuple[Part, ...]:
    """What shares a GPU's memory, the cache last."""
    memory = plan.memory
    return (
        Part("weights", "weights", memory.weights),
        Part("activation", "activation", memory.activation),
        Part("cuda_graphs", "CUDA graphs", memory.cuda_graphs),
        Part("non_torch", "non-torch", memory.non_torch),
        Part("kv", "KV cache", memory.kv),
    )


def interval_of(amount: Amount) -> tuple[int, int] | None:
    """(low, high) in bytes of an amount that is only known to lie between, None of any other."""
    low, high = getattr(amount, "low", None), getattr(amount, "high", None)
    if not isinstance(low, int) or not isinstance(high, int) or low >= high:
        return None
    return low, high


def gib(size: int) -> str:
    """`58.11`; the unit stands in the header or behind."""
    return f"{size / GIB:,.2f}"


def interval_text(amount: Amount) -> str:
    """`57.40 to 58.60`, or "" for what is not an interval."""
    between = interval_of(amount)
    return f"{gib(between[0])} to {gib(between[1])}" if between else ""


def ratio_text(ratio: float | None) -> str:
    """`4.00x`, `0.92x`, `128x`; "-" where nothing can be divided by."""
    if ratio is None:
        return "-"
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"
