"""Which bytes are an acceptable JSON body, and where in them a member stands.

The engine parses the same bytes again, so the gate must not read another request than the engine does: duplicate keys,
numbers that are no JSON, lone surrogates and deep nesting, where parsers differ, are refused at any depth. For the
same reason a changed field is cut into the raw bytes and the rest is never written anew.
"""

import json
import re
from dataclasses import dataclass

import orjson

from kvbudget.edge.openai.errors import BadRequestError, shown

# Real requests nest about ten deep (tool schemas); every renderer behind us recurses.
MAX_DEPTH = 64

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_BRACKETS = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_KEY = re.compile(rb"[\s,]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^\s,\]}]++", re.DOTALL)


def read_object(raw: bytes) -> dict[str, object]:
    """The JSON object in `raw`. Raises BadRequestError for anything that two parsers could read differently."""
    try:
        orjson.loads(raw)  # strict: UTF-8, no NaN, no lone surrogates, no trailing text
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"The body is not valid JSON: {error}", None, "invalid_json") from None
    _check_depth(raw)
    try:
        # The engine's own parser (FastAPI uses the standard library): integers of any length stay exact.
        body = json.loads(raw, object_pairs_hook=_without_duplicates)
    except BadRequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The body is not acceptable JSON: {error}", None, "invalid_json") from None
    if not isinstance(body, dict):
        raise BadRequestError(f"The body must be a JSON object, not {shown(body)}", None, "invalid_json")
    return body


def _check_depth(raw: bytes) -> None:
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _BRACKETS.finditer(raw):
        byte = raw[match.start()]
        if byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise BadRequestError(f"The body is nested more than {MAX_DEPTH} levels deep", None, "nested_too_deep")
        elif byte in b"]}":
            depth -= 1


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadRequestError(
                    f"The body has the key {shown(key)} twice in one object; send it once", key[:60], "duplicate_field"
                )
            seen.add(key)
    return members


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open byte range of a member's value in the raw body."""

    start: int
    end: int


def member_spans(raw: bytes, start: int = 0) -> dict[str, Span]:
    """Where each value of the object that begins at or after `start` stands. `raw` has passed `read_object`."""
    spans: dict[str, Span] = {}
    at = raw.index(b"{", start) + 1
    while (key := _KEY.match(raw, at)) is not None:
        end = _value_end(raw, key.end())
        spans[orjson.loads(key[1])] = Span(key.end(), end)
        at = end
    return spans


def _value_end(raw: bytes, start: int) -> int:
    if raw[start] not in b"[{":
        scalar = _SCALAR.match(raw, start)
        return start if scalar is None else scalar.end()
    depth = 0
    for match in _BRACKETS.finditer(raw, start):
        byte = raw[match.start()]
        if byte in b"[{":
            depth += 1
        elif byte in b"]}":
            depth -= 1
            if depth == 0:
                return match.end()
    return len(raw)
