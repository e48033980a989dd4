"""Which token counts the engine reported, read from the last bytes of its answer, plain or SSE."""

import re
from typing import Final, NamedTuple

import orjson

from kvbudget.units import Tokens

# The relay keeps this much of every answer. vLLM 0.32 writes `usage` behind `choices`, so it is in here unless
# ids of the prompt or logprobs follow it.
TAIL_BYTES: Final = 8192

# A quote inside a JSON string is always escaped, so these bytes are a key wherever they stand: content that spells
# `"usage":` arrives as `\"usage\":` and does not match. A key may be written with escapes, which parsers undo.
_USAGE_KEY: Final = re.compile(rb'(?<!\\)"(?:u|\\u0075)(?:s|\\u0073)(?:a|\\u0061)(?:g|\\u0067)(?:e|\\u0065)"\s*:')
# Strings, one that nothing ends included, so that no sign is looked at twice; and what opens and closes.
_STRUCTURE: Final = re.compile(rb'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_AT_TOP: Final = 1  # braces that are open at a key, of a document that ends whole
_IN_RESPONSE: Final = 2
_USAGE_BYTES: Final = 512
"""Of an answer's end, in which a plain answer's own usage is looked for first."""
_BACKSLASH: Final = 92
_BRACE: Final = 125
_LARGEST: Final = 2**53
_QUOTE, _OPENING = 0x22, (0x7B, 0x5B)
_USUAL: Final = frozenset(("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"))
_new: Final = tuple.__new__  # without the call into Python that a NamedTuple makes first


class Usage(NamedTuple):
    """Tokens as the engine counted them; None: not told. `cached_tokens` is part of `prompt_tokens`."""

    prompt_tokens: Tokens | None
    completion_tokens: Tokens | None
    cached_tokens: Tokens | None


def usage_in(tail: bytes) -> Usage | None:
    """The last top-level usage in the last bytes of an answer; None when there is none. Never raises.

    `tail` may begin anywhere inside the answer; only its last `TAIL_BYTES` are read. Anthropic's stream spreads its
    counts over two events (`message_start`, `message_delta`); they are joined when both are in the tail.
    """
    at = tail.rfind(b'"usage"', -_USAGE_BYTES)
    if at > 0 and tail[-1] == _BRACE and tail[at - 1] != _BACKSLASH:
        told = _last_usage(tail[at:])  # without reading the rest, which may be long
        if told is not None:
            return told
    tail = bytes(tail[-TAIL_BYTES:])
    try:
        return _of_events(tail) if _is_event_stream(tail) else _of_json(tail)
    except (ValueError, RecursionError):  # orjson's error is a ValueError; a tail may hold anything
        return None


def _last_usage(end: bytes) -> Usage | None:
    """Of an answer that ends with its usage, and perhaps with other members behind it, and that has the usual members
    alone. With one brace left to close, the key stood at the top of the document. None says nothing."""
    document = _parsed(b"{" + end)
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, dict) or not _USUAL.issuperset(usage) or usage.get("prompt_tokens_details") is not None:
        return None
    prompt_tokens, output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if _is_count(prompt_tokens) and _is_count(output_tokens):
        return _new(Usage, (prompt_tokens, output_tokens, None))
    return None


def _is_event_stream(tail: bytes) -> bool:
    """JSON text escapes line feeds inside strings, and no JSON line begins with `data:` or `event:`."""
    return tail.startswith((b"data:", b"event:")) or b"\ndata:" in tail or b"\nevent:" in tail


def _of_events(tail: bytes) -> Usage | None:
    late: dict[str, int] = {}
    lines = tail.splitlines()
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if line.startswith(b"data:"):  # whole, as far as it goes
            counts = _counts(_parsed(line[5:].strip())) if _may_tell(line) else {}
        elif at == 0:  # its start may be cut off
            counts = _counts(_document(line))
        else:
            continue
        if counts:
            late = counts | late
            if "prompt" in late and "completion" in late:
                break
    return _usage(late)


def _of_json(tail: bytes) -> Usage | None:
    return _usage(_counts(_document(tail)))


def _may_tell(text: bytes) -> bool:
    """Whether there is such a key in it, or what may be one written with escapes."""
    return b'"usage"' in text or b"\\u00" in text


def _document(text: bytes) -> object:
    """The JSON document in `text`, or what can be told of its end when its start was cut off.

    A cut document is closed again with an opening brace before the last key that stands at the top, or with two before
    one that stands a level down, which is under `response` (the closing events of the Responses API). Only these two
    are tried: an earlier key at the same level is followed by all of what a later one is followed by.
    """
    if not _may_tell(text):
        return None
    parsed = _parsed(text)
    if parsed is not None:
        return parsed
    keys = [key.start() for key in _USAGE_KEY.finditer(text)]
    if not keys:
        return None
    top, within = _levels(text, keys)
    parsed = None if top < 0 else _parsed(b"{" + text[top:])
    if not _counts(parsed) and within >= 0:
        parsed = _parsed(b'{"response":{' + text[within:])
    return parsed


def _levels(text: bytes, keys: list[int]) -> tuple[int, int]:
    """Where the last of `keys` begin that stand at the top, and one level down; -1: none does. In one pass: from the
    first key on, every quote is seen for what it is."""
    opened: list[int] = []  # at each key, since the first
    depth, at = 0, 0
    for found in _STRUCTURE.finditer(text, keys[0]):
        sign = text[found.start()]
        if sign == _QUOTE:
            if at < len(keys) and found.start() == keys[at]:
                opened.append(depth)
                at += 1
        elif sign in _OPENING:
            depth += 1
        else:
            depth -= 1
    top = within = -1
    for key, level in zip(keys, opened, strict=False):
        left = level - depth  # that are closed behind it
        if left == _AT_TOP:
            top = key
        elif left == _IN_RESPONSE:
            within = key
    return top, within


def _parsed(text: bytes) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _counts(document: object) -> dict[str, int]:
    """What one document tells: any of `prompt`, `completion`, `cached`."""
    if not isinstance(document, dict):
        return {}
    usage = document.get("usage")
    for wrapper in ("response", "message"):
        inner = document.get(wrapper)
        if not isinstance(usage, dict) and isinstance(inner, dict):
            usage = inner.get("usage")
    if not isinstance(usage, dict):
        return {}
    counts: dict[str, int] = {}
    _take(counts, "prompt", usage.get("prompt_tokens"))
    _take(counts, "completion", usage.get("completion_tokens", usage.get("output_tokens")))
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if isinstance(details, dict):
        _take(counts, "cached", details.get("cached_tokens"))
    if "prompt" not in counts and _is_count(usage.get("input_tokens")):
        counts["prompt"] = usage["input_tokens"]
        # Anthropic counts what the cache gave apart (vLLM 0.32 entrypoints/anthropic/serving.py); OpenAI includes it.
        for field in ("cache_read_input_tokens", "cache_creation_input_tokens"):
            if _is_count(usage.get(field)):
                counts["prompt"] += usage[field]
        _take(counts, "cached", usage.get("cache_read_input_tokens"))
    return counts


def _take(counts: dict[str, int], name: str, value: object) -> None:
    if _is_count(value):
        assert isinstance(value, int)  # noqa: S101 - for the type checker only
        counts[name] = value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _usage(counts: dict[str, int]) -> Usage | None:
    prompt, completion, cached = counts.get("prompt"), counts.get("completion"), counts.get("cached")
    if prompt is None:
        # The last event of Anthropic's own streams tells the output alone; the prompt's was the first.
        return None if completion is None else Usage(None, Tokens(completion), None)
    return Usage(Tokens(prompt), Tokens(completion or 0), None if cached is None else Tokens(cached))
