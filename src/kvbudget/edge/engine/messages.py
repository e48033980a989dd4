"""Decides what a `/v1/messages` body asks of the embedded engine, and the bytes of its answer: as vLLM 0.32's.

A body is the chat that `surfaces.messages` makes of it, counted by the chat's rule; the answer is one text block.
"""

from typing import Any

import orjson

from kvbudget.edge.engine import asks
from kvbudget.edge.engine.asks import ApiError, Ask
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.engine.text import Prompt
from kvbudget.edge.engine.wire import Choice, Headers
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt
from kvbudget.edge.surfaces import messages
from kvbudget.simulate.paged_engine import FinishReason

_STOP_REASON = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens"}


def parse(body: dict[str, Any], settings: EngineSettings) -> Ask:
    """A /v1/messages body. Raises ApiError."""
    asks.check_model(body, settings)
    if body.get("max_tokens") is None:
        raise ApiError(400, "max_tokens: Field required", "Bad Request", "max_tokens")
    return asks.ask_of(body, (_prompt(body),), "max_tokens", None, settings)


def count_tokens(body: dict[str, Any], settings: EngineSettings) -> int:
    """The tokens of a /v1/messages/count_tokens body. Raises ApiError."""
    asks.check_model(body, settings)
    return _prompt(body).tokens


def _prompt(body: dict[str, Any]) -> Prompt:
    try:
        prompt = messages.prompt_of(body)
    except BadRequestError as error:
        raise ApiError(400, error.message, param=error.param) from None
    if not isinstance(prompt, ChatPrompt):
        raise ApiError(400, "messages: roles other than user and assistant are not supported by the embedded engine.",
                       param="messages")  # fmt: skip
    return asks.chat_prompt({"messages": list(prompt.messages), "tools": list(prompt.tools or ()) or None})


class Events:
    """One answer."""

    def __init__(self, ask: Ask, response_id: str, model: str) -> None:
        self._prompt_tokens = ask.prompt_tokens
        self._head = {"id": response_id, "type": "message", "role": "assistant", "model": model}
        self._reason: FinishReason | None = None

    def roles(self, choices: int) -> bytes:
        """message_start and content_block_start."""
        ended = {"stop_reason": None, "stop_sequence": None, "usage": self._usage(0)}
        message: dict[str, object] = {**self._head, "content": [], **ended}
        block = {"type": "text", "text": ""}
        return _event({"type": "message_start", "message": message}) + _event(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def token(self, choice: int, piece: bytes, reason: FinishReason | None, completion_tokens: int) -> bytes:
        """One content_block_delta; none for the token that ends the answer without a text."""
        self._reason = reason or self._reason
        if choice or not piece:
            return b""
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
            b'"text":"%b"}}\n\n' % piece
        )

    def end(self, completion_tokens: int) -> bytes:
        """content_block_stop, message_delta with the usage, message_stop."""
        delta = {"stop_reason": _STOP_REASON[self._reason or FinishReason.LENGTH], "stop_sequence": None}
        return (
            _event({"type": "content_block_stop", "index": 0})
            + _event({"type": "message_delta", "delta": delta, "usage": self._usage(completion_tokens)})
            + _event({"type": "message_stop"})
        )

    def plain(self, choices: list[Choice], completion_tokens: int) -> tuple[Headers, bytes]:
        """The message."""
        content, reason = choices[0]
        text = {"type": "text", "text": content.decode()}
        ended = {"stop_reason": _STOP_REASON[reason], "stop_sequence": None, "usage": self._usage(completion_tokens)}
        return [], orjson.dumps({**self._head, "content": [text], **ended})

    def _usage(self, completion_tokens: int) -> dict[str, int]:
        return {"input_tokens": self._prompt_tokens, "output_tokens": completion_tokens}


def _event(document: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(document["type"]).encode(), orjson.dumps(document))
