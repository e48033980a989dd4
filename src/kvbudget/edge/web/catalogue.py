"""The models that the ledger page offers by name: the parts of their config.json that decide weights and cache."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from kvbudget.errors import BadValueError


@cache
def _known() -> Mapping[str, Mapping[str, object]]:
    text = (files("kvbudget.edge.web") / "catalogue.json").read_text(encoding="utf-8")
    known: dict[str, Mapping[str, object]] = json.loads(text)
    return known


def names() -> tuple[str, ...]:
    """All of them, in the order in which they are offered."""
    return tuple(_known())


def config_named(name: str) -> Mapping[str, object]:
    """The config.json of one. Raises BadValueError for a name that is none."""
    config = _known().get(name)
    if config is None:
        raise BadValueError(
            f"model: {name[:60]!r} is not in the catalogue", fix=f"one of {', '.join(_known())}; or paste a config.json"
        )
    return config
