import json
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.openai.ask import Ask, Surface
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt, OpaquePrompt
from kvbudget.edge.surfaces.messages import LEAD_EVENTS

Parse = Callable[..., Ask]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def chat_of(ask: Ask) -> ChatPrompt:
    assert isinstance(ask.prompt, ChatPrompt)
    return ask.prompt


def test_blocks_become_the_parts_of_a_chat(parse: Parse) -> None:
    ask = parse(
        Surface.MESSAGES,
        model="m",
        max_tokens=7,
        stream=True,
        system=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        tools=[{"name": "f", "input_schema": {"properties": {}}}],
        messages=[
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t"},
                    {"type": "text", "text": "x"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
        ],
    )
    assert chat_of(ask).messages == (
        {"role": "system", "content": "ab"},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "reasoning": "t",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
            "content": "x",
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    )
    schema = {"properties": {}, "type": "object"}
    assert chat_of(ask).tools == ({"type": "function", "function": {"name": "f", "parameters": schema}},)
    assert (ask.max_new_tokens, ask.max_new_field, ask.paced, ask.lead_events) == (7, "max_tokens", True, LEAD_EVENTS)


def test_thinking_that_is_off_and_effort_reach_the_template(parse: Parse) -> None:
    hi = [{"role": "user", "content": "hi"}]
    off = parse(Surface.MESSAGES, messages=hi, max_tokens=1, thinking={"type": "disabled"})
    assert chat_of(off).template_kwargs == {"reasoning_effort": "none", "enable_thinking": False}
    high = parse(Surface.MESSAGES, messages=hi, max_tokens=1, output_config={"effort": "high"})
    assert chat_of(high).template_kwargs["reasoning_effort"] == "high"
    on = parse(Surface.MESSAGES, messages=hi, max_tokens=1, thinking={"type": "enabled", "budget_tokens": 1024})
    assert chat_of(on).template_kwargs == {}


@pytest.mark.parametrize(
    "members",
    [
        {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
        {"messages": [{"role": "user", "content": "a"}], "documents": [{"text": "d"}]},
        {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False},
    ],
)
def test_what_the_engine_renders_by_rules_that_are_not_known_is_bounded(parse: Parse, members: dict[str, Any]) -> None:
    assert isinstance(parse(Surface.MESSAGES, max_tokens=1, **members).prompt, OpaquePrompt)


def test_a_missing_cap_is_left_to_the_policy(parse: Parse) -> None:
    assert parse(Surface.MESSAGES, messages=[{"role": "user", "content": "a"}]).max_new_tokens is None


@pytest.mark.parametrize(
    ("content", "at"),
    [
        ([{"type": "tool_result", "content": [{"type": "tool_reference", "name": 5}]}], "messages[1].content[0]"),
        ([{"type": "image", "source": {"type": "url", "url": 5}}], "messages[1].content[0].source.url"),
        ([{"type": "server_tool_use"}], "messages[1].content[0]"),
        ([{"type": "text", "text": 5}], "messages[1].content[0].text"),
        ([{"type": "tool_use", "name": "f", "input": []}], "messages[1].content[0].input"),
        ([{"type": "tool_result", "content": [{"type": "audio"}]}], "messages[1].content[0].content[0]"),
        ([{"type": "tool_result", "content": 5}], "messages[1].content[0].content"),
        ([5], "messages[1].content[0]"),
        (5, "messages[1].content"),
    ],
)
def test_a_block_that_is_refused_is_named_by_where_the_client_put_it(parse: Parse, content: object, at: str) -> None:
    # The system prompt moves every message by one in the chat, and results of tools more.
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": content}]
    with pytest.raises(BadRequestError) as caught:
        parse(Surface.MESSAGES, system="s", messages=messages, max_tokens=1)
    assert caught.value.param is not None
    assert caught.value.param.startswith(at)
    assert caught.value.param in caught.value.message


@pytest.mark.parametrize(
    "members",
    [
        {"messages": []},
        {"messages": [{"content": "a"}]},
        {"system": 5},
        {"system": [IMAGE]},
        {"tools": [{"type": "web_search_20250305", "name": "w"}]},
        {"tools": [{"input_schema": {}}]},
        {"chat_template": "t"},
        {"background": True},
        {"max_tokens": 0},
    ],
)
def test_a_body_that_cannot_be_accounted_for_is_refused(parse: Parse, members: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        parse(Surface.MESSAGES, **{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **members})


def test_arguments_of_tools_keep_their_values(parse: Parse) -> None:
    given = {"a": "é\n", "big": 10**30, "n": None, "f": 1.5}
    content = [{"type": "tool_use", "id": "1", "name": "f", "input": given}]
    ask = parse(Surface.MESSAGES, messages=[{"role": "assistant", "content": content}], max_tokens=1)
    calls: Any = chat_of(ask).messages[0]["tool_calls"]
    assert json.loads(calls[0]["function"]["arguments"]) == given
