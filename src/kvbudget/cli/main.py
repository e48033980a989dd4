"""Decides which command runs. Each command is a module, imported only when it is called."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol

from kvbudget import __version__
from kvbudget.errors import InputError

EXIT_GOOD = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # what shells expect after Ctrl-C

COMMANDS = {
    "plan": "how many tokens the cards hold for a model, exact to the engine's block",
    "serve": "the gate: admit every request by its real tokens before it reaches the engine",
    "engine": "the embedded paged engine: OpenAI API without weights, to try the gate on",
    "replay": "open-loop load from a trace against a real endpoint",
}


class Command(Protocol):
    """What a module under `kvbudget.cli` provides."""

    EPILOG: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's flags."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the return value is the exit code."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help of a fixed width: asking the terminal for its own imports shutil, and with it bz2 and lzma."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 good, 1 finding, 2 usage or unsupported."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="kvbudget",
        description="One accounting for the KV cache of self-hosted LLM servers.",
        epilog="kvbudget COMMAND --help shows flags and examples.",
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"kvbudget {__version__}")
    # prog given: argparse would otherwise format a usage line of its own to find it.
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="kvbudget")
    wanted = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if name != wanted:
            commands.add_parser(name, help=summary, formatter_class=_Help)
            continue
        command = _load(name)
        sub = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=command.EPILOG,
            formatter_class=_Help,
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args)
    except InputError as error:
        print(f"kvbudget {args.command}: {error.code}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ModuleNotFoundError as error:  # commands import heavy parts late
        return _missing(args.command, error)
    except BrokenPipeError:
        return EXIT_GOOD  # the reader (head, less) has seen enough
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED  # before a command's own handlers stand
    return code


def parser_of(name: str) -> argparse.ArgumentParser:
    """The flags of one command, for the reference."""
    parser = argparse.ArgumentParser(prog=f"kvbudget {name}", formatter_class=_Help)
    _load(name).add_arguments(parser)
    return parser


def _load(name: str) -> Command:
    """The module of a command. Exits with what to install when a library of its extra is missing."""
    try:
        module: Command = importlib.import_module(f"kvbudget.cli.{name}")
    except ModuleNotFoundError as error:
        raise SystemExit(_missing(name, error)) from None
    return module


def _missing(name: str, error: ModuleNotFoundError) -> int:
    """Says which library of which extra is missing; one of our own is a bug and raised again."""
    missing = (error.name or "").partition(".")[0]
    if missing == "kvbudget":
        raise error
    how = "pip install 'kvbudget[gate]' (in a checkout: '.[gate]')"
    print(f"kvbudget {name} needs {missing}; next: {how}", file=sys.stderr)
    return EXIT_USAGE
