"""OpenAI's `/v1/responses`: what it asks for, as the chat that vLLM 0.32 makes of it.

Follows vLLM 0.32 `entrypoints/openai/responses/utils.py`. Items that it renders by rules of their own (custom tools, a
turn to be continued) are bounded; an earlier response, whose tokens only the engine has, is charged as a whole window.
"""

from typing import cast

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.openai import fields
from kvbudget.edge.openai.chat import chat_prompt
from kvbudget.edge.openai.errors import BadRequestError, shown
from kvbudget.edge.openai.opaque import responses_prompt, responses_tools
from kvbudget.edge.openai.prompts import ChatPrompt, OpaquePrompt, TokenPrompt
from kvbudget.edge.openai.tails import Member
from kvbudget.edge.openai.usage import Usage, usage_in
from kvbudget.edge.surfaces import charges, members
from kvbudget.edge.surfaces.ask import Ask, Surface

_Object = dict[str, object]

# response.created, .in_progress, .output_item.added and .content_part.added come before the first delta.
LEAD_EVENTS = 4
# Members of chat bodies that other engines read on this route too: then the conversion is not vLLM's.
_FOREIGN = (
    "chat_template", "documents", "reasoning_effort", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "conversation", "prompt", "previous_response", "previous_input_messages",
)  # fmt: skip

_USAGE = Member("usage", within="response")


def parse(surface: Surface, body: _Object, raw: bytes) -> Ask:
    """The Ask of a responses body. Raises BadRequestError."""
    members.no_prompt_logprobs(body)
    sequences = members.sequences(body)
    stream = fields.boolean(body, "stream") or False
    ask = Ask(
        surface,
        members.model(body),
        stream,
        sequences,
        members.max_new(body, "max_output_tokens"),
        "max_output_tokens",
        TokenPrompt((1,)),
        None,
        body,
        raw,
        paced=stream and sequences == 1,
        lead_events=LEAD_EVENTS,
    )
    if fields.string(body, "previous_response_id") is not None:
        # Read for its faults alone: how long the whole is, only the engine knows.
        prompt_of({name: value for name, value in body.items() if name != "previous_response_id"})
        return ask._replace(charge=charges.whole_window, inexact=True, paced=False)
    ask = ask._replace(prompt=prompt_of(body))
    if fields.string(body, "truncation") == "auto":  # the engine cuts what is longer than its window
        return ask._replace(charge=charges.within_window, inexact=True)
    return ask


def usage(tail: bytes, headers: Headers) -> Usage | None:
    """Counts of an answer; of a stream they are in the `response` of its last event."""
    return usage_in(tail, _USAGE)


def prompt_of(body: _Object) -> ChatPrompt | OpaquePrompt:
    """The prompt of a body without an earlier response. Raises BadRequestError."""
    if any(body.get(name) is not None for name in _FOREIGN):
        return responses_prompt(body)
    given = body.get("input")
    items = (given if isinstance(given, str) else fields.objects(body, "input")) if given else None
    if not items:
        raise BadRequestError("input must be a non-empty string or array of items", "input", "empty_prompt")
    instructions = fields.string(body, "instructions")
    messages: list[_Object] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        messages.append({"role": "user", "content": items})
    elif not _converted(items, messages):
        return responses_prompt(body)
    # vLLM 0.32 ResponsesRequest.build_tok_params leaves special tokens on, where chat bodies turn them off.
    rendered: _Object = {
        "messages": messages,
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "add_special_tokens": True,
        "mm_processor_kwargs": body.get("mm_processor_kwargs"),
    }
    tools = responses_tools(body)
    if tools:
        if any(tool.get("type", "function") != "function" or type(tool.get("name")) is not str for tool in tools):
            return responses_prompt(body)  # custom tools; and what the engine will refuse
        rendered["tools"] = [_tool(tool) for tool in tools]
    reasoning = fields.json_object(body, "reasoning")
    effort = None if reasoning is None else fields.string(reasoning, "effort", "reasoning.")
    if effort is not None:
        rendered["reasoning_effort"] = effort
    return chat_prompt(rendered)


def _tool(tool: _Object) -> _Object:
    names = ("name", "description", "parameters", "strict", "defer_loading")
    return {"type": "function", "function": {name: tool[name] for name in names if name in tool}}


def _converted(items: tuple[_Object, ...], messages: list[_Object]) -> bool:
    """Whether every item became (part of) a message, as vLLM merges them: what an assistant thought, said and called
    one after another is one message as long as nothing comes twice. Raises BadRequestError."""
    if items[-1].get("status") in ("in_progress", "incomplete"):
        return False  # its last turn is continued
    for index, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "function_call" and item.get("namespace") is None:
            _add_call(item, f"input[{index}].", messages)
        elif kind == "reasoning":
            thought = _reasoning(item)
            if thought is None:
                return False
            _merge(messages, "reasoning", thought)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind == "message" and item.get("role") == "assistant" and (text := _said(item)) is not None:
            _merge(messages, "content", text)
        elif kind == "message":
            if type(item.get("role")) is not str:
                raise BadRequestError(f"input[{index}].role must be a string, got {shown(item.get('role'))}",
                                      f"input[{index}].role")  # fmt: skip
            messages.append({name: value for name, value in item.items() if name != "type"})
        else:
            return False
    return True


def _merge(messages: list[_Object], name: str, value: str) -> None:
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and last.get(name) is None:
        last[name] = value
    else:
        messages.append({"role": "assistant", name: value})


def _add_call(item: _Object, at: str, messages: list[_Object]) -> None:
    call: _Object = {
        "id": fields.string(item, "call_id", at),
        "type": "function",
        "function": {"name": fields.string(item, "name", at), "arguments": fields.string(item, "arguments", at) or ""},
    }
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant":
        messages.append({"role": "assistant", "tool_calls": [call]})
        return
    calls = last.get("tool_calls")
    if calls is None:
        last["tool_calls"] = [call]
    else:
        cast("list[_Object]", calls).append(call)


def _reasoning(item: _Object) -> str | None:
    """Its first text; None where it is encrypted or has none."""
    if item.get("encrypted_content"):
        return None
    for name in ("content", "summary"):
        texts = item.get(name)
        if isinstance(texts, list) and texts and isinstance(texts[0], dict):
            text = texts[0].get("text")
            return text if isinstance(text, str) else None
    return None


def _said(item: _Object) -> str | None:
    """What an assistant said: a text, or the first of its parts."""
    content = item.get("content")
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0].get("text")
    return content if isinstance(content, str) else None
