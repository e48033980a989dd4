"""`kvbudget dashboards`: Grafana dashboards, Prometheus rules with their tests, and a stack, written into a folder."""

import argparse
import hashlib
import json
import os
from pathlib import Path
from textwrap import wrap

from kvbudget.cli.output import written_out
from kvbudget.edge.given_file import open_given
from kvbudget.errors import BadValueError, printable

SCHEMA = "kvbudget.dashboards/1"
MANIFEST = ".kvbudget-dashboards.json"  # what was written, so that a later run knows its own files from yours
_MOST_NAMED = 5
EPILOG = """\
examples:
  kvbudget dashboards --out monitoring
  promtool check rules monitoring/kvbudget.rules.yaml
  promtool test rules monitoring/rules.test.yaml monitoring/rules.10m.test.yaml
  kvbudget dashboards --out monitoring --runbooks https://git.example.org/ops/runbooks
  docker compose -f monitoring/compose.yaml up -d --build      # Grafana on http://127.0.0.1:3000

dashboards/*.json are imported into Grafana 11 or newer, or provisioned; kvbudget.rules.yaml is for rule_files of
Prometheus, whose scrape of the gate needs what prometheus.yml shows. Files that you changed, or that are not ours, are
not overwritten without --force.
exit: 0; 2 usage, or a file is in the way"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write to; made if it is not there")
    parser.add_argument(
        "--runbooks",
        metavar="URL",
        default="docs/runbooks",
        help="where the pages of docs/runbooks are served, for runbook_url of the alerts (docs/runbooks)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that were changed or are not ours")
    parser.add_argument("--json", action="store_true", help=f"one JSON document (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """Write all files, each of them whole. Raises BadValueError before the first if one is in the way."""
    from kvbudget.report.monitoring.files import monitoring_files
    from kvbudget.report.monitoring.steps import README

    folder = Path(args.out)
    texts = monitoring_files(args.runbooks, _checkout(folder))
    states = {path: _state(folder / path, text) for path, text in texts.items()}
    known = _manifest(folder)
    foreign = [path for path, (state, digest) in states.items() if state == "replaced" and known.get(path) != digest]
    if README in foreign and not args.force:  # a folder may have had one of its own before we wrote any
        foreign.remove(README)
        states[README] = ("kept", states[README][1])
    if foreign and not args.force:
        named = ", ".join(foreign[:_MOST_NAMED]) + (", ..." if len(foreign) > _MOST_NAMED else "")
        raise BadValueError(
            f"--out {printable(args.out)}: {named}: changed by hand, or not made by kvbudget dashboards",
            fix="choose another folder, or overwrite them with --force",
        )
    _write(folder, {path: text for path, text in texts.items() if states[path][0] in ("new", "replaced")})
    ours = {path: _digest(text) for path, text in texts.items() if states[path][0] != "kept"}
    _write(folder, {MANIFEST: json.dumps(ours, indent=1) + "\n"})
    with written_out():
        print(_told(args, {path: state for path, (state, _) in states.items()}, texts))
    return 0


def _checkout(folder: Path) -> str:
    """The checkout that this very program runs from, which the stack's image is built from; "" for an installed one."""
    from kvbudget.report.monitoring.stack import CONTAINERFILE

    root = Path(__file__).resolve().parents[3]
    if not (root / CONTAINERFILE).is_file():
        return ""
    inside = folder.resolve()
    return os.path.relpath(root, inside) if inside.is_relative_to(root) else str(root)


def _state(path: Path, text: str) -> tuple[str, str]:
    """(new, unchanged or replaced, digest of what is there)."""
    try:
        with open_given(str(path), fix="choose another folder") as file:  # a FIFO would be waited for
            present = file.read()
    except FileNotFoundError:
        return "new", ""
    except OSError as error:
        raise BadValueError(
            f"--out: {printable(str(path)[-200:])!r} cannot be read: {error.strerror}", fix="choose another folder"
        ) from None
    return ("unchanged" if present == text.encode() else "replaced"), hashlib.sha256(present).hexdigest()


def _manifest(folder: Path) -> dict[str, str]:
    """What an earlier run wrote, by its digest; a broken list knows nothing."""
    try:
        with open_given(str(folder / MANIFEST), fix="choose another folder") as file:
            found = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write(folder: Path, texts: dict[str, str]) -> None:
    from kvbudget.edge.whole_file import write_whole

    for path, text in texts.items():
        place = folder / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadValueError(
                f"--out: {printable(str(place.parent)[-200:])!r} cannot be made: {error.strerror}",
                fix="choose another folder",
            ) from None
        write_whole(str(place), text.encode(), "--out")


def _told(args: argparse.Namespace, states: dict[str, str], texts: dict[str, str]) -> str:
    if args.json:
        files = [{"path": path, "state": states[path], "bytes": len(texts[path].encode())} for path in states]
        return json.dumps({"schema": SCHEMA, "out": args.out, "files": files})
    lines = [f"{state:<10} {args.out}/{path}" for path, state in states.items()]
    from kvbudget.report.monitoring.steps import README, steps

    todo = [line for number, step in enumerate(steps(args.out), 1) for line in _step(number, step)]
    more = f"more, and all of it with Docker: {args.out.rstrip('/')}/{README}"
    return "\n".join([*lines, "", "next:", *todo, more])


def _step(number: int, text: str) -> list[str]:
    head, rest = f"  {number}. ", " " * 5  # paths stay whole: they are there to be copied
    return wrap(text, 100, initial_indent=head, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False)
