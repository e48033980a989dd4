"""What values that are made with every request have in common: they are compared and shown by their members.

They are classes written by hand and not NamedTuples: compiled, a NamedTuple is made by the interpreter, which takes
four times as long; not compiled, both take the same. They are not changed once they are made (`Final` members).
"""

from typing import Any, ClassVar, Self


class Value:
    """Base of such a class. `_fields` are its members, in the order of the arguments of its `__init__`."""

    _fields: ClassVar[tuple[str, ...]] = ()
    __slots__ = ()

    def _replace(self, **changes: Any) -> Self:
        """The same with other members, as of a NamedTuple."""
        return type(self)(**{name: getattr(self, name) for name in self._fields} | changes)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _members(self) == _members(other)

    def __hash__(self) -> int:
        return hash(_members(self))

    def __repr__(self) -> str:
        told = [f"{name}={value!r}" for name, value in zip(self._fields, _members(self), strict=True)]
        return f"{type(self).__name__}({', '.join(told)})"


def _members(value: Any) -> tuple[object, ...]:
    return tuple([getattr(value, name) for name in value._fields])
