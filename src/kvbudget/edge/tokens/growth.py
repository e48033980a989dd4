"""How large the result of a filter or method of a chat template can be, told before it is made.

Only of those that can make much of little: padding, joining, replacing, formatting, writing out. Sizes are characters
or members, never too few; a size of TOO_LARGE refuses what no template needs.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

# Largest value in a template: more than the largest prompt, 8 MiB of text.
MAX_SIZE = 16 * 1024 * 1024
TOO_LARGE = MAX_SIZE + 1
MAX_MEMBERS = 1_000_000
MAX_WIDTH = 10_000
MAX_PRECISION = 100
# What orders its members compares and copies each of them several times.
MAX_ORDERED = 100_000
_NUMBER_CHARS = 32
# `%99999d`, `%*d` and `{:>99999}`: widths of five digits or given as a value.
_WIDE = re.compile(r"%[^%a-zA-Z]*(?:\d{5}|\*)|\{[^{}]*:[^{}]*(?:\d{5}|\{)")
_CONTAINERS = (list, tuple, set, frozenset)

Size = Callable[..., int]


def written_size(value: object) -> int:
    """Characters of a value written as JSON or as Python writes it, indentation aside; ends early at TOO_LARGE.

    What stands in it many times counts as many times.
    """
    size, pending = 0, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            size += len(item) + 4
        elif isinstance(item, Mapping):
            size += 2
            pending += item.keys()
            pending += item.values()
        elif isinstance(item, _CONTAINERS):
            size += 2
            pending += item
        else:
            size += _NUMBER_CHARS
        if size + len(pending) > MAX_SIZE:
            return TOO_LARGE
    return size


def formatted_size(pattern: object, values: object, *others: object) -> int:
    """`pattern % values` and `pattern.format(...)`: as if each field took the largest value."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else str(pattern)
    if _WIDE.search(text):
        return TOO_LARGE
    fields = text.count("%") + text.count("{")
    if not fields:
        return len(text)
    largest = max(written_size(value) for value in (values, *others))
    if any(_is_wide(value) for value in (*_flat(values), *others)) and "*" in text:
        return TOO_LARGE
    return len(text) + fields * largest


def _format_method(pattern: object, *args: object, **kwargs: object) -> int:
    if any(_is_wide(value) for value in (*args, *kwargs.values())) and "{" in str(pattern).replace("{}", ""):
        # May be the width of a nested field.
        return TOO_LARGE if re.search(r"\{[^{}]*\{", str(pattern)) else formatted_size(pattern, args, kwargs)
    return formatted_size(pattern, args, kwargs)


def _format_filter(pattern: object, *args: object, **kwargs: object) -> int:
    return formatted_size(pattern, kwargs or args)


def _padded(text: object, width: object = 80, *_rest: object) -> int:
    return TOO_LARGE if _is_wide(width) else _length(text) + MAX_WIDTH


def _tabs(text: object, tabsize: object = 8) -> int:
    if _is_wide(tabsize) or not isinstance(tabsize, int) or not isinstance(text, (str, bytes)):
        return TOO_LARGE
    tabs = text.count("\t") if isinstance(text, str) else text.count(b"\t")
    return len(text) + tabs * max(0, tabsize)


def _indented(text: object, width: object = 4, *_rest: object, **_more: object) -> int:
    wide = len(width) if isinstance(width, str) else width
    if _is_wide(wide) or not isinstance(wide, int):
        return TOO_LARGE
    lines = len(str(text).splitlines()) + 1
    return _length(text) + lines * max(0, wide)


def _joined(values: object, glue: object = "", *_rest: object, **_more: object) -> int:
    if not isinstance(values, Sized) or isinstance(values, (str, bytes)):
        return _length(values) * (1 + _length(glue))
    return written_size(values) + len(values) * _length(glue)


def _join_method(glue: object, values: object = ()) -> int:
    return _joined(values, glue)


def _replaced(text: object, old: object = "", new: object = "", *_count: object, **_more: object) -> int:
    text, old, new = str(text), str(old), str(new)
    found = text.count(old) if old else len(text) + 1
    return len(text) + found * len(new)


def _split(text: object, separator: object = None, *_rest: object, **_more: object) -> int:
    if not isinstance(text, (str, bytes)) or len(text) <= MAX_MEMBERS:
        return _length(text)
    if type(separator) is type(text):
        parts = text.count(separator)  # type: ignore[arg-type]
    else:
        parts = sum(str(text).count(blank) for blank in (" ", "\n", "\t", "\r", "\u3000"))
    return TOO_LARGE if parts > MAX_MEMBERS else len(text)


def _listed(values: object) -> int:
    return TOO_LARGE if isinstance(values, Sized) and len(values) > MAX_MEMBERS else 0


def _ordered(values: object, *_rest: object, **_more: object) -> int:
    if isinstance(values, Sized) and len(values) > MAX_ORDERED:
        return TOO_LARGE
    return 4 * written_size(values) if isinstance(values, (*_CONTAINERS, Mapping, str)) else 0


def _summed(_values: object, _attribute: object = None, start: object = 0) -> int:
    # Lists would be copied once for each of them.
    return 0 if isinstance(start, (int, float)) else TOO_LARGE


def _rounded(_value: object, precision: object = 0, *_rest: object, **_more: object) -> int:
    return TOO_LARGE if not isinstance(precision, int) or abs(precision) > MAX_PRECISION else 0


def _refused(*_args: object, **_kwargs: object) -> int:
    return TOO_LARGE


def _is_wide(value: object) -> bool:
    return isinstance(value, int) and value > MAX_WIDTH


def _flat(values: object) -> Iterable[object]:
    return values if isinstance(values, tuple) else values.values() if isinstance(values, Mapping) else (values,)


def _length(value: object) -> int:
    return len(value) if isinstance(value, Sized) else 0


OF_METHODS: Mapping[str, Size] = {
    "ljust": _padded, "rjust": _padded, "center": _padded, "zfill": _padded, "expandtabs": _tabs,
    "format": _format_method, "format_map": formatted_size, "join": _join_method, "replace": _replaced,
    "split": _split, "rsplit": _split, "splitlines": _split, "translate": _refused, "to_bytes": _refused,
}  # fmt: skip
OF_FILTERS: Mapping[str, Callable[..., Any]] = {
    "center": _padded, "format": _format_filter, "indent": _indented, "join": _joined, "replace": _replaced,
    "list": _listed, "round": _rounded, "sum": _summed, "string": written_size, "sort": _ordered, "unique": _ordered,
    "min": _ordered, "max": _ordered, "dictsort": _ordered, "groupby": _ordered,
}  # fmt: skip
