"""Puts the engine's own name of a model into a request that asks for it by another name; all other bytes stay."""

import orjson

from kvbudget.edge.openai.body import member_spans


def renamed(raw: bytes, asked: str, own: str) -> bytes:
    """The JSON object `raw`, whose `model` is `asked`, with `own` in its place."""
    if asked == own:
        return raw
    span = member_spans(raw)["model"]
    return b"".join((raw[: span.start], orjson.dumps(own), raw[span.end :]))
