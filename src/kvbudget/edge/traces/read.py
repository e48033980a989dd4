"""Decides what a trace file says: which requests arrive when, how long their prompts are and how long their answers.

Four forms are read:

- `azure`: CSV of the Azure public LLM traces (TIMESTAMP, ContextTokens, GeneratedTokens); stamps are ISO 8601 with up
  to nine digits of a second.
- `mooncake`: JSON lines of the Mooncake traces (timestamp in ms, input_length, output_length, hash_ids).
- `jsonl`: our own: JSON lines with arrival_s, prompt_tokens, output_tokens, and optionally max_tokens (what the client
  declared), tenant, hash_ids, priority (smaller is more urgent).
- `gate-log`: what `kvbudget serve --access-log` wrote (edge/traces/gate_log.py).

Arrivals are counted from the first request. Every row is used or the file is refused: a trace that is silently half
read gives a load that nobody meant.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path

from kvbudget.edge.given_file import given_lines, utf8_only
from kvbudget.edge.json_rows import json_rows
from kvbudget.edge.traces.azure import COLUMNS, MAX_LENGTH_TOKENS, azure_columns
from kvbudget.edge.traces.gate_log import SIGN, logged_requests
from kvbudget.errors import BadValueError
from kvbudget.simulate.load import DEFAULT_TENANT, TraceRequest
from kvbudget.units import Tokens

FORMATS = ("azure", "mooncake", "jsonl", "gate-log")
_MOST_PRIORITY = 10**9
_OWN_FIELDS = ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "tenant", "priority", "hash_ids")
# What the gate takes in x-kvbudget-tenant and x-kvbudget-priority (edge/request/identity.py).
_LONGEST_TENANT, _MOST_SENT_PRIORITY = 64, 100
MAX_ARRIVAL_NS = 10 * 366 * 86_400 * 10**9


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
        with given_lines(str(path), fix="give a CSV or JSONL file") as found:
            lines = utf8_only(found, str(path))
            first = next(lines, "")
            requests = parse_trace(chain((first,), lines), trace_format or _guess(first, path), str(path), as_load=True)
    except OSError as error:
        raise BadValueError(f"{path}: {error.strerror or error}", fix="give a readable trace file") from None
    if not requests:
        raise BadValueError(f"{path}: no requests in it", fix="check --trace-format and that the file is whole")
    return apply_options(requests, options)


def parse_trace(lines: Iterable[str], trace_format: str, source: str, *, as_load: bool = False) -> list[TraceRequest]:
    """The requests of all lines, as recorded and in their order. Raises BadValueError, naming the line.

    `as_load`: they are to be sent, so fields of our own form that nobody reads, and tenants and priorities that the
    gate does not take, are refused as well.
    """
    if as_load and trace_format == "jsonl":
        return list(_own(lines, source, as_load=True))
    return list(_parser(trace_format)(lines, source))


def apply_options(requests: list[TraceRequest], options: TraceOptions) -> list[TraceRequest]:
    """Sorted, from 0, spread, faster or slower, fewer, scaled to a window: in this order."""
    ordered = sorted(requests, key=lambda request: request.arrival_ns)
    start_ns = ordered[0].arrival_ns
    arrivals = [request.arrival_ns - start_ns for request in ordered]
    if options.spread_s:
        arrivals = _spread(arrivals, max(1, round(options.spread_s * 1e9)), random.Random(options.seed))  # noqa: S311
    pace = Fraction(options.rate_scale)
    if pace != 1:
        arrivals = [int(arrival_ns / pace) for arrival_ns in arrivals]
    ordered = ordered[: options.max_requests]
    factor = _length_factor(ordered, options)
    return [
        _shaped(request, arrival_ns, factor, options) for request, arrival_ns in zip(ordered, arrivals, strict=False)
    ]


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


def _shaped(request: TraceRequest, arrival_ns: int, factor: Fraction, options: TraceOptions) -> TraceRequest:
    prompt = _scaled(request.prompt_tokens, factor)
    output = _scaled(request.output_tokens, factor)
    declared = options.max_tokens or max(_scaled(request.max_new_tokens, factor), output)
    if options.window is not None:
        # The prompt gives way last: an answer can be cut and is still an answer.
        prompt = min(prompt, options.window - (options.max_tokens or 1))
        declared = min(declared, options.window - prompt)
    return TraceRequest(
        arrival_ns,
        Tokens(prompt),
        Tokens(declared),
        Tokens(min(output, declared)),
        request.tenant,
        request.hash_ids,
        request.declared or options.max_tokens is not None,
        request.priority,
    )


def _scaled(length: int, factor: Fraction) -> int:
    return length if factor == 1 else max(1, int(length * factor))


def _parser(trace_format: str) -> Callable[[Iterable[str], str], Iterator[TraceRequest]]:
    parsers = {"azure": _azure, "mooncake": _mooncake, "jsonl": _own, "gate-log": _gate_log}
    if trace_format not in parsers:
        raise BadValueError(f"trace format {trace_format[:40]!r} is not known", fix=f"use one of {', '.join(FORMATS)}")
    return parsers[trace_format]


def _guess(first: str, path: Path) -> str:
    if all(name in first for name in COLUMNS):
        return "azure"
    if '"input_length"' in first:
        return "mooncake"
    if SIGN in first:
        return "gate-log"
    if '"prompt_tokens"' in first:
        return "jsonl"
    raise BadValueError(
        f"{path}: the first line shows none of the known trace formats",
        fix=f"give --trace-format, one of {', '.join(FORMATS)}",
    )


def _azure(lines: Iterable[str], source: str) -> Iterator[TraceRequest]:
    for arrival_ns, prompt, output in zip(*azure_columns(lines, source), strict=True):
        yield _request(source, arrival_ns=arrival_ns, prompt=prompt, output=output)


def _mooncake(lines: Iterable[str], source: str) -> Iterator[TraceRequest]:
    for where, row in json_rows(lines, source, "row"):
        yield _request(
            where,
            arrival_ns=_time_ns(where, "timestamp", row, 1_000_000),
            prompt=_length(where, "input_length", row),
            output=_length(where, "output_length", row),
            hash_ids=_ids(where, row),
        )


def _own(lines: Iterable[str], source: str, *, as_load: bool = False) -> Iterator[TraceRequest]:
    for where, row in json_rows(lines, source, "row"):
        if as_load:
            _check_as_load(where, row)
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
            priority=_priority(where, row),
        )


def _gate_log(lines: Iterable[str], source: str) -> Iterator[TraceRequest]:
    for one in logged_requests(json_rows(lines, source, "row")):
        yield _request(
            one.where,
            arrival_ns=one.arrival_ns,
            prompt=one.prompt,
            output=one.output,
            declared=one.declared,
            tenant=one.tenant,
            priority=one.priority,
        )


def _check_as_load(where: str, row: dict[str, object]) -> None:
    """Raises BadValueError for a name that nobody reads, as `team` for `tenant`, and for what the gate refuses."""
    for name in row:
        if name not in _OWN_FIELDS:
            raise BadValueError(
                f"{where}: {name[:40]!r} is no field of a trace",
                fix=f"leave it away; known are {', '.join(_OWN_FIELDS)}",
            )
    tenant, priority = row.get("tenant"), row.get("priority")
    if isinstance(tenant, str) and not (
        0 < len(tenant) <= _LONGEST_TENANT and tenant.isascii() and all(c.isalnum() or c in "._-" for c in tenant)
    ):
        raise BadValueError(
            f"{where}: tenant {tenant[:40]!r} is none that the gate takes",
            fix=f"use 1 to {_LONGEST_TENANT} letters, digits, '.', '_' or '-'",
        )
    if isinstance(priority, int) and _MOST_SENT_PRIORITY < abs(priority) <= _MOST_PRIORITY:
        raise BadValueError(
            f"{where}: priority {priority} is none that the gate takes",
            fix=f"use -{_MOST_SENT_PRIORITY} to {_MOST_SENT_PRIORITY}; smaller is more urgent",
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
    priority: int = 0,
) -> TraceRequest:
    """A recorded length of 0 becomes 1: an engine always has one token of each."""
    if declared is not None and declared < output:
        raise BadValueError(
            f"{where}: output_tokens {output} is more than max_tokens {declared}", fix="repair this row"
        )
    prompt, output = max(prompt, 1), max(output, 1)
    return TraceRequest(
        arrival_ns,
        Tokens(prompt),
        Tokens(max(declared or output, 1)),
        Tokens(output),
        tenant,
        hash_ids,
        declared is not None,
        priority,
    )


def _length(where: str, name: str, row: dict[str, object]) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_LENGTH_TOKENS:
        if name not in row:
            raise _missing(where, name, row)
        raise BadValueError(f"{where}: {name} {str(value)[:40]} is not a count of tokens", fix="repair this row")
    return value


def _missing(where: str, name: str, row: dict[str, object]) -> BadValueError:
    has = ", ".join(str(key)[:40] for key in list(row)[:8])
    return BadValueError(f"{where}: {name} is missing; the row has {has or 'nothing'}", fix="repair this row")


def _priority(where: str, row: dict[str, object]) -> int:
    value = row.get("priority", 0)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MOST_PRIORITY:
        raise BadValueError(f"{where}: priority {str(value)[:40]} is not a whole number", fix="repair this row")
    return value


def _time_ns(where: str, name: str, row: dict[str, object], unit_ns: int) -> int:
    value = row.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_ARRIVAL_NS / unit_ns:
        return round(value * unit_ns)
    if name not in row:
        raise _missing(where, name, row)
    raise BadValueError(f"{where}: {name} {str(value)[:40]} is not a time from 0 on", fix="repair this row")


def _ids(where: str, row: dict[str, object]) -> tuple[int, ...]:
    value = row.get("hash_ids", [])
    if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        raise BadValueError(f"{where}: hash_ids is not a list of integers", fix="repair this row")
    return tuple(value)
