"""`kvbudget simulate`: the gate before a model engine, under a trace or a made load, on a clock that jumps.

With --json nothing outside the standard library is imported.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from kvbudget.cli.output import written_out
from kvbudget.cli.simulating.flags import add_flags
from kvbudget.cli.simulating.runs import documents_of
from kvbudget.simulate.outcome import SCHEMA

EPILOG = """\
examples:
  kvbudget simulate --scenario overload-1.7 --policy none,worst-case,trajectory,oracle
  kvbudget simulate --trace azure-conv.csv --num-blocks 4097 --rate-scale 1.7 --max-tokens 1024 --json
  kvbudget simulate --trace mooncake.jsonl --dequantise --num-blocks 27001 --rate-scale 0.3 --slo-ttft 30
  kvbudget simulate --scenario alternating \\
      --policy none,max-num-queued-reqs=64,max-num-queued-tokens=20000+watermark=0.05
  kvbudget simulate --scenario steady --policy trajectory --sweep rate-scale=0.8,1,1.2 --sweep num-blocks=2049,4097 \\
      --markdown sweep.md

Policies: none (the engine alone), those of the gate, oracle (the gate, told every true output length), and vLLM's own
flags: max-num-queued-reqs=N, max-num-queued-tokens=N, watermark=X, joined to one another or to a policy by +.
Times come from a linear model of a step (--step-cost), a stated assumption: compare policies by it, not machines.
The same flags and seed give the same output, to the byte.

exit: 0 good, 1 no request finished in some run, 2 usage, an unreadable trace or stdout that cannot be written."""


_WIDE_COLUMNS = 100  # of a terminal
_ONLY_WHERE_WIDE = ("gap", "lost")


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
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from kvbudget.report.simulation import runs_section

    console = Console(highlight=False)
    section = runs_section(documents)
    shown = [
        column
        for column, name in enumerate(section.header)
        if console.width >= _WIDE_COLUMNS or name not in _ONLY_WHERE_WIDE
    ]
    table = Table(box=SIMPLE_HEAD, padding=0, collapse_padding=True, pad_edge=False)
    for column in shown:
        numeric = section.is_numeric(column)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(section.header[column], justify=justify, overflow="fold", no_wrap=numeric)
    for row in section.rows:
        table.add_row(*[row[column] for column in shown])
    console.print(table)
    for paragraph in section.paragraphs:
        console.print(paragraph, style="dim", markup=False)
    for line in section.lines:
        console.print(f"note: {line}", markup=False)


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
