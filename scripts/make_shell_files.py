"""Writes what shells and `man` read of the command: packaging/kvbudget.1 and completions for bash, zsh and fish.

`python scripts/make_shell_files.py` rewrites them; `--check` only says whether they are current (exit 1 if not). The wheel
installs them under share/, where shells and man look.
"""

import argparse
import sys
from pathlib import Path

import shtab

from kvbudget import __version__
from kvbudget.cli.main import COMMANDS, parser_of

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "packaging"
SHELLS = {"bash": "kvbudget.bash", "zsh": "_kvbudget", "fish": "kvbudget.fish"}
_FILES = {"trace", "config", "markdown", "html", "png", "write", "series", "access_log", "learned_state", "keys"}


def whole_parser() -> argparse.ArgumentParser:
    """All commands with all their flags, as one parser; the program itself makes only the one that it runs."""
    parser = argparse.ArgumentParser(prog="kvbudget", description="One accounting for the KV cache of LLM servers.")
    parser.add_argument("--version", action="version", version=__version__, help="show the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        one = parser_of(name)
        made = commands.add_parser(name, help=summary, description=one.description, add_help=False)
        for action in one._actions:
            if action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            made._add_action(action)
    return parser


def man_page() -> str:
    """The page in roff: synopsis, every command with its flags and examples."""
    lines = [
        f'.TH KVBUDGET 1 "" "kvbudget {__version__}" "User commands"',
        ".SH NAME",
        "kvbudget \\- one accounting for the KV cache of self-hosted LLM servers",
        ".SH SYNOPSIS",
        ".B kvbudget",
        ".I COMMAND",
        "[flags]",
        ".SH DESCRIPTION",
        "Plans how many tokens the cards hold, gates requests by their real tokens, watches the engine, simulates traffic.",
        "Exit status: 0 good, 1 a finding, 2 usage or unsupported.",
        ".SH COMMANDS",
    ]
    for name, summary in COMMANDS.items():
        lines += [".SS kvbudget " + name, _roff(summary[0].upper() + summary[1:] + ".")]
        parser = parser_of(name)
        for action in parser._actions:
            if action.help is argparse.SUPPRESS:
                continue
            lines += [".TP", ".B " + _roff(_called(action)), _roff(_help_of(parser, action))]
        lines += [".PP", ".nf", *[_roff(line) for line in (parser.epilog or "").strip().splitlines()], ".fi"]
    return "\n".join(lines) + "\n"


def _called(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if not action.option_strings or action.nargs == 0:
        return name
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    return f"{name} {value if isinstance(value, str) else ' '.join(value)}"


def _help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _roff(text: str) -> str:
    """Text as roff shows it: hyphens that can be copied, no line that is taken for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def files() -> dict[Path, str]:
    """Every file and what stands in it."""
    parser = whole_parser()
    made = {FOLDER / name: shtab.complete(parser, shell=shell) for shell, name in SHELLS.items()}
    return {FOLDER / "kvbudget.1": man_page(), **{path: text.rstrip() + "\n" for path, text in made.items()}}


def main() -> int:
    """Write, or check; returns the exit status."""
    check = "--check" in sys.argv[1:]
    stale = [path for path, text in files().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not current: run scripts/make_shell_files.py", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
