"""`kvbudget check`: decides whether a reviewed budget is still true, for CI. Standard library only."""

import argparse
import json

from kvbudget.cli.budget import present_budget, today
from kvbudget.cli.output import written_out
from kvbudget.edge.budget.file import read_budget
from kvbudget.planner.budget.drift import Reason, drift
from kvbudget.planner.budget.record import Document, section

SCHEMA = "kvbudget.check/1"
EPILOG = """\
examples:
  kvbudget check                                  # kvbudget.toml in this folder
  kvbudget check deploy/kvbudget.toml --json      # for CI: exit 1 and every reason when it is no longer true
  kvbudget check kvbudget.toml --model ./Qwen3-8B # the model lies elsewhere on this machine

The plan is made again from [inputs]; model, engine, flags, hardware, pool, workload, targets, [gate] and the newest
receipt are compared with it.
exit: 0 still true; 1 not any more, with the reasons; 2 usage, or a file or model that cannot be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("budget", nargs="?", default="kvbudget.toml", metavar="FILE", help="default kvbudget.toml")
    parser.add_argument("--model", metavar="MODEL", help="where the model lies here, instead of [inputs] model")
    parser.add_argument("--json", action="store_true", help=f"one JSON document (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """Check and print; 0 when the budget holds, 1 when not. Raises InputError for what cannot be checked."""
    reviewed = read_budget(args.budget)
    present = present_budget(reviewed, args.budget, args.model)
    reasons = drift(reviewed, present, today=today())
    with written_out():
        if args.json:
            print(json.dumps(_document(args.budget, reviewed, present, reasons), allow_nan=False))
        else:
            print(_text(args.budget, reviewed, reasons))
    return 1 if reasons else 0


def _document(path: str, reviewed: Document, present: Document, reasons: list[Reason]) -> Document:
    return {
        "schema": SCHEMA,
        "budget": path,
        "holds": not reasons,
        "written": reviewed.get("written"),
        "engine": section(present, "engine"),
        "pool": {"reviewed": section(reviewed, "pool"), "present": section(present, "pool")},
        "reasons": [reason._asdict() for reason in reasons],
    }


def _text(path: str, reviewed: Document, reasons: list[Reason]) -> str:
    name = section(reviewed, "model").get("name", "")
    if not reasons:
        return f"{path}: the budget of {name}, written {reviewed.get('written', '?')}, holds"
    lines = [f"{path}: the budget of {name}, written {reviewed.get('written', '?')}, no longer holds:"]
    for reason in reasons:
        lines.append(f"  {reason.code}: {reason.message}")
        if reason.reviewed is not None or reason.present is not None:
            lines.append(f"      {reason.what}: reviewed {_shown(reason.reviewed)}, now {_shown(reason.present)}")
        lines.append(f"      next: {reason.fix}")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return "nothing" if value is None else str(value)[:200]
    return f"{value:,}"
