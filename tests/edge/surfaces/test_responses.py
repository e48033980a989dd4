from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.openai.ask import Ask, Surface
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt, OpaquePrompt, TokenPrompt
from kvbudget.edge.surfaces import charges

Parse = Callable[..., Ask]


def chat_of(ask: Ask) -> ChatPrompt:
    assert isinstance(ask.prompt, ChatPrompt)
    return ask.prompt


def test_what_an_assistant_thought_said_and_called_is_one_message(parse: Parse) -> None:
    ask = parse(
        Surface.RESPONSES,
        instructions="i",
        max_output_tokens=3,
        input=[
            {"role": "user", "content": "q"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "s"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
        ],
    )
    function = {"name": "f", "arguments": "{}"}
    assert chat_of(ask).messages == (
        {"role": "system", "content": "i"},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "reasoning": "t",
            "content": "s",
            "tool_calls": [
                {"id": "c", "type": "function", "function": function},
                {"id": "d", "type": "function", "function": function},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    )
    assert (ask.max_new_tokens, ask.max_new_field) == (3, "max_output_tokens")


def test_effort_and_tools_reach_the_template(parse: Parse) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    prompt = chat_of(parse(Surface.RESPONSES, input="a", tools=tools, reasoning={"effort": "low"}))
    assert prompt.template_kwargs == {"reasoning_effort": "low", "enable_thinking": True}
    assert prompt.tools == ({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},)


@pytest.mark.parametrize(
    "members",
    [
        {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}]},
        {"input": "a", "tools": [{"type": "custom", "name": "f"}]},
        {"input": [{"role": "assistant", "content": "begun", "status": "incomplete"}]},
        {"input": [{"type": "reasoning", "encrypted_content": "zzz", "summary": []}]},
        {"input": "a", "documents": [{"text": "d"}]},
    ],
)
def test_what_the_engine_renders_by_rules_of_its_own_is_bounded(parse: Parse, members: dict[str, Any]) -> None:
    assert isinstance(parse(Surface.RESPONSES, **members).prompt, OpaquePrompt)


def test_an_earlier_response_is_charged_as_a_whole_window_and_not_counted(parse: Parse) -> None:
    ask = parse(Surface.RESPONSES, input="and now?", previous_response_id="resp_1", stream=True)
    assert (ask.charge, ask.inexact, ask.paced) == (charges.whole_window, True, False)
    assert ask.prompt == TokenPrompt((1,))


def test_truncation_to_the_window_makes_the_count_a_bound(parse: Parse) -> None:
    ask = parse(Surface.RESPONSES, input="a", truncation="auto")
    assert (ask.charge, ask.inexact) == (charges.within_window, True)
    assert parse(Surface.RESPONSES, input="a", truncation="disabled").charge is None


@pytest.mark.parametrize(
    "members",
    [
        {"input": ""},
        {"input": []},
        {"input": 5},
        {"input": [5]},
        {"input": "a", "conversation": "c"},
        {"input": "a", "prompt": {"id": "p"}},
        {"input": "a", "previous_input_messages": [{}]},
        {"input": "a", "tools": [{"type": "web_search"}]},
        {"input": "a", "chat_template": "t"},
        {"input": "a", "background": True},
        {"input": "", "previous_response_id": "r"},
        {"input": "a", "previous_response_id": 5},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
        {"input": [{"role": 5, "content": "a"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"type": "function_call", "name": 5}]},
    ],
)
def test_a_body_that_cannot_be_accounted_for_is_refused(parse: Parse, members: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        parse(Surface.RESPONSES, **members)
