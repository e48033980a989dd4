"""`kvbudget simulate`: the gate before a model engine, under a trace or a made load, on a clock that jumps.

With --json nothing outside the standard library is imported.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from kvbudget.cli.output import written_out
from kvbudget.cli.simulating.flags import add_flags
from kvbudget.cli.simulating.runs import documents_of
from kvbudget.simulate.outcome import SCHEMA

if TYPE_CHECKING:
    from rich.table import Table

    from kvbudget.report.section import Section

EPILOG = """\
examples:
  kvbudget simulate --scenario overload-1.7 \\
      --policy none,worst-case,trajectory,oracle
  kvbudget simulate --trace azure-conv.csv --num-blocks 4097 --rate-scale 1.7 \\
      --max-tokens 1024 --json
  kvbudget simulate --trace mooncake.jsonl --dequantise --num-blocks 27001 \\
      --rate-scale 0.3 --slo-ttft 30
  kvbudget simulate --scenario alternating \\
      --policy none,max-num-queued-reqs=64,max-num-queued-tokens=20000
  kvbudget simulate --scenario steady --policy trajectory \\
      --sweep rate-scale=0.8,1,1.2 --sweep num-blocks=2049,4097 --markdown sweep.md

Policies: none (the engine alone), those of the gate, oracle (learned, told every
true output length), and vLLM's own flags: max-num-queued-reqs=N,
max-num-queued-tokens=N, watermark=X, joined to one another or to a policy by +.
worst-case and trajectory wait for --queue-seconds (30): beside an SLO of 5 s,
compare them with --queue-seconds 4.
Times come from a linear model of a step (--step-cost), a stated assumption:
compare policies by it, not machines.
The same flags and seed give the same output, to the byte.

exit: 0 good, 1 no request finished in some run, 2 usage, an unreadable trace or
stdout that cannot be written."""


_MOST_ROWS = 24  # of refusals, tenants or classes, on a terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """0 good, 1 when nothing finished. Raises BadValueError."""
    with _progress(quiet=args.json) as advanced:
        documents = documents_of(args, advanced)
    if args.markdown or args.html:
        _write_reports(args, documents)
    with written_out():
        if args.json:
            alone = len(documents) == 1 and not args.sweep
            whole = documents[0] if alone else {"schema": SCHEMA, "runs": documents}
            print(json.dumps(whole, allow_nan=False))
        else:
            _print_table(documents)
    return 0 if all(document["finished"] for document in documents) else 1


def _print_table(documents: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from kvbudget.report.simulated import simulated_lines
    from kvbudget.report.simulation import legend_of, parts_sections, refusals_section, runs_section

    console = Console(highlight=False)
    for line in simulated_lines(documents):
        if not line.startswith("command: "):  # it stands above, where it was typed
            console.print(line, style="dim", markup=False)
    runs = _narrowed(runs_section(documents), console.width)
    console.print(_table_of(runs, console.width))
    console.print(legend_of(runs.header), style="dim", markup=False)
    for part in (refusals_section(documents), *parts_sections(documents)):
        if len(part.rows) > _MOST_ROWS:
            console.print(f"{part.title.lower()}: {len(part.rows)} rows, told by --markdown, --html and --json")
        elif part.rows:
            console.print(f"\n{part.title}", style="bold")
            console.print(_table_of(_narrowed(part, console.width), console.width))
            for paragraph in part.paragraphs:
                console.print(paragraph, style="dim", markup=False)
    for line in runs.lines:
        console.print(f"note: {line}", markup=False)


def _narrowed(section: "Section", width: int) -> "Section":
    """Without columns that matter least, so that the others fit."""
    from kvbudget.report.simulation import GIVE_WAY, without

    for name in GIVE_WAY:
        if _width_of(section) <= width:
            break
        section = without(section, name)
    return section


def _table_of(section: "Section", width: int) -> "Table":
    """In a table that is still too wide, cells of text at either end are broken over lines, numbers never."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=0, collapse_padding=True, pad_edge=False)
    fits, last = _width_of(section) <= width, len(section.header) - 1
    for column, name in enumerate(section.header):
        numeric = section.is_numeric(column)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        fixed = fits or numeric or column not in (0, last) or name == "policy"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=fixed)
    for row in section.rows:
        table.add_row(*[Text(cell) for cell in row])
    return table


def _width_of(section: "Section") -> int:
    """Columns of a terminal that the whole table takes: a blank after each of its columns, and one before the first."""
    from rich.cells import cell_len

    columns = zip(section.header, *section.rows, strict=True)
    return 1 + sum(1 + max(map(cell_len, cells)) for cells in columns)


def _write_reports(args: argparse.Namespace, documents: list[dict[str, Any]]) -> None:
    from kvbudget.edge.whole_file import write_whole
    from kvbudget.report.simulation import html_simulation, markdown_simulation

    if args.markdown:
        write_whole(args.markdown, markdown_simulation(documents).encode(), "--markdown")
    if args.html:
        write_whole(args.html, html_simulation(documents).encode(), "--html")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, while there are several runs to wait for."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
