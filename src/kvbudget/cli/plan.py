"""`kvbudget plan`: decides what is planned, printed and written, in that order.

With --json nothing outside the standard library is imported: it runs in CI and at engine start.
"""

import argparse
import json
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.cli.output import written_out
from kvbudget.cli.planning.flags import add_flags
from kvbudget.cli.planning.inputs import Inputs, inputs_of
from kvbudget.errors import InputError
from kvbudget.planner.build import make_plan
from kvbudget.planner.document import plan_json
from kvbudget.planner.request import Plan

if TYPE_CHECKING:
    from kvbudget.cli.planning.extras import Extra
    from kvbudget.report.section import Section
else:  # as a string it would be compiled when this is imported: its cost is that of ten modules
    Extra = object

EPILOG = """\
examples:
  kvbudget plan ./Llama-3.1-8B --gpu h100
  kvbudget plan docs/examples/llama-3.1-8b --gpu h100 --max-model-len 8k     # from a clone, nothing to download
  kvbudget plan ./config.json --gpu-memory 24GiB --weights 16GiB --overhead 2GiB --max-model-len 8k
  kvbudget plan ./Qwen3-32B --gpu h100:2 -tp 2 --kv-cache-dtype fp8 --explain
  kvbudget plan ./Qwen3-8B --kv-cache-memory-bytes 24GiB --max-model-len 32k --json
  kvbudget plan ./Qwen3-8B --gpu l40s --prompt-lengths p50=800,p95=4000,p99=8000 --output-lengths p50=200,p95=900,p99=2k
  kvbudget plan --command compose.yaml --gpu h100 --advise
  kvbudget plan ./Qwen3-8B --gpu l40s --trace requests.csv --margin 5% --markdown budget.md --write kvbudget.toml

sizes: 24GiB (1024-based), 80GB (1000-based) or bytes; lengths: 8192, 8k (= 8192), 1m. All results are per GPU.
exit: 0 fits; 1 does not fit, or misses --target-concurrency; 2 usage, or a model that is not known, or stdout that
cannot be written."""


class Planned(NamedTuple):
    """A plan with what it was made from, and the answers beside it."""

    inputs: Inputs
    plan: Plan
    extras: tuple[Extra, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_flags(parser)


def planned(args: argparse.Namespace) -> Planned:
    """Read, plan, and answer what else was asked. Raises InputError for what cannot be planned."""
    inputs = inputs_of(args)
    plan = make_plan(inputs.request)
    if inputs.notes:
        plan = plan._replace(findings=plan.findings + inputs.notes)
    if not _asks_for_more(args):
        return Planned(inputs, plan, ())
    from kvbudget.cli.planning.extras import extras_of

    return Planned(inputs, plan, extras_of(args, plan, inputs.workload))


def _asks_for_more(args: argparse.Namespace) -> bool:
    wanted = (
        args.trace, args.prompt_lengths, args.solve, args.long_context, args.offload, args.head_needs,
        args.price_per_hour,
    )  # fmt: skip
    return args.advise or any(value is not None for value in wanted)


def run(args: argparse.Namespace) -> int:
    """Plan, write and print; 0 when it fits, 1 when not. Raises InputError for what cannot be planned.

    A file that cannot be made, such as a picture without the packages that draw it, keeps nobody from the plan: it is
    printed, and the error follows.
    """
    found = planned(args)
    unwritten = _write_files(args, found) if args.markdown or args.html or args.png or args.write else None
    explained = _explained(found) if args.explain else []
    with written_out():
        if args.json:
            document = plan_json(found.plan)
            for extra in found.extras:
                document[extra.key] = extra.document
            if args.explain:
                document["explain"] = explained
            print(json.dumps(document, allow_nan=False))
        else:
            _print_text(found, explained)
    if unwritten is not None:
        raise unwritten
    return 0 if found.plan.fits else 1


def _explained(found: Planned) -> list[str]:
    from kvbudget.planner.explain import explain

    lines = explain(found.plan)
    if found.inputs.ignored:
        lines.append(f"flags of --command that do not touch the KV budget: {', '.join(found.inputs.ignored)}")
    return lines


def _print_text(found: Planned, explained: list[str]) -> None:
    from rich.console import Console

    from kvbudget.report.text import plan_report

    console = Console(highlight=False)
    # A line that is to be searched for in a log must be whole; crop would cut what is longer than the console.
    report = plan_report(found.plan, explained, _sections(found), unbroken_log_line=not console.is_terminal)
    if console.is_terminal:
        console.print(report, crop=False)
        return
    with console.capture() as shown:
        console.print(report, crop=False)
    for line in shown.get().splitlines():
        print(line.rstrip())  # tables fill their lines with spaces, which a file or a diff is better without


def _write_files(args: argparse.Namespace, found: Planned) -> InputError | None:
    """Write each file that is asked for; none that fails keeps the others from being written. Gives what failed."""
    failed: InputError | None = None
    for path, write in (
        (args.markdown, _write_markdown),
        (args.html, _write_html),
        (args.png, _write_png),
        (args.write, _write_budget),
    ):
        if path:
            try:
                write(args, found)
            except InputError as error:
                if failed is None:
                    failed = error
                elif str(error) != str(failed):  # pictures and page fail alike where a package is missing
                    failed = type(failed)(f"{failed}; {error.message}", fix=error.fix)
    return failed


def _write_markdown(args: argparse.Namespace, found: Planned) -> None:
    from kvbudget.edge.whole_file import write_whole
    from kvbudget.report.markdown import markdown_report

    write_whole(args.markdown, markdown_report(found.plan, _sections(found)).encode(), "--markdown")


def _write_html(args: argparse.Namespace, found: Planned) -> None:
    from kvbudget.edge.whole_file import write_whole
    from kvbudget.report.html import html_report

    write_whole(args.html, html_report(found.plan, _sections(found)).encode(), "--html")


def _write_png(args: argparse.Namespace, found: Planned) -> None:
    from kvbudget.edge.whole_file import write_whole
    from kvbudget.report.png import png_report

    write_whole(args.png, png_report(found.plan), "--png")


def _write_budget(args: argparse.Namespace, found: Planned) -> None:
    from kvbudget.cli.budget import keep_plan
    from kvbudget.cli.planning.extras import workload_facts

    keep_plan(
        args.write,
        args,
        found.plan,
        found.inputs.checkpoint.config,
        margin=args.margin or "",
        workload=workload_facts(found.extras, args),
    )


def _sections(found: Planned) -> "tuple[Section, ...]":
    from kvbudget.report.section import Section

    return tuple(Section(extra.title, lines=extra.lines, numbered=False) for extra in found.extras)
