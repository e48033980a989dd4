"""Which models the gate says that it has, of several instances: all that any of them lists, and their aliases."""

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from kvbudget.edge.request.gateway import Gateway

_LARGEST_LOOKED_AT = 16 * 1024 * 1024


def models_of(gateway: "Gateway") -> bytes:
    """The answer to GET /v1/models. Of one model at several instances, the entry with the longest max_model_len."""
    entries: dict[str, dict[str, object]] = {}
    for member in gateway.fleet.members:
        facts = gateway.backends[member.name].facts
        listed = {str(entry.get("id")): entry for entry in facts.listed}
        for name in member.options.models - listed.keys():
            listed[name] = {"id": name, "object": "model", "owned_by": "kvbudget", "max_model_len": facts.max_context}
        for name, entry in listed.items():
            if name not in entries or _length(entry) > _length(entries[name]):
                entries[name] = entry
    return orjson.dumps({"object": "list", "data": [entries[name] for name in sorted(entries)]})


def model_in(body: bytes) -> str | None:
    """The model that a body names, if it is JSON and does."""
    if body.lstrip()[:1] != b"{" or len(body) > _LARGEST_LOOKED_AT:
        return None
    try:
        model = orjson.loads(body).get("model")
    except orjson.JSONDecodeError:
        return None
    return model if isinstance(model, str) else None


def _length(entry: dict[str, object]) -> int:
    length = entry.get("max_model_len")
    return length if isinstance(length, int) else 0
