from collections.abc import Callable

import pytest

from kvbudget.edge.openai import fields
from kvbudget.edge.openai.errors import BadRequestError

READERS = [fields.boolean, fields.integer, fields.string, fields.json_object, fields.json_array, fields.objects]


@pytest.mark.parametrize("read", READERS)
def test_an_absent_or_null_member_is_none(read: Callable[..., object]) -> None:
    assert read({}, "a") is None
    assert read({"a": None}, "a") is None


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (fields.boolean, 1),
        (fields.boolean, "true"),
        (fields.integer, True),
        (fields.integer, 1.0),
        (fields.integer, "1"),
        (fields.string, 1),
        (fields.json_object, []),
        (fields.json_array, {}),
        (fields.objects, {}),
        (fields.objects, [{}, 1]),
    ],
)
def test_a_member_of_another_type_is_refused_by_its_path(read: Callable[..., object], wrong: object) -> None:
    with pytest.raises(BadRequestError) as caught:
        read({"a": wrong}, "a", at="b.")
    assert (caught.value.param or "").startswith("b.a")


def test_a_refused_member_may_be_null() -> None:
    fields.refuse({"a": None}, "a", "no")
    with pytest.raises(BadRequestError, match="a is not accepted here: no"):
        fields.refuse({"a": 0}, "a", "no")


def test_the_first_item_that_is_no_object_is_named() -> None:
    with pytest.raises(BadRequestError, match=r"b\.a\[2\] must be an object, got 1"):
        fields.objects({"a": [{}, {}, 1, 1]}, "a", at="b.")


def test_a_path_is_spelled_with_dots_and_brackets() -> None:
    assert fields.spelled(("input", 0, "content", 12)) == "input[0].content[12]"
