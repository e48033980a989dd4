"""Decides what twice the tensor-parallel ranks do to the pool, and shows why that is not twice."""

from typing import NamedTuple

from kvbudget.errors import InputError
from kvbudget.model.layers import Attention, Latent
from kvbudget.planner.advice.solve import planned, starts
from kvbudget.planner.request import Plan
from kvbudget.units import Bytes, format_size


class Side(NamedTuple):
    """One card of the plan: bytes of it, and the requests of max_model_len that the engine holds in all."""

    tensor_parallel_size: int
    usable_bytes: Bytes
    weights_bytes: Bytes
    other_bytes: Bytes
    pool_bytes: Bytes
    bytes_per_token: Bytes
    requests: int


class Parallel(NamedTuple):
    """Before and after. `pool_times`: bytes of all cards' pools; `requests_times`: requests at once, max_num_seqs
    aside; 0.0 where there was none before. `limit`: why a token gets no cheaper, else ""."""

    before: Side
    after: Side
    pool_times: float
    requests_times: float
    limit: str

    def lines(self) -> list[str]:
        """For people."""
        lines = [_side(self.before), _side(self.after)]
        if self.pool_times:
            lines.append(
                f"so {self.pool_times:.2f} times the pool bytes on twice the cards: the weights are held once"
                + (f"; {self.requests_times:.2f} times the requests" if self.requests_times else "")
            )
        return [*lines, self.limit] if self.limit else lines


def parallel_of(plan: Plan) -> Parallel | None:
    """None where the pool is given, or twice the ranks are refused."""
    if not plan.memory.usable.bytes:
        return None
    ranks = plan.settings.tensor_parallel_size * 2
    request = plan.request._replace(gpus=None)
    try:
        wider = planned(request._replace(flags=request.flags._replace(tensor_parallel_size=ranks)))
    except InputError:
        return None
    if not starts(wider):
        return None
    before, after = _of(plan), _of(wider)
    pool = max(0, before.pool_bytes)
    return Parallel(
        before,
        after,
        2 * after.pool_bytes / pool if pool else 0.0,
        after.requests / before.requests if before.requests else 0.0,
        _limit(plan, before, after),
    )


def _of(plan: Plan) -> Side:
    memory = plan.memory
    other = memory.activation.bytes + memory.cuda_graphs.bytes + memory.non_torch.bytes
    return Side(
        plan.settings.tensor_parallel_size,
        memory.usable.bytes,
        memory.weights.bytes,
        Bytes(other),
        memory.kv.bytes,
        plan.stage.layout.bytes_per_token,
        plan.pool.usable_blocks // plan.pool.blocks_per_request if plan.pool.blocks_per_request else 0,
    )


def _limit(plan: Plan, before: Side, after: Side) -> str:
    if after.bytes_per_token * 2 <= before.bytes_per_token * 1.01:
        return ""
    caches = [cache for layer in plan.request.model.layers for cache in layer.caches]
    if any(isinstance(cache, Latent) for cache in caches):
        return (
            "MLA keeps one latent for all heads: every rank holds all of it, and a token gets no cheaper by more ranks"
        )
    heads = max((cache.kv_heads for cache in caches if isinstance(cache, Attention)), default=0)
    return (
        f"{heads} KV heads on {after.tensor_parallel_size} ranks: a rank keeps at least one whole head, so a token "
        f"costs {after.bytes_per_token:,} B on each instead of {before.bytes_per_token:,} B"
    )


def _side(side: Side) -> str:
    cards = "1 card" if side.tensor_parallel_size == 1 else f"each of {side.tensor_parallel_size} cards"
    left = f"{format_size(side.pool_bytes)} for the cache"
    if side.pool_bytes <= 0:
        left = f"nothing for the cache, {format_size(Bytes(-side.pool_bytes))} are missing"
    return (
        f"{cards}: {format_size(side.usable_bytes)} usable - {format_size(side.weights_bytes)} weights - "
        f"{format_size(side.other_bytes)} other = {left}, {side.bytes_per_token:,} B a token, {side.requests:,} "
        "requests of full length"
    )
