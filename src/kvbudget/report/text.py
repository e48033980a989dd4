"""Decides how a plan looks in a terminal: verdict, memory bars, what the engine will print, ceilings, findings.

It is to be read in ten seconds: one line a question, the answer first.
"""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Lines
from rich.table import Table
from rich.text import Text

from kvbudget.engines.registry import engine_named
from kvbudget.planner.request import Amount, Plan
from kvbudget.report.amounts import gib, interval_text, parts_of
from kvbudget.report.groups import group_lines, group_words
from kvbudget.report.section import Section
from kvbudget.report.verdict import (
    at_low_end,
    counted,
    findings_told,
    full_length,
    place_of,
    together,
    verdict_of,
)
from kvbudget.units import format_size

_BAR_CELLS = 24
_LEAST_BAR_CELLS = 8  # fewer say nothing
_NARROWEST = 20
_LABEL_CELLS = 18
_NAME_CELLS = 60  # of a longer name, beginning and end are shown


def plan_report(
    plan: Plan, explained: list[str], extras: Sequence[Section] = (), *, unbroken_log_line: bool = False
) -> RenderableType:
    """A rich renderable; colours are left out by rich itself where NO_COLOR or the terminal asks for it.

    `unbroken_log_line`: that line and the verdict are not wrapped, for output that is searched, not read; print with
    crop=False then.
    """
    parts: list[RenderableType] = [
        _verdict(plan, unbroken_log_line),
        Text(),
        _Memory(plan),
        Text(),
        *_pool(plan, unbroken_log_line),
    ]
    for finding in findings_told(plan):
        colour = "bold red" if finding.severity == "error" else "yellow"
        parts += [Text(), Text(f"{finding.severity}: {finding.code}", style=colour)]
        parts += [_Hanging("  ", finding.message), _Hanging("  -> ", finding.fix, "green")]
    for section in extras:
        parts += [Text(), Text(section.title, style="bold")]
        parts += [_Hanging("  ", line) for line in (*section.paragraphs, *section.lines)]
    if explained:
        parts += [Text(), Text("how the numbers come about", style="bold")]
        parts += [_Hanging("  ", line) for line in explained]
    return Lines(*parts)


class _Hanging(NamedTuple):
    """A paragraph whose second and later lines begin further in than its first."""

    lead: str
    words: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        further = " " * max(4, len(self.lead))
        width = max(_NARROWEST, options.max_width)
        lines = textwrap.wrap(
            self.lead + self.words, width, subsequent_indent=further, break_on_hyphens=False, drop_whitespace=True
        )
        yield Text("\n".join(lines), style=self.style)


def _verdict(plan: Plan, unbroken: bool) -> Text:
    verdict = verdict_of(plan)
    style = "bold green" if verdict.good else "bold red"
    name = plan.request.model.name
    if not unbroken and len(name) > _NAME_CELLS:
        name = f"{name[: _NAME_CELLS // 2 - 2]}...{name[-_NAME_CELLS // 2 + 1 :]}"
    text = Text.assemble((verdict.word, style), f"  {name} on {place_of(plan)}")
    if unbroken:
        text.no_wrap, text.overflow = True, "ignore"
    return text


class _Memory(NamedTuple):
    """The split of one card. Where the width is short, bars shrink and then go; numbers stay."""

    plan: Plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        memory, parts = self.plan.memory, parts_of(self.plan)
        amounts = [part.amount for part in parts]
        # One total for all bars: what they are shares of, or their own sum where that is more.
        taken = sum(max(0, amount.bytes) for amount in amounts)
        whole = max(memory.usable.bytes or memory.total.bytes, taken, 1)
        cells = _bar_cells(options.max_width, [*amounts, memory.usable])
        block = "#" if options.ascii_only else "█"
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("per GPU", no_wrap=True)
        table.add_column("GiB", justify="right", no_wrap=True)
        if cells:
            table.add_column("", no_wrap=True, width=cells)
        table.add_column("source", style="dim")
        for part in parts:
            if not part.amount.bytes and not memory.usable.bytes:
                continue  # the pool was given: nobody asked what else there is
            style = "cyan" if part.key == "kv" else "blue"
            bar = Text(block * max(0, round(cells * part.amount.bytes / whole)), style=style)
            table.add_row(part.name, gib(part.amount.bytes), *([bar] if cells else []), _source(part.amount))
        if memory.usable.bytes:
            table.add_row("usable", gib(memory.usable.bytes), *([""] if cells else []), memory.usable.note)
        yield table


def _source(amount: Amount) -> str:
    """`estimated, 0.80 to 1.20`."""
    between = interval_text(amount)
    return f"{amount.source}, {between}" if between else amount.source


def _bar_cells(width: int, amounts: list[Amount]) -> int:
    """Cells that are left for a bar beside names, numbers and sources; 0 when they are too few."""
    numbers = max(len(gib(amount.bytes)) for amount in amounts)
    sources = max(len(amounts[-1].note), *(len(_source(amount)) for amount in amounts))
    left = width - len("CUDA graphs") - numbers - sources - 3 * 2
    return 0 if left < _LEAST_BAR_CELLS else min(_BAR_CELLS, left)


def _pool(plan: Plan, unbroken_log_line: bool) -> list[RenderableType]:
    pool, ceilings = plan.pool, plan.ceilings
    rows = [_labelled("full length", full_length(plan))]
    if plan.request.knows_lengths:
        rows.append(_labelled("your lengths", _your_lengths(plan)))
        if plan.fits and len(set(ceilings.lengths)) > 1:  # three counts, and one of them is to plan by
            count = counted(ceilings.p95, "request")
            rows.append(_labelled("plan by p95", f"{count} at once, the length that --target-concurrency counts by"))
    default = plan.class_default_length
    longest = min(pool.largest_max_model_len, default or pool.largest_max_model_len)
    low = plan.low_end.largest_max_model_len if plan.low_end else longest
    least = f", {low:,} at the low end of the estimate" if low < longest else ""
    if longest < pool.largest_max_model_len:
        least = f", the default of its config class (the pool would hold {pool.largest_max_model_len:,})"
    said = f"max_model_len up to {longest:,} would fit{least}" if longest else "no length would fit"
    slots = plan.settings.max_num_seqs
    if plan.settings.context_cells and not plan.settings.unified_cells and slots > 1 and longest:
        said = f"up to {longest:,} tokens in each of {slots:,} slots would fit (a context of {longest * slots:,})"
    rows.append(_labelled("longest", said))
    kept = f", {ceilings.margin_blocks:,} of them kept back" if ceilings.margin_blocks else ""
    rows.append(
        _labelled("pool", f"{counted(pool.num_blocks, 'block')} ({pool.usable_blocks:,} usable{kept}){_rate(plan)}")
    )
    rows += _request_rows(plan)
    if plan.fits:
        line = engine_named(plan.request.engine).log_line(plan.settings, pool)
        rows.append(_labelled("the log will say", line, unbroken=unbroken_log_line))
    return rows


def _your_lengths(plan: Plan) -> str:
    """`p50: 196 of 1,000 tokens, p95: 40 of 4,900, p99: 19 of 10,048 (derived); 180, 37, 18 at the low end ...`."""
    from kvbudget.planner.workload.percentiles import derived_names

    ceilings, derived = plan.ceilings, derived_names(plan.request)
    counts = (ceilings.p50, ceilings.p95, ceilings.p99)
    said = ", ".join(
        f"{name}: {count:,} of {length:,} tokens{' (derived)' if name in derived else ''}{together(plan, count)}"
        for name, count, length in zip(("p50", "p95", "p99"), counts, ceilings.lengths, strict=True)
    )
    lows = tuple(at_low_end(plan, length) for length in ceilings.lengths)
    if lows == counts:
        return said
    return f"{said}; {', '.join(f'{low:,}' for low in lows)} at the low end of the estimate"


def _rate(plan: Plan) -> str:
    """The block size, or its range over the groups that count tokens, and what a token costs."""
    layout = plan.stage.layout
    sizes = sorted({group.block_size for group in layout.groups if not group.fixed_blocks})
    said = ""
    if len(sizes) == 1:
        said = f" of {counted(sizes[0], 'token')}"
    elif sizes:
        said = f" of {sizes[0]:,} to {sizes[-1]:,} tokens by group"
    if not layout.bytes_per_token:
        return f"{said}, no more for a longer request"
    more = "a token" if len(layout.growing) == len(layout.groups) else "for each further token"
    return f"{said}, {format_size(layout.bytes_per_token)} {more}"


def _request_rows(plan: Plan) -> list[RenderableType]:
    """What a request of full length is made of, where its layers differ."""
    lines = group_lines(plan)
    if len(lines) < 2:
        return []
    size = format_size(plan.pool.blocks_per_request * plan.stage.layout.bytes_per_block)
    return [_labelled("one full request", f"{size}: {group_words(lines)}")]


def _labelled(label: str, words: str, *, unbroken: bool = False) -> RenderableType:
    if unbroken:
        return Text.assemble((f"{label:<{_LABEL_CELLS}}", "dim"), words, no_wrap=True, overflow="ignore")
    row = Table.grid()
    row.add_column(style="dim", no_wrap=True, width=_LABEL_CELLS)
    row.add_column()
    row.add_row(label, words)
    return row
