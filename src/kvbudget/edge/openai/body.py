"""Which bytes are an acceptable JSON body, and where in them a member stands.

The engine parses the same bytes again, so the gate must not read another request than the engine does: duplicate keys,
numbers that are no JSON, lone surrogates and deep nesting, where parsers differ, are refused at any depth. For the
same reason a changed field is cut into the raw bytes and the rest is never written anew.
"""

import gc
import re
from dataclasses import dataclass
from typing import Final

import jiter
import orjson

from kvbudget.edge.openai.errors import BadRequestError, shown

# jiter's own limit; real requests nest about ten deep (tool schemas), and every renderer behind us recurses. Counting
# brackets for a lower limit cost ten times as much as parsing a body of 100 kB.
MAX_DEPTH: Final = 200
# Of the body itself, each of which is looked at by itself where one is changed. APIs have about a hundred.
MAX_MEMBERS: Final = 10_000
# Bytes from which a body may hold so many objects that work on each of them is felt by other requests.
LARGE_BODY_BYTES: Final = 1024 * 1024

_from_json: Final = jiter.from_json
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
# Objects and arrays down to a depth that hardly any value has, in one go of C: bracket by bracket, a body of 16 MiB of
# them kept the event loop for more than a second.
_USUAL_DEPTH: Final = 12
_KEY: Final = re.compile(rb"[\s,]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_SCALAR: Final = re.compile(_STRING + rb"|[^\s,\]}]++", re.DOTALL)


def read_object(raw: bytes) -> dict[str, object]:
    """The JSON object in `raw`. Raises BadRequestError for anything that two parsers could read differently.

    jiter (pydantic's parser) is strict, keeps long integers exact as the engine's own parser does (FastAPI uses the
    standard library) and finds duplicate keys while it parses: one pass, a quarter of what json with a hook costs.
    """
    try:
        body = _parsed(raw)
    except ValueError as error:
        text = str(error)
        if text.startswith("Detected duplicate key"):
            key = text.removeprefix("Detected duplicate key ").rpartition(" at line ")[0].strip('"')
            raise BadRequestError(
                f"The body has the key {shown(key)} twice in one object; send it once", key[:60], "duplicate_field"
            ) from None
        if text.startswith("recursion limit exceeded"):
            raise BadRequestError(
                f"The body is nested more than {MAX_DEPTH} levels deep", None, "nested_too_deep"
            ) from None
        raise BadRequestError(f"The body is not valid JSON: {error}", None, "invalid_json") from None
    if isinstance(body, dict) and len(body) > MAX_MEMBERS:
        raise BadRequestError(f"The body has {len(body)} members, at most {MAX_MEMBERS} are accepted", None)
    if not isinstance(body, dict):
        raise BadRequestError(f"The body must be a JSON object, not {shown(body)}", None, "invalid_json")
    return body


def _parsed(raw: bytes) -> object:
    """The value in `raw`. Cyclic garbage is not looked for meanwhile: a value from JSON holds none, and the search,
    begun anew with every 700 objects, made up to nine tenths of the time for bodies of millions."""
    if len(raw) < LARGE_BODY_BYTES or not gc.isenabled():
        return _from_json(raw, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)
    gc.disable()
    try:
        return _from_json(raw, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)
    finally:
        gc.enable()


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
    whole = _WHOLE.match(raw, start)
    if whole is not None:
        return whole.end()
    depth, at = 1, start + 1
    while depth:
        run = _RUN.match(raw, at)  # matches nothing at the least
        at = len(raw) if run is None else run.end()
        if at >= len(raw):
            return len(raw)
        depth += 1 if raw[at] in b"[{" else -1
        at += 1
    return at


def _nested(depth: int) -> bytes:
    """A pattern of objects and arrays that are nested so deep."""
    flat = rb'[^\[\]{}"]++|' + _STRING
    pattern = rb"[\[{](?:" + flat + rb")*+[\]}]"
    for _ in range(depth):
        pattern = rb"[\[{](?:" + flat + rb"|" + pattern + rb")*+[\]}]"
    return pattern


_WHOLE: Final = re.compile(_nested(_USUAL_DEPTH), re.DOTALL)
_RUN: Final = re.compile(rb'(?:[^\[\]{}"]++|' + _STRING + rb"|" + _nested(_USUAL_DEPTH) + rb")*+", re.DOTALL)
