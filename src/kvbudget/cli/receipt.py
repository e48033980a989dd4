"""`kvbudget receipt`: shows what an engine really reported, beside the plan, and keeps it in the budget."""

import argparse
import json

from kvbudget.cli.budget import today
from kvbudget.cli.output import written_out
from kvbudget.edge.budget.file import read_budget, write_budget
from kvbudget.edge.budget.lock import changing
from kvbudget.edge.budget.report import text_of
from kvbudget.engines.logs.read import receipt_of_text
from kvbudget.engines.logs.receipt import Receipt, receipt_document
from kvbudget.errors import BadValueError, UnsupportedError, printable
from kvbudget.planner.budget.drift import tolerance_of
from kvbudget.planner.budget.receipts import Comparison, Row, compare, comparison_document
from kvbudget.planner.budget.record import Document, with_receipt
from kvbudget.units import GIB

SCHEMA = "kvbudget.receipt/1"
_OF_A_GPU = ("CUDA", "OutOfMemoryError", "HIP", "cudaMalloc")
_LESS_MEMORY = (
    "lower --gpu-memory-utilization, --max-num-batched-tokens or --max-num-seqs, "
    "or see what else holds memory of the card"
)
_LONGEST_LINE = 200
# Figures of a receipt and rows of a comparison, as people say them.
_WORDS = {
    "total_bytes": "memory of the card", "free_bytes": "free at its start", "usable_bytes": "usable",
    "weights_bytes": "weights", "activation_bytes": "activation", "non_torch_bytes": "non-torch",
    "cuda_graphs_bytes": "CUDA graphs", "kv_bytes": "KV cache", "kv_bytes_most": "KV cache, roomiest rank",
    "num_blocks": "blocks", "block_size": "tokens a block", "tokens": "tokens in the pool",
    "concurrency": "full requests, printed", "max_model_len": "max_model_len", "max_num_seqs": "max_num_seqs",
    "needed_bytes": "needed by one request", "estimated_max_model_len": "longest that would fit",
    "total": "memory of the card", "cuda_graphs": "CUDA graphs", "non_torch": "non-torch", "kv": "KV cache",
}  # fmt: skip
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
    text = text_of(args.source)
    try:
        receipt = receipt_of_text(text, args.engine.partition("@")[0])
    except UnsupportedError:
        if (died := _out_of_memory(text, 0)) is None:
            raise
        raise UnsupportedError(f"this log tells nothing of a KV cache pool; {died}", fix=_LESS_MEMORY) from None
    died = _out_of_memory(text, min((told.line for told in receipt.told), default=0))
    started = not receipt.refusal and not died
    budget = _budget(args, receipt, keep=args.write and started)
    comparison = compare(budget, receipt) if budget is not None else None
    apart = comparison.beyond(tolerance_of(budget, "receipt")) if budget is not None and comparison else []
    with written_out():
        if args.json:
            print(json.dumps(_document(args, receipt, comparison, apart, died), allow_nan=False))
        else:
            lines = _text(receipt, comparison, apart, died) + _kept(args, started=started)
            print("\n".join(map(printable, lines)))
    return 1 if receipt.refusal or died or apart else 0


def _kept(args: argparse.Namespace, *, started: bool) -> list[str]:
    if not args.write:
        return []
    return [f"kept in {args.budget}"] if started else ["not kept: the engine did not start, so this is no receipt"]


def _budget(args: argparse.Namespace, receipt: Receipt, *, keep: bool) -> Document | None:
    """The budget beside which the receipt is shown; if `keep`, it holds the receipt from then on."""
    if args.budget is None or not keep:
        return read_budget(args.budget) if args.budget is not None else None
    kept = {"added": today(), "source": printable(args.source[:200]), **receipt_document(receipt)}
    with changing(args.budget):  # two receipts at once must both be kept
        budget = read_budget(args.budget)
        write_budget(args.budget, with_receipt(budget, kept))
    return budget


def _out_of_memory(text: str, first_line: int) -> str | None:
    """A sentence on the line from `first_line` on (counted from 1) that tells of a GPU's memory running out."""
    for number, line in enumerate(text.splitlines(), 1):
        at = line.lower().find("out of memory")
        if number >= first_line and at >= 0 and any(word in line for word in _OF_A_GPU):
            start = next((begin for word in _OF_A_GPU if 0 <= (begin := line.find(word)) < at), at)
            return f"the engine died of memory, line {number}: {line[start : start + _LONGEST_LINE].strip()}"
    return None


def _document(
    args: argparse.Namespace, receipt: Receipt, comparison: Comparison | None, apart: list[Row], died: str | None
) -> Document:
    document: Document = {"schema": SCHEMA, "source": args.source, "receipt": receipt_document(receipt)}
    document["out_of_memory"] = died
    if comparison is not None:
        document["comparison"] = comparison_document(comparison)
        document["apart"] = [row.what for row in apart]
        document["written"] = bool(args.write) and not receipt.refusal and not died
    return document


def _text(receipt: Receipt, comparison: Comparison | None, apart: list[Row], died: str | None) -> list[str]:
    who = " ".join(part for part in (receipt.engine, receipt.version or "", receipt.model or "") if part)
    ranks = f", {receipt.ranks} ranks" if receipt.ranks and receipt.ranks > 1 else ""
    lines = [f"{who}{ranks}"]
    if comparison is None:
        lines += [f"  {_WORDS.get(name, name):<24} {_figure(value, name)}" for name, value in _figures(receipt)]
    else:
        lines.append(f"  {'':<24} {'plan':>16} {'actual':>16} {'difference':>11}")
        for row in comparison.rows:
            difference = "" if row.difference is None else f"{row.difference:+.2%}"
            sign = "  <- beyond tolerance" if row in apart else ""
            both = f"{_cell(row.plan, row.unit):>16} {_cell(row.actual, row.unit):>16}"
            lines.append(f"  {_WORDS.get(row.what, row.what):<24} {both} {difference:>11}{sign}".rstrip())
        lines += [f"  {explanation.code}: {explanation.text}" for explanation in comparison.explanations]
    if died is not None:
        lines.append(f"  {died}")
        lines.append(f"  next: {_LESS_MEMORY}")
    elif receipt.refusal and comparison is None:
        lines.append(f"  it did not start: {receipt.refusal}")
    return lines


def _figures(receipt: Receipt) -> list[tuple[str, int | float]]:
    return [
        (name, value)
        for name, value in receipt._asdict().items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and not (name == "kv_bytes_most" and value == receipt.kv_bytes)  # one rank, or all alike
    ]


def _figure(value: float, name: str) -> str:
    return f"{value / GIB:.2f} GiB" if name.endswith(("_bytes", "_bytes_most")) else _cell(value, "")


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return f"{value / GIB:.2f} GiB"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
