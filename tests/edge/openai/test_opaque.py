from typing import Any

import pytest

from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.opaque import generate_prompt, messages_prompt, responses_prompt

IMAGE = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}


def test_every_text_of_a_responses_body_is_in_its_bound() -> None:
    body: dict[str, object] = {
        "instructions": "i" * 100,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "t" * 200}]},
            {"type": "function_call_output", "call_id": "1", "output": "o" * 300},
        ],
        "tools": [{"type": "function", "name": "f", "description": "d" * 400}],
    }
    prompt = responses_prompt(body)
    assert prompt.byte_bound >= 1000
    assert prompt.messages >= 4


def test_every_text_of_a_messages_body_is_in_its_bound() -> None:
    body: dict[str, object] = {
        "system": [{"type": "text", "text": "s" * 100}],
        "messages": [
            {"role": "user", "content": "u" * 200},
            {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"k": "v" * 300}}]},
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "r" * 400}]}]},
        ],
        "tools": [{"name": "f", "description": "d" * 500, "input_schema": {}}],
    }
    assert messages_prompt(body).byte_bound >= 1500


def test_a_tgi_prompt_is_its_own_bytes() -> None:
    prompt = generate_prompt({"inputs": "aé"})
    assert (prompt.byte_bound, prompt.messages) == (3, 0)


@pytest.mark.parametrize(
    "body",
    [
        {"input": "a", "previous_response_id": "r"},
        {"input": "a", "conversation": "c"},
        {"input": "a", "prompt": {"id": "p"}},
        {"input": "a", "tools": [{"type": "web_search"}]},
        {"input": "a", "tools": [{"type": {}}]},
        {"input": ""},
        {"input": []},
        {"input": 5},
        {"input": [{"type": "input_image", "image_url": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
    ],
)
def test_a_responses_body_that_cannot_be_bounded_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        responses_prompt(body)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [{"content": "a"}]},
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [IMAGE]}]}]},
        {"messages": [{"role": "user", "content": "a"}], "system": [IMAGE]},
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "web_search_20250305"}]},
    ],
)
def test_a_messages_body_that_cannot_be_bounded_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        messages_prompt(body)


@pytest.mark.parametrize("inputs", [None, "", 5, "look ![](https://example.org/a.png)"])
def test_a_tgi_prompt_that_cannot_be_bounded_is_refused(inputs: object) -> None:
    with pytest.raises(BadRequestError):
        generate_prompt({"inputs": inputs})
