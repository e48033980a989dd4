"""The form in which the gates of one machine and their ledger talk over a Unix socket: one JSON array a line."""

from typing import Any, Final, NamedTuple

import orjson

from kvbudget.gate.bank.board import LONGEST_NOTE, Notes, Put
from kvbudget.gate.bank.terms import Answer, Call, Line, Reading, Slice

LONGEST_LINE: Final = 256 * 1024
WOKEN: Final = -1  # in place of the number of a question: nobody asked
_MOST_LINES: Final = 256  # accounts of one pool
_LONGEST_NAME: Final = 1024
_LARGEST: Final = 1 << 53


class LineError(Exception):
    """What came is none of these lines."""


class Asked(NamedTuple):
    """A gate's line. `number`: that the answer comes with."""

    number: int
    pool: str
    call: Call


class Left(NamedTuple):
    """A gate's line that leaves a note on the board of a topic."""

    number: int
    topic: str
    put: Put


class Told(NamedTuple):
    """The ledger's line: the answer to question `number`, or (WOKEN) the `branch` before `pool` that should call."""

    number: int
    answer: Answer | Notes | None
    pool: str = ""
    branch: str = ""


def left_line(left: Left) -> bytes:
    """With its end of line."""
    return _line([left.number, left.topic, *left.put])


def asked_line(asked: Asked) -> bytes:
    """With its end of line."""
    call = asked.call
    flags = [call.priority, call.waited_ms, call.leaves, call.reading and tuple(call.reading)]
    lines = [tuple(line) for line in call.lines]
    return _line([asked.number, asked.pool, call.branch, call.number, call.lease_ms, lines, *flags])


def told_line(told: Told) -> bytes:
    """With its end of line."""
    if told.number == WOKEN:
        return _line([WOKEN, told.pool, told.branch])
    answer = told.answer
    if answer is None:
        return _line([told.number])
    if isinstance(answer, Notes):
        return _line([told.number, *answer])
    slices = {account: (one.granted, one.elsewhere) for account, one in answer.slices.items()}
    figures = [answer.number, answer.known, answer.short, answer.settling, answer.branches, slices]
    figures += [answer.yields_to, answer.missing]
    return _line([told.number, *figures])


def asked_in(line: bytes) -> Asked | Left:
    """Raises LineError for what is no question: every figure is looked at, as it is reckoned with."""
    match _array(line):
        case [int(number), str(topic), str(life), int(count), int(seen), str(text)]:
            if not (_is_name(topic) and _is_name(life)) or min(number, count - 1, seen) < 0 or len(text) > LONGEST_NOTE:
                raise LineError(f"no note: {line[:100]!r}")
            return Left(number, topic, Put(life, count, seen, text))
        case [int(number), str(pool), str(branch), int(count), int(lease_ms), list(rows), int(priority), int(waited_ms),
              bool(leaves), None | list() as reading]:  # fmt: skip
            named = _is_name(pool) and _is_name(branch) and len(rows) <= _MOST_LINES
            if not named or min(number, count - 1, lease_ms - 1, waited_ms) < 0 or abs(priority) > _LARGEST:
                raise LineError(f"no call: {line[:100]!r}")
            lines = tuple([_row(row) for row in rows])
            call = Call(branch, count, lease_ms, lines, priority, waited_ms, leaves, _reading(reading))
            return Asked(number, pool, call)
    raise LineError(f"no call: {line[:100]!r}")


def told_in(line: bytes) -> Told:
    """Raises LineError for what is no answer."""
    match _array(line):
        case [int(number), str(pool), str(branch)] if number == WOKEN:
            return Told(WOKEN, None, pool, branch)
        case [int(number)] if number >= 0:
            return Told(number, None)
        case [int(number), int(seen), bool(known), list(rows)]:
            return Told(number, Notes(seen, known, tuple([_note(row) for row in rows])))
        case [int(number), int(count), bool(known), bool(short), bool(settling), int(branches), dict(slices),
              int() | None as yields_to, bool(missing)]:  # fmt: skip
            try:
                found = {account: Slice(int(granted), int(away)) for account, (granted, away) in slices.items()}
            except (TypeError, ValueError) as error:
                raise LineError(f"no answer: {line[:100]!r}") from error
            return Told(number, Answer(count, known, short, settling, branches, found, yields_to, missing))
    raise LineError(f"no answer: {line[:100]!r}")


def _line(values: list[Any]) -> bytes:
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


def _array(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise LineError(f"no JSON: {line[:100]!r}") from error


def _row(row: object) -> Line:
    match row:
        case [str(account), int(limit), int(keeps), int(needs), int(wants), int(promised)] if _is_name(account):
            line = Line(account, limit, keeps, needs, wants, promised)
            if min(line[1:]) >= 0 and max(line[1:]) <= _LARGEST:
                return line
    raise LineError(f"no account: {str(row)[:100]}")


def _note(row: object) -> tuple[str, str]:
    match row:
        case [str(life), str(text)]:
            return life, text
    raise LineError(f"no note: {str(row)[:100]}")


def _reading(figures: list[Any] | None) -> Reading | None:
    match figures:
        case None:
            return None
        case [int(held), int(sequences), int(age_ms)] if min(figures) >= 0 and max(figures) <= _LARGEST:
            return Reading(held, sequences, age_ms)
    raise LineError(f"no look at an engine: {str(figures)[:100]}")


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_NAME
