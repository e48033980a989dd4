"""How large the prompt of a surface can be whose rendering is not reproduced: Responses, Messages, TGI."""

from kvbudget.edge.openai import fields
from kvbudget.edge.openai.bytebound import content_bound, json_bound, message_bound, text_bound
from kvbudget.edge.openai.errors import BadRequestError, shown
from kvbudget.edge.openai.prompts import OpaquePrompt

# Everything else (images, audio, files, server-side searches) is refused by name: its bytes do not bound its tokens.
_RESPONSE_ITEMS = frozenset((
    "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
    "input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text",
))  # fmt: skip
_MESSAGE_BLOCKS = frozenset(["text", "thinking", "redacted_thinking", "tool_use", "tool_result"])
_RESPONSE_TOOLS = frozenset(("function", "custom"))
_MESSAGE_TOOLS = frozenset(("custom",))


def responses_prompt(body: dict[str, object]) -> OpaquePrompt:
    """Bound of a `/v1/responses` body. State that lives outside of the body is refused: nothing bounds it."""
    for name in ("previous_response_id", "conversation", "prompt", "previous_input_messages"):
        fields.refuse(body, name, "its tokens are not in this request")
    given = body.get("input")
    if isinstance(given, str):
        if not given:
            raise BadRequestError("input must not be empty", "input", "empty_prompt")
        size, messages = text_bound(given), 1
    else:
        items = fields.objects(body, "input")
        if not items:
            raise BadRequestError("input must be a string or a non-empty array of items", "input", "empty_prompt")
        for index, item in enumerate(items):
            _check_kinds(item, _RESPONSE_ITEMS, f"input[{index}]", default="message")
        size, messages = sum(map(message_bound, items)), len(items)
    tools = _tools(body, _RESPONSE_TOOLS)
    instructions = fields.string(body, "instructions") or ""
    size += text_bound(instructions) + json_bound(tools) + json_bound(fields.json_object(body, "text"))
    return OpaquePrompt(size, messages + 1 + len(tools or ()))


def messages_prompt(body: dict[str, object]) -> OpaquePrompt:
    """Bound of a `/v1/messages` body."""
    messages = fields.objects(body, "messages")
    if not messages:
        raise BadRequestError("messages must be an array with at least one message", "messages", "empty_prompt")
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        if fields.string(message, "role", f"{at}.") is None:
            raise BadRequestError(f"{at}.role is missing", f"{at}.role")
        _check_content(message.get("content"), _MESSAGE_BLOCKS, f"{at}.content")
    system = body.get("system")
    _check_content(system, _MESSAGE_BLOCKS, "system")
    tools = _tools(body, _MESSAGE_TOOLS)
    size = sum(map(message_bound, messages)) + content_bound(system) + json_bound(tools)
    # A turn with several tool results becomes one message for each of them.
    blocks = sum(len(content) for message in messages if isinstance(content := message.get("content"), list))
    return OpaquePrompt(size, len(messages) + blocks + 1 + len(tools or ()))


def generate_prompt(body: dict[str, object]) -> OpaquePrompt:
    """Bound of a TGI `/generate` body: raw text, no template."""
    inputs = fields.string(body, "inputs")
    if not inputs:
        raise BadRequestError("inputs must be a non-empty string", "inputs", "empty_prompt")
    if "![](" in inputs:
        # TGI 3 reads Markdown images inside the text (router/src/validation.rs).
        raise BadRequestError("inputs holds a Markdown image; images are not bounded by this gate", "inputs",
                              "unsupported_content_part")  # fmt: skip
    return OpaquePrompt(text_bound(inputs), 0)


def _tools(body: dict[str, object], allowed: frozenset[str]) -> tuple[dict[str, object], ...] | None:
    tools = fields.objects(body, "tools")
    for index, tool in enumerate(tools or ()):
        kind = tool.get("type", next(iter(allowed)))
        if not isinstance(kind, str) or kind not in allowed:
            raise BadRequestError(
                f"tools[{index}].type {shown(kind)} is not accepted: what a server-side tool adds to the prompt is not "
                "in this request",
                f"tools[{index}].type",
                "unsupported_field",
            )
    return tools


def _check_kinds(item: dict[str, object], allowed: frozenset[str], at: str, default: str | None = None) -> None:
    kind = item.get("type", default)
    if not isinstance(kind, str) or kind not in allowed:
        raise BadRequestError(
            f"{at} has type {shown(kind)}: only text and function calls are accepted here",
            at,
            "unsupported_content_part",
        )
    for name in ("content", "output", "summary"):
        _check_content(item.get(name), allowed, f"{at}.{name}")


def _check_content(content: object, allowed: frozenset[str], at: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise BadRequestError(f"{at} must be a string or an array of parts, got {shown(content)}", at)
    for index, part in enumerate(content):
        if isinstance(part, str):
            continue
        if not isinstance(part, dict):
            raise BadRequestError(f"{at}[{index}] must be an object, got {shown(part)}", f"{at}[{index}]")
        _check_kinds(part, allowed, f"{at}[{index}]")
