"""Runs the commands that the documentation shows, and compares what it says they print.

A block marked ```console holds `$ command` lines, each followed by what it prints, shortened or not. Every line that is
shown must be in the real output, in order; `...` stands for what was left out, and where lines break does not matter.
`$ echo $?` shows the exit code of the command before it; without one it is 0.

The commands of a page run in one folder that holds nothing but a link to docs/, in this process. `kvbudget serve`,
`engine` and `replay` would run for ever or need an engine: of them only the flags are parsed. What is not kvbudget's
own (`cat`, `curl`, ...) is not run.

    python scripts/run_docs.py               # every page; exit 1 and the lines that are no longer true
    python scripts/run_docs.py --update      # correct lines of which only numbers changed
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvbudget.cli.main import main as kvbudget
from kvbudget.cli.main import parser_of

ROOT = Path(__file__).resolve().parent.parent
RUN = ("plan", "check", "receipt", "models", "gpus", "diagnose")
COLUMNS = "100"
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?|█+")


class Shown(NamedTuple):
    """One command of a page, at `line` (from 1); `output` are (line, text) as the page has them, `code` the exit code."""

    line: int
    command: str
    output: tuple[tuple[int, str], ...]
    code: int


class Drift(NamedTuple):
    """What is not true any more. `line` from 1; `text` as the page has it; `better` the same with the numbers of today, when that is all."""

    line: int
    text: str
    told: str
    better: str = ""


def pages() -> list[Path]:
    """Every page with a block of commands."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if "```console" in path.read_text())


def shown_in(text: str) -> list[Shown]:
    """The commands of a page, in order."""
    found: list[Shown] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = line.strip() == "```console"
        elif inside and line.startswith("$ echo $?"):
            continue
        elif inside and line.startswith("$ "):
            found.append(Shown(number, line[2:], (), 0))
        elif inside and found and found[-1].command.endswith("\\") and not found[-1].output:
            found[-1] = found[-1]._replace(command=found[-1].command[:-1] + line)
        elif inside and found:
            found[-1] = found[-1]._replace(output=(*found[-1].output, (number, line)))
    return [_with_code(one, text.splitlines()) for one in found]


def _with_code(one: Shown, lines: list[str]) -> Shown:
    """`$ echo $?` follows the output, and its own output is the last line of ours."""
    if one.output and lines[one.output[-1][0] - 2].startswith("$ echo $?"):
        return one._replace(output=one.output[:-1], code=int(one.output[-1][1]))
    return one


def drifts(text: str) -> Iterator[Drift]:
    """Runs the commands of a page in the present folder."""
    for one in shown_in(text):
        words = shlex.split(one.command, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        if not words or words[0] != "kvbudget" or len(words) < 2:
            continue
        piped = "|" in words
        words = words[: words.index("|")] if piped else words
        if words[1] not in RUN:
            yield from _flags_of(one, words[1:])
            continue
        code, said = _run(words[1:], one.command)
        if piped:  # the shell would show the last command's code and output, not ours
            continue
        if code != one.code:
            yield Drift(one.line, one.command, f"exit code {code}, the page says {one.code}: {said[-300:]}")
        else:
            yield from _compared(one, said)


def _run(words: list[str], command: str) -> tuple[int, str]:
    """(exit code, both outputs with every run of white space as one space)."""
    given = dict(
        word.split("=", 1) for word in shlex.split(command, comments=True) if re.fullmatch(r"[A-Z_]+=\S*", word)
    )
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR", *given)}
    os.environ.update({"COLUMNS": COLUMNS, "NO_COLOR": "1", **given})
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code = kvbudget(words)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 2
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    return code, " ".join(said.getvalue().split())


def _flags_of(one: Shown, words: list[str]) -> Iterator[Drift]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser_of(words[0]).parse_args(words[1:])
    except SystemExit:
        yield Drift(one.line, one.command, " ".join(said.getvalue().split())[-300:])


def _compared(one: Shown, said: str) -> Iterator[Drift]:
    place = 0
    for number, text in one.output:
        for part in (piece.strip() for piece in " ".join(text.split()).split("...")):
            found = said.find(part, place)
            if found >= 0:
                place = found + len(part)
                continue
            parts = (re.escape(piece) for piece in _NUMBER.split(part))
            alike = re.compile(r"(\d[\d,]*(?:\.\d+)?|█*)".join(parts)).search(said, place)
            if alike is None:
                yield Drift(number, text, f"not in what is printed after the line before: {said[place : place + 200]}")
                continue
            place = alike.end()
            yield Drift(number, text, f"it prints: {alike[0]}", _renumbered(text, part, alike.groups()))


def _renumbered(text: str, part: str, numbers: tuple[str, ...]) -> str:
    """`text` with the numbers of `part` replaced, the rest (and its white space) as it was."""
    skipped = len(_NUMBER.findall(" ".join(text.split()).partition(part)[0]))
    new = iter(numbers)
    count = iter(range(10**6))

    def replace(match: re.Match[str]) -> str:
        return next(new, match[0]) if next(count) >= skipped else match[0]

    return _NUMBER.sub(replace, text)


def check(path: Path, *, update: bool = False) -> list[Drift]:
    """Runs one page in a folder of its own; with `update` numbers are corrected in it, and what remains is returned."""
    text = path.read_text()
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "docs").symlink_to(ROOT / "docs")
        os.chdir(folder)
        try:
            found = list(drifts(text))
        finally:
            os.chdir(here)
    if not update or not any(drift.better for drift in found):
        return found
    lines = text.splitlines()
    for drift in found:
        if drift.better:
            lines[drift.line - 1] = drift.better
    path.write_text("\n".join(lines) + "\n")
    return [drift for drift in found if not drift.better]


def main() -> int:
    """Every page, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="*", type=Path)
    parser.add_argument("--update", action="store_true", help="correct lines of which only numbers changed")
    args = parser.parse_args()
    wrong = 0
    for page in args.page or pages():
        for drift in check(page, update=args.update):
            wrong += 1
            print(f"{page}:{drift.line}: {drift.text.strip()}\n    {drift.told}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
