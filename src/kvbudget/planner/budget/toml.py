"""Decides how a budget is written as TOML: one way for each value, in the order given, so that two writes are equal.

Only what budgets are made of: strings, whole and decimal numbers, booleans, lists, tables and lists of tables.
"""

from collections.abc import Mapping, Sequence
from math import isfinite

_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_SHORT_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
_WIDTH = 110


def toml_text(document: Mapping[str, object], comments: Mapping[str, str], head: str = "") -> str:
    """The text. `comments` go above the table, or beside the key, of that dotted path; `head` stands at the top.

    Raises TypeError for a value that TOML has no form for: a bug of the caller.
    """
    lines = [*_commented(head), ""] if head else []
    _table(lines, (), document, comments)
    return "\n".join(lines).strip("\n") + "\n"


def _table(lines: list[str], path: tuple[str, ...], table: Mapping[str, object], comments: Mapping[str, str]) -> None:
    """Plain keys first: in TOML they would otherwise belong to the last sub-table."""
    for key, value in table.items():
        if not _is_table(value) and not _is_tables(value):
            comment = comments.get(".".join((*path, key)), "")
            lines.append(f"{_key(key)} = {_value(value)}" + (f"  # {comment}" if comment else ""))
    for key, value in table.items():
        below = (*path, key)
        name = ".".join(_key(part) for part in below)
        if isinstance(value, Mapping):
            lines += ["", *_commented(comments.get(".".join(below), "")), f"[{name}]"]
            _table(lines, below, value, comments)
        elif _is_tables(value):
            assert isinstance(value, Sequence)  # noqa: S101 - as _is_tables says
            for number, entry in enumerate(value):
                lines += ["", *(_commented(comments.get(".".join(below), "")) if number == 0 else []), f"[[{name}]]"]
                _table(lines, below, entry, comments)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _commented(text: str) -> list[str]:
    return [f"# {line}".rstrip() for line in text.split("\n")] if text else []


def _key(key: str) -> str:
    return key if key and _BARE.issuperset(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if not isfinite(value):
            return "inf" if value > 0 else "-inf" if value < 0 else "nan"
        text = float.__repr__(value)
        return text if any(sign in text for sign in ".e") else text + ".0"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        parts = [_value(entry) for entry in value]
        line = f"[{', '.join(parts)}]"
        return line if len(line) <= _WIDTH else "[\n" + "".join(f"  {part},\n" for part in parts) + "]"
    raise TypeError(f"{type(value).__name__} has no form in TOML")


def _string(text: str) -> str:
    return '"' + "".join(_SHORT_ESCAPES.get(c) or _escaped(c) for c in text) + '"'


def _escaped(c: str) -> str:
    code = ord(c)
    if 0xD800 <= code <= 0xDFFF:
        return "\\uFFFD"  # half a character, from bytes that are no UTF-8: TOML knows only whole ones
    return f"\\u{code:04X}" if code < 0x20 or code == 0x7F else c
