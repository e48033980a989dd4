"""Which `/v1/chat/completions` bodies are accepted, and what of them reaches the chat template.

Follows vLLM 0.32 `entrypoints/openai/chat_completion/protocol.py` and `renderers/chat_utils.py`. What would let the
engine see another prompt than the one counted here is refused by name.
"""

from collections.abc import Mapping
from typing import Final

from kvbudget.edge.openai import fields
from kvbudget.edge.openai.errors import BadRequestError, shown
from kvbudget.edge.openai.fields import Path, spelled
from kvbudget.edge.openai.images import IMAGE_PARTS, check_image_part, url_of
from kvbudget.edge.openai.prompts import ChatPrompt

# The member that carries the text of each kind of text part (vLLM 0.32 MM_PARSER_MAP).
TEXT_PARTS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "tool_reference": "name",
}
# Members that make a part multimodal whatever its type says (vLLM 0.32 _MEDIA_CONTENT_PART_KEYS).
_MEDIA_KEYS: Final = frozenset((
    "image_url", "image_pil", "image_embeds", "input_image", "audio_url", "audio_embeds", "input_audio", "video_url",
    "video_embeds", "prompt_embeds",
))  # fmt: skip
# Arguments of `apply_chat_template` itself (transformers 5): through `chat_template_kwargs` they would replace the
# template or cut or pad what was counted.
_RESERVED_KWARGS: Final = frozenset((
    "chat_template", "tokenize", "conversation", "messages", "tools", "add_special_tokens", "sanitize_control_tokens",
    "padding", "truncation", "max_length", "tokenizer_kwargs", "processor_kwargs", "return_tensors", "return_dict",
    "return_assistant_tokens_mask",
))  # fmt: skip

# Members that change how messages are rendered; a body with none of them needs no further reading.
_OPTIONS: Final = frozenset((
    "add_generation_prompt", "continue_final_message", "chat_template", "tools", "chat_template_kwargs", "documents",
    "reasoning_effort", "add_special_tokens",
))  # fmt: skip

_OPTIONAL_FLAGS: Final = frozenset(("strict", "defer_loading"))
_NOTHING: Final[Mapping[str, object]] = {}


def chat_prompt(body: dict[str, object]) -> ChatPrompt:
    """The prompt of a chat body. Raises BadRequestError."""
    messages = fields.objects(body, "messages")
    if not messages:
        raise BadRequestError("messages must be an array with at least one message", "messages", "empty_prompt")
    parts: list[object] = []
    for index, message in enumerate(messages):
        # Role and text alone: what most messages are, and nothing in them is left to check.
        plain = len(message) == 2 and type(message.get("role")) is str and type(message.get("content")) is str
        if not plain:
            _check_message(message, ("messages", index))
            if type(content := message.get("content")) is list:
                parts += content
    images = _images(body, parts) if parts else ()
    if not fields.has_any(body, _OPTIONS):
        return ChatPrompt(messages, None, True, False, {}, False, images)
    generation = fields.boolean(body, "add_generation_prompt")
    continued = fields.boolean(body, "continue_final_message") or False
    if continued and generation is not False:
        # The template wrapper refuses the pair, and add_generation_prompt is true unless told otherwise.
        raise BadRequestError(
            "continue_final_message needs add_generation_prompt set to false", "continue_final_message"
        )
    fields.refuse(body, "chat_template", "the template is the operator's choice")
    return ChatPrompt(
        messages=messages,
        tools=_tools(body),
        add_generation_prompt=generation is not False,
        continue_final_message=continued,
        template_kwargs=template_kwargs(body),
        add_special_tokens=fields.boolean(body, "add_special_tokens") or False,
        images=images,
    )


def _images(body: dict[str, object], parts: list[object]) -> tuple[str, ...]:
    """URLs of the image parts among these."""
    objects = [part for part in parts if isinstance(part, dict)]
    urls = [url for part in objects if part.get("type") in IMAGE_PARTS and (url := url_of(part)) is not None]
    if urls:
        fields.refuse(body, "mm_processor_kwargs", "it changes what images take")
    return tuple(urls)


def _check_message(message: dict[str, object], path: Path) -> None:
    at = spelled(path) + "."
    if fields.string(message, "role", at) is None:
        raise BadRequestError(f"{at}role is missing", f"{at}role")
    content = message.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, (*path, "content", index))
    elif content is not None and not isinstance(content, str):
        raise BadRequestError(
            f"{at}content must be a string, an array of parts or null, got {shown(content)}", f"{at}content"
        )
    for name in ("reasoning", "reasoning_content"):
        fields.string(message, name, at)
    for index, call in enumerate(fields.objects(message, "tool_calls", at) or ()):
        if not _is_plain_call(call):
            _check_call(call, f"{at}tool_calls[{index}].")
    fields.objects(message, "tools", at)


def _check_part(part: object, path: Path) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, dict):
        at = spelled(path)
        raise BadRequestError(f"{at} must be a string or an object, got {shown(part)}", at)
    kind = part.get("type")
    if isinstance(kind, str) and kind in IMAGE_PARTS and _MEDIA_KEYS.isdisjoint(part.keys() - {"image_url"}):
        check_image_part(part, spelled(path))
        return
    if not isinstance(kind, str) or kind not in TEXT_PARTS or not _MEDIA_KEYS.isdisjoint(part):
        media = next((key for key in sorted(_MEDIA_KEYS) if key in part), None)
        at = spelled(path)
        raise BadRequestError(
            f"{at} has type {shown(kind if media is None else media)}: only text and images are accepted, because this "
            "gate does not bound the tokens of audio, video and embeddings",
            at,
            "unsupported_content_part",
        )
    text = part.get(TEXT_PARTS[kind])
    if not isinstance(text, str) and not (text is None and kind in ("text", "refusal")):
        at = spelled(path)
        raise BadRequestError(f"{at}.{TEXT_PARTS[kind]} must be a string, got {shown(text)}", at)


def _check_call(call: dict[str, object], at: str) -> None:
    function = fields.json_object(call, "function", at)
    if function is None or call.get("type", "function") != "function":
        raise BadRequestError(f"{at}type must be 'function', with a member `function`", f"{at}function")
    fields.string(function, "name", f"{at}function.")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, (str, dict)):
        raise BadRequestError(
            f"{at}function.arguments must be a string, got {shown(arguments)}", f"{at}function.arguments"
        )


def _tools(body: dict[str, object]) -> tuple[dict[str, object], ...] | None:
    tools = fields.objects(body, "tools")
    for index, tool in enumerate(tools or ()):
        if _is_plain_tool(tool):
            continue
        at = f"tools[{index}]."
        function = fields.json_object(tool, "function", at)
        if function is None or tool.get("type", "function") != "function":
            raise BadRequestError(f"{at}type must be 'function', with a member `function`", f"{at}function")
        if fields.string(function, "name", f"{at}function.") is None:
            raise BadRequestError(f"{at}function.name is missing", f"{at}function.name")
        fields.string(function, "description", f"{at}function.")
        fields.json_object(function, "parameters", f"{at}function.")
        fields.boolean(function, "strict", f"{at}function.")
        fields.boolean(function, "defer_loading", f"{at}function.")
        fields.boolean(tool, "defer_loading", at)
    return tools


def _is_plain_call(call: dict[str, object]) -> bool:
    """What nearly every call is; `_check_call` finds nothing in it and costs ten times as much."""
    function = call.get("function")
    return (
        type(function) is dict
        and call.get("type", "function") == "function"
        and type(function.get("name")) is str
        and type(function.get("arguments")) is str
    )


def _is_plain_tool(tool: dict[str, object]) -> bool:
    """What nearly every tool is; `_tools` would find nothing in it."""
    function = tool.get("function")
    return (
        type(function) is dict
        and tool.get("type", "function") == "function"
        and type(function.get("name")) is str
        and type(function.get("description", "")) is str
        and type(function.get("parameters", _NOTHING)) is dict
        and _OPTIONAL_FLAGS.isdisjoint(function)
        and _OPTIONAL_FLAGS.isdisjoint(tool)
    )


def template_kwargs(body: dict[str, object]) -> dict[str, object]:
    """As vLLM's `build_chat_params`: the body's own members win over `chat_template_kwargs`."""
    kwargs = dict(fields.json_object(body, "chat_template_kwargs") or {})
    reserved = sorted(_RESERVED_KWARGS.intersection(kwargs))
    if reserved:
        raise BadRequestError(
            f"chat_template_kwargs.{reserved[0]} is not accepted here: it would change what was counted",
            f"chat_template_kwargs.{reserved[0]}",
            "unsupported_field",
        )
    kwargs.pop("add_generation_prompt", None)
    kwargs.pop("continue_final_message", None)
    documents = fields.objects(body, "documents")
    if documents is not None:
        kwargs["documents"] = list(documents)
    effort = fields.string(body, "reasoning_effort")
    if effort is not None:
        kwargs["reasoning_effort"] = effort
        kwargs.setdefault("enable_thinking", effort != "none")
    return kwargs
