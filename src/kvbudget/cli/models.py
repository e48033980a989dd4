"""`kvbudget models`: lists the architectures whose caches are known, by the model_type of config.json."""

import argparse
import json

from kvbudget.cli.output import written_out
from kvbudget.errors import InputError, UnsupportedError
from kvbudget.model.families.multimodal import WRAPPERS
from kvbudget.model.families.table import FAMILIES
from kvbudget.model.read import model_from_config

SCHEMA = "kvbudget.models/1"
EPILOG = """\
examples:
  kvbudget models                # all of them
  kvbudget models qwen           # those with qwen in their name
  kvbudget models --json

The kinds of cache are those of a config.json that states nothing else: layer_types, windows and the like of a real one
change them. Where no such default exists, the model's own config.json says it, and `kvbudget plan` shows it.
exit: 0; 2 usage, or no architecture of that name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="only those with this in their name")
    parser.add_argument("--json", action="store_true", help=f"one JSON document (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """Print the list. Raises UnsupportedError, naming near ones, when no architecture has that name."""
    wanted = args.name.strip().lower()
    families = sorted(name for name in FAMILIES if wanted in name.lower())
    wrappers = {name: text for name, text in sorted(WRAPPERS.items()) if wanted in name.lower()}
    if not families and not wrappers:
        raise UnsupportedError(f"{args.name[:40]!r} is no model_type that is known", fix=_near(wanted))
    with written_out():
        if args.json:
            document = {
                "schema": SCHEMA,
                "models": [{"model_type": name, "kinds": _kinds(name)} for name in families],
                "wrappers": [{"model_type": name, "text": text} for name, text in wrappers.items()],
            }
            print(json.dumps(document, allow_nan=False))
        else:
            print("\n".join(_text(families, wrappers)))
    return 0


def _text(families: list[str], wrappers: dict[str, str]) -> list[str]:
    lines = [f"{name:<28} {_described(_kinds(name))}" for name in families]
    if wrappers:
        lines += ["", "multimodal, around a text model:"] if lines else ["multimodal, around a text model:"]
        lines += [f"{name:<36} {text}" for name, text in wrappers.items()]
    return lines


def _described(kinds: dict[str, int] | None) -> str:
    if kinds is None:
        return "by its config.json"
    return ", ".join(kinds) or "no cache"


def _kinds(model_type: str) -> dict[str, int] | None:
    """Layers of each kind by the class defaults alone; None where they do not say it."""
    try:
        return model_from_config({"model_type": model_type}, model_type).kinds
    except InputError:
        return None


def _near(wanted: str) -> str:
    import difflib  # only an error needs it

    near = difflib.get_close_matches(wanted[:64], [*FAMILIES, *WRAPPERS], n=4, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else "kvbudget models lists all"
