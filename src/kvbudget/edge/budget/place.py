"""Decides in which line of a TOML file a value stands, so that an error about its meaning can say where it is."""

import tomllib


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """The line, from 1, of the value with that path, or of the nearest table or value around it; None if there is none.

    Entries of an array of tables are `[0]`, `[1]`... Values within inline tables and lists have the line of their
    beginning. Lines inside of a multi-line text are looked at as well: a place that is only told may be wrong there.
    """
    table: tuple[str, ...] = ()
    arrays: dict[tuple[str, ...], int] = {}
    found, depth = None, 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            double = stripped.startswith("[[")
            names = _names(stripped.lstrip("[").partition("]")[0] if '"' not in stripped else stripped.strip("[] "))
            if not names:
                continue
            table = _within(arrays, names, opens=double)
            here = table
        elif "=" in stripped and not stripped.startswith("#"):
            here = (*table, *_names(stripped.partition("=")[0]))
        else:
            continue
        if len(here) > depth and here == path[: len(here)]:
            found, depth = number, len(here)
    return found


def _within(arrays: dict[tuple[str, ...], int], names: tuple[str, ...], *, opens: bool) -> tuple[str, ...]:
    """The path of a header: each name that is an array of tables is followed by the number of its newest entry."""
    path: tuple[str, ...] = ()
    for depth, name in enumerate(names, 1):
        path = (*path, name)
        if opens and depth == len(names):
            arrays[path] = arrays.get(path, -1) + 1
        if path in arrays:
            path = (*path, f"[{arrays[path]}]")
    return path


def _names(dotted: str) -> tuple[str, ...]:
    """`gate.keys."a b"` in parts; empty for what is no key."""
    try:
        level: object = tomllib.loads(f"{dotted} = 0")
    except (ValueError, RecursionError):
        return ()
    names = []
    while isinstance(level, dict) and level:
        ((name, level),) = level.items()
        names.append(name)
    return tuple(names)
