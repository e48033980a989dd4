"""Builders of bodies for the tests of this folder."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.openai.ask import Ask, Surface, parse_ask

MINIMAL: dict[Surface, dict[str, Any]] = {
    Surface.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Surface.COMPLETIONS: {"prompt": "hi"},
    Surface.RESPONSES: {"input": "hi"},
    Surface.MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    Surface.TGI_GENERATE: {"inputs": "hi"},
    Surface.TGI_GENERATE_STREAM: {"inputs": "hi"},
    Surface.EMBEDDINGS: {"input": "hi"},
    Surface.POOLING: {"input": "hi"},
    Surface.CLASSIFY: {"input": "hi"},
    Surface.SCORE: {"text_1": "hi", "text_2": ["ho", "ha"]},
    Surface.RERANK: {"query": "hi", "documents": ["ho", "ha"]},
}


@pytest.fixture(scope="session")
def minimal() -> dict[Surface, dict[str, Any]]:
    """The smallest accepted body of each surface; copy before changing."""
    return MINIMAL


@pytest.fixture(scope="session")
def ask_of() -> Callable[..., Ask]:
    """`ask_of(surface, **members)`: the Ask of the minimal body with these members set."""

    def build(surface: Surface = Surface.CHAT, **members: Any) -> Ask:
        return parse_ask(surface, json.dumps({**MINIMAL[surface], **members}).encode())

    return build
