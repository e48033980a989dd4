"""Decides what a report of a plan says and in which order: one content for Markdown, HTML and PNG."""

from collections.abc import Sequence
from typing import NamedTuple

from kvbudget.planner.curve import concurrency_curve
from kvbudget.planner.explain import explain
from kvbudget.planner.naive import naive_answers
from kvbudget.planner.request import Finding, Plan
from kvbudget.planner.sensitivity import Change, sensitivity
from kvbudget.report.amounts import gib, interval_text, parts_of, ratio_text
from kvbudget.report.groups import group_lines, group_words
from kvbudget.report.section import Section
from kvbudget.report.verdict import (
    Verdict,
    at_low_end,
    counted,
    findings_told,
    least_words,
    limit_words,
    place_of,
    together,
    verdict_of,
)
from kvbudget.units import format_size

MEMORY_CHART = "memory"
CURVE_CHART = "curve"
_SOURCES = (
    ("given", "said on the command line"),
    ("measured", "read from the checkpoint's files, or seen in a driver's or an engine's own message"),
    ("computed", "follows from the numbers above by the engine's own rule"),
    ("estimated", "fitted on public start-up logs: take the true figure from a first start and plan again"),
)


class Fact(NamedTuple):
    """One figure of the ten-second summary."""

    label: str
    value: str
    note: str


class Report(NamedTuple):
    """All that is said of a plan. The findings stand between the `opening` sections and the `closing` ones."""

    title: str
    place: str
    verdict: Verdict
    facts: tuple[Fact, ...]
    opening: tuple[Section, ...]
    findings: tuple[Finding, ...]
    closing: tuple[Section, ...]


def report_of(plan: Plan, extras: Sequence[Section] = ()) -> Report:
    """The content; `extras` come behind the findings, in the order given."""
    closing = [*extras, _naive(plan), _sensitivity(plan), _explained(plan), _assumptions(plan)]
    return Report(
        title=plan.request.model.name,
        place=place_of(plan),
        verdict=verdict_of(plan),
        facts=facts_of(plan),
        opening=(_memory(plan), _curve(plan), _groups(plan)),
        findings=findings_told(plan),
        closing=tuple(closing),
    )


def facts_of(plan: Plan) -> tuple[Fact, ...]:
    """What a reader looks for first."""
    pool, ceilings, layout, memory = plan.pool, plan.ceilings, plan.stage.layout, plan.memory
    one = layout.bytes_per_block * pool.blocks_per_request
    share = f"of {gib(memory.total.bytes)} GiB, " if memory.total.bytes else ""
    between = interval_text(memory.kv)
    constant = sum(content.constant_bytes for content in layout.stored)
    rate = f"{format_size(layout.bytes_per_token)} for each further token"
    least = least_words(plan)
    low = f"; {least}" if least else ""
    short = plan.low_end.largest_max_model_len if plan.low_end else pool.largest_max_model_len
    return (
        Fact(
            "requests at once",
            f"{ceilings.ceiling:,}",
            f"of {pool.max_model_len:,} tokens{low}; limited by {limit_words(ceilings.limited_by)}"
            f"{together(plan, ceilings.ceiling)}",
        ),
        _second(plan),
        Fact(
            "KV cache on each GPU",
            f"{gib(max(0, memory.kv.bytes))} GiB",
            f"{share}{memory.kv.source}{f' ({between})' if between else ''}"
            if memory.kv.bytes > 0
            else f"{share}{gib(-memory.kv.bytes)} GiB too little for the weights and the rest",
        ),
        Fact("one full request", format_size(one), rate + (f", {format_size(constant)} of state" if constant else "")),
        Fact(
            "longest context",
            f"{pool.largest_max_model_len:,}",
            "largest max_model_len that starts"
            + (f"; {short:,} at the low end" if short < pool.largest_max_model_len else ""),
        ),
    )


def _second(plan: Plan) -> Fact:
    """The lengths that requests have, where they are known; else the pool: in tokens only where every token is alike,
    for what the log calls tokens is else a share of a full request."""
    pool, ceilings = plan.pool, plan.ceilings
    if plan.request.knows_lengths:
        (p50, p95, p99), least = ceilings.lengths, at_low_end(plan, ceilings.lengths[1])
        low = f"; {least:,} at the low end" if least < ceilings.p95 else ""
        return Fact(
            "at once, of your p95 length",
            f"{ceilings.p95:,}",
            f"of {p95:,} tokens{low}; p50 ({p50:,}): {ceilings.p50:,}, p99 ({p99:,}): {ceilings.p99:,}"
            f"{together(plan, ceilings.p95)}",
        )
    if not pool.num_blocks:
        return Fact("blocks in the pool", "0", "nothing is left for the cache")
    if len(plan.stage.layout.groups) == 1 and plan.stage.layout.growing:
        return Fact("tokens in the pool", f"{pool.tokens:,}", f"{pool.num_blocks:,} blocks; as its log prints it")
    return Fact("blocks in the pool", f"{pool.num_blocks:,}", f"{pool.blocks_per_request:,} for each full request")


def _memory(plan: Plan) -> Section:
    memory = plan.memory
    taken = sum(max(0, part.amount.bytes) for part in parts_of(plan))
    whole = max(memory.total.bytes or taken, 1)
    named = [("total", memory.total), ("usable by the engine", memory.usable)] if memory.usable.bytes else []
    named += [(part.name, part.amount) for part in parts_of(plan)]
    intervals = any(interval_text(amount) for _, amount in named)
    rows = []
    for name, amount in named:
        between = (interval_text(amount) or "-",) if intervals else ()
        share = f"{amount.bytes / whole:.1%}"
        rows.append((name, gib(amount.bytes), *between, share, amount.source, amount.note))
    return Section(
        "Memory of one GPU",
        header=("part", "GiB", *(("between",) if intervals else ()), "share", "source", "where it comes from"),
        rows=tuple(rows),
        chart=MEMORY_CHART,
    )


def _curve(plan: Plan) -> Section:
    names: dict[int, list[str]] = {}
    if plan.request.knows_lengths:
        for name, length in zip(("p50", "p95", "p99"), plan.ceilings.lengths, strict=True):
            names.setdefault(length, []).append(name)
    names.setdefault(plan.pool.max_model_len, []).append("max_model_len")
    layout = plan.stage.layout
    rows = [
        (
            f"{point.length:,}" + (f" ({', '.join(names[point.length])})" if point.length in names else ""),
            f"{point.requests:,}",
            point.limited_by,
            f"{layout.blocks_for(point.length):,}",
            format_size(layout.blocks_for(point.length) * layout.bytes_per_block),
        )
        for point in concurrency_curve(plan)
    ]
    return Section(
        "Requests at once, by their length",
        paragraphs=("Whole requests that run together without one of them being preempted, each at its full length.",),
        header=("tokens of a request", "at once", "limited by", "blocks each", "memory each"),
        rows=tuple(rows),
        chart=CURVE_CHART,
    )


def _groups(plan: Plan) -> Section:
    layout, length = plan.stage.layout, plan.pool.max_model_len
    lines = group_lines(plan)
    said = [
        f"One block is {format_size(layout.bytes_per_block)} over all layers of its group. A request of {length:,} "
        f"tokens holds {plan.pool.blocks_per_request:,} blocks = "
        f"{format_size(plan.pool.blocks_per_request * layout.bytes_per_block)} of the pool; its keys, values and "
        f"states alone are {format_size(layout.bytes_for(length))}."
    ]
    if len(lines) > 1:
        said.append(f"A full request, what costs most first: {group_words(lines)}.")
    return Section(
        "What is cached",
        paragraphs=tuple(said),
        header=("kind", "groups", "layers", "tokens a block", "page of a layer", "blocks of a full request"),
        rows=tuple(
            (
                line.label,
                f"{line.groups}",
                f"{line.layers}",
                f"{line.block_size:,}",
                format_size(line.page_size_bytes),
                f"{line.blocks:,}",
            )
            for line in lines
        ),
    )


def _naive(plan: Plan) -> Section:
    answers = naive_answers(plan)
    if not answers:
        return Section("What simple formulas would say", ("For this plan they agree with the engine's rule.",))
    rows = tuple(
        (
            answer.name,
            answer.formula,
            quantity_text(answer.quantity, answer.said),
            quantity_text(answer.quantity, answer.ours),
            ratio_text(answer.ratio),
            answer.why,
        )
        for answer in answers
    )
    return Section(
        "What simple formulas would say",
        paragraphs=("Shortcuts as they are usually written, on one GPU; only those that are wrong here.",),
        header=("shortcut", "formula", "it says", "in truth", "off by", "why it is wrong here"),
        rows=rows,
    )


def quantity_text(quantity: str, number: int) -> str:
    """A number of `planner/naive.py`, with its unit."""
    if quantity == "request":
        return f"{format_size(number)} a request"
    return f"{number:,} tokens" if quantity == "pool" else counted(number, "request")


def _sensitivity(plan: Plan) -> Section:
    changes = sensitivity(plan)
    base = changes[0]
    return Section(
        "What a change would do",
        paragraphs=(
            f"One change at a time. Needed: the memory of {counted(base.requests, 'request')} of full length. Changes "
            "of the model keep the bytes of the pool; changes of a flag plan the whole card again, weights and all.",
        ),
        header=("change", "needed", "ratio", "tokens in the pool", "ratio", "requests at once", "ratio"),
        rows=tuple(_change_row(change, base) for change in changes),
    )


def _change_row(change: Change, base: Change) -> tuple[str, ...]:
    what = change.what
    if change.before:
        what += f" {change.before} → {change.after}"
    elif change is not base:
        what += f" {base.requests:,} → {change.requests:,}"
    if change.refused and change.refused != base.refused:
        what += f" (would be refused: {change.refused})"
    first = change is base
    return (
        what,
        format_size(change.needed),
        "" if first else ratio_text(change.needed / base.needed if base.needed else None),
        f"{change.tokens:,}",
        "" if first else ratio_text(change.tokens / base.tokens if base.tokens else None),
        f"{change.ceiling:,}",
        "" if first else ratio_text(change.ceiling / base.ceiling if base.ceiling else None),
    )


def _explained(plan: Plan) -> Section:
    return Section("How the numbers come about", lines=tuple(explain(plan)))


def _assumptions(plan: Plan) -> Section:
    model, settings = plan.request.model, plan.settings
    used = {amount.source for amount in plan.memory}
    lines = [
        f"Engine rule: {plan.engine_name} {plan.engine_version}, per GPU rank.",
        f"Model: {', '.join(model.architectures) or model.model_type}; layers by kind: "
        + ", ".join(f"{count} {kind}" for kind, count in model.kinds.items())
        + ".",
        f"Settings: max_model_len {plan.pool.max_model_len:,}, max_num_seqs {settings.max_num_seqs:,}, "
        f"max_num_batched_tokens {settings.max_num_batched_tokens:,}, block_size {settings.block_size}, kv_cache_dtype "
        f"{settings.kv_cache_dtype}, tensor_parallel_size {settings.tensor_parallel_size}, pipeline_parallel_size "
        f"{settings.pipeline_parallel_size}, gpu_memory_utilization {settings.gpu_memory_utilization:g}.",
    ]
    if model.filled:
        lines.append(f"Not in config.json, taken from the defaults of its config class: {', '.join(model.filled)}.")
    lines += [f"{source}: {meaning}." for source, meaning in _SOURCES if source in used]
    lines.append("GiB are 1024-based; requests are counted whole and at their worst moment.")
    return Section("Assumptions and sources", lines=tuple(lines))
