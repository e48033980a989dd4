"""Decides how a plan looks in a terminal: verdict, memory bars, what the engine will print, ceilings, findings."""

import textwrap
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Lines
from rich.table import Table
from rich.text import Text

from kvbudget.plan.request import Amount, Plan
from kvbudget.units import GIB, format_size

# Errors that more memory, or less asked of it, would end. Beside any other the engine would not even start.
OUT_OF_MEMORY = frozenset(
    {"max_model_len_too_large", "no_kv_memory", "pool_beyond_memory", "below_target_concurrency"}
)  # fmt: skip
_BAR_CELLS = 24
_LEAST_BAR_CELLS = 8  # fewer say nothing
_NARROWEST = 20
_LABEL_CELLS = 18


def plan_report(plan: Plan, explained: list[str], *, unbroken_log_line: bool = False) -> RenderableType:
    """A rich renderable; colours are left out by rich itself where NO_COLOR or the terminal asks for it.

    `unbroken_log_line`: the line that the engine will log is not wrapped, for output that is searched, not read; print
    with crop=False then.
    """
    parts: list[RenderableType] = [_verdict(plan), Text(), _Memory(plan), Text(), *_pool(plan, unbroken_log_line)]
    for finding in plan.findings:
        colour = "bold red" if finding.severity == "error" else "yellow"
        parts += [Text(), Text(f"{finding.severity}: {finding.code}", style=colour)]
        parts += [_Hanging("  ", finding.message), _Hanging("  -> ", finding.fix, "green")]
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


def _verdict(plan: Plan) -> Text:
    settings, request = plan.settings, plan.request
    errors = {finding.code for finding in plan.findings if finding.severity == "error"}
    if not errors:
        word, style = "FITS", "bold green"
    else:
        word, style = ("DOES NOT FIT" if errors <= OUT_OF_MEMORY else "WOULD NOT START"), "bold red"
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    card = request.gpu.name if request.gpu else "GPU"
    return Text.assemble(
        (word, style), f"  {request.model.name} on {ranks} x {card}, {plan.engine_name} {plan.engine_version}"
    )


class _Memory(NamedTuple):
    """The split of one card. Where the width is short, bars shrink and then go; numbers stay."""

    plan: Plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        memory = self.plan.memory
        rows = {
            "weights": memory.weights,
            "activation": memory.activation,
            "CUDA graphs": memory.cuda_graphs,
            "non-torch": memory.non_torch,
            "KV cache": memory.kv,
        }
        # One total for all bars: what they are shares of, or their own sum where that is more.
        taken = sum(max(0, amount.bytes) for amount in rows.values())
        whole = max(memory.usable.bytes or memory.total.bytes, taken, 1)
        cells = _bar_cells(options.max_width, [*rows.values(), memory.usable])
        block = "#" if options.ascii_only else "█"
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("per GPU", no_wrap=True)
        table.add_column("GiB", justify="right", no_wrap=True)
        if cells:
            table.add_column("", no_wrap=True, width=cells)
        table.add_column("source", style="dim")
        for name, amount in rows.items():
            style = "cyan" if name == "KV cache" else "blue"
            bar = Text(block * max(0, round(cells * amount.bytes / whole)), style=style)
            table.add_row(name, _gib(amount), *([bar] if cells else []), amount.source)
        if memory.usable.bytes:
            table.add_row("usable", _gib(memory.usable), *([""] if cells else []), memory.usable.note)
        yield table


def _bar_cells(width: int, amounts: list[Amount]) -> int:
    """Cells that are left for a bar beside names, numbers and sources; 0 when they are too few."""
    numbers = max(len(_gib(amount)) for amount in amounts)
    sources = max(len(amounts[-1].note), *(len(amount.source) for amount in amounts))
    left = width - len("CUDA graphs") - numbers - sources - 3 * 2
    return 0 if left < _LEAST_BAR_CELLS else min(_BAR_CELLS, left)


def _gib(amount: Amount) -> str:
    return f"{amount.bytes / GIB:,.2f}"


def _pool(plan: Plan, unbroken_log_line: bool) -> list[RenderableType]:
    pool, ceilings, layout = plan.pool, plan.ceilings, plan.stage.layout
    rows = [
        _labelled(
            "pool",
            f"{pool.num_blocks:,} blocks of {plan.settings.block_size} tokens ({pool.usable_blocks:,} usable), "
            f"{format_size(layout.bytes_per_token)} a token",
        )
    ]
    if plan.fits:
        line = (
            f"KV cache size: {pool.tokens:,} tokens, Maximum concurrency for {pool.max_model_len:,} tokens per "
            f"request: {pool.concurrency:.2f}x"
        )
        rows.append(_labelled("the log will say", line, unbroken=unbroken_log_line))
    rows.append(
        _labelled(
            "full length",
            f"{ceilings.ceiling:,} {'request' if ceilings.ceiling == 1 else 'requests'} of {pool.max_model_len:,} "
            f"tokens at once (limited by {ceilings.limited_by})",
        )
    )
    if plan.request.prompt_lengths is not None:
        counts = (ceilings.p50, ceilings.p95, ceilings.p99)
        said = (
            f"{name}: {count:,} of {length:,} tokens"
            for name, count, length in zip(("p50", "p95", "p99"), counts, ceilings.lengths, strict=True)
        )
        rows.append(_labelled("your lengths", ", ".join(said)))
    longest = pool.largest_max_model_len
    rows.append(
        _labelled("longest", f"max_model_len up to {longest:,} would fit" if longest else "no length would fit")
    )
    return rows


def _labelled(label: str, words: str, *, unbroken: bool = False) -> RenderableType:
    if unbroken:
        return Text.assemble((f"{label:<{_LABEL_CELLS}}", "dim"), words, no_wrap=True, overflow="ignore")
    row = Table.grid()
    row.add_column(style="dim", no_wrap=True, width=_LABEL_CELLS)
    row.add_column()
    row.add_row(label, words)
    return row
