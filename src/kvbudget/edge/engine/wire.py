"""Decides the bytes of OpenAI's answers: vLLM 0.32's response bodies and server-sent events, one event per token.

The constant parts of an event are rendered once per request, so a token costs one concatenation and no JSON encoder;
the pieces of `text.Answer` need no escaping.
"""

from typing import Protocol

import orjson

from kvbudget.edge.engine.asks import Ask
from kvbudget.simulate.paged_engine import FinishReason

DONE = b"data: [DONE]\n\n"


Headers = list[tuple[bytes, bytes]]
Choice = tuple[bytes, FinishReason]


class Writer(Protocol):
    """Renders one answer of one API."""

    def roles(self, choices: int) -> bytes:
        """What begins a stream, before any token."""

    def token(self, choice: int, piece: bytes, reason: FinishReason | None, completion_tokens: int) -> bytes:
        """One token; `completion_tokens` of all choices so far."""

    def end(self, completion_tokens: int) -> bytes:
        """What ends a stream."""

    def plain(self, choices: list[Choice], completion_tokens: int) -> tuple[Headers, bytes]:
        """Headers of its own and the body of an answer that is not streamed."""


class Events:
    """Chat completions and completions."""

    def __init__(self, ask: Ask, chat: bool, response_id: str, created: int, model: str) -> None:
        self._ask = ask
        self._chat = chat
        self._naming = (response_id, created, model)
        self._head = _head(response_id, "chat.completion.chunk" if chat else "text_completion", created, model)
        self._open = b"data: " + self._head + b',"choices":[{"index":'
        self._before = b',"delta":{"content":"' if chat else b',"text":"'
        self._after = b'"},"logprobs":null,"finish_reason":' if chat else b'","logprobs":null,"finish_reason":'
        self._close = (
            b',"token_ids":null}]' if chat else b',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
        )
        self._plain = self._after + b"null" + self._close + b"}\n\n"

    def roles(self, choices: int) -> bytes:
        """The first events of a chat: role and empty content for each choice; nothing for completions."""
        if not self._chat:
            return b""
        tail = b'"logprobs":null,"finish_reason":null}],"prompt_token_ids":null' + self._usage_field(0) + b"}\n\n"
        role = b',"delta":{"role":"assistant","content":""},' + tail
        return b"".join(self._open + b"%d" % choice + role for choice in range(choices))

    def token(self, choice: int, piece: bytes, reason: FinishReason | None, completion_tokens: int) -> bytes:
        """One token; `completion_tokens` of all choices so far, for continuous usage."""
        start = self._open + b"%d" % choice + self._before + piece
        if reason is None and not self._ask.continuous_usage:
            return start + self._plain
        why = b"null" if reason is None else b'"' + reason.value.encode() + b'"'
        stop = b',"stop_reason":null' if reason is not None and self._chat else b""
        return start + self._after + why + stop + self._close + self._usage_field(completion_tokens) + b"}\n\n"

    def end(self, completion_tokens: int) -> bytes:
        """Usage if it was asked for, and [DONE]."""
        if not self._ask.include_usage:
            return DONE
        usage = usage_json(self._ask.prompt_tokens, completion_tokens)
        return b"data: " + self._head + b',"choices":[],"usage":' + usage + b"}\n\n" + DONE

    def plain(self, choices: list[Choice], completion_tokens: int) -> tuple[Headers, bytes]:
        """As `plain_body`."""
        return [], plain_body(self._ask, self._chat, *self._naming, choices, completion_tokens)

    def _usage_field(self, completion_tokens: int) -> bytes:
        if not self._ask.continuous_usage:
            return b""
        return b',"usage":' + usage_json(self._ask.prompt_tokens, completion_tokens)


def usage_json(prompt_tokens: int, completion_tokens: int) -> bytes:
    """The `usage` object of a stream."""
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
        prompt_tokens,
        prompt_tokens + completion_tokens,
        completion_tokens,
    )


def plain_body(
    ask: Ask,
    chat: bool,
    response_id: str,
    created: int,
    model: str,
    choices: list[Choice],
    tokens: int,
) -> bytes:
    """The body of an answer that is not streamed: (text, reason) per choice, and the completion tokens of all."""
    rendered = [
        {
            "index": index,
            **({"message": _message(content.decode())} if chat else {"text": content.decode()}),
            "logprobs": None,
            "finish_reason": reason.value,
            "stop_reason": None,
            "token_ids": None,
        }
        for index, (content, reason) in enumerate(choices)
    ]
    usage = {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + tokens,
        "completion_tokens": tokens,
        "prompt_tokens_details": None,
    }
    tail = {"choices": rendered, "service_tier": None, "system_fingerprint": None, "usage": usage}
    return (
        _head(response_id, "chat.completion" if chat else "text_completion", created, model)
        + b","
        + orjson.dumps(tail)[1:]
    )


def _message(content: str) -> dict[str, object]:
    return {"role": "assistant", "content": content, "refusal": None, "annotations": None, "audio": None,
            "function_call": None, "tool_calls": [], "reasoning": None}  # fmt: skip


def _head(response_id: str, kind: str, created: int, model: str) -> bytes:
    """The fields that begin every body, without the closing brace."""
    return orjson.dumps({"id": response_id, "object": kind, "created": created, "model": model})[:-1]
