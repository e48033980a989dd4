from typing import Any

import pytest

from kvbudget.edge.tokens.conversation import conversation_of, tools_of


def _one(message: dict[str, Any], *, parts: bool = False) -> dict[str, Any]:
    (out,) = conversation_of((message,), parts=parts, developer_role=True)
    return out


def test_text_parts_are_joined_by_line_feeds_or_kept_as_parts() -> None:
    message = {
        "role": "user",
        "content": [
            "a",
            {"type": "input_text", "text": "b", "x": 1},
            {"type": "text", "text": None},
            {"type": "refusal", "refusal": "c"},
        ],
    }
    assert _one(message)["content"] == "a\nb\nc"
    assert _one(message, parts=True)["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b", "x": 1},
        {"type": "text", "text": "c"},
    ]


def test_empty_texts_leave_no_line_feed_but_stay_as_parts() -> None:
    message = {"role": "user", "content": ["", "a", {"type": "text", "text": ""}]}
    assert _one(message)["content"] == "a"
    assert len(_one(message, parts=True)["content"]) == 3


@pytest.mark.parametrize(("parts", "empty"), [(False, ""), (True, [])])
def test_no_content_is_empty_content(parts: bool, empty: object) -> None:
    assert _one({"role": "assistant", "content": None}, parts=parts) == {"role": "assistant", "content": empty}
    assert _one({"role": "assistant"}, parts=parts)["content"] == empty


def test_a_string_is_one_part_where_parts_are_read() -> None:
    assert _one({"role": "user", "content": "a"}, parts=True)["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("[1]", {}),
        ("not json", {}),
        ("[" * 5000, {}),
    ],
)
def test_arguments_of_calls_become_objects(arguments: object, seen: object) -> None:
    message = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}
    assert _one(message)["tool_calls"] == [{"id": "1", "function": {"name": "f", "arguments": seen}}]


def test_only_what_the_engine_keeps_of_a_message_is_kept() -> None:
    message = {"role": "user", "content": "a", "name": "n", "junk": 1, "tool_calls": [], "reasoning": "r"}
    assert _one(message) == {"role": "user", "content": "a", "name": "n"}


def test_reasoning_is_given_under_both_names() -> None:
    out = _one({"role": "assistant", "content": "a", "reasoning_content": "r"})
    assert (out["reasoning"], out["reasoning_content"]) == ("r", "r")


def test_empty_tool_calls_are_dropped() -> None:
    assert "tool_calls" not in _one({"role": "assistant", "content": "a", "tool_calls": []})


def test_tool_results_are_strings_even_where_parts_are_read() -> None:
    message = {
        "role": "tool",
        "tool_call_id": "1",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert _one(message, parts=True) == {"role": "tool", "content": "a\nb", "tool_call_id": "1"}
    reference = {"role": "tool", "content": [{"type": "tool_reference", "name": "f"}]}
    assert _one(reference, parts=True)["content"] == [{"type": "tool_reference", "name": "f"}]
    assert _one(reference)["content"] == "f"


def test_the_billing_line_is_dropped_from_system_texts_only() -> None:
    text = "x-anthropic-billing-header: cch=1\nBe brief."
    assert _one({"role": "system", "content": text})["content"] == "Be brief."
    assert _one({"role": "system", "content": ["x-anthropic-billing-header: 1", "b"]})["content"] == "b"
    assert _one({"role": "user", "content": text})["content"] == text


def test_developer_messages_become_one_system_message_where_the_role_is_unknown() -> None:
    messages: tuple[dict[str, Any], ...] = (
        {"role": "system", "content": "a"},
        {"role": "user", "content": "q"},
        {"role": "developer", "content": ["b", "c"], "tools": []},
    )
    assert conversation_of(messages, parts=False, developer_role=False) == [
        {"role": "system", "content": "a\n\nb\nc"},
        {"role": "user", "content": "q"},
    ]
    assert conversation_of(messages, parts=True, developer_role=False)[0]["content"] == "a\n\nb\nc"
    assert conversation_of(messages, parts=False, developer_role=True)[2]["role"] == "developer"


def test_a_single_developer_message_in_front_is_only_renamed() -> None:
    messages: tuple[dict[str, Any], ...] = ({"role": "developer", "content": "a"}, {"role": "user", "content": "q"})
    assert conversation_of(messages, parts=False, developer_role=False)[0] == {"role": "system", "content": "a"}


def test_tools_are_dumped_in_declared_order_with_their_defaults() -> None:
    tool: dict[str, object] = {"function": {"strict": True, "name": "f", "junk": 1}, "defer_loading": True, "junk": 2}
    assert tools_of((tool,)) == [
        {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": None, "strict": True, "defer_loading": True},
            "defer_loading": True,
        }
    ]
    assert tools_of(None) is None
    assert tools_of(()) == []
