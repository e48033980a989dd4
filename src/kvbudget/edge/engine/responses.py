"""Decides what a `/v1/responses` body asks of the embedded engine, and the bytes of its answer: as vLLM 0.32's.

A body is the chat that `surfaces.responses` makes of it, counted by the chat's rule; the answer is one message.
Responses are not stored, so that none can follow an earlier one.
"""

from typing import Any

import orjson

from kvbudget.edge.engine import asks
from kvbudget.edge.engine.asks import ApiError, Ask
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.engine.wire import Choice, Headers
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt
from kvbudget.edge.surfaces import responses
from kvbudget.simulate.paged_engine import FinishReason

_ECHOED = ("instructions", "max_output_tokens", "metadata", "reasoning", "text", "tool_choice", "tools", "user")


def parse(body: dict[str, Any], settings: EngineSettings) -> Ask:
    """A /v1/responses body. Raises ApiError."""
    asks.check_model(body, settings)
    if body.get("previous_response_id") is not None:
        name = str(body["previous_response_id"])[:100]
        raise ApiError(404, f"Response with id '{name}' not found.", "invalid_request_error", "response_id")
    try:
        prompt = responses.prompt_of(body)
    except BadRequestError as error:
        raise ApiError(400, error.message, param=error.param) from None
    if not isinstance(prompt, ChatPrompt):
        raise ApiError(400, "input: only messages and function calls are supported by the embedded engine.",
                       param="input")  # fmt: skip
    chat = asks.chat_prompt({"messages": list(prompt.messages), "tools": list(prompt.tools or ()) or None})
    return asks.ask_of(body, (chat,), "max_output_tokens", None, settings)


class Events:
    """One answer."""

    def __init__(self, ask: Ask, body: dict[str, Any], name: str, created: int, model: str) -> None:
        self._prompt_tokens = ask.prompt_tokens
        self._item_id = f"msg_{name}"
        self._head: dict[str, object] = {
            "id": f"resp_{name}", "object": "response", "created_at": created, "model": model, "error": None,
            "incomplete_details": None, "instructions": None, "metadata": None, "parallel_tool_calls": True,
            "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0, "background": False,
            "previous_response_id": None, "truncation": "disabled",
        } | {field: body[field] for field in _ECHOED if body.get(field) is not None}  # fmt: skip
        self._text = bytearray()
        self._reason = FinishReason.LENGTH
        self._number = 0
        self._where = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        where = b'"item_id":%b,"output_index":0,"content_index":0' % orjson.dumps(self._item_id)
        self._delta = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",%b,' % where

    def roles(self, choices: int) -> bytes:
        """response.created, response.in_progress, and the beginning of the message."""
        started = {**self._head, "status": "in_progress", "output": [], "usage": None}
        return (
            self._event("response.created", response=started)
            + self._event("response.in_progress", response=started)
            + self._event("response.output_item.added", output_index=0, item=self._item("in_progress", []))
            + self._event("response.content_part.added", **self._where, part=_part(b""))
        )

    def token(self, choice: int, piece: bytes, reason: FinishReason | None, completion_tokens: int) -> bytes:
        """One response.output_text.delta; none for the token that ends the answer without a text."""
        self._reason = reason or self._reason
        if choice or not piece:
            return b""
        self._text += piece
        self._number += 1
        return b'%b"logprobs":[],"delta":"%b","sequence_number":%d}\n\n' % (self._delta, piece, self._number - 1)

    def end(self, completion_tokens: int) -> bytes:
        """The ends of part and message, and response.completed with the usage: so vLLM names it of cut answers too."""
        text, part = self._text.decode(), _part(bytes(self._text))
        response = self._response(bytes(self._text), self._reason, completion_tokens)
        return (
            self._event("response.output_text.done", **self._where, text=text, logprobs=[])
            + self._event("response.content_part.done", **self._where, part=part)
            + self._event("response.output_item.done", output_index=0, item=self._item(response["status"], [part]))
            + self._event("response.completed", response=response)
        )

    def plain(self, choices: list[Choice], completion_tokens: int) -> tuple[Headers, bytes]:
        """The response."""
        return [], orjson.dumps(self._response(*choices[0], completion_tokens))

    def _response(self, text: bytes, reason: FinishReason, completion_tokens: int) -> dict[str, object]:
        cut = reason is FinishReason.LENGTH
        status = "incomplete" if cut else "completed"
        usage = {
            "input_tokens": self._prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._prompt_tokens + completion_tokens,
        }
        told = {"status": status, "output": [self._item(status, [_part(text)])], "usage": usage}
        return {**self._head, "incomplete_details": {"reason": "max_output_tokens"} if cut else None, **told}

    def _item(self, status: object, content: list[object]) -> dict[str, object]:
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _event(self, kind: str, **members: object) -> bytes:
        document = {"type": kind, **members, "sequence_number": self._number}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(document))


def _part(text: bytes) -> dict[str, object]:
    return {"type": "output_text", "text": text.decode(), "annotations": [], "logprobs": []}
