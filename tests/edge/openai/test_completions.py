from typing import Any

import pytest

from kvbudget.edge.openai.completions import MAX_PROMPTS, completion_prompt
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import TextPrompt, TokenPrompt


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [
        ("a", TextPrompt(("a",), True)),
        (["a", "bc", ""], TextPrompt(("a", "bc", ""), True)),
        ([1, 2, 3], TokenPrompt((3,))),
        ([[1], [2, 3]], TokenPrompt((1, 2))),
    ],
)
def test_the_four_forms_are_read(prompt: Any, parsed: object) -> None:
    assert completion_prompt({"prompt": prompt}) == parsed


@pytest.mark.parametrize(
    "prompt",
    [None, "", [], [[]], [[1], []], 5, True, {}, [1, "a"], ["a", 1], ["a", ["b"]], [[1], "a"], [1, -1], [1, True],
     [True], [1, None], [1.0], [[1.5]], [[[1]]], [None], ["a"] * (MAX_PROMPTS + 1)],
)  # fmt: skip
def test_any_other_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(BadRequestError, match="prompt"):
        completion_prompt({"prompt": prompt})


def test_a_million_token_ids_are_counted_not_listed() -> None:
    assert completion_prompt({"prompt": [7] * 1_000_000}) == TokenPrompt((1_000_000,))


def test_special_tokens_are_added_unless_told_otherwise() -> None:
    prompt = completion_prompt({"prompt": "a", "add_special_tokens": False})
    assert isinstance(prompt, TextPrompt)
    assert not prompt.add_special_tokens


@pytest.mark.parametrize("member", [{"prompt_embeds": "AAAA"}, {"suffix": "b"}, {"suffix": 5}])
def test_what_cannot_be_counted_is_refused(member: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as caught:
        completion_prompt({"prompt": "a", **member})
    assert caught.value.code == "unsupported_field"


def test_an_empty_suffix_is_none() -> None:
    assert completion_prompt({"prompt": "a", "suffix": ""}) == TextPrompt(("a",), True)
