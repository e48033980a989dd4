"""Decides what a TGI `/generate` body asks of the embedded engine, and the bytes of its answer: as TGI 3's router.

`inputs` is counted as plain text; `parameters.max_new_tokens`, `best_of`, `truncate`, `details` and `seed` are read.
"""

from typing import Any

import orjson

from kvbudget.edge.engine import asks, text
from kvbudget.edge.engine.asks import ApiError, Ask
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.engine.text import Prompt
from kvbudget.edge.engine.wire import Choice, Headers
from kvbudget.simulate.paged_engine import FinishReason

_STOP_REASON = {FinishReason.STOP: "eos_token", FinishReason.LENGTH: "length"}


def parse(body: dict[str, Any], settings: EngineSettings, *, stream: bool) -> Ask:
    """A /generate or /generate_stream body. Raises ApiError."""
    inputs, parameters = body.get("inputs"), body.get("parameters")
    parameters = {} if parameters is None else parameters
    if not isinstance(inputs, str) or not isinstance(parameters, dict):
        raise ApiError(400, "inputs must be a string and parameters an object.", param="inputs")
    best_of = parameters.get("best_of") or 1
    if stream and best_of != 1:
        raise ApiError(400, "`best_of` != 1 is not supported when streaming tokens", param="best_of")
    prompt = text.text_prompt(inputs)
    kept = parameters.get("truncate")
    if type(kept) is int and 0 < kept < prompt.tokens:
        prompt = Prompt(kept, prompt.content[-kept * text.TOKEN_BYTES :])
    asked = {"n": best_of, "stream": stream, "max_new_tokens": parameters.get("max_new_tokens"),
             "seed": parameters.get("seed"), "ignore_eos": parameters.get("ignore_eos_token")}  # fmt: skip
    return asks.ask_of(asked, (prompt,), "max_new_tokens", None, settings)


class Events:
    """One answer."""

    def __init__(self, ask: Ask, body: dict[str, Any]) -> None:
        self._prompt_tokens = ask.prompt_tokens
        self._seed = ask.seed
        self._details = bool((body.get("parameters") or {}).get("details"))
        self._text = bytearray()

    def roles(self, choices: int) -> bytes:
        """Nothing comes before the first token."""
        return b""

    def token(self, choice: int, piece: bytes, reason: FinishReason | None, completion_tokens: int) -> bytes:
        """One token; the last one brings the whole text and its details."""
        self._text += piece
        ended = reason is not None
        document = {
            "index": completion_tokens,
            "token": _token(piece, reason),
            "generated_text": self._text.decode() if ended else None,
            "details": None if reason is None else self._told(reason, completion_tokens),
        }
        return b"data:" + orjson.dumps(document) + b"\n\n"

    def end(self, completion_tokens: int) -> bytes:
        """Nothing comes after the last token."""
        return b""

    def plain(self, choices: list[Choice], completion_tokens: int) -> tuple[Headers, bytes]:
        """The best of the sequences (the first), and the router's headers with its counts."""
        content, reason = choices[0]
        generated = -(-len(content) // text.TOKEN_BYTES) + (reason is FinishReason.STOP)
        document: dict[str, object] = {"generated_text": content.decode()}
        if self._details:
            pieces = [content[at : at + text.TOKEN_BYTES] for at in range(0, len(content), text.TOKEN_BYTES)]
            tokens = [_token(piece, None) for piece in pieces]
            document["details"] = {**self._told(reason, generated), "prefill": [], "tokens": tokens}
        headers = [(b"x-prompt-tokens", b"%d" % self._prompt_tokens), (b"x-generated-tokens", b"%d" % generated)]
        return headers, orjson.dumps(document)

    def _told(self, reason: FinishReason, generated: int) -> dict[str, object]:
        why, seed, length = _STOP_REASON[reason], self._seed, self._prompt_tokens
        return {"finish_reason": why, "generated_tokens": generated, "seed": seed, "input_length": length}


def _token(piece: bytes, reason: FinishReason | None) -> dict[str, object]:
    """The token that ends an answer by itself has no text, and is special."""
    special = reason is FinishReason.STOP
    ids = [] if special else text.text_ids(piece.decode())
    return {"id": ids[0] if ids else 0, "text": piece.decode(), "logprob": 0.0, "special": special}
