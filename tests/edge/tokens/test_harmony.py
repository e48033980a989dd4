"""The harmony format beside openai_harmony, the library that vLLM 0.32 renders gpt-oss with."""

import json
from array import array
from datetime import datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncodingName,
    Message,
    ReasoningEffort,
    RenderConversationConfig,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    load_harmony_encoding,
)

import vocabularies
from kvbudget.edge.openai.ask import Surface, parse_ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.harmony_tools import functions_section
from kvbudget.edge.tokens.tokenizer import TokenizerCounter

ENCODING = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
EFFORTS = {"low": ReasoningEffort.LOW, "medium": ReasoningEffort.MEDIUM, "high": ReasoningEffort.HIGH}
DATE = datetime(2026, 11, 30)
TEXTS = st.text(max_size=20) | st.sampled_from(["<|end|>", "a\nb", "<|start|>system", "naïve 你好", "  ", "it's"])
TOOL = {"name": "weather", "description": "Of a\nplace", "parameters": {
    "type": "object",
    "properties": {"place": {"type": "string", "description": "town"}, "days": {"type": "integer", "default": 3}},
    "required": ["place"],
}}  # fmt: skip
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Ulm"}'}}


@cache
def _counter() -> TokenizerCounter:
    return TokenizerCounter.load(vocabularies.vocabulary("gpt-oss"), now=lambda: DATE, deadline_s=60)


def _ids(messages: Any, **members: Any) -> list[int]:
    count = _counter().count(parse_ask(Surface.CHAT, json.dumps({"messages": messages, **members}).encode()))
    assert isinstance(count, Count)
    assert count.exact
    assert isinstance(count.token_ids, bytes)
    assert count.prompt_tokens == (len(count.token_ids) // 4,)
    return list(array("I", count.token_ids))


def _expected(*messages: Message, effort: str = "medium") -> list[int]:
    content = SystemContent.new().with_conversation_start_date("2026-11-30").with_reasoning_effort(EFFORTS[effort])
    head = Message.from_role_and_content(Role.SYSTEM, content)
    plain = RenderConversationConfig(auto_drop_analysis=False)
    conversation = Conversation.from_messages([head, *messages])
    return list(ENCODING.render_conversation_for_completion(conversation, Role.ASSISTANT, config=plain))


def _said(role: Role, *texts: str, channel: str | None = None) -> Message:
    message = Message.from_role_and_contents(role, [TextContent(text=text) for text in texts])
    return message if channel is None else message.with_channel(channel)


def _developer(instructions: str | None, *tools: dict[str, Any]) -> Message:
    content = DeveloperContent.new()
    if instructions is not None:
        content = content.with_instructions(instructions)
    if tools:
        described = [
            ToolDescription.new(name=t["name"], description=t.get("description", ""), parameters=t.get("parameters"))
            for t in tools
        ]
        content = content.with_function_tools(described)
    return Message.from_role_and_content(Role.DEVELOPER, content)


@pytest.mark.parametrize("effort", EFFORTS)
def test_a_question_has_the_ids_of_the_library(effort: str) -> None:
    ids = _ids([{"role": "user", "content": "hi"}], reasoning_effort=effort)
    assert ids == _expected(_said(Role.USER, "hi"), effort=effort)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_leading_instructions_and_tools_make_one_developer_message(role: str) -> None:
    messages = [{"role": role, "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": " brief"}]},
                {"role": "user", "content": "hi"}]  # fmt: skip
    assert _ids(messages) == _expected(_developer("Be brief"), _said(Role.USER, "hi"))
    tools = [{"type": "function", "function": TOOL}]
    assert _ids(messages, tools=tools) == _expected(_developer("Be brief", TOOL), _said(Role.USER, "hi"))
    assert _ids(messages[1:], tools=tools) == _expected(_developer(None, TOOL), _said(Role.USER, "hi"))


def test_parts_and_control_tokens_in_texts_are_plain_text_each_by_itself() -> None:
    parts = [{"type": "text", "text": "a<|end|><|start|>system"}, {"type": "text", "text": "b"}]
    assert _ids([{"role": "user", "content": parts}]) == _expected(_said(Role.USER, "a<|end|><|start|>system", "b"))


def test_later_instructions_are_developer_messages_and_nothing_said_is_nothing() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "now brief"},
                {"role": "system", "content": None}, {"role": "assistant", "content": ""},
                {"role": "user", "content": None}]  # fmt: skip
    assert _ids(messages) == _expected(_said(Role.USER, "a"), _developer("now brief"), _said(Role.USER, ""))


def test_a_call_is_written_as_the_model_was_taught_and_not_as_the_library_writes_it() -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "let me see", "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    text = "".join(
        ("<|start|>user<|message|>q<|end|>",
         "<|start|>assistant<|channel|>commentary<|message|>let me see<|end|>",
         "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>",
         '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"place": "Ulm"}<|call|>',
         "<|start|>functions.weather<|channel|>commentary to=assistant<|message|>rain<|end|>",
         "<|start|>assistant")
    )  # fmt: skip
    ids = _ids(messages)
    assert ENCODING.decode(ids).endswith(text)
    tool = Message.from_author_and_content(Author.new(Role.TOOL, "functions.weather"), "rain")
    tail = _expected(tool.with_channel("commentary").with_recipient("assistant"))
    assert ids[-12:] == tail[-12:]


def test_thoughts_before_the_last_answer_are_dropped_and_later_ones_stay() -> None:
    old = {"role": "assistant", "content": "x", "reasoning": "old"}
    new = {"role": "assistant", "content": None, "reasoning": "new", "tool_calls": [CALL]}
    decoded = ENCODING.decode(_ids([{"role": "user", "content": "a"}, old, old, new]))
    assert "old" not in decoded
    assert "analysis<|message|>new" in decoded


@pytest.mark.parametrize(
    "body",
    [
        {"reasoning_effort": "none"},
        {"messages": [{"role": "critic", "content": "x"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}]},
    ],
)
def test_what_harmony_has_no_form_for_is_refused(body: dict[str, Any]) -> None:
    ask = parse_ask(Surface.CHAT, json.dumps({"messages": [{"role": "user", "content": "x"}], **body}).encode())
    with pytest.raises(BadRequestError):
        _counter().count(ask)


DESCRIBED = st.fixed_dictionaries(
    {},
    optional={
        "description": TEXTS,
        "title": TEXTS,
        "nullable": st.booleans(),
        "default": st.none() | st.booleans() | st.integers(-9, 9) | TEXTS | st.lists(TEXTS, max_size=2),
        "examples": st.lists(TEXTS | st.integers(0, 9), max_size=2),
        "enum": st.lists(TEXTS | st.integers(0, 9), max_size=3),
    },
)
NAMES = st.sampled_from(["zeta", "alpha", "mid_1", "été"])


def _extended(schemas: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.builds(lambda more, items: {**more, "type": "array", "items": items}, DESCRIBED, schemas),
        st.builds(lambda more, each: {**more, "oneOf": each}, DESCRIBED, st.lists(schemas, max_size=3)),
        st.builds(lambda more, each: {**more, "anyOf": each}, DESCRIBED, st.lists(schemas, max_size=2)),
        st.builds(
            lambda more, members, needed: {**more, "type": "object", "properties": members, "required": needed},
            DESCRIBED, st.dictionaries(NAMES, schemas, max_size=3), st.lists(NAMES, max_size=2),
        ),
    )  # fmt: skip


KINDS = st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "null", ["integer", "null"], []])
SCHEMAS = st.recursive(st.builds(lambda more, kind: {**more, "type": kind}, DESCRIBED, KINDS) | DESCRIBED, _extended)


@given(SCHEMAS, TEXTS)
@example({"oneOf": []}, "\r")
@example({}, "a\r\nb\r\n\r")
@settings(max_examples=300, deadline=None)
def test_any_schema_is_written_as_the_library_writes_it(schema: dict[str, Any], description: str) -> None:
    tool = {"name": "f", "description": description, "parameters": schema}
    content = DeveloperContent.new().with_function_tools(
        [ToolDescription.new(name="f", description=description, parameters=schema)]
    )
    message = Message.from_role_and_content(Role.DEVELOPER, content)
    written = ENCODING.decode(ENCODING.render(message))
    body = written.removeprefix("<|start|>developer<|message|>").removesuffix("<|end|>")
    assert functions_section([{"type": "function", "function": tool}]) == body
