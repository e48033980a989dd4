"""Decides when two values are one for a cache of results: only when they are one object.

A model's layers, weights and formats never change, and to hash all of them costs more than most of what they decide.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class Same(Generic[T]):
    """`value`, equal to itself alone. A cache that holds it keeps the object alive, so no other takes its place."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value
