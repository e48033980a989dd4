"""What gates leave each other of lengths: small, whole, and harmless whoever wrote it."""

import base64
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.bank.lengths_note import packed, unpacked
from kvbudget.errors import BadValueError
from kvbudget.gate.bank.board import LONGEST_NOTE
from kvbudget.gate.bank.experience import MOST_HABITS, Told
from kvbudget.gate.learning.lengths import MEMORY
from kvbudget.pool.survival import BINS

ROOT = Told((), 7.5, 0, 700, ((3, 100, 250), (40, 600, 700)))
ONE = Told(("acme", "chat m", "11"), 3.0, 1024, 300, ((20, 300, 300),))


def text_of(document: Any) -> str:
    return base64.b64encode(zlib.compress(orjson.dumps(document))).decode()


def test_what_is_packed_comes_back() -> None:
    assert unpacked(packed([ROOT, ONE])) == [ROOT, ONE]
    assert packed([]) == ""


def test_names_of_all_languages_and_lengths_have_room_or_are_left_out() -> None:
    many = [ROOT] + [
        Told((f"租户 {number}" * 20, f"chat {number * 7919}", str(number)), 1.0 / 3 * number, 0, 100,
             tuple((k, (k * number * 31) % 25_000, (k * number * 57) % 999_983) for k in range(BINS)))
        for number in range(1, MOST_HABITS)
    ]  # fmt: skip
    text = packed(many)
    assert LONGEST_NOTE // 2 < len(text) <= LONGEST_NOTE
    told = unpacked(text)
    assert told == many[: len(told)]


@pytest.mark.parametrize(
    "document",
    [
        7,
        [],
        [2, MEMORY, []],
        [1, MEMORY + 1, []],
        [1, MEMORY, 5],
        [1, MEMORY, [5]],
        [1, MEMORY, [[[], 0, 0, 100]]],
        [1, MEMORY, [[["one"], 0, 0, 100, []]]],
        [1, MEMORY, [[["one", 2], 0, 0, 100, []]]],
        [1, MEMORY, [[["one", "x" * 600], 0, 0, 100, []]]],
        [1, MEMORY, [[[], -1, 0, 100, []]]],
        [1, MEMORY, [[[], "1", 0, 100, []]]],
        [1, MEMORY, [[[], 1e300, 0, 100, []]]],
        [1, MEMORY, [[[], 0, -5, 100, []]]],
        [1, MEMORY, [[[], 0, 1 << 40, 100, []]]],
        [1, MEMORY, [[[], 0, 0, 10**6, []]]],
        [1, MEMORY, [[[], 0, 0, 100, [[BINS, 1, 1]]]]],
        [1, MEMORY, [[[], 0, 0, 100, [[-1, 1, 1]]]]],
        [1, MEMORY, [[[], 0, 0, 100, [[1, -1, 1]]]]],
        [1, MEMORY, [[[], 0, 0, 100, [[1, 1, 10**12]]]]],
        [1, MEMORY, [[[], 0, 0, 100, [[1, 1.5, 1]]]]],
        [1, MEMORY, [[[], 0, 0, 100, [[1, 1, 1], [1, 1, 1]]]]],
        [1, MEMORY, [[[], 0, 0, 100, []]] * (MOST_HABITS + 1)],
    ],
)
def test_what_is_no_statement_is_refused_whole(document: Any) -> None:
    with pytest.raises(BadValueError):
        unpacked(text_of(document))


def test_what_unpacks_to_more_than_there_may_be_is_refused() -> None:
    with pytest.raises(BadValueError, match="more than"):
        unpacked(base64.b64encode(zlib.compress(b" " * (1 << 20))).decode())
    with pytest.raises(BadValueError):
        unpacked(base64.b64encode(zlib.compress(b"[1, 256, []]")[:-3]).decode())


@given(st.one_of(st.text(), st.binary().map(lambda data: base64.b64encode(data).decode())))
def test_any_text_is_a_statement_or_refused(text: str) -> None:
    with pytest.raises(BadValueError):
        unpacked(text)
