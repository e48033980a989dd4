"""Decides how a plan looks as JSON: schema kvbudget.plan/1. Bytes and blocks are integers; nothing is rounded."""

from kvbudget.planner.request import Amount, Plan
from kvbudget.pool.groups import Group

SCHEMA = "kvbudget.plan/1"


def plan_json(plan: Plan) -> dict[str, object]:
    """The document; every key is always there, also when the model does not fit. All sizes per GPU rank.

    All counts are of one engine; `totals` are of all engines of --data-parallel-size together.
    """
    model, settings, pool, layout = plan.request.model, plan.settings, plan.pool, plan.stage.layout
    length = pool.max_model_len
    return {
        "schema": SCHEMA,
        "model": {
            "name": model.name,
            "architectures": list(model.architectures),
            "kinds": model.kinds,
            "from_class_defaults": list(model.filled),
        },
        "engine": {
            "name": plan.engine_name,
            "version": plan.engine_version,
            "max_in_flight_tokens": settings.max_in_flight_tokens,
            "block_size": settings.block_size,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "max_num_seqs": settings.max_num_seqs,
            "kv_cache_dtype": settings.kv_cache_dtype,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "pipeline_parallel_size": settings.pipeline_parallel_size,
            "data_parallel_size": plan.request.flags.data_parallel_size,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
        },
        "kv": {
            "bytes_per_token": layout.bytes_per_token,
            "page_size_bytes": _page(layout.groups[0]),
            "bytes_per_block": layout.bytes_per_block,
            "groups": [
                {
                    "kind": str(group.kind),
                    "layers": group.layers,
                    "block_size": group.block_size,
                    "page_size_bytes": _page(group),
                    **({"sharing_ranks": group.sharing_ranks} if group.sharing_ranks > 1 else {}),
                    "blocks_per_request": group.blocks_for(length),
                }
                for group in layout.groups
            ],
            "bytes_per_request": layout.bytes_for(length),
        },
        "memory": {name: _amount(amount) for name, amount in plan.memory._asdict().items()},
        "pool": {
            "bytes": pool.bytes,
            "num_blocks": pool.num_blocks,
            "usable_blocks": pool.usable_blocks,
            "tokens": pool.tokens,
        },
        "concurrency": {
            "max_model_len": length,
            "at_max_model_len": pool.concurrency,
            "largest_max_model_len": pool.largest_max_model_len,
            "p50": plan.ceilings.p50,
            "p95": plan.ceilings.p95,
            "p99": plan.ceilings.p99,
            "ceiling": plan.ceilings.ceiling,
            "limited_by": plan.ceilings.limited_by,
            "lengths": dict(zip(("p50", "p95", "p99"), plan.ceilings.lengths, strict=True)),
            "margin_blocks": plan.ceilings.margin_blocks,
            "largest_at_low_end": plan.low_end.largest_max_model_len if plan.low_end else None,
            "engines": plan.engines,
            "totals": {
                "tokens": plan.engines * pool.tokens,
                **{name: plan.engines * getattr(plan.ceilings, name) for name in ("p50", "p95", "p99", "ceiling")},
            },
        },
        "tail_waste": plan.tail_waste._asdict(),
        "fits": plan.fits,
        "findings": [finding._asdict() for finding in plan.findings],
    }


def _page(group: Group) -> int:
    """As vLLM's specs have it: one block of one layer; of all layers together where their pages differ in size."""
    return group.mixed_block_bytes or group.page_size_bytes


def _amount(amount: Amount) -> dict[str, object]:
    document: dict[str, object] = {"bytes": amount.bytes, "source": amount.source}
    if amount.low is not None and amount.high is not None:
        document |= {"low": amount.low, "high": amount.high}
    if amount.note:
        document["note"] = amount.note
    return document
