"""Decides what a CSV says of demand: one row a minute, minutes as numbers or ISO stamps, a gap where one is missing.

Rows are in order of time, each minute once: what is sorted or merged in silence would be another series. An empty cell
is a minute whose demand is not known; damage is refused with its line.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import isfinite

from kvbudget.edge.given_file import given_lines, utf8_only
from kvbudget.errors import BadValueError, printable
from kvbudget.units import decimal_number

TIME_COLUMNS = ("minute", "timestamp", "time")
MOST_MINUTE = 10**10  # the year 20,000; keeps arithmetic on hostile files small
_MOST_STAMP = 4_222_846_079  # the end of the year 9998: a forecast still has a date
_MOST_TOKENS = 1e15
_FIX = "give a CSV with a column minute and one of tokens, one row a minute"


@dataclass(frozen=True, slots=True)
class DemandSeries:
    """`rows`: (minute, tokens or None), ascending. `written`: each minute as the file has it.

    Minutes of ISO stamps count from 1970, UTC where the stamp has no zone; `stamped` says which of the two they are.
    """

    rows: tuple[tuple[int, float | None], ...]
    written: tuple[str, ...]
    stamped: bool
    column: str

    @property
    def missing(self) -> int:
        """Minutes between the first and the last without a value."""
        known = sum(tokens is not None for _, tokens in self.rows)
        return self.rows[-1][0] - self.rows[0][0] + 1 - known

    @property
    def looks_like_usage(self) -> bool:
        """Whether no value is above 1: rather the share of a pool than tokens."""
        return all(tokens is None or tokens <= 1.0 for _, tokens in self.rows)

    def spacing_minutes(self) -> int:
        """What lies between most rows: 1 unless it was recorded more coarsely."""
        gaps = sorted(later[0] - earlier[0] for earlier, later in pairwise(self.rows))
        return gaps[len(gaps) // 2] if gaps else 1


def read_demand(path: str, column: str) -> DemandSeries:
    """The series of a file, `-` is stdin. Raises BadValueError, naming the line, for what cannot be used."""
    shown = printable(path, 200)
    try:
        with given_lines(path, fix=_FIX) as lines:
            return demand_of(utf8_only(lines, path), shown, column)
    except OSError as error:
        raise BadValueError(f"{shown} cannot be read: {error.strerror or error}", fix="check the path") from None


def demand_of(lines: Iterable[str], source: str, column: str) -> DemandSeries:
    """As `read_demand`, of its lines."""
    rows = csv.reader(lines, strict=True)
    found: list[tuple[int, float | None]] = []
    written: list[str] = []
    stamped: bool | None = None
    try:
        header = [name.strip() for name in next(rows, [])]
        time_at, value_at = _columns(header, source, column)
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            where = f"{source}:{rows.line_num}"
            if len(row) != len(header):
                raise BadValueError(f"{where}: {len(row)} fields, the header has {len(header)}", fix="repair this row")
            text = row[time_at].strip()
            is_stamp = not text.isdigit()
            if stamped is not None and is_stamp != stamped:
                raise BadValueError(
                    f"{where}: minutes are numbers in some rows and stamps in others", fix="use one form"
                )
            stamped = is_stamp
            minute = _minute(text, where)
            if found and minute <= found[-1][0]:
                what = "twice" if minute == found[-1][0] else f"after {printable(written[-1], 40)}"
                raise BadValueError(
                    f"{where}: minute {printable(text, 40)} comes {what}", fix="sort the rows, one for each minute"
                )
            found.append((minute, _tokens(row[value_at], column, where)))
            written.append(text)
    except csv.Error as error:
        raise BadValueError(f"{source}:{rows.line_num}: {error}", fix="repair this row") from None
    if not any(tokens is not None for _, tokens in found):
        raise BadValueError(f"{source}: no row with a value", fix=_FIX)
    return DemandSeries(tuple(found), tuple(written), bool(stamped), column)


def _columns(header: list[str], source: str, column: str) -> tuple[int, int]:
    time_column = next((name for name in TIME_COLUMNS if name in header), "")
    if not time_column:
        raise BadValueError(f"{source}:1: no column {TIME_COLUMNS[0]}", fix=_FIX)
    if column not in header:
        named = printable(", ".join(header), 200)
        raise BadValueError(f"{source}:1: no column {printable(column, 60)}", fix=f"--column one of: {named}")
    for name in (time_column, column):
        if header.count(name) > 1:
            raise BadValueError(f"{source}:1: two columns are named {printable(name, 60)}", fix="rename one")
    return header.index(time_column), header.index(column)


def _minute(text: str, where: str) -> int:
    if not text.isdigit():
        try:
            moment = datetime.fromisoformat(text)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
            minute = int(moment.timestamp() // 60)
        except (ValueError, OverflowError):
            raise BadValueError(
                f"{where}: {printable(text, 40)!r} is neither the number of a minute nor an ISO date and time",
                fix="write 123, or 2026-11-30T08:15",
            ) from None
        if not 0 <= minute <= _MOST_STAMP:
            raise BadValueError(f"{where}: {printable(text, 40)} is out of range", fix="give a date from 1970 to 9998")
        return minute
    if not text.isascii() or len(text) > 11 or int(text) > MOST_MINUTE:
        raise BadValueError(
            f"{where}: minute {printable(text, 40)} is out of range", fix=f"count minutes from 0 to {MOST_MINUTE}"
        )
    return int(text)


def _tokens(cell: str, column: str, where: str) -> float | None:
    text = cell.strip()
    if not text:
        return None
    try:
        value = decimal_number(text)
    except ValueError:
        value = float("nan")
    if not (isfinite(value) and 0 <= value <= _MOST_TOKENS):
        raise BadValueError(
            f"{where}: {printable(column, 40)} {printable(text, 40)!r} is no amount of tokens",
            fix="give a number from 0 to 1e15, nothing where it is not known",
        )
    return value
