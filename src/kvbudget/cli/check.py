"""`kvbudget check`: decides whether a reviewed budget is still true, for CI. Standard library only."""

import argparse
import json
import os
import shlex

from kvbudget.cli.budget import model_of, present_budget, today
from kvbudget.cli.output import written_out
from kvbudget.edge.budget.file import read_budget
from kvbudget.errors import printable
from kvbudget.planner.budget.drift import Reason, drift
from kvbudget.planner.budget.record import Document, arguments_of, section
from kvbudget.planner.budget.schema import unknown_tables
from kvbudget.units import KIB, format_size

SCHEMA = "kvbudget.check/1"
_LONGEST_COMMAND = 2000
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
    reasons = _named(drift(reviewed, present, today=today()), reviewed, args.budget)
    with written_out():
        if args.json:
            document = _document(args.budget, reviewed, present, reasons) | _taken(args, reviewed)
            print(json.dumps(document, allow_nan=False))
        else:
            print(printable("\n".join([_text(args.budget, reviewed, reasons), *_told(args, reviewed)])))
    return 1 if reasons else 0


def _taken(args: argparse.Namespace, reviewed: Document) -> dict[str, str]:
    """Which model the check read: a path where it was one, a hub id, "" where a command named it."""
    place = args.model if args.model is not None else model_of(arguments_of(reviewed)[0], args.budget)
    return {"model": os.path.abspath(place) if place and os.path.exists(place) else place}


def _told(args: argparse.Namespace, reviewed: Document) -> list[str]:
    """The same for people, where the name alone could mean two folders."""
    named = arguments_of(reviewed)[0]
    if args.model is not None or not named:
        return []
    place = model_of(named, args.budget)
    if place == named and os.path.normpath(named) != os.curdir:
        return []
    whose = "the working folder" if place == named else "the budget's own folder"
    return [f"  model: {os.path.abspath(place)} ({named} of {whose})"]


def _document(path: str, reviewed: Document, present: Document, reasons: list[Reason]) -> Document:
    return {
        "schema": SCHEMA,
        "budget": path,
        "holds": not reasons,
        "written": reviewed.get("written"),
        "engine": section(present, "engine"),
        "pool": {"reviewed": section(reviewed, "pool"), "present": section(present, "pool")},
        "reasons": [reason._asdict() for reason in reasons],
        "unknown_tables": unknown_tables(reviewed),
    }


def _named(reasons: list[Reason], reviewed: Document, path: str) -> list[Reason]:
    """The reasons with the command of this very budget where their advice is to plan again."""
    model, *flags = arguments_of(reviewed)
    command = shlex.join(["kvbudget", "plan", *([model] if model else []), *flags])
    if len(command) > _LONGEST_COMMAND:
        command = f"{command[:_LONGEST_COMMAND]}..."
    writing = f"{command} --write {shlex.quote(path)}"
    return [
        reason._replace(
            fix=reason.fix.replace("kvbudget plan ... --write", writing).replace(
                "kvbudget plan with the same flags", command
            )
        )
        for reason in reasons
    ]


def _text(path: str, reviewed: Document, reasons: list[Reason]) -> str:
    name = section(reviewed, "model").get("name", "")
    budget = f"{path}: the budget of {name}, written {reviewed.get('written', '?')},"
    own = unknown_tables(reviewed)
    unread = [f"  not read, as no table of a budget has that name: {', '.join(own)[:200]}"] if own else []
    if not reasons:
        return "\n".join([f"{budget} holds", *unread])
    never = reviewed.get("fits") is False
    lines = [f"{budget} {'does not hold, and did not fit when it was written' if never else 'no longer holds'}:"]
    for code in dict.fromkeys(reason.code for reason in reasons):
        lines += _group(code, [reason for reason in reasons if reason.code == code])
    return "\n".join(lines + unread)


def _group(code: str, reasons: list[Reason]) -> list[str]:
    """All reasons of one code: what moved, line by line, and once what to do."""
    times = f" ({len(reasons)})" if len(reasons) > 1 else ""
    lines, said = [], ""
    for reason in reasons:
        if reason.message != said:
            lines.append(f"  {code}{times}: {reason.message}")
            said, times = reason.message, ""
        if reason.reviewed is not None or reason.present is not None:
            values = f"reviewed {_shown(reason.reviewed, reason.what)}, now {_shown(reason.present, reason.what)}"
            lines.append(f"      {reason.what}: {values}")
    return lines + [f"      next: {fix}" for fix in dict.fromkeys(reason.fix for reason in reasons)]


def _shown(value: object, what: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "nothing" if value is None else str(value)[:200]
    sized = isinstance(value, int) and "bytes" in what.rpartition(".")[2] and abs(value) >= KIB
    return f"{value:,} ({format_size(int(value))})" if sized else f"{value:,}"
