"""Decides what load an access log of the gate was: which requests arrived when, how long, of whom, how urgent.

Requests that were refused are part of the load, and nobody knows how long their answers would have been: they get that
of the last answer of their tenant that finished before them, else of anybody, else all that they asked for. Who was
refused before being counted (a body that cannot be understood) is left out.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from kvbudget.errors import BadValueError

SIGN = '"prompt_exact"'
"""Only our own access log has this member."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_TOKENS = 10**8


class LoggedRequest(NamedTuple):
    """One request. `declared`: what the client asked for, None if it left it open."""

    where: str
    arrival_ns: int
    prompt: int
    output: int
    declared: int | None
    tenant: str
    priority: int


def logged_requests(rows: Iterable[tuple[str, dict[str, object]]]) -> Iterator[LoggedRequest]:
    """The counted requests of all lines, in order of arrival, from 0. Raises BadValueError, naming the line.

    Lines stand in the order of ends; an answer tells of those that arrived after it ended only.
    """
    counted = [(_arrival_ns(where, row), where, row) for where, row in rows if row.get("prompt_tokens") is not None]
    counted.sort(key=lambda entry: entry[0])
    start_ns = counted[0][0] if counted else 0
    last: dict[str, int] = {}
    of_anybody: int | None = None
    for arrival_ns, where, row in counted:
        tenant = row.get("tenant", "default")
        if not isinstance(tenant, str) or not 0 < len(tenant) <= 64:
            raise BadValueError(f"{where}: tenant {str(tenant)[:40]!r} is no tenant", fix="repair this line")
        declared = _tokens(where, row, "max_tokens")
        prompt = _tokens(where, row, "prompt_tokens") or 1
        output = _tokens(where, row, "output_tokens") if row.get("outcome") == "finished" else None
        if output is None:
            output = last.get(tenant, of_anybody) or declared or _tokens(where, row, "reserved_new_tokens") or 1
            output = min(output, declared or output)
        else:
            last[tenant] = of_anybody = output
        if declared is not None:
            declared = max(declared, output)
        yield LoggedRequest(where, arrival_ns - start_ns, prompt, output, declared, tenant, _priority(where, row))


def _arrival_ns(where: str, row: dict[str, object]) -> int:
    value = row.get("time")
    try:
        at = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        if at.tzinfo is None:
            raise ValueError
    except ValueError:
        raise BadValueError(
            f"{where}: time {str(value)[:40]!r} is no stamp of an access log", fix="repair this line"
        ) from None
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def _tokens(where: str, row: dict[str, object], name: str) -> int | None:
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_TOKENS:
        raise BadValueError(f"{where}: {name} {str(value)[:40]} is not a count of tokens", fix="repair this line")
    return value


def _priority(where: str, row: dict[str, object]) -> int:
    value = row.get("priority", 0)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 100:
        raise BadValueError(f"{where}: priority {str(value)[:40]} is none of the gate's", fix="repair this line")
    return value
