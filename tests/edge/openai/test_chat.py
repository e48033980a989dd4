from typing import Any

import pytest

from kvbudget.edge.openai.chat import chat_prompt
from kvbudget.edge.openai.errors import BadRequestError

HI = {"role": "user", "content": "hi"}


def _refusal(**body: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        chat_prompt({"messages": [HI], **body})
    return caught.value


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([HI, None], "messages[1]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": 1, "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {}}], "messages[0].content"),
        ([{"role": "user", "content": [5]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "thinking"}]}], "messages[0].content[0]"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "x"}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}], "messages[0].tool_calls[0].function.name"),
        ([{"role": "assistant", "reasoning": 1}], "messages[0].reasoning"),
    ],
)
def test_messages_of_another_form_are_refused_by_their_path(messages: object, param: str) -> None:
    assert _refusal(messages=messages).param == param


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg/>"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA"}},
        {"type": "text", "text": "a", "image_url": "https://example.org/a.png", "uuid": "u"},
        {"image_url": "https://example.org/a.png"},
        {"type": "prompt_embeds", "data": "AAAA"},
        {"type": "file"},
        {"type": None},
        {"type": ["text"], "text": "a"},
        {},
    ],
)
def test_parts_that_are_no_text_are_refused_by_name(part: dict[str, Any]) -> None:
    error = _refusal(messages=[{"role": "user", "content": [part]}])
    assert error.code == "unsupported_content_part"
    assert "image_url" in error.message or "image_url" not in part


def test_images_are_taken_out_of_the_messages_by_their_urls() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "text", "text": "what is it?"},
        {"type": "input_image", "image_url": "https://example.org/b.png"},
    ]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": parts}]}
    assert chat_prompt(body).images == ("https://example.org/a.png", "https://example.org/b.png")
    assert chat_prompt({"messages": [{"role": "user", "content": ["a"]}]}).images == ()
    for url in (None, "", {}, {"url": 5}):
        error = _refusal(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": url}]}])
        assert error.param == "messages[0].content[0].image_url"
    assert _refusal(**body, mm_processor_kwargs={"max_pixels": 10**9}).code == "unsupported_field"


def test_text_parts_null_content_and_tool_calls_are_accepted() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": ["a", {"type": "text", "text": "b"}, {"type": "refusal", "refusal": "c"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": None}]},
    ]
    assert chat_prompt({"messages": messages}).messages == tuple(messages)


@pytest.mark.parametrize(
    "tool",
    [1, {}, {"type": "function"}, {"type": "web_search", "function": {"name": "f"}}, {"function": {}},
     {"function": {"name": "f", "parameters": []}}, {"function": {"name": "f", "description": 1}}],
)  # fmt: skip
def test_tools_of_another_form_are_refused(tool: object) -> None:
    assert (_refusal(tools=[tool]).param or "").startswith("tools[0]")


def test_continuing_needs_the_generation_prompt_switched_off() -> None:
    assert _refusal(continue_final_message=True).param == "continue_final_message"
    assert _refusal(continue_final_message=True, add_generation_prompt=True).param == "continue_final_message"
    prompt = chat_prompt({"messages": [HI], "continue_final_message": True, "add_generation_prompt": False})
    assert prompt.continue_final_message
    assert not prompt.add_generation_prompt


def test_a_template_in_the_request_is_refused() -> None:
    assert _refusal(chat_template="{{ messages }}").code == "unsupported_field"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "tools", "truncation", "max_length", "messages"])
def test_template_arguments_that_would_change_the_count_are_refused(name: str) -> None:
    assert _refusal(chat_template_kwargs={name: 1}).param == f"chat_template_kwargs.{name}"


def test_template_arguments_are_merged_as_the_engine_merges_them() -> None:
    body: dict[str, object] = {
        "messages": [HI],
        "chat_template_kwargs": {"custom": 1, "add_generation_prompt": False, "reasoning_effort": "low"},
        "documents": [{"text": "d"}],
        "reasoning_effort": "none",
    }
    prompt = chat_prompt(body)
    assert prompt.template_kwargs == {
        "custom": 1,
        "documents": [{"text": "d"}],
        "reasoning_effort": "none",
        "enable_thinking": False,
    }
    assert prompt.add_generation_prompt


def test_thinking_that_was_chosen_is_not_overruled_by_the_effort() -> None:
    prompt = chat_prompt(
        {"messages": [HI], "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}
    )
    assert prompt.template_kwargs["enable_thinking"] is False
