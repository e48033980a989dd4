"""Decides what a CSV of the Azure public LLM traces says: when requests arrive, and how long prompt and answer are.

Columns TIMESTAMP (ISO 8601, up to nine digits of a second), ContextTokens, GeneratedTokens, by name. Traces have
millions of rows: no object is made for a row, and a length or a minute that was read before is not read again.
"""

import csv
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.units import is_digits

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
# A length beyond this is damage, not a request; keeps arithmetic on hostile files small.
MAX_LENGTH_TOKENS = 2**31
_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s*(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII
)
_TO_SECONDS, _TO_FRACTION = len("2023-11-16 18:15:"), len("2023-11-16 18:15:46.")
_NS = tuple(10 ** (9 - digits) for digits in range(10))  # of the last of so many digits of a second
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Columns(NamedTuple):
    """One entry a row, in the order of the file: nanoseconds since 1970, tokens, tokens; lengths are as recorded."""

    arrivals_ns: list[int]
    prompts: list[int]
    outputs: list[int]


def azure_columns(lines: Iterable[str], source: str) -> Columns:
    """Every row. Raises BadValueError, naming the line, for a damaged one."""
    rows = csv.reader(lines, strict=True)
    found = Columns([], [], [])
    lengths: dict[str, int] = {}
    minutes: dict[str, int] = {}
    second, start_ns = "", 0  # the one that the row before was in
    try:
        header = [name.strip() for name in next(rows, [])]
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise BadValueError(f"{source}:1: no column {missing[0]}", fix=f"the header must name {', '.join(COLUMNS)}")
        stamp_at, prompt_at, output_at = (header.index(name) for name in COLUMNS)
        fields = len(header)
        for row in rows:
            if len(row) != fields:
                if not row:
                    continue
                where = f"{source}:{rows.line_num}"
                raise BadValueError(f"{where}: {len(row)} fields, the header has {fields}", fix="repair this row")
            stamp, prompt, output = row[stamp_at].strip(), row[prompt_at], row[output_at]
            if prompt not in lengths:
                lengths[prompt] = _tokens(f"{source}:{rows.line_num}: ContextTokens", prompt)
            if output not in lengths:
                lengths[output] = _tokens(f"{source}:{rows.line_num}: GeneratedTokens", output)
            fraction = stamp[_TO_FRACTION:]
            if stamp[:_TO_FRACTION] == second and is_digits(fraction) and len(fraction) <= 9:
                moment = start_ns + int(fraction) * _NS[len(fraction)]
            else:
                moment = _moment_ns(f"{source}:{rows.line_num}", stamp, minutes)
                if stamp[_TO_FRACTION - 1 : _TO_FRACTION] == "." and is_digits(fraction):  # no zone behind it
                    second, start_ns = stamp[:_TO_FRACTION], moment - moment % _NS[0]
            found.arrivals_ns.append(moment)
            found.prompts.append(lengths[prompt])
            found.outputs.append(lengths[output])
    except csv.Error as error:
        raise BadValueError(f"{source}:{rows.line_num}: {error}", fix="repair this row") from None
    return found


def _tokens(what: str, text: str) -> int:
    text = text.strip()
    if not (is_digits(text) and len(text) <= 10 and int(text) <= MAX_LENGTH_TOKENS):
        raise BadValueError(f"{what} {text[:40]!r} is not a count of tokens", fix="repair this row")
    return int(text)


def _moment_ns(where: str, stamp: str, minutes: dict[str, int]) -> int:
    """Nanoseconds since 1970; `minutes` are those that were read before, by their text."""
    minute, plain = stamp[:_TO_SECONDS], _plain_ns(stamp[_TO_SECONDS:])
    if plain >= 0 and minute in minutes:
        return minutes[minute] + plain
    moment = _stamp_ns(where, stamp)
    if plain >= 0:
        minutes[minute] = moment - plain
    return moment


def _plain_ns(seconds: str) -> int:
    """Nanoseconds of `46.6805900` without a zone, -1 for anything else."""
    whole, dot, fraction = seconds.partition(".")
    digits = whole + fraction
    if len(whole) != 2 or whole > "59" or len(fraction) > 9 or not is_digits(digits):
        return -1
    return -1 if dot and not fraction else int(whole + fraction.ljust(9, "0"))


def _stamp_ns(where: str, text: str) -> int:
    """Nanoseconds since 1970 of `2023-11-16 18:15:46.6805900`; datetime alone would cut the seventh digit."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise BadValueError(f"{where}: TIMESTAMP {text[:40]!r} is not an ISO date and time", fix="repair this row")
    offset = timedelta(hours=int(match[10] or 0), minutes=int(match[11] or 0)) * (-1 if match[9] == "-" else 1)
    try:
        year, month, day, hour, minute, second = (int(match[at]) for at in range(1, 7))
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone(offset))
    except ValueError as error:
        raise BadValueError(f"{where}: TIMESTAMP {text[:40]!r}: {error}", fix="repair this row") from None
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int((match[7] or "0").ljust(9, "0"))
