"""Decides how a file of JSON objects, one a line, is read: empty lines aside, each with the place that errors name."""

import json
from collections.abc import Iterable, Iterator

from kvbudget.errors import BadValueError


def json_rows(lines: Iterable[str], source: str, kind: str) -> Iterator[tuple[str, dict[str, object]]]:
    """(`source:number`, object). `kind`: what its users call a line. Raises BadValueError for what is no object."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadValueError(f"{where}: not JSON ({str(error)[:100]})", fix=f"repair this {kind}") from None
        if not isinstance(row, dict):
            raise BadValueError(f"{where}: not a JSON object", fix=f"repair this {kind}")
        yield where, row
