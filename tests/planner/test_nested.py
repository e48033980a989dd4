"""Named tuples as JSON."""

from typing import NamedTuple

from kvbudget.planner.nested import document


class Inner(NamedTuple):
    a: int


class Outer(NamedTuple):
    inner: Inner | None
    many: tuple[Inner, ...]
    word: str


def test_fields_become_keys_at_every_depth() -> None:
    assert document(Outer(Inner(1), (Inner(2),), "x")) == {"inner": {"a": 1}, "many": [{"a": 2}], "word": "x"}
