"""Which values the chat template sees for a client's messages and tools: as vLLM 0.32 prepares them.

Follows `renderers/chat_utils.py` (`_parse_chat_message_content`, `_postprocess_messages`), `renderers/hf.py` (developer
role) and the serialisers of tools in `entrypoints/generate/base/protocol.py`. Inputs have passed `openai/chat.py`.
"""

import json

from kvbudget.edge.openai.chat import TEXT_PARTS

Message = dict[str, object]

_BILLING_HEADER = "x-anthropic-billing-header"
# Members of a part that vLLM knows; others are passed to the template when it reads parts.
_KNOWN_PART_MEMBERS = frozenset(
    (*TEXT_PARTS, *TEXT_PARTS.values(), "type", "uuid", "detail", "closed", "cache_control", "annotations")
)


def conversation_of(messages: tuple[Message, ...], *, parts: bool, developer_role: bool) -> list[Message]:
    """New messages for the template. `parts`: it reads content as a list of parts ("openai" format), not as a string.

    `developer_role`: it knows that role itself; otherwise developer messages become system messages, all at the front.
    """
    conversation = [_message(message, parts) for message in messages]
    if not developer_role and any(message["role"] == "developer" for message in conversation):
        return _with_one_system_message(conversation)
    return conversation


def tools_of(tools: tuple[Message, ...] | None) -> list[Message] | None:
    """Tools as vLLM's models dump them: known members in declared order, description and parameters always there."""
    if tools is None:
        return None
    dumped: list[Message] = []
    for tool in tools:
        function = tool["function"]
        assert isinstance(function, dict)  # noqa: S101 - checked when the body was read
        out = {name: function.get(name) for name in ("name", "description", "parameters")}
        if function.get("strict") is not None:
            out["strict"] = function["strict"]
        deferred = function.get("defer_loading")
        if deferred is None:
            deferred = tool.get("defer_loading")
        if deferred is not None:
            out["defer_loading"] = deferred
        entry: Message = {"type": "function", "function": out}
        if tool.get("defer_loading") is not None:
            entry["defer_loading"] = tool["defer_loading"]
        dumped.append(entry)
    return dumped


def _message(message: Message, parts: bool) -> Message:
    role = message["role"]
    content = _content_items(message.get("content"))
    if role == "system":
        content = [kept for item in content if (kept := _without_billing_header(item)) is not None]
    out: Message = {"role": role, "content": _content(content, parts)}
    if role == "assistant":
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            out["tool_calls"] = [_call(call) for call in calls]
        if reasoning is not None:
            out["reasoning"] = out["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            out["tool_call_id"] = message["tool_call_id"]
        out["content"] = _joined_if_text(out["content"])
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            out[name] = message[name]
    if role == "developer":
        out["tools"] = message.get("tools")
    return out


def _content_items(content: object) -> list[object]:
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)  # type: ignore[call-overload]


def _without_billing_header(item: object) -> object | None:
    """vLLM drops that first line from system texts: it changes with every request and would defeat the prefix cache."""
    text = item if isinstance(item, str) else item.get("text") if isinstance(item, dict) else None
    if not (isinstance(text, str) and text.startswith(_BILLING_HEADER)):
        return item
    if isinstance(item, dict) and item.get("type") != "text":
        return item
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return {**item, "text": rest} if isinstance(item, dict) else rest


def _content(items: list[object], parts: bool) -> object:
    texts: list[str] = []
    wrapped: list[Message] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
            wrapped.append({"type": "text", "text": item})
            continue
        assert isinstance(item, dict)  # noqa: S101 - checked when the body was read
        kind = item["type"]
        text = item.get(TEXT_PARTS[kind])
        if text is None:
            continue
        texts.append(text)
        if kind == "tool_reference":
            wrapped.append({"type": kind, "name": text})
        else:
            extra = {name: value for name, value in item.items() if name not in _KNOWN_PART_MEMBERS}
            wrapped.append({"type": "text", "text": text, **extra})
    # Joined, empty texts leave no line feed behind; as parts they stay.
    return wrapped if parts else "\n".join(filter(None, texts))


def _joined_if_text(content: object) -> object:
    """Most templates handle only strings in tool messages; references to deferred tools stay as they are."""
    if not isinstance(content, list) or any(part.get("type") != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _call(call: Message) -> Message:
    """Arguments as an object, as templates expect; what is no JSON object becomes an empty one."""
    function = call["function"]
    assert isinstance(function, dict)  # noqa: S101 - checked when the body was read
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError):
            arguments = {}
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _with_one_system_message(conversation: list[Message]) -> list[Message]:
    renamed = [
        {**{k: v for k, v in m.items() if k != "tools"}, "role": "system"} if m["role"] == "developer" else m
        for m in conversation
    ]
    system = [(index, message) for index, message in enumerate(renamed) if message["role"] == "system"]
    if [index for index, _ in system] == [0]:
        return renamed
    texts = [text for _, message in system if (text := _plain(message["content"]))]
    others = [message for message in renamed if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _plain(content: object) -> str:
    if isinstance(content, str):
        return content
    assert isinstance(content, list)  # noqa: S101 - one of the two that `_content` makes
    return "\n".join(part["text"] for part in content if "text" in part)
