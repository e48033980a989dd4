"""Decides what a trace file says: which requests arrive when, how long their prompts are and how long their answers.

Three forms are read:

- `azure`: CSV of the Azure public LLM traces (TIMESTAMP, ContextTokens, GeneratedTokens); stamps are ISO 8601 with up
  to nine digits of a second.
- `mooncake`: JSON lines of the Mooncake traces (timestamp in ms, input_length, output_length, hash_ids).
- `jsonl`: our own: JSON lines with arrival_s, prompt_tokens, output_tokens, and optionally max_tokens (what the client
  declared), tenant, hash_ids.

Arrivals are counted from the first request. Every row is used or the file is refused: a trace that is silently half
read gives a load that nobody meant.
"""

import csv
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

from kvbudget.errors import BadValueError
from kvbudget.units import Tokens

FORMATS = ("azure", "mooncake", "jsonl")
# A length beyond this is damage, not a request; keeps arithmetic on hostile files small.
MAX_LENGTH_TOKENS = 2**31
MAX_LINE_CHARS = 4 * 1024 * 1024
MAX_ARRIVAL_NS = 10 * 366 * 86_400 * 10**9
DEFAULT_TENANT = "default"

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s*(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    `max_new_tokens` is what the client declares (max_tokens), `output_tokens` what the answer really takes; the second
    is never larger. Both and the prompt are at least one token.
    """

    arrival_ns: int
    prompt_tokens: Tokens
    max_new_tokens: Tokens
    output_tokens: Tokens
    tenant: str = DEFAULT_TENANT
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a recorded trace is turned into a load.

    `rate_scale` 2 lets it arrive twice as fast. `max_requests` keeps the first ones. `window` (tokens) makes prompt
    and declared output of each request fit: all lengths are multiplied by one factor (`length_scale`, or else the one
    that fits the longest request), what is still too long is cut. `max_tokens` is what every client declares, after
    scaling; answers longer than that end there, as an engine would end them. `spread_s` scatters requests with one
    stamp evenly at random (`seed`) over that many seconds, at most up to the next stamp: Mooncake's conversation trace
    is quantised to 3 s, and replayed as recorded it makes bursts that never were.
    """

    rate_scale: float = 1.0
    max_requests: int | None = None
    max_tokens: int | None = None
    window: int | None = None
    length_scale: float | None = None
    spread_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises BadValueError for a value that would make no load."""
        for name in ("rate_scale", "length_scale"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and 1e-6 <= value <= 1e6):
                raise BadValueError(
                    f"{name}: {value} is not between 0.000001 and 1000000", fix="1 keeps the trace as it is"
                )
        for name, least in (("max_requests", 1), ("max_tokens", 1), ("window", 2)):
            value = getattr(self, name)
            if value is not None and not least <= value <= MAX_LENGTH_TOKENS:
                raise BadValueError(f"{name}: {value} is not between {least} and {MAX_LENGTH_TOKENS}")
        if not (math.isfinite(self.spread_s) and 0 <= self.spread_s <= 3600):
            raise BadValueError(f"spread_s: {self.spread_s} is not between 0 and 3600 seconds")
        if self.window is not None and self.max_tokens is not None and self.max_tokens >= self.window:
            raise BadValueError(
                f"max_tokens: {self.max_tokens} leaves no room for a prompt in a window of {self.window} tokens",
                fix="give a smaller max_tokens or a larger window",
            )


def load_trace(path: Path, trace_format: str | None = None, options: TraceOptions | None = None) -> list[TraceRequest]:
    """The requests of a trace file in the order of arrival; the first arrives at 0 (unless it is spread).

    `trace_format` None: told from the first line. Raises BadValueError for a file that cannot be read, a damaged row
    (its line is named) or a trace without requests.
    """
    options = options or TraceOptions()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _bounded(file)
            first = next(lines, "")
            parse = _parser(trace_format or _guess(first, path))
            requests = list(parse(_chain(first, lines), str(path)))
    except OSError as error:
        raise BadValueError(f"{path}: {error.strerror or error}", fix="give a readable trace file") from None
    except UnicodeDecodeError as error:
        raise BadValueError(f"{path}: not UTF-8 at byte {error.start}", fix="give a CSV or JSONL file") from None
    if not requests:
        raise BadValueError(f"{path}: no requests in it", fix="check --trace-format and that the file is whole")
    return apply_options(requests, options)


def apply_options(requests: list[TraceRequest], options: TraceOptions) -> list[TraceRequest]:
    """Sorted, from 0, spread, faster or slower, fewer, scaled to a window: in this order."""
    ordered = sorted(requests, key=lambda request: request.arrival_ns)
    start_ns = ordered[0].arrival_ns
    arrivals = [request.arrival_ns - start_ns for request in ordered]
    if options.spread_s:
        arrivals = _spread(arrivals, max(1, round(options.spread_s * 1e9)), random.Random(options.seed))  # noqa: S311
    pace = Fraction(options.rate_scale)
    ordered = [
        replace(request, arrival_ns=int(arrival_ns / pace))
        for request, arrival_ns in zip(ordered[: options.max_requests], arrivals, strict=False)
    ]
    factor = _length_factor(ordered, options)
    return [_shaped(request, factor, options) for request in ordered]


def _spread(arrivals: list[int], width_ns: int, generator: random.Random) -> list[int]:
    """Arrivals of one stamp scattered over [stamp, stamp + width), not beyond the next stamp; the order is kept."""
    spread: list[int] = []
    at = 0
    while at < len(arrivals):
        stamp = arrivals[at]
        end = at
        while end < len(arrivals) and arrivals[end] == stamp:
            end += 1
        room_ns = min(width_ns, arrivals[end] - stamp) if end < len(arrivals) else width_ns
        spread.extend(sorted(stamp + generator.randrange(room_ns) for _ in range(end - at)))
        at = end
    return spread


def _length_factor(requests: list[TraceRequest], options: TraceOptions) -> Fraction:
    if options.length_scale is not None:
        return Fraction(options.length_scale)
    if options.window is None:
        return Fraction(1)
    declared = options.max_tokens
    if declared is None:
        longest = max(request.prompt_tokens + request.max_new_tokens for request in requests)
        return min(Fraction(1), Fraction(options.window, longest))
    longest = max(request.prompt_tokens for request in requests)
    return min(Fraction(1), Fraction(options.window - declared, longest))


def _shaped(request: TraceRequest, factor: Fraction, options: TraceOptions) -> TraceRequest:
    prompt = _scaled(request.prompt_tokens, factor)
    output = _scaled(request.output_tokens, factor)
    declared = options.max_tokens or max(_scaled(request.max_new_tokens, factor), output)
    if options.window is not None:
        # The prompt gives way last: an answer can be cut and is still an answer.
        prompt = min(prompt, options.window - (options.max_tokens or 1))
        declared = min(declared, options.window - prompt)
    return replace(
        request,
        prompt_tokens=Tokens(prompt),
        max_new_tokens=Tokens(declared),
        output_tokens=Tokens(min(output, declared)),
    )


def _scaled(length: int, factor: Fraction) -> int:
    return max(1, int(length * factor))


def _parser(trace_format: str) -> Callable[[Iterable[str], str], Iterator[TraceRequest]]:
    parsers = {"azure": _azure, "mooncake": _mooncake, "jsonl": _own}
    if trace_format not in parsers:
        raise BadValueError(f"trace format {trace_format[:40]!r} is not known", fix=f"use one of {', '.join(FORMATS)}")
    return parsers[trace_format]


def _guess(first: str, path: Path) -> str:
    if all(name in first for name in _AZURE_COLUMNS):
        return "azure"
    if '"input_length"' in first:
        return "mooncake"
    if '"prompt_tokens"' in first:
        return "jsonl"
    raise BadValueError(
        f"{path}: the first line shows none of the known trace formats",
        fix=f"give --trace-format, one of {', '.join(FORMATS)}",
    )


def _azure(lines: Iterable[str], source: str) -> Iterator[TraceRequest]:
    rows = csv.reader(lines, strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        missing = [name for name in _AZURE_COLUMNS if name not in header]
        if missing:
            raise BadValueError(
                f"{source}:1: no column {missing[0]}", fix=f"the header must name {', '.join(_AZURE_COLUMNS)}"
            )
        stamp_at, prompt_at, output_at = (header.index(name) for name in _AZURE_COLUMNS)
        for row in rows:
            if not row:
                continue
            where = f"{source}:{rows.line_num}"
            if len(row) != len(header):
                raise BadValueError(f"{where}: {len(row)} fields, the header has {len(header)}", fix="repair this row")
            yield _request(
                where,
                arrival_ns=_stamp_ns(where, row[stamp_at].strip()),
                prompt=_whole(where, "ContextTokens", row[prompt_at]),
                output=_whole(where, "GeneratedTokens", row[output_at]),
            )
    except csv.Error as error:
        raise BadValueError(f"{source}:{rows.line_num}: {error}", fix="repair this row") from None


def _mooncake(lines: Iterable[str], source: str) -> Iterator[TraceRequest]:
    for where, row in _json_rows(lines, source):
        yield _request(
            where,
            arrival_ns=_time_ns(where, "timestamp", row, 1_000_000),
            prompt=_length(where, "input_length", row),
            output=_length(where, "output_length", row),
            hash_ids=_ids(where, row),
        )


def _own(lines: Iterable[str], source: str) -> Iterator[TraceRequest]:
    for where, row in _json_rows(lines, source):
        tenant = row.get("tenant", DEFAULT_TENANT)
        if not isinstance(tenant, str) or not 0 < len(tenant) <= 200 or not tenant.isprintable():
            raise BadValueError(
                f"{where}: tenant is not a printable text of 1 to 200 characters", fix="repair this row"
            )
        yield _request(
            where,
            arrival_ns=_time_ns(where, "arrival_s", row, 1_000_000_000),
            prompt=_length(where, "prompt_tokens", row),
            output=_length(where, "output_tokens", row),
            declared=_length(where, "max_tokens", row) if row.get("max_tokens") is not None else None,
            tenant=tenant,
            hash_ids=_ids(where, row),
        )


def _request(
    where: str,
    *,
    arrival_ns: int,
    prompt: int,
    output: int,
    declared: int | None = None,
    tenant: str = DEFAULT_TENANT,
    hash_ids: tuple[int, ...] = (),
) -> TraceRequest:
    """A recorded length of 0 becomes 1: an engine always has one token of each."""
    if declared is not None and declared < output:
        raise BadValueError(
            f"{where}: output_tokens {output} is more than max_tokens {declared}", fix="repair this row"
        )
    prompt, output = max(prompt, 1), max(output, 1)
    return TraceRequest(
        arrival_ns, Tokens(prompt), Tokens(max(declared or output, 1)), Tokens(output), tenant, hash_ids
    )


def _json_rows(lines: Iterable[str], source: str) -> Iterator[tuple[str, dict[str, object]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadValueError(f"{where}: not JSON ({str(error)[:100]})", fix="repair this row") from None
        if not isinstance(row, dict):
            raise BadValueError(f"{where}: not a JSON object", fix="repair this row")
        yield where, row


def _whole(where: str, name: str, text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_LENGTH_TOKENS):
        raise BadValueError(f"{where}: {name} {text[:40]!r} is not a count of tokens", fix="repair this row")
    return int(text)


def _length(where: str, name: str, row: dict[str, object]) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_LENGTH_TOKENS:
        raise BadValueError(f"{where}: {name} {str(value)[:40]} is not a count of tokens", fix="repair this row")
    return value


def _time_ns(where: str, name: str, row: dict[str, object], unit_ns: int) -> int:
    value = row.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_ARRIVAL_NS / unit_ns:
        return round(value * unit_ns)
    raise BadValueError(f"{where}: {name} {str(value)[:40]} is not a time from 0 on", fix="repair this row")


def _ids(where: str, row: dict[str, object]) -> tuple[int, ...]:
    value = row.get("hash_ids", [])
    if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        raise BadValueError(f"{where}: hash_ids is not a list of integers", fix="repair this row")
    return tuple(value)


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


def _bounded(file: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if len(line) > MAX_LINE_CHARS:
            raise BadValueError(
                f"line {number} is longer than {MAX_LINE_CHARS} characters", fix="this is no trace file"
            )
        yield line


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    if first:
        yield first
    yield from rest
