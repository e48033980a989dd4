"""Decides what lengths a line of a usage log holds: JSON objects with token counts in any of the usual spellings.

OpenAI's `usage` (prompt_tokens, completion_tokens), that of /v1/responses and of Anthropic (input_tokens,
output_tokens), gateways' own (prompt_tokens, output_tokens), and traces without times (input_length, output_length).
The counts lie at the top, or inside usage, response, response.usage or body.
"""

from collections.abc import Iterable, Mapping

from kvbudget.edge.json_rows import json_rows
from kvbudget.edge.traces.azure import MAX_LENGTH_TOKENS
from kvbudget.errors import BadValueError
from kvbudget.planner.workload.mix import Workload
from kvbudget.units import Tokens

_PROMPT = ("prompt_tokens", "input_tokens", "input_length", "num_prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens", "output_length", "generated_tokens", "num_output_tokens")
_INSIDE = ("usage", "response", "body", "data")
_SECONDS = ("arrival_s", "created", "created_at", "start_time", "timestamp", "time", "ts")
_DEEPEST = 4
_MOST_SKIPPED = 0.5  # share of lines without lengths (errors, health checks) beyond which this is no usage log


def requests_from_usage(lines: Iterable[str], source: str) -> Workload:
    """Lines with both counts are requests. Lines that are JSON without them (errors, other events) are left out, but
    never most of the file. Raises BadValueError for lines that are no JSON object and for counts that are none."""
    requests: list[tuple[Tokens, Tokens]] = []
    moments: list[float | None] = []
    skipped = 0
    for where, row in json_rows(lines, source, "line"):
        counts = _counts(row, where)
        if counts is None:
            skipped += 1
            continue
        requests.append(counts)
        moments.append(_moment(row))
    if skipped > _MOST_SKIPPED * (skipped + len(requests)):
        raise BadValueError(
            f"{source}: {skipped} of {skipped + len(requests)} lines hold no token counts",
            fix=f"each line needs one of {', '.join(_PROMPT)} and one of {', '.join(_OUTPUT)}",
        )
    known = [moment for moment in moments if moment is not None]
    if len(known) < len(requests):
        return Workload(tuple(requests), "trace", source)
    order = sorted(range(len(requests)), key=lambda at: known[at])
    start = known[order[0]] if order else 0.0
    return Workload(tuple(requests[at] for at in order), "trace", source, tuple(known[at] - start for at in order))


def _counts(row: Mapping[str, object], where: str, depth: int = 0) -> tuple[Tokens, Tokens] | None:
    prompt, output = _named(_PROMPT, row), _named(_OUTPUT, row)
    if prompt and output:
        sizes = _count(row[prompt], prompt, where), _count(row[output], output, where)
        return (Tokens(max(1, sizes[0])), Tokens(max(1, sizes[1]))) if any(sizes) else None  # an error is no request
    for name in _INSIDE:
        inner = row.get(name)
        if isinstance(inner, dict) and depth < _DEEPEST:
            found = _counts(inner, where, depth + 1)
            if found is not None:
                return found
    return None


def _named(names: tuple[str, ...], row: Mapping[str, object]) -> str:
    for name in names:  # a million lines are read: a generator for each takes longer
        if name in row:
            return name
    return ""


def _count(value: object, name: str, where: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_LENGTH_TOKENS:
        raise BadValueError(f"{where}: {name} {str(value)[:40]} is not a count of tokens", fix="repair this line")
    return value


def _moment(row: Mapping[str, object]) -> float | None:
    """Seconds on any clock: numbers (of milliseconds where they are too large for seconds), else not known."""
    for name in _SECONDS:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e16:
            return value / 1000 if value > 1e11 else float(value)
    response = row.get("response")
    return _moment(response) if isinstance(response, dict) and response is not row else None
