"""Decides in which language help is shown: English, or Chinese where KVBUDGET_LANG or the locale says so.

Only help: what programs read (JSON, errors, codes) has one language. Examples stay as they are typed.
"""

import argparse
import json
from collections.abc import Mapping
from importlib.resources import files

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


def put_into(known: Mapping[str, str], parser: argparse.ArgumentParser, summary: str) -> None:
    """Headings, what the command does and what each flag means; a text that is not `known` stays."""
    parser.description = known.get(summary, parser.description)
    for group in parser._action_groups:
        group.title = known.get(group.title or "", group.title)
    for action in parser._actions:
        if action.help:
            action.help = known.get(action.help, action.help)
