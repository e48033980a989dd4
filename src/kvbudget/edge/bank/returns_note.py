"""Decides the form in which gates leave each other whom they have told to come back: packed JSON of a bounded size.

Clocks of gates that begin anywhere mean nothing elsewhere, so times are of the wall, in ms. What comes was written by
another gate, or by whoever may write to the ledger: everything is looked at.
"""

from collections.abc import Mapping
from typing import Any, Final

from kvbudget.edge.bank.note_text import document_of, text_of
from kvbudget.errors import BadValueError
from kvbudget.gate.bank.appointments import MOST_CAME, MOST_DUE, Came, Due, Word
from kvbudget.gate.bank.board import LONGEST_NOTE

VERSION: Final = 1
MOST_POOLS: Final = 64  # in one note
_LARGEST_BYTES: Final = 128 * 1024  # unpacked
_LARGEST: Final = 1 << 53
_LONGEST_WAIT_MS: Final = 3_600_000
_LONGEST_NAME: Final = 1024
_MS: Final = 10**6


def packed(words: Mapping[str, Word], ahead_ns: int) -> str:
    """Of each pool as much as has room in a note. `ahead_ns`: of the wall's clock before the one that words go by."""
    most = MOST_DUE
    while True:
        rows = [[pool, *_rows(word, most, ahead_ns)] for pool, word in list(words.items())[:MOST_POOLS]]
        text = text_of([VERSION, rows], 1)
        if len(text) <= LONGEST_NOTE or not most:
            return text if len(text) <= LONGEST_NOTE else ""
        most = most * LONGEST_NOTE // (len(text) + 1)


def unpacked(text: str, ahead_ns: int) -> dict[str, Word]:
    """Raises BadValueError for what `packed` did not give, or gave in another version."""
    match document_of(text, _LARGEST_BYTES, "times told"):
        case [int(version), list(rows)] if version == VERSION and len(rows) <= MOST_POOLS:
            return dict([_word(row, ahead_ns) for row in rows])
    raise BadValueError("times told in another version", fix="run one version of gates")


def _rows(word: Word, most: int, ahead_ns: int) -> tuple[list[Any], list[Any]]:
    due = [
        [one.number, one.name, (one.told_ns + ahead_ns) // _MS, (one.due_ns + ahead_ns) // _MS, *one[4:]]
        for one in word.due[:most]
    ]  # fmt: skip
    return due, [list(one) for one in word.came[:most]]


def _word(row: Any, ahead_ns: int) -> tuple[str, Word]:
    match row:
        case [str(pool), list(due), list(came)] if len(due) <= MOST_DUE and len(came) <= MOST_CAME:
            word = Word(tuple([_due(one, ahead_ns) for one in due]), tuple([_came(one) for one in came]))
            if 0 < len(pool) <= _LONGEST_NAME:
                return pool, word
    raise BadValueError(f"no times of a pool: {str(row)[:80]}", fix="leave it")


def _due(row: Any, ahead_ns: int) -> Due:
    match row:
        case [int(number), str(name), int(told_ms), int(due_ms), int(percent), int(blocks), int(peak_blocks)]:
            figures = (number, told_ms, due_ms, percent, blocks, peak_blocks)
            is_within = min(figures) >= 0 and max(figures) < _LARGEST and 0 <= due_ms - told_ms <= _LONGEST_WAIT_MS
            if is_within and 0 < len(name) <= 64 and percent <= 100:
                return Due(number, name, told_ms * _MS - ahead_ns, due_ms * _MS - ahead_ns, *figures[3:])
    raise BadValueError(f"nobody who was told: {str(row)[:80]}", fix="leave it")


def _came(row: Any) -> Came:
    match row:
        case [str(life), int(number), int(asked)] if 0 < len(life) <= _LONGEST_NAME:
            if 0 <= number < _LARGEST and 0 <= asked < _LARGEST:
                return Came(life, number, asked)
    raise BadValueError(f"nobody who came: {str(row)[:80]}", fix="leave it")
