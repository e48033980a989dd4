"""YAML is read as text or as types, within bounds."""

import pytest

from kvbudget.edge.launch.documents import MAX_YAML_CHARS, documents_in
from kvbudget.errors import BadConfigError

LAUGHS = 'a: &a ["x","x","x","x","x","x","x","x","x"]\n' + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)
MERGES = "x0: &x0 {a: 1}\n" + "".join(f"x{i + 1}: &x{i + 1} {{<<: [{','.join([f'*x{i}'] * 9)}]}}\n" for i in range(20))


def test_scalars_are_what_people_wrote() -> None:
    (document,) = documents_in("a: on\nb: 0x10\nc: 12:30\nd: 1.50\ne:\nf: 2024-99-99\n", "f")
    assert document == {"a": "on", "b": "0x10", "c": "12:30", "d": "1.50", "e": "", "f": "2024-99-99"}


def test_typed_documents_tell_numbers_and_booleans_apart() -> None:
    assert documents_in("a: on\nb: 3\nc: 0.9\nd: null\n", "f", typed=True) == [{"a": True, "b": 3, "c": 0.9, "d": None}]


def test_anchors_and_merge_keys_are_written_out() -> None:
    (document,) = documents_in("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: *x\n", "f")
    assert document == {"x": {"a": "1", "b": "2"}, "y": {"a": "1", "b": "3"}, "z": {"a": "1", "b": "2"}}


def test_several_documents_and_json_are_read() -> None:
    assert documents_in('a: 1\n---\n{"b": [1, "c"]}\n---\n', "f") == [{"a": "1"}, {"b": ["1", "c"]}, ""]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (LAUGHS, "once aliases are written out"),
        (MERGES, "once aliases are written out"),
        ("a: &a [*a]\n", "contains itself"),
        ("a: &a {b: *a}\n", "contains itself"),
        ("a: " + "[" * 5000, "nested too deep"),
        ("a: " + "[" * 200 + "]" * 200, "nested deeper"),
        ("a: " + "{b: " * 5000, "nested too deep"),
        ("x" * (MAX_YAML_CHARS + 1), "characters of YAML"),
        ("a: [1\nb: 2", "no valid YAML at line 2"),
        ("a:\n\t- b", "no valid YAML"),
        ("a: *nobody", "no valid YAML"),
        ("a: !!python/object/apply:os.system ['true']", "no valid YAML"),
        ("a: !custom x", "no valid YAML"),
        ("? [a]\n: b", "no valid YAML"),
        ("a: \x0c", "no valid YAML"),
    ],
)
def test_what_is_hostile_or_damaged_is_a_clear_error(text: str, what: str) -> None:
    with pytest.raises(BadConfigError, match=what) as caught:
        documents_in(text, "the file")
    assert str(caught.value).startswith("the file: ")
    assert caught.value.fix


@pytest.mark.parametrize("text", ["a: 2024-99-99", "a: " + "9" * 5000])
def test_typed_values_that_are_none_are_a_clear_error(text: str) -> None:
    with pytest.raises(BadConfigError, match="no valid YAML"):
        documents_in(text, "f", typed=True)
