"""Every number of docs/explanation/worked-examples.md is planned again."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from kvbudget.edge.web.asked import asked_in
from kvbudget.edge.web.examples import EXAMPLES
from kvbudget.edge.web.pages import _document, _State

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "worked-examples.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [tuple(row) for row in re.findall(r"^\| `([^`]+)` \| (\w+) \| ([^|]+?) \|$", TEXT, re.M)]


@pytest.mark.parametrize(("query", "figure", "value"), ROWS)
def test_a_figure_of_the_page_is_the_planners(query: str, figure: str, value: str) -> None:
    document: Any = _document(_State(asked_in(dict(parse_qsl(query)))))
    found = document["figures"][figure]
    told = found["text"] if isinstance(found, dict) else f"{found:,}" if isinstance(found, int) else found
    assert told == value


def test_the_page_has_every_example_of_the_simulation_and_of_a_card() -> None:
    assert len(ROWS) > 30
    for example in EXAMPLES:
        if example.page == "/simulate":
            assert example.fields["scenario"] in TEXT
    queries = [dict(parse_qsl(query)) for query, _, _ in ROWS]
    cards = [
        dict(example.fields)
        for example in EXAMPLES
        if example.key.startswith("card_") and "concurrency" not in example.fields
    ]
    assert all(card in queries for card in cards)
