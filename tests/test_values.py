from typing import ClassVar, Final

import pytest

from kvbudget.edge.openai.prompts import ChatPrompt
from kvbudget.edge.request.identity import Identity
from kvbudget.edge.request.record import Asked
from kvbudget.edge.surfaces.ask import Ask, Surface
from kvbudget.edge.tokens.count import Count
from kvbudget.gate.commands import Forward
from kvbudget.gate.events import Arrived, Ended
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.units import Blocks, Tokens
from kvbudget.values import Value


class Pair(Value):
    _fields: ClassVar = ("first", "second")
    __slots__ = _fields

    def __init__(self, first: int, second: object = None) -> None:
        self.first: Final = first
        self.second: Final = second


class Other(Pair):
    __slots__ = ()


CHAT = ChatPrompt(({"role": "user"},), None, True, False, {}, False)
EACH = [
    Arrived("a", (Tokens(3),), None, Tokens(16), exact=False, route="chat m", model="m"),
    Ended("a", Outcome.FINISHED, Tokens(5)),
    Forward("a", Blocks(2), Tokens(16), 0),
    Ask(Surface.CHAT, "m", False, 1, None, "max_tokens", CHAT, None, {}, b"{}", paced=True),
    CHAT,
    Count((Tokens(3),), exact=True),
    Identity(b"a", "tenant", 1),
    Asked("chat", "m", True, 1, None),
]


def test_values_are_equal_by_their_members_and_of_one_class_only() -> None:
    assert Pair(1, "b") == Pair(1, "b")
    assert Pair(1, "b") != Pair(2, "b")
    assert Pair(1, "b") != (1, "b")
    assert Pair(1) != Other(1)
    assert hash(Pair(1, "b")) == hash(Pair(1, "b"))
    assert len({Pair(1), Pair(1), Pair(2)}) == 2


def test_a_value_shows_its_members() -> None:
    assert repr(Pair(1, "b")) == "Pair(first=1, second='b')"


def test_a_value_with_another_member_is_another_one() -> None:
    pair = Pair(1, "b")
    assert pair._replace(second=3) == Pair(1, 3)
    assert pair == Pair(1, "b")
    with pytest.raises(TypeError):
        pair._replace(third=3)


@pytest.mark.parametrize("value", EACH, ids=lambda value: type(value).__name__)
def test_what_is_made_with_every_request_is_made_anew_of_its_members(value: Value) -> None:
    again = value._replace()
    assert again == value
    assert again is not value
    assert repr(again) == repr(value)
