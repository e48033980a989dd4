"""Decides which samples a Prometheus or OpenMetrics text holds; what is damaged or not wanted is left out, never fatal.

Format: Prometheus text exposition 0.0.4 and OpenMetrics 1.0 (exemplars, time stamps, `# EOF`, `_created` series).
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from kvbudget.engines.readings import Sample, plain_name

MAX_LINES = 200_000
_LONGEST_LINE, _LONGEST_LABEL = 65_536, 1024
# Possessive throughout: a damaged line costs its length, not its square.
_LABEL = re.compile(r'\s*+,?+\s*+([A-Za-z_][\w.]*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"')
_SAMPLE = re.compile(
    r'\s*+([A-Za-z_:][\w:.]*+)\s*+(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*+")*+)\})?+\s*+(\S++)(?:\s++(-?[0-9][0-9.eE+]*+))?+'
    r"\s*+(?:#.*+)?+$"
)
_ESCAPED = re.compile(r"\\(.)")
_MILLISECONDS = 1e11  # Prometheus writes time stamps in them, OpenMetrics in seconds


class Exposition(NamedTuple):
    """`samples` in the order of the text, names with `:` as `_`. `helps`: by name of a family. `at_s`: the newest time
    stamp in the text, Unix seconds, None where there is none. `damaged`: how many wanted lines were no samples."""

    samples: tuple[Sample, ...]
    helps: dict[str, str]
    at_s: float | None
    damaged: int


def parsed(text: str, wanted: Callable[[str], bool]) -> Exposition:
    """All samples whose plain name is wanted, of the first 200,000 lines."""
    samples: list[Sample] = []
    helps: dict[str, str] = {}
    newest: float | None = None
    damaged = 0
    for raw in text.split("\n", MAX_LINES)[:MAX_LINES]:
        if raw[:1] == "#":
            if raw.startswith("# HELP "):
                name, _, words = raw[7:].strip().partition(" ")
                if wanted(plain_name(name)):
                    helps[plain_name(name)] = words[:1000]
            continue
        name = raw.partition("{")[0].partition(" ")[0]
        if not name or "\t" in name or "\r" in name:  # blanks before it, or none but blanks
            name = re.split(r"[{\s]", raw.strip(), maxsplit=1)[0]
        name = plain_name(name)
        if not name or not wanted(name):
            continue
        line = raw[:_LONGEST_LINE]
        match = _SAMPLE.match(line)
        value = None if match is None else _number(match[3])
        labels = {} if match is None else labels_in(match[2] or "")
        if match is None or value is None or labels is None:
            damaged += 1
            continue
        samples.append(Sample(name, {key: shown(text) for key, text in labels.items()}, value))
        stamp = _number(match[4]) if match[4] else None
        if stamp is not None and 0 < stamp < float("inf"):
            stamp = stamp / 1000 if stamp > _MILLISECONDS else stamp
            newest = stamp if newest is None else max(newest, stamp)
    return Exposition(tuple(samples), helps, newest, damaged)


def shown(label: str) -> str:
    """A label's value as it may reach a terminal, and no longer than anybody reads."""
    if label.isprintable():
        return label[:_LONGEST_LABEL]
    return "".join(c if c.isprintable() else "?" for c in label[:_LONGEST_LABEL])


def labels_in(text: str) -> dict[str, str] | None:
    """The labels between two braces; None when they are damaged."""
    labels: dict[str, str] = {}
    at = 0
    while match := _LABEL.match(text, at):
        value = match[2]
        labels[match[1]] = _ESCAPED.sub(_unescaped, value) if "\\" in value else value
        at = match.end()
    return labels if not text[at:].strip(" \t,") else None


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _number(text: str) -> float | None:
    """Go writes +Inf and NaN; Python takes them, and also 1_000 and other scripts' digits: no numbers here."""
    if "_" in text or len(text) > 64 or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None
