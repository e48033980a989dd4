"""Decides how another length, or other requests at once, is asked of an engine that shares one context among slots.

llama.cpp's --ctx-size is the context of all slots together: half of it is half of the pool, not a shorter request.
"""

from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.room import CELLS, MOST_SLOTS

__all__ = ["CELLS", "MOST_SLOTS", "context_of", "has_slots", "with_context"]


def has_slots(plan: Plan) -> bool:
    """Whether the context is shared out over slots, and flags alone size the pool."""
    return plan.engine_name == "llamacpp"


def context_of(tokens: int, slots: int) -> dict[str, object]:
    """Fields with which each of `slots` slots has a context of `tokens` of its own."""
    return {"max_num_seqs": slots, "max_model_len": -(-tokens // CELLS) * CELLS * slots}


def with_context(request: PlanRequest, tokens: int, slots: int) -> PlanRequest:
    """The request with a context of `tokens` for each of `slots` slots; cells that all share are given up."""
    fields = context_of(tokens, slots) | ({"kv_unified": False} if request.flags.kv_unified else {})
    return request._replace(flags=request.flags._replace(**fields))  # type: ignore[arg-type]
