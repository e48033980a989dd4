"""Decides in which language help is shown: English, or Chinese where KVBUDGET_LANG or the locale says so.

Only help: what programs read (JSON, errors, codes) has one language. Commands in examples stay as they are typed; what
is said beside and below them is said in Chinese.
"""

import argparse
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import NamedTuple

# What is not parted: a Latin word or one letter of two columns, with the brackets and stops that hang on it.
_PIECES = re.compile(r"[（《“]*(?:[!-~]+|[^\s])[，。、；：）》”？！]*")
_COMMENT = re.compile(r"(.*\S +# +)(\S.*)")
_WIDTH = 100
_ASKED = ("KVBUDGET_LANG", "LC_ALL", "LC_MESSAGES", "LANG")


def is_chinese(environment: Mapping[str, str]) -> bool:
    """The first variable that is set decides, as for any locale."""
    said = next((environment[name] for name in _ASKED if environment.get(name)), "")
    return said.lower().startswith("zh")


def words() -> Mapping[str, str]:
    """What each text of the help is in Chinese."""
    text = (files("kvbudget.cli") / "help_zh.json").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(text)
    return found


class ChineseHelp(argparse.RawDescriptionHelpFormatter):
    """Help of a fixed width in columns, of which most of its letters take two."""

    def __init__(self, prog: str, longest: int = 0) -> None:
        super().__init__(prog, max_help_position=28, width=_WIDTH)
        self._action_max_length = longest  # argparse leaves out how far commands are indented

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        """As argparse's, under its heading in Chinese."""
        super().add_usage(usage, actions, groups, prefix or "用法：")

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(text, width)


def wrapped(text: str, columns: int) -> list[str]:
    """Lines of at most so many columns; a Latin word is never broken, and no line begins with a stop."""
    lines, line, taken = [], "", 0
    for piece in _PIECES.finditer(text):
        gap = " " if piece.start() and text[piece.start() - 1].isspace() else ""
        wide = _columns(piece.group())
        if line and taken + len(gap) + wide > columns:
            lines.append(line)
            line, taken, gap = "", 0, ""
        line, taken = line + gap + piece.group(), taken + len(gap) + wide
    return [*lines, line]


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


class Piece(NamedTuple):
    """Of an epilog: what stays, and what is `said` behind it; `prose` is wrapped, on lines of its own."""

    kept: str
    said: str = ""
    prose: bool = False


def pieces_of(epilog: str) -> list[Piece]:
    """Lines of an epilog. Indented by two are commands, maybe with a comment; by six, what is said of the one above,
    unless that goes on; all else is prose, of which `exit:` begins a paragraph."""
    found: list[Piece] = []
    goes_on = False
    for line in epilog.splitlines():
        before = found[-1] if found else Piece("")
        if goes_on or not line:
            found.append(Piece(line))
        elif line.startswith("      "):
            found.append(Piece("      ", line.strip()))
        elif line.startswith("  "):
            commented = _COMMENT.fullmatch(line)
            found.append(Piece(commented[1], commented[2]) if commented else Piece(line))
        elif before.prose and not line.startswith("exit:") and before.said != "examples:":
            found[-1] = before._replace(said=f"{before.said} {line}")
        else:
            found.append(Piece("", line, prose=True))
        goes_on = line.endswith("\\")
    return found


def _in_chinese(known: Mapping[str, str], epilog: str) -> str:
    lines: list[str] = []
    for kept, said, prose in pieces_of(epilog):
        told = known.get(said, said)
        lines += wrapped(told, _WIDTH) if prose else [kept + told]
    return "\n".join(lines)


def put_into(known: Mapping[str, str], parser: argparse.ArgumentParser, summary: str) -> None:
    """Headings, what the command does and what each flag means; a text that is not `known` stays."""
    parser.description = known.get(summary, parser.description)
    parser.usage = known.get(parser.usage or "", parser.usage)
    parser.epilog = _in_chinese(known, parser.epilog or "")
    for group in parser._action_groups:
        group.title = known.get(group.title or "", group.title)
    for action in parser._actions:
        if action.help:
            action.help = known.get(action.help, action.help)
