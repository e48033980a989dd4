"""Decides the form in which gates leave each other what they have learned of lengths: packed JSON of a bounded size.

What comes was written by another gate, or by whoever may write to the ledger: everything is looked at.
"""

from typing import Any, Final

from kvbudget.edge.bank.note_text import document_of, text_of
from kvbudget.errors import BadValueError
from kvbudget.gate.bank.board import LONGEST_NOTE
from kvbudget.gate.bank.experience import MOST_HABITS, Told
from kvbudget.gate.learning.lengths import MEMORY, Key
from kvbudget.pool.survival import BINS

VERSION: Final = 1
_LARGEST_BYTES: Final = 512 * 1024  # unpacked
_MOST_HUNDREDTHS: Final = 100 * MEMORY + 100  # what fades by a 256th with each answer comes to no more
_MOST_PASSED: Final = 10**9  # hundredths of sequences in a bin
_MOST_FADED: Final = 1e12
_LARGEST_LIMIT: Final = 1 << 30
_LONGEST_NAME: Final = 512


def packed(statement: list[Told]) -> str:
    """As much of it as has room in a note, the first before the others; empty where there is nothing."""
    while statement:
        rows = [[list(one.key), one.faded, one.limit, one.hundredths, one.bins] for one in statement]
        text = text_of([VERSION, MEMORY, rows], 6)
        if len(text) <= LONGEST_NOTE:
            return text
        statement = statement[: min(len(statement) - 1, len(statement) * LONGEST_NOTE // len(text))]
    return ""


def unpacked(text: str) -> list[Told]:
    """Raises BadValueError for what `packed` did not give, or gave in another version."""
    match document_of(text, _LARGEST_BYTES, "learned lengths"):
        case [int(version), int(memory), list(rows)] if (version, memory) == (VERSION, MEMORY):
            if len(rows) > MOST_HABITS:
                raise BadValueError(f"learned lengths of {len(rows)} keys", fix="leave them")
            return [_told(row) for row in rows]
    raise BadValueError("learned lengths of another version", fix="run one version of gates")


def _told(row: Any) -> Told:
    match row:
        case [list(key), int() | float() as faded, int(limit), int(hundredths), list(bins)]:
            told = Told(_key(key), float(faded), limit, hundredths, tuple([_bin(one) for one in bins]))
            if _is_within(told) and len({k for k, _, _ in told.bins}) == len(told.bins):
                return told
    raise BadValueError(f"no habit: {str(row)[:80]}", fix="leave it")


def _key(parts: list[Any]) -> Key:
    if len(parts) not in (0, 2, 3, 4) or not all(isinstance(one, str) and len(one) <= _LONGEST_NAME for one in parts):
        raise BadValueError(f"no key: {str(parts)[:80]}", fix="leave it")
    return tuple(parts)


def _bin(row: Any) -> tuple[int, int, int]:
    match row:
        case [int(k), int(ended), int(entered)] if 0 <= k < BINS and 0 <= ended <= _MOST_HUNDREDTHS:
            if 0 <= entered <= _MOST_PASSED:
                return k, ended, entered
    raise BadValueError(f"no bin: {str(row)[:80]}", fix="leave it")


def _is_within(told: Told) -> bool:
    return (
        0.0 <= told.faded <= _MOST_FADED
        and 0 <= told.limit <= _LARGEST_LIMIT
        and (0 <= told.hundredths <= _MOST_HUNDREDTHS)
    )
