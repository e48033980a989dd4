"""Anthropic's `/v1/messages`: what it asks for, as the chat that vLLM 0.32 makes of it.

Follows vLLM 0.32 `entrypoints/anthropic/serving.py`, so that the model's own template counts it. What that conversion
decides by the template (system messages between others) is bounded instead.
"""

import json
import re

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.openai import fields
from kvbudget.edge.openai.chat import chat_prompt
from kvbudget.edge.openai.errors import BadRequestError, shown
from kvbudget.edge.openai.opaque import messages_prompt, messages_tools, messages_turns
from kvbudget.edge.openai.prompts import ChatPrompt, OpaquePrompt
from kvbudget.edge.openai.tails import Member
from kvbudget.edge.openai.usage import Usage, usage_in
from kvbudget.edge.surfaces import members
from kvbudget.edge.surfaces.ask import Ask, Surface

_Object = dict[str, object]

# message_start and content_block_start come before the first content_block_delta (vLLM 0.32).
LEAD_EVENTS = 2
_BILLING_HEADER = "x-anthropic-billing-header"
# Members of chat bodies that other engines read on this route too: then the conversion is not vLLM's.
_FOREIGN = (
    "chat_template", "documents", "reasoning_effort", "add_generation_prompt", "continue_final_message",
    "add_special_tokens",
)  # fmt: skip
_AT_MESSAGE = re.compile(r"messages\[(\d+)\]")

_USAGE = Member("usage", within="message")


def parse(surface: Surface, body: _Object, raw: bytes) -> Ask:
    """The Ask of a messages body. Raises BadRequestError.

    The API requires `max_tokens`; one that is missing is filled in with what is promised, as on every other path.
    """
    members.no_prompt_logprobs(body)
    sequences = members.sequences(body)  # llama.cpp turns these bodies into chat bodies and keeps a stray n
    stream = fields.boolean(body, "stream") or False
    return Ask(
        surface,
        members.model(body),
        stream,
        sequences,
        members.max_new(body, "max_tokens"),
        "max_tokens",
        prompt_of(body),
        None,
        body,
        raw,
        paced=stream and sequences == 1,
        lead_events=LEAD_EVENTS,
    )


def usage(tail: bytes, headers: Headers) -> Usage | None:
    """Counts of an answer: at its end, and of a stream in the `message` that begins it too."""
    return usage_in(tail, _USAGE)


def prompt_of(body: _Object) -> ChatPrompt | OpaquePrompt:
    """The prompt of a body of `/v1/messages` or `/v1/messages/count_tokens`. Raises BadRequestError."""
    messages = messages_turns(body)
    if any(body.get(name) is not None for name in _FOREIGN) or any(
        message["role"] not in ("user", "assistant") for message in messages
    ):
        return messages_prompt(body, messages)
    chat = _Chat()
    chat.add_system(body.get("system"))
    for index, message in enumerate(messages):
        chat.add(message, index)
    rendered: _Object = {"messages": chat.messages, "chat_template_kwargs": body.get("chat_template_kwargs")}
    tools = messages_tools(body)
    if tools is not None:
        rendered["tools"] = [_tool(tool, index) for index, tool in enumerate(tools)]
    effort = _effort(body)
    if effort is not None:
        rendered["reasoning_effort"] = effort
    try:
        return chat_prompt(rendered)
    except BadRequestError as error:
        raise chat.as_it_came(error) from None


def _effort(body: _Object) -> str | None:
    """Thinking that is disabled is the effort "none" (vLLM 0.32 takes "low" where a template does not know it: a few
    tokens' difference)."""
    thinking = fields.json_object(body, "thinking")
    if thinking is not None and thinking.get("type") == "disabled":
        return "none"
    output = fields.json_object(body, "output_config")
    return None if output is None else fields.string(output, "effort", "output_config.")


def _tool(tool: _Object, index: int) -> _Object:
    at = f"tools[{index}]."
    schema = fields.json_object(tool, "input_schema", at)
    names = ("name", "description", "strict", "defer_loading")
    function: _Object = {name: tool[name] for name in names if name in tool}
    if schema is not None:
        function["parameters"] = schema if "type" in schema else {**schema, "type": "object"}
    if fields.string(tool, "name", at) is None:
        raise BadRequestError(f"{at}name is missing", f"{at}name")
    return {"type": "function", "function": function}


class _Chat:
    """The chat that grows out of the messages; `_origins` tells which message each of its own came from."""

    def __init__(self) -> None:
        self.messages: list[_Object] = []
        self._origins: list[str] = []

    def add_system(self, system: object) -> None:
        """The system prompt: its blocks' texts, one behind another."""
        if isinstance(system, list):
            texts = [_text_of(block, f"system[{index}]") for index, block in enumerate(system)]
            system = "".join([text for text in texts if not text.startswith(_BILLING_HEADER)])
        elif system is not None and not isinstance(system, str):
            raise BadRequestError(f"system must be a string or an array of blocks, got {shown(system)}", "system")
        if system:
            self._append({"role": "system", "content": system}, "system")

    def add(self, message: _Object, index: int) -> None:
        """One message; results of tools become messages of their own before it."""
        content, role, at = message.get("content"), message["role"], f"messages[{index}]"
        out: _Object = {"role": role}
        if isinstance(content, str):
            out["content"] = content
        elif isinstance(content, list):
            self._add_blocks(content, out, at)
        elif content is not None:
            raise BadRequestError(f"{at}.content must be a string or an array of blocks, got {shown(content)}",
                                  f"{at}.content")  # fmt: skip
        if role != "user" or "content" in out:
            self._append(out, at)

    def _add_blocks(self, content: list[object], out: _Object, at: str) -> None:
        parts: list[_Object] = []
        calls: list[_Object] = []
        thoughts: list[str] = []
        for number, block in enumerate(content):
            where = f"{at}.content[{number}]"
            if not isinstance(block, dict):
                raise BadRequestError(f"{where} must be an object, got {shown(block)}", where)
            kind = block.get("type")
            if kind == "text":
                text = _text_of(block, where)
                if text:
                    parts.append({"type": "text", "text": text})
            elif kind == "image":
                parts.append({"type": "image_url", "image_url": {"url": _image_url(block, where)}})
            elif kind == "thinking":
                thoughts.append(fields.string(block, "thinking", f"{where}.") or "")
            elif kind == "tool_use":
                calls.append(_call(block, where))
            elif kind == "tool_result" and out["role"] == "user":
                self._add_result(block, where)
            elif kind == "tool_result":
                parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})
            elif kind not in ("redacted_thinking", "tool_reference"):  # these two are left out
                raise BadRequestError(
                    f"{where} has type {shown(kind)}: only text, images, thinking and tool calls are accepted here",
                    where,
                    "unsupported_content_part",
                )
        if thoughts:
            out["reasoning"] = "".join(thoughts)
        if calls:
            out["tool_calls"] = calls
        if parts:
            out["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts

    def _add_result(self, block: _Object, at: str) -> None:
        content = block.get("content")
        texts: list[str] = []
        images: list[_Object] = []
        references: list[_Object] = []
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            for number, part in enumerate(content):
                where = f"{at}.content[{number}]"
                if not isinstance(part, dict):
                    raise BadRequestError(f"{where} must be an object, got {shown(part)}", where)
                if part.get("type") == "text":
                    texts.append(_text_of(part, where))
                elif part.get("type") == "image":
                    images.append({"type": "image_url", "image_url": {"url": _image_url(part, where)}})
                elif part.get("type") == "tool_reference":
                    references.append({"type": "tool_reference", "name": part.get("tool_name") or part.get("name")})
                else:
                    raise BadRequestError(
                        f"{where} has type {shown(part.get('type'))}: only text, images and tool references are "
                        "accepted here",
                        where,
                        "unsupported_content_part",
                    )
        elif content is not None:
            raise BadRequestError(f"{at}.content must be a string or an array of blocks, got {shown(content)}",
                                  f"{at}.content")  # fmt: skip
        call_id = fields.string(block, "tool_use_id", f"{at}.") or ""
        self._append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)}, at)
        if images:
            self._append({"role": "user", "content": images}, at)
        if references:
            self._append({"role": "tool", "tool_call_id": call_id, "content": references}, at)

    def _append(self, message: _Object, origin: str) -> None:
        self.messages.append(message)
        self._origins.append(origin)

    def as_it_came(self, error: BadRequestError) -> BadRequestError:
        """The error of a converted message, said of the message that the client sent."""

        def origin(match: re.Match[str]) -> str:
            number = int(match[1])
            return self._origins[number] if number < len(self._origins) else match[0]

        param = None if error.param is None else _AT_MESSAGE.sub(origin, error.param, count=1)
        return type(error)(_AT_MESSAGE.sub(origin, error.message, count=1), param, error.code)


def _text_of(block: object, at: str) -> str:
    if not isinstance(block, dict) or block.get("type", "text") != "text":
        kind = block.get("type") if isinstance(block, dict) else block
        raise BadRequestError(f"{at} has type {shown(kind)}: only text is accepted there", at,
                              "unsupported_content_part")  # fmt: skip
    return fields.string(block, "text", f"{at}.") or ""


def _call(block: _Object, at: str) -> _Object:
    arguments = json.dumps(fields.json_object(block, "input", f"{at}.") or {})
    name = fields.string(block, "name", f"{at}.") or ""
    return {
        "id": fields.string(block, "id", f"{at}.") or "",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _image_url(block: _Object, at: str) -> str:
    source = fields.json_object(block, "source", f"{at}.") or {}
    if source.get("type") == "url":
        return fields.string(source, "url", f"{at}.source.") or ""
    data = fields.string(source, "data", f"{at}.source.") or ""
    return f"data:{fields.string(source, 'media_type', f'{at}.source.') or 'image/jpeg'};base64,{data}"
