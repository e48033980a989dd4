"""`kvbudget receipt`: shows what an engine really reported, beside the plan, and keeps it in the budget."""

import argparse
import json

from kvbudget.cli.budget import today
from kvbudget.cli.output import written_out
from kvbudget.edge.budget.file import read_budget, write_budget
from kvbudget.edge.budget.report import text_of
from kvbudget.engines.logs.read import receipt_of_text
from kvbudget.engines.logs.receipt import Receipt, receipt_document
from kvbudget.errors import BadValueError
from kvbudget.planner.budget.drift import tolerance_of
from kvbudget.planner.budget.receipts import Comparison, Row, compare, comparison_document
from kvbudget.planner.budget.record import Document, with_receipt
from kvbudget.units import GIB

SCHEMA = "kvbudget.receipt/1"
EPILOG = """\
examples:
  kvbudget receipt vllm.log                                        # what the start-up log says of the pool
  docker logs vllm 2>&1 | kvbudget receipt - --budget kvbudget.toml
  kvbudget receipt http://127.0.0.1:8000 --budget kvbudget.toml --write   # from /metrics; kept in the budget
  kvbudget receipt sglang.log --engine sglang --json

Read are start-up logs of vLLM, SGLang, TGI, llama.cpp and TensorRT-LLM (with colours, JSON envelopes, several ranks),
and /metrics of all but llama.cpp. Of several starts in one log, the last counts.
exit: 0 as planned, or nothing to compare with; 1 further apart than [tolerance] receipt, or the engine refused to
start; 2 usage, or nothing of a pool in it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "source", metavar="LOG|METRICS_URL|FILE", help="a log, a saved /metrics, its URL, or - for stdin"
    )
    parser.add_argument("--budget", metavar="FILE", help="show it beside this kvbudget.toml")
    parser.add_argument("--write", action="store_true", help="keep it in the budget, as its newest receipt")
    parser.add_argument("--engine", default="", metavar="NAME", help="whose log it is (default: told by the log)")
    parser.add_argument("--json", action="store_true", help=f"one JSON document (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """Read, compare, print, keep. Raises InputError for what cannot be read."""
    if args.write and args.budget is None:
        raise BadValueError("--write needs a budget to write to", fix="add --budget kvbudget.toml")
    receipt = receipt_of_text(text_of(args.source), args.engine.partition("@")[0])
    budget = read_budget(args.budget) if args.budget is not None else None
    comparison = compare(budget, receipt) if budget is not None else None
    apart = comparison.beyond(tolerance_of(budget, "receipt")) if budget is not None and comparison else []
    if args.write and budget is not None:
        kept = {"added": today(), "source": args.source[:200], **receipt_document(receipt)}
        write_budget(args.budget, with_receipt(budget, kept))
    with written_out():
        if args.json:
            print(json.dumps(_document(args, receipt, comparison, apart), allow_nan=False))
        else:
            print("\n".join(_text(receipt, comparison, apart)))
            if args.write:
                print(f"kept in {args.budget}")
    return 1 if receipt.refusal or apart else 0


def _document(args: argparse.Namespace, receipt: Receipt, comparison: Comparison | None, apart: list[Row]) -> Document:
    document: Document = {"schema": SCHEMA, "source": args.source, "receipt": receipt_document(receipt)}
    if comparison is not None:
        document["comparison"] = comparison_document(comparison)
        document["apart"] = [row.what for row in apart]
        document["written"] = bool(args.write)
    return document


def _text(receipt: Receipt, comparison: Comparison | None, apart: list[Row]) -> list[str]:
    who = " ".join(part for part in (receipt.engine, receipt.version or "", receipt.model or "") if part)
    ranks = f", {receipt.ranks} ranks" if receipt.ranks and receipt.ranks > 1 else ""
    lines = [f"{who}{ranks}"]
    if comparison is None:
        lines += [f"  {name:<24} {_figure(value, name)}" for name, value in _figures(receipt)]
    else:
        lines.append(f"  {'':<15} {'plan':>16} {'actual':>16} {'difference':>11}")
        for row in comparison.rows:
            difference = "" if row.difference is None else f"{row.difference:+.2%}"
            sign = "  <- beyond tolerance" if row in apart else ""
            both = f"{_cell(row.plan, row.unit):>16} {_cell(row.actual, row.unit):>16}"
            lines.append(f"  {row.what:<15} {both} {difference:>11}{sign}".rstrip())
        lines += [f"  {explanation.code}: {explanation.text}" for explanation in comparison.explanations]
    if receipt.refusal and comparison is None:
        lines.append(f"  it did not start: {receipt.refusal}")
    return lines


def _figures(receipt: Receipt) -> list[tuple[str, int | float]]:
    return [
        (name, value)
        for name, value in receipt._asdict().items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def _figure(value: float, name: str) -> str:
    return f"{value / GIB:.2f} GiB" if name.endswith(("_bytes", "_bytes_most")) else _cell(value, "")


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return f"{value / GIB:.2f} GiB"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
