import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.openai.body import LARGE_BODY_BYTES, MAX_DEPTH, MAX_MEMBERS, member_spans, read_object
from kvbudget.edge.openai.errors import BadRequestError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"1", b'"x"', b"null", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":01}', b'{"a":1}x',
     b'{"a":"\\udc00"}', b'{"a":"\xff"}', b'\xef\xbb\xbf{"a":1}', b'{"a":"\n"}'],
)  # fmt: skip
def test_what_is_no_strict_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_object(raw)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"max_tokens":1,"max_tokens":2}',
        b'{"max_tokens":1,"max\\u005ftokens":2}',
        b'{"messages":[{"role":"user","content":"a","content":"b"}]}',
        b'{"x":[[{"y":{"z":1,"z":1}}]]}',
    ],
)
def test_a_key_that_two_parsers_could_read_differently_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_object(raw)
    assert caught.value.code == "duplicate_field"


def test_nesting_is_accepted_to_its_limit_and_refused_beyond() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' + b"[" * (levels - 1) + b'"]]]{{{"' + b"]" * (levels - 1) + b"}"

    read_object(nested(MAX_DEPTH))
    with pytest.raises(BadRequestError) as caught:
        read_object(nested(MAX_DEPTH + 1))
    assert caught.value.code == "nested_too_deep"


def test_brackets_inside_strings_and_beside_one_another_are_not_depth() -> None:
    read_object(json.dumps({"a": "[{" * 500, "b": [[] for _ in range(500)]}).encode())


def test_integers_of_any_size_stay_exact() -> None:
    assert read_object(b'{"a":123456789012345678901234567890}') == {"a": 123456789012345678901234567890}


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=6), st.booleans(), st.sampled_from([None, 2]))
def test_spans_cut_out_every_value_whatever_the_spacing_and_escapes(
    body: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode()
    assert read_object(raw) == body
    spans = member_spans(raw)
    assert list(spans) == list(body)
    for name, span in spans.items():
        assert json.loads(raw[span.start : span.end]) == body[name]


def test_a_number_beyond_all_floats_is_read_as_the_engine_reads_it() -> None:
    raw = b'{"a":1e999}'
    assert read_object(raw) == json.loads(raw)


@pytest.mark.parametrize("end", [b"]}", b"]"])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_large_body_leaves_the_garbage_collector_as_it_was(end: bytes, enabled: bool) -> None:
    raw = b'{"a":[' + b"[]," * (LARGE_BODY_BYTES // 3) + b"[]" + end
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        if end == b"]}":
            assert len(read_object(raw)) == 1
        else:
            with pytest.raises(BadRequestError):
                read_object(raw)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


nested = st.recursive(
    st.integers() | st.text(alphabet='[]{}",:\\ax', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[]{}"\\a', max_size=3), inner),
    max_leaves=40,
)


@given(nested, st.integers(0, 40), st.sampled_from([b"[%b]", b'{"[":%b}', b'["}",[],%b,{}]']))
def test_a_value_ends_where_its_brackets_do_however_deep_they_are(value: Any, depth: int, around: bytes) -> None:
    text = json.dumps(value).encode()
    for _ in range(depth):
        text = around % text
    raw = b'{"x": %b, "y" :%b,"z":1}' % (text, text)
    assert {name: raw[span.start : span.end] for name, span in member_spans(raw).items()} == {
        "x": text,
        "y": text,
        "z": b"1",
    }


def test_so_many_members_no_body_has() -> None:
    lawful = json.dumps(dict.fromkeys(map(str, range(MAX_MEMBERS)))).encode()
    assert len(read_object(lawful)) == MAX_MEMBERS
    with pytest.raises(BadRequestError, match="10001 members"):
        read_object(b'{"more":1,' + lawful[1:])
