"""What text a chat template makes of a conversation, as transformers' `apply_chat_template` renders it for vLLM.

Follows transformers 5 `utils/chat_template_utils.py`: sandbox, trim_blocks, lstrip_blocks, loop controls, generation
blocks, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, and the rules of `continue_final_message`.
"""

import json
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvbudget.edge.openai.bytebound import json_bound
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt
from kvbudget.edge.tokens.content_format import reads_parts
from kvbudget.edge.tokens.conversation import Message, conversation_of, tools_of
from kvbudget.edge.tokens.fuel import (
    FuelledEnvironment,
    GenerationBlock,
    OutOfFuelError,
    bounded_text,
    fresh_fuel,
    pay_for,
)
from kvbudget.edge.tokens.rendering import Clock
from kvbudget.errors import BadConfigError

# Real ones have 0.4 to 30 KB; jinja's compiler is not made for more.
MAX_TEMPLATE_CHARS = 128 * 1024
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_REASON_CHARS = 500
_FORM_CHARS = 200
_MAX_INDENT = 8


class ChatTemplate:
    """One compiled template. `parts` tells whether it reads content as a list (vLLM's "openai" format)."""

    def __init__(self, source: str, special_tokens: dict[str, str], now: Clock) -> None:
        """Raises BadConfigError when the template cannot be compiled."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise BadConfigError(
                f"the chat template has {len(source)} characters, at most {MAX_TEMPLATE_CHARS} are read"
            )
        environment = FuelledEnvironment()
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form[:_FORM_CHARS])
        fresh_fuel()  # jinja evaluates constants while it compiles
        try:
            self._template = environment.from_string(source)
            self.parts = reads_parts(_plain_environment().parse(source))
        except (TemplateSyntaxError, RecursionError) as error:
            raise BadConfigError(f"the chat template is not valid Jinja: {error}") from error
        self._special_tokens = special_tokens
        self._knows_developer = '"developer"' in source or "'developer'" in source
        self._names_content = "content" in source

    def render(self, prompt: ChatPrompt, default_kwargs: dict[str, object]) -> str:
        """The text that the engine tokenizes. Raises BadRequestError when the template rejects the conversation.

        `default_kwargs` are the server's (`--default-chat-template-kwargs`); the request's own win.
        """
        chat = conversation_of(prompt.messages, parts=self.parts, developer_role=self._knows_developer)
        final = self._tag_final_message(chat) if prompt.continue_final_message else None
        names: dict[str, Any] = {
            "documents": None,
            **self._special_tokens,
            **default_kwargs,
            **prompt.template_kwargs,
            "messages": chat,
            "tools": tools_of(prompt.tools),
            "add_generation_prompt": prompt.add_generation_prompt,
        }
        text = self._run(names, _chars(chat))
        return text if final is None else _cut_at_tag(text, final)

    def _run(self, names: dict[str, Any], request_chars: int) -> str:
        fresh_fuel(request_chars)
        try:
            return bounded_text(self._template.generate(names))
        except OutOfFuelError as error:
            raise BadRequestError(f"The chat cannot be rendered: {error}", "messages", "chat_template_error") from None
        except (MemoryError, BadRequestError):
            raise
        except Exception as error:
            # As vLLM (`safe_apply_chat_template`): whatever goes wrong between this template and this conversation is
            # the request's fault, and the template's own words tell the client what to change.
            reason = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            raise BadRequestError(
                f"The chat template rejects these messages: {reason[:_REASON_CHARS]}", "messages", "chat_template_error"
            ) from None

    def _tag_final_message(self, chat: list[Message]) -> str:
        """Mark the end of the text to continue; returns that text."""
        message = chat[-1]
        content = message.get("content")
        if isinstance(content, str) and self._names_content:
            message["content"] = content + _CONTINUE_TAG
            return content
        for part in reversed(content if isinstance(content, list) else []):
            if "text" in part:
                text = str(part["text"])
                part["text"] = text + _CONTINUE_TAG
                return text
        raise _cannot_continue("the last message has no text")


def _chars(chat: list[Message]) -> int:
    """Characters of the contents, which a template may copy about."""
    total = 0
    for message in chat:
        content = message.get("content")
        if isinstance(content, str):
            total += len(content)
        elif isinstance(content, list):
            total += sum(len(text) for part in content if isinstance(text := part.get("text"), str))
    return total


def _cut_at_tag(text: str, final: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise _cannot_continue("the chat template does not print the last message as it is")
    at = text.rindex(tag)
    # A template that trims the message has eaten the tag's trailing space; it would have trimmed the text's as well.
    return text[:at] if text.startswith(_CONTINUE_TAG, at) else text[:at].rstrip()


def _cannot_continue(why: str) -> BadRequestError:
    return BadRequestError(f"continue_final_message is set, but {why}", "continue_final_message", "chat_template_error")


def _plain_environment() -> ImmutableSandboxedEnvironment:
    """The grammar without the limits, whose loops are wrapped: for reading the syntax tree."""
    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    pay_for(value)
    if indent is not None:
        if not 0 <= indent <= _MAX_INDENT:
            raise OutOfFuelError(f"tojson may indent by 0 to {_MAX_INDENT}")
        json_bound(value)  # refuses an absurd depth of members
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
