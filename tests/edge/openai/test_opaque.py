from typing import Any

import pytest

from kvbudget.edge.openai import opaque
from kvbudget.edge.openai.bytebound import text_bound
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.opaque import generate_text, messages_prompt, responses_prompt

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
    assert text_bound(generate_text({"inputs": "aé"})) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"input": "a", "previous_response_id": "r"},
        {"input": "a", "conversation": "c"},
        {"input": "a", "previous_response": {"id": "r", "output": []}},
        {"input": "a", "chat_template": "t"},
        {"input": "a", "chat_template_kwargs": {"chat_template": "t"}},
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
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": []}},
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [IMAGE]}]}]},
        {"messages": [{"role": "user", "content": "a"}], "system": [IMAGE]},
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "web_search_20250305"}]},
    ],
)
def test_a_messages_body_that_cannot_be_bounded_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        messages_prompt(body)


@pytest.mark.parametrize(
    "other", [{"text": "a"}, {"input_ids": [1]}, {"prompt": "a"}, {"sampling_params": {"n": 100}}, {"n": 100}]
)
def test_a_tgi_body_that_another_engine_reads_differently_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as caught:
        generate_text({"inputs": "a", **other})
    assert (caught.value.param, caught.value.code) == (next(iter(other)), "unsupported_field")


def test_template_arguments_and_output_formats_are_in_the_bound() -> None:
    extra = {"chat_template_kwargs": {"a": "k" * 100}, "output_config": {"format": {"schema": {"a": "f" * 300}}}}
    messages: list[object] = [{"role": "user", "content": "a"}]
    plain = messages_prompt({"messages": messages}).byte_bound
    assert messages_prompt({"messages": messages, **extra}).byte_bound >= plain + 400


def test_a_refused_part_is_named_by_where_it_stands() -> None:
    part = {"type": "function_call_output", "output": [{"type": "input_text", "text": "a"}, IMAGE]}
    with pytest.raises(BadRequestError) as caught:
        responses_prompt({"input": [{"role": "user", "content": "a"}, part]})
    assert caught.value.param == "input[1].output[1]"
    with pytest.raises(BadRequestError) as caught:
        messages_prompt({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, 5]}]})
    assert caught.value.param == "messages[0].content[1]"


def test_names_of_members_are_not_spelled_for_a_body_in_which_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spelled(path: object) -> str:
        raise AssertionError(f"spelled {path}")

    monkeypatch.setattr(opaque, "spelled", spelled)
    responses_prompt({"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}]})
    messages_prompt({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": ["a"]}]}]})


@pytest.mark.parametrize("inputs", [None, "", 5, "look ![](https://example.org/a.png)"])
def test_a_tgi_prompt_that_cannot_be_bounded_is_refused(inputs: object) -> None:
    with pytest.raises(BadRequestError):
        generate_text({"inputs": inputs})
