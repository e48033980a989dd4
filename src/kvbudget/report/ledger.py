"""Decides what the KV ledger shows of a plan: every number that the page draws, so that the page computes none.

Schema kvbudget.ledger/1. All sizes are bytes of one GPU rank; `text` beside a number is how it is written.
"""

from collections.abc import Callable

from kvbudget.errors import InputError
from kvbudget.model.layers import Attention
from kvbudget.planner.advice.steps import advice_of
from kvbudget.planner.advice.walk import Step
from kvbudget.planner.curve import concurrency_curve, requests_at
from kvbudget.planner.document import plan_json
from kvbudget.planner.naive import Naive, naive_answers
from kvbudget.planner.request import Plan
from kvbudget.planner.sensitivity import Change, sensitivity
from kvbudget.report.amounts import interval_of, parts_of, ratio_text
from kvbudget.report.contents import quantity_text
from kvbudget.report.groups import group_lines
from kvbudget.report.priced import Priced, priced_json, priced_told
from kvbudget.report.verdict import counted, findings_told, verdict_of
from kvbudget.units import MIB, Tokens, format_size

SCHEMA = "kvbudget.ledger/1"
_CURVE_POINTS = 6  # to each doubling of the length
_BLOCKS = (16, 32, 64, 128, 256)
_SPLITS = (1, 2, 4, 16, 64)  # the same tokens as this many times as many requests
Document = dict[str, object]


def ledger_document(
    plan: Plan,
    concurrency: int,
    *,
    target: int | None,
    sized_to_need: bool,
    with_block: Callable[[int], Plan],
    cost: Priced | None = None,
) -> Document:
    """What the page shows. `sized_to_need`: no card was given, so the pool is just what the requests take.

    `target`: requests at once that somebody asked for; None: `concurrency` is but an example.
    `with_block` plans the same with another block size; the tail waste of each is shown. `cost`: if there is a price.
    """
    return {
        "schema": SCHEMA,
        "plan": plan_json(plan) if cost is None else {**plan_json(plan), "cost": priced_json(cost)},
        "sized_to_need": sized_to_need,
        "verdict": verdict_of(plan)._asdict(),
        "figures": _figures(plan, concurrency, target),
        "formula": _formula(plan, concurrency),
        "bar": [] if sized_to_need else _bar(plan),
        "groups": [line._asdict() for line in group_lines(plan)],
        "frontier": _frontier(plan, concurrency),
        "percentiles": _percentiles(plan),
        "tail": _tail(plan, with_block),
        "splits": _splits(plan, concurrency),
        "changes": _changes(plan),
        "naive": [_naive(answer) for answer in naive_answers(plan)],
        "retreat": [] if sized_to_need else _retreat(plan),
        "findings": [finding._asdict() for finding in findings_told(plan)],
        "cost": None if cost is None else priced_told(cost),
    }


def sized(size: int) -> Document:
    """A size, and how it is written."""
    return {"bytes": size, "text": format_size(size)}


def _figures(plan: Plan, concurrency: int, target: int | None) -> Document:
    """What the first line of the page says. `needed`: logical bytes; `held`: in whole blocks, as the pool pays."""
    layout, length = plan.stage.layout, plan.pool.max_model_len
    blocks = layout.blocks_for(length)
    per_token = layout.bytes_per_token
    return {
        "per_token": sized(per_token),
        "tokens_per_mib": _plain(MIB / per_token) if per_token else None,
        "needed": sized(layout.bytes_for(length) * concurrency),
        "held": sized(blocks * layout.bytes_per_block * concurrency),
        "one_request": sized(layout.bytes_for(length)),
        "one_request_held": sized(blocks * layout.bytes_per_block),
        "blocks_per_request": blocks,
        "blocks": blocks * concurrency,
        "tail_slots": plan.tail_waste.slots,
        "tail_share": plan.tail_waste.fraction,
        "tail_text": f"{plan.tail_waste.fraction:.2%}",
        "ceiling": plan.ceilings.ceiling,
        "limited_by": plan.ceilings.limited_by,
        "pool": sized(plan.pool.bytes),
        "pool_tokens": plan.pool.tokens,
        "target": target,
        "concurrency": concurrency,
        "context": length,
    }


def _formula(plan: Plan, concurrency: int) -> list[str]:
    """The sums as they are done by hand, each with the numbers that went in. Where windows and states are bounded, no
    such product holds, and what one request takes is said as it is."""
    layout, length = plan.stage.layout, plan.pool.max_model_len
    whole, per_token = layout.bytes_for(length), layout.bytes_per_token
    lines = []
    caches = {cache for layer in plan.request.model.layers for cache in layer.caches}
    only = caches.pop() if len(caches) == 1 else None
    ranks, element = plan.settings.tensor_parallel_size, plan.settings.kv_element_bytes
    if isinstance(only, Attention) and only.key_size == only.value_size and ranks == 1:
        layers = len(plan.request.model.layers)
        if layers * only.kv_heads * only.key_size * 2 * element == per_token:
            product = f"{layers} × {only.kv_heads} × {only.key_size} × 2 × {element} B"
            lines.append(f"{product} = {per_token:,} B = {format_size(per_token)}")
    if whole == per_token * length:
        lines.append(f"{format_size(per_token)} × {length:,} = {format_size(whole)}")
    lines.append(f"{format_size(whole)} × {concurrency:,} = {format_size(whole * concurrency)}")
    blocks, block = layout.blocks_for(length), layout.bytes_per_block
    if blocks * block != whole:  # what the pool pays
        lines.append(f"{counted(blocks, 'block')} × {format_size(block)} = {format_size(blocks * block)}")
        lines.append(f"{format_size(blocks * block)} × {concurrency:,} = {format_size(blocks * block * concurrency)}")
    return lines


def _bar(plan: Plan) -> list[Document]:
    """The card from 0 to its end: what shares it, each beginning where the one before ended, then what is kept free."""
    parts = parts_of(plan)
    taken = sum(max(0, part.amount.bytes) for part in parts)
    total = plan.memory.total.bytes
    whole = max(total, taken, 1)
    found: list[Document] = []
    at = 0
    for part in parts:
        size = max(0, part.amount.bytes)
        between = interval_of(part.amount)
        interval = {"low": between[0], "high": between[1]} if between else {}
        said = {"key": part.key, "source": part.amount.source, "note": part.amount.note}
        found.append({**said, "from": at / whole, "share": size / whole, **sized(size), **interval})
        at += size
    if total > at:
        said = {"key": "free", "source": "computed", "note": plan.memory.usable.note}
        found.append({**said, "from": at / whole, "share": (total - at) / whole, **sized(total - at)})
    return found


def _frontier(plan: Plan, concurrency: int) -> Document:
    """Requests at once against their length, and the point where the page stands."""
    points = [point._asdict() for point in concurrency_curve(plan, per_doubling=_CURVE_POINTS)]
    here = requests_at(plan, plan.pool.max_model_len)
    return {
        "points": points,
        "present": {"length": plan.pool.max_model_len, "requests": concurrency, "most": here.requests},
    }


def _percentiles(plan: Plan) -> list[Document]:
    """Whole requests at once when every one is as long as the median, p95 or p99; [] where no lengths were given."""
    if not plan.request.knows_lengths:
        return []
    ceilings = plan.ceilings
    counts = (ceilings.p50, ceilings.p95, ceilings.p99)
    return [
        {"name": name, "length": length, "requests": count}
        for name, length, count in zip(("p50", "p95", "p99"), ceilings.lengths, counts, strict=True)
    ]


def _tail(plan: Plan, with_block: Callable[[int], Plan]) -> list[Document]:
    """Slots that stay empty in the last blocks of one request, by block size, at this length and one token over it."""
    rows: list[Document] = []
    length = plan.pool.max_model_len
    now = plan.settings.block_size
    for block in sorted({*_BLOCKS, now}):
        try:
            layout = (plan if block == now else with_block(block)).stage.layout
        except InputError:
            continue
        for tokens in dict.fromkeys((length, max(1, length - length % block - block + 1))):
            slots = layout.tail_waste(Tokens(tokens))
            held = layout.blocks_for(tokens)
            rows.append(
                {
                    "block": block,
                    "length": tokens,
                    "blocks": held,
                    "slots": slots,
                    "share": slots / (tokens + slots),
                    "text": f"{slots / (tokens + slots):.2%}",
                    "now": block == now,
                }
            )
    return rows


def _splits(plan: Plan, concurrency: int) -> list[Document]:
    """The same tokens as few long or as many short requests: memory is nearly the same, what one of them holds is not.

    `share`: of all these blocks, what one request holds, and so what waits until it ends.
    """
    layout, length = plan.stage.layout, plan.pool.max_model_len
    rows: list[Document] = []
    for factor in _SPLITS:
        if length % factor or length // factor < 1:
            continue
        short = length // factor
        blocks = layout.blocks_for(short)
        count = concurrency * factor
        rows.append(
            {
                "requests": count,
                "length": short,
                "tokens": count * short,
                "blocks_each": blocks,
                "blocks": blocks * count,
                "held": sized(blocks * count * layout.bytes_per_block),
                "slots": layout.tail_waste(Tokens(short)) * count,
                "share": 1 / count,
                "share_text": f"{1 / count:.2%}",
            }
        )
    return rows


def _changes(plan: Plan) -> list[Document]:
    base, *others = sensitivity(plan)
    return [_change(change, base) for change in others]


def _change(change: Change, base: Change) -> Document:
    needed = change.needed / base.needed if base.needed else None
    return {
        "code": change.code,
        "what": change.what,
        "before": change.before or f"{base.requests:,}",
        "after": change.after or f"{change.requests:,}",
        "needed": sized(change.needed),
        "ratio": needed,
        "ratio_text": ratio_text(needed),
        "tokens": change.tokens,
        "ceiling": change.ceiling,
        "refused": change.refused,
    }


def _naive(answer: Naive) -> Document:
    return {
        **answer._asdict(),
        "said_text": quantity_text(answer.quantity, answer.said),
        "ours_text": quantity_text(answer.quantity, answer.ours),
        "ratio": answer.ratio,
        "ratio_text": ratio_text(answer.ratio),
    }


def _retreat(plan: Plan) -> list[Document]:
    """What to do when it does not fit, the cheapest first, each with what it brings together with those before it."""
    advice = advice_of(plan)
    return [_step(step) for step in (*advice.retreat, *advice.spending)]


def _step(step: Step) -> Document:
    numbers = step.together
    return {
        "name": step.name,
        "flag": step.flag,
        "cost": step.cost,
        "note": step.note,
        "enough": step.enough,
        "together": None if numbers is None else numbers._asdict(),
    }


def _plain(number: float) -> float | int:
    """8 rather than 8.0; two decimals of others."""
    return int(number) if number == int(number) else round(number, 2)
