"""What gates leave each other of clients who are to come back: small, whole, and harmless whoever wrote it."""

import base64
import random
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.bank.returns_note import MOST_POOLS, packed, unpacked
from kvbudget.errors import BadValueError
from kvbudget.gate.bank.appointments import MOST_CAME, MOST_DUE, Came, Due, Word
from kvbudget.gate.bank.board import LONGEST_NOTE

MS = 10**6
WALL_NS = 1_700_000_000_000 * MS
ONE = Word((Due(3, "00ff", 5 * MS, 9 * MS, 80, 40, 50),), (Came("host-7-abc", 12, 3),))


def text_of(document: Any) -> str:
    return base64.b64encode(zlib.compress(orjson.dumps(document))).decode()


def test_what_is_packed_comes_back_by_the_clock_of_who_reads_it() -> None:
    text = packed({"http://one": ONE, "two": Word()}, WALL_NS)
    assert unpacked(text, WALL_NS) == {"http://one": ONE, "two": Word()}
    assert unpacked(text, WALL_NS - 20 * MS)["http://one"].due[0] == Due(3, "00ff", 25 * MS, 29 * MS, 80, 40, 50)


def test_what_has_no_room_is_left_out_those_that_come_last_first() -> None:
    def word(pool: int) -> Word:
        names = [f"{(n + 1) * (pool + 1) * 0x9E3779B97F4A7C15 % 2**64:016x}" for n in range(MOST_DUE)]
        due = [Due(n, name, n * MS, 4 * n * MS, 80, n, n) for n, name in enumerate(names)]
        return Word(tuple(due), tuple([Came(f"host-{name}", n, 0) for n, name in enumerate(names[:MOST_CAME])]))

    text = packed({f"http://engine-{n}:8000": word(n) for n in range(40)}, WALL_NS)
    assert LONGEST_NOTE // 3 < len(text) <= LONGEST_NOTE
    words = unpacked(text, WALL_NS)
    assert len(words) == 40
    kept = words["http://engine-0:8000"].due
    assert kept == word(0).due[: len(kept)]
    assert kept
    assert len(unpacked(packed({str(n): ONE for n in range(MOST_POOLS + 9)}, WALL_NS), WALL_NS)) == MOST_POOLS
    chance = random.Random(1)
    names = {chance.randbytes(300).hex(): Word() for _ in range(MOST_POOLS)}
    assert packed(names, WALL_NS) == ""  # names alone are too long


@pytest.mark.parametrize(
    "document",
    [
        7,
        [],
        [2, []],
        [1, 5],
        [1, [["pool"]]],
        [1, [[5, [], []]]],
        [1, [["", [], []]]],
        [1, [["x" * 2000, [], []]]],
        [1, [["pool", [], []]] * (MOST_POOLS + 1)],
        [1, [["pool", [[1, "a", 1, 2, 0, 1, 1]] * (MOST_DUE + 1), []]]],
        [1, [["pool", [], [["a", 1, 1]] * (MOST_CAME + 1)]]],
        [1, [["pool", [[1, "a", 1, 2, 1]], []]]],
        [1, [["pool", [[1, "", 1, 2, 0, 1, 1]], []]]],
        [1, [["pool", [[1, "a" * 65, 1, 2, 0, 1, 1]], []]]],
        [1, [["pool", [[-1, "a", 1, 2, 0, 1, 1]], []]]],
        [1, [["pool", [[1, "a", 3, 2, 0, 1, 1]], []]]],
        [1, [["pool", [[1, "a", 1, 2**60, 0, 1, 1]], []]]],
        [1, [["pool", [[1, "a", 1, 3_600_002, 0, 1, 1]], []]]],
        [1, [["pool", [[1, "a", 1, 2, 0, 1.5, 1]], []]]],
        [1, [["pool", [[1, "a", 1, 2, 101, 1, 1]], []]]],
        [1, [["pool", [], [["a", 1]]]]],
        [1, [["pool", [], [["", 1, 1]]]]],
        [1, [["pool", [], [["a", -1, 1]]]]],
        [1, [["pool", [], [["a", 1, 2**60]]]]],
    ],
)
def test_what_is_no_note_is_refused(document: Any) -> None:
    with pytest.raises(BadValueError):
        unpacked(text_of(document), WALL_NS)


def test_bombs_and_broken_texts_are_refused() -> None:
    for text in (text_of([1, ["x" * 10**6]]), text_of([1, []])[:-6], "é", "AAAA", ""):
        with pytest.raises(BadValueError):
            unpacked(text, WALL_NS)


@given(st.text(max_size=40) | st.binary(max_size=60).map(lambda data: base64.b64encode(zlib.compress(data)).decode()))
def test_no_text_breaks_it(text: str) -> None:
    try:
        unpacked(text, WALL_NS)
    except BadValueError:
        pass
