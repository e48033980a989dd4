"""Typed reading of one member of a JSON object: the value, None when it is absent or null, or a refusal.

Stricter than the engines on purpose: pydantic also takes `"5"`, `5.0` or `true` for 5, and engines differ in that.
"""

from typing import Final, cast

from kvbudget.edge.openai.errors import BadRequestError, shown

LARGEST_INTEGER: Final = 2**53
_OBJECTS: Final = frozenset((dict,))
_FEW: Final = 16

# Where a member stands, as `spelled` writes it. Kept in pieces: a body may hold half a million members, and their
# names are wanted only when one is refused.
Path = tuple[str | int, ...]


def boolean(body: dict[str, object], name: str, at: str = "") -> bool | None:
    """A JSON boolean."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise _wrong(at + name, "a boolean", value)


def integer(body: dict[str, object], name: str, low: int = 0, high: int = LARGEST_INTEGER, at: str = "") -> int | None:
    """A JSON integer within [low, high]; neither 5.0 nor true is one."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise _wrong(at + name, "an integer", value)
    if not low <= value <= high:
        raise BadRequestError(f"{at}{name} must be between {low} and {high}, got {shown(value)}", at + name)
    return value


def string(body: dict[str, object], name: str, at: str = "") -> str | None:
    """A JSON string."""
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _wrong(at + name, "a string", value)


def json_object(body: dict[str, object], name: str, at: str = "") -> dict[str, object] | None:
    """A JSON object."""
    value = body.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise _wrong(at + name, "an object", value)


def json_array(body: dict[str, object], name: str, at: str = "") -> list[object] | None:
    """A JSON array of anything."""
    value = body.get(name)
    if value is None or isinstance(value, list):
        return value
    raise _wrong(at + name, "an array", value)


def objects(body: dict[str, object], name: str, at: str = "") -> tuple[dict[str, object], ...] | None:
    """A JSON array that holds only objects."""
    items = json_array(body, name, at)
    if items is None:
        return None
    if not _are_objects(items):
        index = next(index for index, item in enumerate(items) if not isinstance(item, dict))
        raise _wrong(f"{at}{name}[{index}]", "an object", items[index])
    return tuple(cast("list[dict[str, object]]", items))


def _are_objects(items: list[object]) -> bool:
    if len(items) > _FEW:
        return _OBJECTS.issuperset(map(type, items))  # in C: an array may hold half a million of them
    for item in items:  # noqa: SIM110 - a generator takes longer than the few that there are
        if type(item) is not dict:
            return False
    return True


def has_any(body: dict[str, object], names: frozenset[str]) -> bool:
    """Whether it has a member of one of these names."""
    return not names.isdisjoint(body)


def spelled(path: Path) -> str:
    """`("input", 0, "content")` as `input[0].content`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def refuse(body: dict[str, object], name: str, why: str, at: str = "") -> None:
    """Refuse a member that is present and not null."""
    if body.get(name) is not None:
        raise BadRequestError(f"{at}{name} is not accepted here: {why}", at + name, "unsupported_field")


def _wrong(name: str, what: str, value: object) -> BadRequestError:
    return BadRequestError(f"{name} must be {what}, got {shown(value)}", name)
