"""Decides how a plan looks in a terminal: verdict, memory bars, what the engine will print, ceilings, findings."""

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvbudget.plan.request import Plan
from kvbudget.units import GIB, format_size

_BAR_CELLS = 24


def plan_report(plan: Plan, explained: list[str]) -> RenderableType:
    """A rich renderable; colours are left out by rich itself where NO_COLOR or the terminal asks for it."""
    parts: list[RenderableType] = [_verdict(plan), Text(), _memory(plan), Text(), _pool(plan)]
    for finding in plan.findings:
        colour = "bold red" if finding.severity == "error" else "yellow"
        parts += [Text(), Text(f"{finding.severity}: {finding.code}", style=colour), Text(f"  {finding.message}")]
        parts.append(Text(f"  -> {finding.fix}", style="green"))
    if explained:
        parts += [Text(), Text("how the numbers come about", style="bold")]
        parts += [Text(f"  {line}") for line in explained]
    return Lines(*parts)


def _verdict(plan: Plan) -> Text:
    settings, request = plan.settings, plan.request
    word, style = ("FITS", "bold green") if plan.fits else ("DOES NOT FIT", "bold red")
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    card = request.gpu.name if request.gpu else "GPU"
    return Text.assemble(
        (word, style), f"  {request.model.name} on {ranks} x {card}, {plan.engine_name} {plan.engine_version}"
    )


def _memory(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("memory of one GPU", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("source", style="dim")
    memory = plan.memory
    whole = max(memory.usable.bytes, memory.kv.bytes, 1)
    rows = {
        "weights": memory.weights,
        "activation": memory.activation,
        "CUDA graphs": memory.cuda_graphs,
        "non-torch": memory.non_torch,
        "KV cache": memory.kv,
    }
    for name, amount in rows.items():
        cells = max(0, min(_BAR_CELLS, round(_BAR_CELLS * amount.bytes / whole)))
        style = "cyan" if name == "KV cache" else "blue"
        table.add_row(name, f"{amount.bytes / GIB:,.2f}", Text("█" * cells, style=style), amount.source)
    if memory.usable.bytes:
        table.add_row("usable", f"{memory.usable.bytes / GIB:,.2f}", "", memory.usable.note)
    return table


def _pool(plan: Plan) -> Table:
    pool, ceilings, layout = plan.pool, plan.ceilings, plan.stage.layout
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row(
        "pool",
        f"{pool.num_blocks:,} blocks of {plan.settings.block_size} tokens ({pool.usable_blocks:,} usable), "
        f"{format_size(layout.bytes_per_token)} a token",
    )
    if plan.fits:
        table.add_row(
            "the log will say",
            f"KV cache size: {pool.tokens:,} tokens, Maximum concurrency for {pool.max_model_len:,} tokens per "
            f"request: {pool.concurrency:.2f}x",
        )
    table.add_row(
        "full length",
        f"{ceilings.ceiling:,} requests of {pool.max_model_len:,} tokens at once (limited by {ceilings.limited_by})",
    )
    if plan.request.prompt_lengths is not None:
        counts = (ceilings.p50, ceilings.p95, ceilings.p99)
        said = (
            f"{name}: {count:,} of {length:,} tokens"
            for name, count, length in zip(("p50", "p95", "p99"), counts, ceilings.lengths, strict=True)
        )
        table.add_row("your lengths", ", ".join(said))
    longest = pool.largest_max_model_len
    table.add_row("longest", f"max_model_len up to {longest:,} would start" if longest else "no length would start")
    return table
