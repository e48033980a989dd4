import json
import sys
import tracemalloc
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.openai import bytebound
from kvbudget.edge.openai.bytebound import (
    MAX_INDENT_BYTES,
    STRUCTURE_GROWTH,
    content_bound,
    contents_bound,
    json_bound,
    jsons_bound,
    message_bound,
    messages_bound,
    text_bound,
)
from kvbudget.edge.openai.errors import BadRequestError

RARE = st.text(st.sampled_from('a"\\\n\x01\u0344\ufb2c\U0001d160\u0390e\u0301\u0303\u1100\u1161字🙂'), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6) | RARE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | RARE, inner, max_size=3),
    max_leaves=20,
)
CONTENT = st.none() | RARE | st.lists(RARE | st.dictionaries(st.sampled_from(["type", "text", "a"]), JSON), max_size=3)


def _rendered(value: object) -> int:
    """The bound by its definition: the indented form itself, written and measured."""
    return STRUCTURE_GROWTH * text_bound(json.dumps(value, ensure_ascii=False, indent=4))


def _calls(value: object) -> int:
    """How many functions, of Python and of C, are called to bound a value."""
    calls = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        json_bound(value)
    finally:
        sys.setprofile(before)
    return calls


def _nested(depth: int, members: int) -> object:
    """`members` small objects at the bottom of `depth` arrays."""
    value: object = [{"a": index} for index in range(members)]
    for _ in range(depth):
        value = [value]
    return value


@given(st.text() | RARE)
def test_text_never_grows_past_its_bound_under_nfc(text: str) -> None:
    assert len(unicodedata.normalize("NFC", text).encode()) <= text_bound(text)


@given(RARE)
def test_normal_text_is_bounded_by_its_own_bytes(text: str) -> None:
    normal = unicodedata.normalize("NFC", text)
    assert text_bound(normal) == len(normal.encode())


@given(JSON, st.sampled_from([None, 2, 4]))
def test_json_is_bounded_however_it_is_indented(value: Any, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    assert value is None or len(unicodedata.normalize("NFC", text).encode()) <= json_bound(value)


@given(JSON)
def test_json_is_bounded_as_if_its_indented_form_were_written(value: Any) -> None:
    assert value is None or json_bound(value) == _rendered(value)


@given(st.lists(JSON, max_size=4))
def test_values_together_are_bounded_by_no_less_than_each_alone(values: list[Any]) -> None:
    assert jsons_bound(values) >= sum(map(_rendered, values))


@given(st.integers(0, 30), st.integers(0, 20))
def test_deep_json_is_bounded_as_if_its_indented_form_were_written(depth: int, members: int) -> None:
    value = _nested(depth, members)
    assert json_bound(value) == _rendered(value)


def test_more_scalars_than_are_written_at_a_time_are_all_counted() -> None:
    value = ["é", 12] * (bytebound._SLICE + 1)
    assert json_bound(value) == _rendered(value)


def test_depth_costs_no_steps() -> None:
    flat, deep = (_calls(_nested(depth, 2000)) for depth in (1, 190))
    # A level costs a few calls whatever hangs below it; the members cost the same at any depth.
    assert deep - flat < 190 * 20
    assert flat < 2000 * 12


def test_steps_grow_with_the_members_and_no_faster() -> None:
    few, many = (_calls(_nested(50, members)) for members in (1000, 8000))
    assert many < 8.5 * few


def test_a_deep_body_takes_no_memory_for_its_indentation() -> None:
    value = _nested(190, 20_000)  # indented: 46 MB
    tracemalloc.start()
    try:
        assert json_bound(value) > 40_000_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


def test_indentation_beyond_every_context_is_refused() -> None:
    level_bytes = 3 * 4 * 60_000  # one more level moves the three lines of each object four blanks to the right
    levels = MAX_INDENT_BYTES // level_bytes
    assert json_bound(_nested(levels - 3, 60_000)) > STRUCTURE_GROWTH * (MAX_INDENT_BYTES - 3 * level_bytes)
    with pytest.raises(BadRequestError, match="levels deep") as caught:
        json_bound(_nested(levels, 60_000))
    assert caught.value.code == "prompt_too_large"


def test_parts_are_bounded_with_their_separators() -> None:
    assert content_bound(["ab", {"type": "text", "text": "cd"}]) >= len("ab\ncd")
    assert content_bound(None) == 0


def test_other_members_of_a_text_part_are_bounded_as_json() -> None:
    part = {"type": "text", "text": "ab", "cache_control": {"type": "ephemeral"}}
    assert content_bound([part]) == 3 + json_bound({"cache_control": {"type": "ephemeral"}})
    assert content_bound([{"text": "ab"}]) == 3
    assert part["text"] == "ab"


def test_a_message_is_bounded_with_its_calls() -> None:
    assert (
        message_bound({"role": "assistant", "content": "abc", "tool_calls": [{"function": {"name": "f" * 50}}]}) > 100
    )


@given(st.lists(CONTENT, max_size=3), st.text(max_size=4) | RARE, st.dictionaries(st.text(max_size=3), JSON))
def test_messages_together_are_bounded_by_no_less_than_each_alone(
    contents: list[Any], role: str, members: dict[str, Any]
) -> None:
    messages = [{**members, "role": role, "content": content} for content in contents]
    kept = json.dumps(messages)
    assert contents_bound(contents) >= sum(map(content_bound, contents))
    assert messages_bound(messages) >= sum(map(message_bound, messages))
    rest = {key: value for key, value in members.items() if key != "content"}
    assert all(message_bound(m) >= content_bound(m["content"]) + _rendered({**rest, "role": role}) for m in messages)
    assert json.dumps(messages) == kept
