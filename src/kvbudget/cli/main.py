"""Decides which command runs. Each command is a module, imported only when it is called."""

import argparse
import gc
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from kvbudget import __version__
from kvbudget.cli.interrupts import INTERRUPTED, ending_at_once
from kvbudget.cli.output import error_written, times_written, written_out
from kvbudget.errors import InputError, printable
from kvbudget.extras import install
from kvbudget.units import any_number, whole_number

EXIT_GOOD = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
_OBJECTS_BETWEEN = 50_000  # one plan makes fewer than this, and no garbage that is worth a look
_LONGEST_SHOWN, _MOST_HINTS, _MOST_OF_ONE = 200, 8, 3
_JSON = "--json"
EXIT_INTERRUPTED = INTERRUPTED

ABOUT = "One accounting for the KV cache of self-hosted LLM servers."
HOW = "kvbudget COMMAND --help shows flags and examples."
COMMANDS = {
    "plan": "how many tokens the cards hold for a model, exact to the engine's block",
    "check": "whether a reviewed budget is still true",
    "key": "an API key for the gate, and what makes it known there",
    "receipt": "what an engine really reported, beside the plan",
    "models": "the architectures whose caches are known",
    "gpus": "the cards that --gpu knows, with the memory a process really sees",
    "serve": "the gate: admit every request by its real tokens before it reaches the engine",
    "extproc": "the same gate for Envoy: an external processor, and an endpoint picker",
    "reload": "let a running gate take over its kvbudget.toml, and say what changed",
    "engine": "the embedded paged engine: OpenAI API without weights, to try the gate on",
    "ui": "the pages alone: the KV ledger of any model in a browser",
    "simulate": "admission policies under a trace or a made load, before a model of the engine",
    "diagnose": "what is wrong with an engine's KV cache, how sure that is, and what to do first",
    "dashboards": "Grafana dashboards, Prometheus rules with their tests, and a stack to run them",
    "forecast": "how likely demand is to reach the pool within the next half hour, and how good such forecasts were",
    "replay": "open-loop load from a trace against a real endpoint",
}
_LONGEST_COMMAND = max(map(len, COMMANDS)) + 4  # with its indent
# argparse asks gettext for every word that it might show, and gettext imports locale; our own words have no other
# language either, and one message is not to be in two.
argparse._ = str  # type: ignore[attr-defined]


class Command(Protocol):
    """What a module under `kvbudget.cli` provides."""

    EPILOG: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's flags."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the return value is the exit code."""


class _Parser(argparse.ArgumentParser):
    """Takes flags by their whole names only, and says which one may have been meant."""

    wants_json = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.register("type", int, _whole)
        self.register("type", float, _decimal)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # argparse's own signature
        """As argparse's; an unknown flag is an error that names a near one."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)[:_LONGEST_SHOWN]}{self._meant(unknown)}")
        for action in self._actions:  # `--write "$FILE"` with nothing in FILE would do nothing, and say nothing
            if action.option_strings and action.default != "" and getattr(found, action.dest, None) == "":
                self.error(f"argument {'/'.join(action.option_strings)}: is empty; give a value, or leave it away")
        return found

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse's, which loses help and version without a word where stdout takes nothing."""
        if sys.stdout is None or file is sys.stdout:
            with written_out():
                print(message, end="")
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """One line, with a short usage or where all flags are told: argparse's list of them hides it. With --json a
        document as well."""
        how = f"{self.prog} --help shows flags and examples"
        if self.wants_json:
            error_written("usage", message, how)
        if sys.stderr is not None:
            error = f"{self.prog}: error: {printable(message)}"
            print(f"{self.format_usage()}{error}" if self.usage else f"{error}\n{how}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)

    def _meant(self, unknown: list[str]) -> str:
        known = [*self._option_string_actions]
        hints = []
        for word in unknown[:_MOST_HINTS]:
            flag = word.partition("=")[0]
            if not flag.startswith("-"):
                continue
            hints += _near(flag[:64], known)
        return f"; did you mean {', '.join(dict.fromkeys(hints))}?" if hints else ""


def _whole(text: str) -> int:
    """What a flag of type int takes: `int` itself takes 1_000 and the digits of any script."""
    try:
        return whole_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _decimal(text: str) -> float:
    """What a flag of type float takes; nan and inf, which each command refuses by what the flag is about."""
    try:
        return any_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _near(flag: str, known: list[str]) -> list[str]:
    """Which flags may have been meant: with other dashes, one that goes on where this ends, or one written alike."""
    bare = flag.lstrip("-")
    for name in (f"-{bare}", f"--{bare}"):
        if name in known:
            return [name]
    longer = [name for name in known if name.startswith(f"--{bare}-")] if bare else []
    if longer:
        return longer[:_MOST_OF_ONE]
    import difflib  # only an error needs it

    return difflib.get_close_matches(flag, known, n=1, cutoff=0.6)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help of a fixed width: asking the terminal for its own imports shutil, and with it bz2 and lzma."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)


class _Overview(_Help):
    """Of all commands, one a line: argparse leaves out how far they are indented, and would break after a long name."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = _LONGEST_COMMAND


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 good, 1 finding, 2 usage or unsupported. `argv` None: this is the whole process."""
    if argv is not None:
        return _run(list(argv))
    gc.disable()
    try:
        return _run(sys.argv[1:])
    finally:  # what was imported stays to the end: looking through it for garbage takes half a bare interpreter's time
        gc.freeze()
        gc.enable()


def _run(argv: list[str]) -> int:
    try:
        return _run_command(argv)
    except InputError as error:  # of --help and --version: stdout took none of it
        _say(argv[0], error)
        return EXIT_USAGE
    except BrokenPipeError:
        return EXIT_GOOD


def _say(word: str, error: InputError) -> None:
    if sys.stderr is not None:
        print(printable(f"kvbudget {word}: {error.code}: {error}"), file=sys.stderr)


def _run_command(argv: list[str]) -> int:
    if not argv or argv[0] not in COMMANDS:
        _without_command(argv)
    parser = parser_of(argv[0])
    parser.wants_json = _JSON in argv
    for word in argv[1:]:
        if word.startswith("--") and word.endswith("=--"):  # argparse takes it for an empty list
            parser.error(f"argument {word[:-3]}: expected one argument")
    if "-h" in argv or "--help" in argv:
        _in_language(parser, COMMANDS[argv[0]])
    args = parser.parse_args(argv[1:])
    gc.set_threshold(_OBJECTS_BETWEEN)
    gc.enable()
    written = times_written()
    try:
        code: int = args.run(args)
    except InputError as error:
        _say(args.command, error)
        if getattr(args, "json", False) and times_written() == written:
            error_written(error.code, error.message, error.fix)
        return EXIT_USAGE
    except ModuleNotFoundError as error:  # commands import heavy parts late
        return _missing(args.command, error, as_json=getattr(args, "json", False))
    except BrokenPipeError:
        return EXIT_GOOD  # the reader (head, less) has seen enough
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED  # before a command's own handlers stand
    return code


def _in_language(parser: argparse.ArgumentParser, summary: str, longest: int = 0) -> None:
    """Help in Chinese, where it is asked for."""
    known = _chinese()
    if known:
        from kvbudget.cli.language import ChineseHelp, put_into

        put_into(known, parser, summary)
        parser.formatter_class = lambda prog: ChineseHelp(prog, longest)


def _chinese() -> Mapping[str, str]:
    """Texts of the help in Chinese; none where English is wanted."""
    import os

    from kvbudget.cli.language import is_chinese, words

    return words() if is_chinese(os.environ) else {}


def parser_of(name: str) -> _Parser:
    """The flags of one command. Making those of all commands would take longer than a plan."""
    command, summary = _load(name), COMMANDS[name]
    parser = _Parser(
        prog=f"kvbudget {name}",
        allow_abbrev=False,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=command.EPILOG,
        formatter_class=_Help,
    )
    command.add_arguments(parser)
    parser.set_defaults(command=name, run=command.run)
    return parser


def _without_command(argv: list[str]) -> NoReturn:
    """Help, version, or the error that a command is missing or unknown."""
    parser = _Parser(prog="kvbudget", description=ABOUT, epilog=HOW, formatter_class=_Overview)
    parser.wants_json = _JSON in argv
    parser.add_argument("--version", action="version", version=f"kvbudget {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="kvbudget")
    known = _chinese() if argv[:1] in ([], ["-h"], ["--help"]) else {}
    if known:
        _in_language(parser, ABOUT, _LONGEST_COMMAND)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=known.get(summary, summary), add_help=False)
    if argv and not argv[0].startswith("-"):
        near = _near(argv[0][:64], list(COMMANDS))
        meant = f"did you mean {near[0]}?" if near else f"one of {', '.join(COMMANDS)}"
        parser.error(f"there is no command {argv[0][:_LONGEST_SHOWN]!r}; {meant}")
    parser.parse_known_args(argv)
    parser.error(f"COMMAND comes first: {', '.join(COMMANDS)}")


def _load(name: str) -> Command:
    """The module of a command. Exits with what to install when a library of its extra is missing."""
    try:
        with ending_at_once():
            module: Command = importlib.import_module(f"kvbudget.cli.{name}")
    except ModuleNotFoundError as error:
        raise SystemExit(_missing(name, error, as_json=_JSON in sys.argv)) from None
    return module


def _missing(name: str, error: ModuleNotFoundError, *, as_json: bool) -> int:
    """Says which library of which extra is missing; one of our own is a bug and raised again."""
    missing = (error.name or "").partition(".")[0]
    if missing == "kvbudget":
        raise error
    how = install("gate", "envoy") if name == "extproc" else install("gate")
    print(f"kvbudget {name} needs {missing}; next: {how}", file=sys.stderr)
    if as_json:
        error_written("missing_library", f"kvbudget {name} needs {missing}", how)
    return EXIT_USAGE
