import json
import unicodedata
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.openai.bytebound import content_bound, json_bound, message_bound, text_bound

RARE = st.text(st.sampled_from("a\u0344\ufb2c\U0001d160\u0390e\u0301\u1100\u1161字🙂"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


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


def test_parts_are_bounded_with_their_separators() -> None:
    assert content_bound(["ab", {"type": "text", "text": "cd"}]) >= len("ab\ncd")
    assert content_bound(None) == 0


def test_a_message_is_bounded_with_its_calls() -> None:
    assert (
        message_bound({"role": "assistant", "content": "abc", "tool_calls": [{"function": {"name": "f" * 50}}]}) > 100
    )
