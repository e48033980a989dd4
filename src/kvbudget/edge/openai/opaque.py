"""How large the prompt of a surface can be whose rendering is not reproduced: Responses, Messages, TGI."""

from kvbudget.edge.openai import fields
from kvbudget.edge.openai.bytebound import content_bound, json_bound, messages_bound, text_bound
from kvbudget.edge.openai.chat import template_kwargs
from kvbudget.edge.openai.errors import BadRequestError, shown
from kvbudget.edge.openai.fields import Path, spelled
from kvbudget.edge.openai.prompts import OpaquePrompt

# Everything else (images, audio, files, server-side searches) is refused by name: its bytes do not bound its tokens.
_RESPONSE_ITEMS = frozenset((
    "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
    "input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text",
))  # fmt: skip
_MESSAGE_BLOCKS = frozenset(["text", "thinking", "redacted_thinking", "tool_use", "tool_result"])
_RESPONSE_TOOLS = frozenset(("function", "custom"))
_MESSAGE_TOOLS = frozenset(("custom",))
# Members of an item that hold content of their own.
_HOLDERS = frozenset(("content", "output", "summary"))
# What other engines' own /generate reads: SGLang takes text or input_ids (io_struct.py: GenerateReqInput), with n in
# sampling_params; vLLM's demonstration server takes prompt and n. Beside `inputs` they would be what runs.
_OTHER_GENERATE = ("text", "input_ids", "input_embeds", "prompt", "sampling_params", "image_data", "video_data",
                   "audio_data", "n", "use_beam_search")  # fmt: skip


def responses_prompt(body: dict[str, object]) -> OpaquePrompt:
    """Bound of a `/v1/responses` body. State that lives outside of the body is refused: nothing bounds it."""
    # previous_response: vLLM unpacks whole turns from the encrypted_content in it.
    for name in (
        "previous_response_id", "previous_response", "conversation", "prompt", "previous_input_messages",
    ):  # fmt: skip
        fields.refuse(body, name, "its tokens are not in this request")
    given = body.get("input")
    if isinstance(given, str):
        if not given:
            raise BadRequestError("input must not be empty", "input", "empty_prompt")
        items: tuple[dict[str, object], ...] = ()
    else:
        items = fields.objects(body, "input") or ()
        if not items:
            raise BadRequestError("input must be a string or a non-empty array of items", "input", "empty_prompt")
        for index, item in enumerate(items):
            _check_kinds(item, _RESPONSE_ITEMS, ("input", index), default="message")
    tools = responses_tools(body)
    instructions = fields.string(body, "instructions") or ""
    text, kwargs = fields.json_object(body, "text"), _template_kwargs(body)

    def measure() -> int:
        size = text_bound(given) if isinstance(given, str) else messages_bound(items)
        return size + text_bound(instructions) + json_bound(tools) + json_bound(text) + json_bound(kwargs)

    return OpaquePrompt(measure, max(len(items), 1) + 1 + len(tools or ()))


def messages_turns(body: dict[str, object]) -> tuple[dict[str, object], ...]:
    """The messages of a `/v1/messages` body: at least one, and each with a role. Raises BadRequestError."""
    messages = fields.objects(body, "messages")
    if not messages:
        raise BadRequestError("messages must be an array with at least one message", "messages", "empty_prompt")
    for index, message in enumerate(messages):
        if type(message.get("role")) is not str:
            at = f"messages[{index}]."
            fields.string(message, "role", at)
            raise BadRequestError(f"{at}role is missing", f"{at}role")
    return messages


def messages_prompt(body: dict[str, object], messages: tuple[dict[str, object], ...] | None = None) -> OpaquePrompt:
    """Bound of a `/v1/messages` body. `messages`: its turns, where they were read before."""
    messages = messages_turns(body) if messages is None else messages
    for index, message in enumerate(messages):
        content = message.get("content")
        if type(content) is not str:
            _check_content(content, _MESSAGE_BLOCKS, ("messages", index, "content"))
    system = body.get("system")
    _check_content(system, _MESSAGE_BLOCKS, ("system",))
    tools = messages_tools(body)
    kwargs, output = _template_kwargs(body), fields.json_object(body, "output_config")
    # A turn with several tool results becomes one message for each of them.
    blocks = sum(len(content) for message in messages if isinstance(content := message.get("content"), list))

    def measure() -> int:
        size = messages_bound(messages) + content_bound(system) + json_bound(tools)
        return size + json_bound(kwargs) + json_bound(output)

    return OpaquePrompt(measure, len(messages) + blocks + 1 + len(tools or ()))


def generate_text(body: dict[str, object]) -> str:
    """The `inputs` of a TGI `/generate` body. Raises BadRequestError."""
    for name in _OTHER_GENERATE:
        fields.refuse(body, name, "an engine could run it in place of inputs")
    inputs = fields.string(body, "inputs")
    if not inputs:
        raise BadRequestError("inputs must be a non-empty string", "inputs", "empty_prompt")
    if "![](" in inputs:
        # TGI 3 reads Markdown images inside the text (router/src/validation.rs).
        raise BadRequestError("inputs holds a Markdown image; images are not bounded by this gate", "inputs",
                              "unsupported_content_part")  # fmt: skip
    return inputs


def responses_tools(body: dict[str, object]) -> tuple[dict[str, object], ...] | None:
    """Tools of a `/v1/responses` body; a server's own are refused. Raises BadRequestError."""
    return _tools(body, _RESPONSE_TOOLS)


def messages_tools(body: dict[str, object]) -> tuple[dict[str, object], ...] | None:
    """Tools of a `/v1/messages` body; a server's own are refused. Raises BadRequestError."""
    return _tools(body, _MESSAGE_TOOLS)


def _template_kwargs(body: dict[str, object]) -> dict[str, object] | None:
    """What the template sees beside the messages: engines take these members of chat bodies here as well."""
    fields.refuse(body, "chat_template", "the template is the operator's choice")
    return template_kwargs(body) or None


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


def _check_kinds(item: dict[str, object], allowed: frozenset[str], path: Path, default: str | None = None) -> None:
    kind = item.get("type", default)
    if not isinstance(kind, str) or kind not in allowed:
        at = spelled(path)
        raise BadRequestError(
            f"{at} has type {shown(kind)}: only text and function calls are accepted here",
            at,
            "unsupported_content_part",
        )
    if _HOLDERS.isdisjoint(item):
        return
    for name in ("content", "output", "summary"):
        content = item.get(name)
        if content is not None and type(content) is not str:
            _check_content(content, allowed, (*path, name))


def _check_content(content: object, allowed: frozenset[str], path: Path) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        at = spelled(path)
        raise BadRequestError(f"{at} must be a string or an array of parts, got {shown(content)}", at)
    for index, part in enumerate(content):
        if isinstance(part, str):
            continue
        if not isinstance(part, dict):
            at = spelled((*path, index))
            raise BadRequestError(f"{at} must be an object, got {shown(part)}", at)
        if len(part) == 2 and "text" in part and part.get("type") == "text":  # nothing else in it, and always allowed
            continue
        _check_kinds(part, allowed, (*path, index))
