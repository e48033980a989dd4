"""Builders for the tests of this folder."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.openai.ask import Ask, Surface, parse_ask


@pytest.fixture(scope="session")
def parse() -> Callable[..., Ask]:
    """`parse(surface, **members)`: the Ask of a body with exactly these members."""

    def build(surface: Surface, **members: Any) -> Ask:
        return parse_ask(surface, json.dumps(members).encode())

    return build
