"""What gpt-oss reads of a chat: the harmony format, which vLLM 0.32 renders in code and not by a Jinja template.

Follows `entrypoints/openai/parser/harmony_utils.py` of vLLM 0.32 and the format of openai/harmony. Text of clients is
tokenized piece by piece as plain text: a control token written in it is none. vLLM's own /tokenize renders such models
by the Jinja template of their folder instead, so that it does not tell what a chat will take.
"""

from typing import NamedTuple, cast

from kvbudget.edge.openai.chat import TEXT_PARTS
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt
from kvbudget.edge.tokens.harmony_tools import functions_section
from kvbudget.edge.tokens.rendering import Clock, Piece

START, CHANNEL, MESSAGE, END, CALL = "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"
SPECIAL = (START, CHANNEL, MESSAGE, END, CALL)
_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: "
_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_TOOLS_CHANNEL = "\nCalls to these tools must go to the commentary channel: 'functions'."
_EFFORTS = ("low", "medium", "high")
_ROLES = frozenset(("user", "assistant", "system", "developer", "tool"))
_INSTRUCTING = ("system", "developer")


class _Turn(NamedTuple):
    author: str
    channel: str | None
    channel_rest: str  # recipient or content type behind the channel
    contents: tuple[str, ...]
    end: str = END


class HarmonyFormat:
    """Renders chats for gpt-oss. `now` gives the date that the system message names."""

    parts = False

    def __init__(self, now: Clock) -> None:
        self._now = now

    def render(self, prompt: ChatPrompt, default_kwargs: dict[str, object]) -> tuple[Piece, ...]:
        """The pieces of the prompt. Raises BadRequestError for what harmony has no form for."""
        effort = prompt.template_kwargs.get("reasoning_effort")
        if effort is not None and effort not in _EFFORTS:
            raise BadRequestError(
                f"reasoning_effort must be one of {', '.join(_EFFORTS)} for this model", "reasoning_effort"
            )
        messages = list(prompt.messages)
        instructions = None
        if messages[0].get("role") in _INSTRUCTING:
            instructions = _flattened(messages.pop(0).get("content"))
        turns = [_Turn("system", None, "", (self._system_text(effort, bool(prompt.tools)),))]
        if instructions or prompt.tools:
            turns.append(_Turn("developer", None, "", (_developer_text(instructions, prompt.tools or ()),)))
        names = _names_of_calls(messages)
        for message in messages:
            turns += _turns(message, names)
        return (*_pieces(_without_old_thoughts(turns)), Piece(START, "assistant"))

    def _system_text(self, effort: str | None, tools: bool) -> str:
        date = self._now().strftime("%Y-%m-%d")
        reasoning = f"Reasoning: {effort or 'medium'}"
        return f"{_IDENTITY}{date}\n\n{reasoning}\n\n{_CHANNELS}{_TOOLS_CHANNEL if tools else ''}"


def _developer_text(instructions: str | None, tools: tuple[dict[str, object], ...] = ()) -> str:
    sections = [] if instructions is None else ["# Instructions", instructions]
    if tools:
        sections.append(functions_section(tools))
    return "\n\n".join(sections)


def _names_of_calls(messages: list[dict[str, object]]) -> dict[object, str]:
    names: dict[object, str] = {}
    for message in messages:
        for call in cast("list[dict[str, dict[str, str]]]", message.get("tool_calls") or []):
            names[call.get("id")] = call["function"].get("name") or ""
    return names


def _turns(message: dict[str, object], names: dict[object, str]) -> list[_Turn]:
    """The turns that one message becomes: an assistant's thoughts, words and calls are one each."""
    role = message.get("role")
    if role not in _ROLES:
        raise BadRequestError(f"role {str(role)[:60]!r} is unknown to this model", "messages")
    content = message.get("content")
    given = message.get("reasoning")
    thoughts = None if role != "assistant" else message.get("reasoning_content") if given is None else given
    thinking = [_Turn("assistant", "analysis", "", (str(thoughts),))] if thoughts else []
    calls = cast("list[dict[str, dict[str, object]]]", message.get("tool_calls") or [])
    if role == "assistant" and calls:
        said = _flattened(content)
        turns = [_Turn("assistant", "commentary", "", (said,)), *thinking] if said else thinking
        return turns + [_call_turn(call["function"]) for call in calls]
    if role == "tool":
        name = names.get(message.get("tool_call_id", ""), "")
        return [_Turn(f"functions.{name}", "commentary", " to=assistant", (_flattened(content) or "",))]
    if role in _INSTRUCTING:
        text = _flattened(content)
        # An empty text is one all the same: a heading without anything under it.
        return [] if text is None else [_Turn("developer", None, "", (_developer_text(text),))]
    listed = [content] if isinstance(content, str) else cast("list[object]", content or [""])
    contents = tuple(_text_of(part) for part in listed)
    if role == "assistant":
        return [*thinking, _Turn("assistant", "final", "", contents)] if contents and contents[0] else thinking
    return [_Turn("user", None, "", contents)]


def _call_turn(function: dict[str, object]) -> _Turn:
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):
        raise BadRequestError("arguments of a tool call must be a string for this model", "messages")
    return _Turn(f"assistant to=functions.{function.get('name') or ''}", "commentary", " json", (arguments,), CALL)


def _flattened(content: object) -> str | None:
    """Texts without anything between them; None when there is none."""
    if content is None or isinstance(content, str):
        return content
    texts = [
        part if isinstance(part, str) else part.get("text") for part in cast("list[str | dict[str, str]]", content)
    ]
    known = [text for text in texts if text is not None]
    return "".join(known) if known else None


def _text_of(part: object) -> str:
    if isinstance(part, str):
        return part
    assert isinstance(part, dict)  # noqa: S101 - checked when the body was read
    if part.get("type") not in TEXT_PARTS:
        raise BadRequestError("only text reaches this model", "messages", "unsupported_content_part")
    return str(part.get("text", "") or "")


def _without_old_thoughts(turns: list[_Turn]) -> list[_Turn]:
    """What was thought before the last final answer is left out."""
    finals = [index for index, turn in enumerate(turns) if turn.author == "assistant" and turn.channel == "final"]
    last = finals[-1] if finals else -1
    return [turn for index, turn in enumerate(turns) if index >= last or turn.channel != "analysis"]


def _pieces(turns: list[_Turn]) -> list[Piece]:
    pieces: list[Piece] = []
    for turn in turns:
        pieces.append(Piece(START, turn.author))
        if turn.channel is not None:
            pieces.append(Piece(CHANNEL, f"{turn.channel}{turn.channel_rest}"))
        first, *others = turn.contents or ("",)
        pieces.append(Piece(MESSAGE, first))
        pieces += [Piece("", other) for other in others]
        pieces.append(Piece(turn.end, ""))
    return pieces
