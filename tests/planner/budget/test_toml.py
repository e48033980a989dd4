"""The writer: what it writes is TOML, reads back as it was, and is written the same again."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.planner.budget.toml import toml_text

WHOLE = st.characters(codec="utf-8")
PLAIN = st.text(WHOLE, max_size=20) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans()
KEY = st.text(WHOLE, max_size=6)
TABLES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(KEY, PLAIN | st.lists(PLAIN, max_size=4), max_size=4),
    lambda inner: st.dictionaries(KEY, PLAIN | inner | st.lists(inner, min_size=1, max_size=3), max_size=4),
    max_leaves=8,
)


@given(TABLES)
def test_what_is_written_reads_back_as_it_was(document: dict[str, Any]) -> None:
    text = toml_text(document, {})
    assert tomllib.loads(text) == document
    assert toml_text(tomllib.loads(text), {}) == text


def test_comments_stand_above_tables_and_beside_keys() -> None:
    document = {"a": 1, "t": {"b": "x"}, "l": [{"c": True}, {"c": False}]}
    text = toml_text(document, {"a": "one", "t": "two\nlines", "l": "first only"}, "head")
    assert text == (
        '# head\n\na = 1  # one\n\n# two\n# lines\n[t]\nb = "x"\n\n# first only\n[[l]]\nc = true\n\n[[l]]\nc = false\n'
    )


def test_half_a_character_becomes_the_replacement_sign() -> None:
    assert tomllib.loads(toml_text({"a": "x\ud800"}, {})) == {"a": "x\ufffd"}


def test_what_toml_has_no_form_for_is_a_bug_of_the_caller() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        toml_text({"a": None}, {})
