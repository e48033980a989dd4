"""Decides what lengths a plain CSV holds: one request a row, two columns that its header names.

`prompt_tokens,completion_tokens`, `prompt,completion`, `input_tokens,output_tokens` and the like, in any order and
case, beside any other columns; commas, semicolons or tabs between them.
"""

import csv
from collections.abc import Iterable

from kvbudget.edge.traces.azure import MAX_LENGTH_TOKENS
from kvbudget.errors import BadValueError
from kvbudget.planner.workload.mix import Workload
from kvbudget.units import Tokens, is_digits

_PROMPT = ("prompt_tokens", "input_tokens", "prompt", "input", "input_length", "num_prompt_tokens", "prompt_length")
_OUTPUT = (
    "completion_tokens", "output_tokens", "completion", "output", "output_length", "generated_tokens",
    "num_output_tokens", "completion_length",
)  # fmt: skip
WANTED = (
    "a CSV names its columns: prompt_tokens,completion_tokens (or prompt,completion; or input_tokens,output_tokens)"
)
_SEPARATORS = (",", ";", "\t")
_LONGEST_SHOWN = 60


def is_table(header: str) -> bool:
    """Whether a first line names both columns."""
    return _separator(header) != ""


def is_aside(line: str) -> bool:
    """Whether a line before the header says nothing: empty, or a comment."""
    return not line.strip() or line.lstrip().startswith("#")


def requests_from_table(lines: Iterable[str], source: str) -> Workload:
    """Every row with a token is a request; a length of 0 then becomes 1. Raises BadValueError, naming the line."""
    rest = iter(lines)
    number, header = next(((at, line) for at, line in enumerate(rest, 1) if not is_aside(line)), (1, ""))
    separator = _separator(header)
    if not separator:
        shown = header.strip()[:_LONGEST_SHOWN]
        raise BadValueError(f"{source}:{number}: {shown!r} names no columns of lengths", fix=WANTED)
    names = _names(header, separator)
    prompt_at, output_at = _first_of(_PROMPT, names), _first_of(_OUTPUT, names)
    twice = next((names[at] for at in (prompt_at, output_at) if names.count(names[at]) > 1), "")
    if twice:
        raise BadValueError(
            f"{source}:{number}: two columns are named {twice}", fix="rename the one that does not count"
        )
    rows = csv.reader(rest, delimiter=separator, strict=True)
    requests: list[tuple[Tokens, Tokens]] = []
    try:
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            where = f"{source}:{number + rows.line_num}"
            if len(row) != len(names):
                raise BadValueError(f"{where}: {len(row)} fields, the header has {len(names)}", fix="repair this row")
            prompt = _count(row[prompt_at], names[prompt_at], where)
            output = _count(row[output_at], names[output_at], where)
            if prompt or output:
                requests.append((Tokens(max(1, prompt)), Tokens(max(1, output))))
    except csv.Error as error:
        raise BadValueError(f"{source}:{number + rows.line_num}: {error}", fix="repair this row") from None
    return Workload(tuple(requests), "trace", source)


def _separator(header: str) -> str:
    """The first that leaves both names; "" where none does."""
    for separator in _SEPARATORS:
        names = _names(header, separator)
        if _first_of(_PROMPT, names) >= 0 and _first_of(_OUTPUT, names) >= 0:
            return separator
    return ""


def _names(header: str, separator: str) -> list[str]:
    return [name.strip().strip('"').strip().lower() for name in header[:10_000].split(separator)]


def _first_of(wanted: tuple[str, ...], names: list[str]) -> int:
    return next((names.index(name) for name in wanted if name in names), -1)


def _count(text: str, name: str, where: str) -> Tokens:
    """A whole number, also as `374.0`, which data frames write."""
    digits = text.strip().removesuffix(".0")
    if not (is_digits(digits) and len(digits) <= 10 and int(digits) <= MAX_LENGTH_TOKENS):
        raise BadValueError(f"{where}: {name} {text.strip()[:40]!r} is not a count of tokens", fix="repair this row")
    return Tokens(int(digits))
