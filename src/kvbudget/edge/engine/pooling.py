"""Decides what embeddings, pooling, classification, scores and reranking ask of the embedded engine, and its answers.

Nothing is generated: a prompt takes its blocks while it is computed. What is answered follows from a hash of the
prompt alone: vectors of 8 numbers, scores from 0 to 1. A pair has the tokens of its two texts.
"""

import base64
import struct
from hashlib import blake2b
from typing import Any

import orjson

from kvbudget.edge.engine import asks, text
from kvbudget.edge.engine.asks import ApiError, Ask
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.engine.text import Prompt
from kvbudget.edge.engine.wire import Choice, Headers
from kvbudget.simulate.paged_engine import FinishReason

DIMENSIONS = 8
_INPUTS = ("/v1/embeddings", "/pooling", "/classify")
_SCORES = ("/v1/score", "/score")
_RERANKS = ("/v1/rerank", "/v1/reranking", "/rerank", "/v2/rerank")
PATHS = (*_INPUTS, *_SCORES, *_RERANKS)


def parse(path: str, body: dict[str, Any], settings: EngineSettings) -> Ask:
    """A body of one of PATHS. Raises ApiError."""
    asks.check_model(body, settings)
    if path in _RERANKS:
        _most(body)
    dimensions = body.get("dimensions")
    if dimensions is not None and dimensions != DIMENSIONS:
        told = f"This model's vectors have {DIMENSIONS} numbers; other output dimensions are not supported."
        raise ApiError(400, told, param="dimensions")
    if path not in _INPUTS:
        prompts = tuple(_pair(query, document) for query, document in _pairs(path, body))
    elif body.get("messages") is not None:
        prompts = (asks.chat_prompt(body),)
    else:
        prompts = asks.prompts_of(body.get("input"))
    longest = max(prompt.tokens for prompt in prompts)
    if longest > settings.max_model_len or not all(prompt.tokens for prompt in prompts):
        raise ApiError(
            400,
            f"This model's maximum context length is {settings.max_model_len} tokens. However, your input has "
            f"{longest} tokens in its longest prompt; none may be empty.",
            param="input",
        )
    return Ask(prompts, (1,) * len(prompts), 1, None, False, False, False, False)


def _pairs(path: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    names = ("query", "documents") if path in _RERANKS else ("text_1", "text_2")
    if path in _SCORES and body.get("queries") is not None:
        names = ("queries", "documents" if body.get("documents") is not None else "items")
    left, right = (_texts(body, name) for name in names)
    if len(left) == 1:
        left *= len(right)
    if len(left) != len(right):
        raise ApiError(400, f"{names[0]} must be one, or as many as {names[1]}.", param=names[0])
    return list(zip(left, right, strict=True))


def _texts(body: dict[str, Any], name: str) -> list[str]:
    value = body.get(name)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(item, str) for item in texts):
        raise ApiError(400, f"{name} must be a text or texts.", param=name)
    return texts


def _most(body: dict[str, Any]) -> int:
    """Results that are wanted; 0: all. Raises ApiError."""
    value = body.get("top_n")
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise ApiError(400, "top_n must be an integer of at least 0.", param="top_n")
    return value


def _pair(query: str, document: str) -> Prompt:
    return Prompt(text.count_text(query) + text.count_text(document), f"{query}\0{document}".encode())


class Answers:
    """One answer; these are never streamed."""

    def __init__(self, path: str, body: dict[str, Any], ask: Ask, name: str, created: int, model: str) -> None:
        self._path = path
        self._body = body
        self._ask = ask
        self._name = name
        self._created = created
        self._model = model

    def roles(self, choices: int) -> bytes:
        """Not streamed."""
        return b""

    def token(self, choice: int, piece: bytes, reason: FinishReason | None, completion_tokens: int) -> bytes:
        """Not streamed."""
        return b""

    def end(self, completion_tokens: int) -> bytes:
        """Not streamed."""
        return b""

    def plain(self, choices: list[Choice], completion_tokens: int) -> tuple[Headers, bytes]:
        """A vector for each prompt, or a score for each pair."""
        vectors = [_vector(prompt.content) for prompt in self._ask.prompts]
        tokens = self._ask.prompt_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
        head = {"object": "list", "created": self._created, "model": self._model}
        if self._path in _RERANKS:
            documents = _texts(self._body, "documents")
            results = [
                {"index": index, "document": {"text": documents[index]}, "relevance_score": abs(vector[0])}
                for index, vector in sorted(enumerate(vectors), key=lambda entry: -abs(entry[1][0]))
            ]
            kept = results[: _most(self._body) or len(results)]
            told: dict[str, object] = {"id": f"rerank-{self._name}", "model": self._model, "results": kept}
            return [], orjson.dumps({**told, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
        if self._path in _SCORES:
            data = [{"index": i, "object": "score", "score": abs(vector[0])} for i, vector in enumerate(vectors)]
            return [], orjson.dumps({"id": f"score-{self._name}", **head, "data": data, "usage": usage})
        if self._path == "/v1/embeddings":
            kind, member = "embedding", "embedding"
        elif self._path == "/pooling":
            kind, member = "pooling", "data"
        else:
            kind, member = "classification", "probs"
        data = [{"index": i, "object": kind, member: self._encoded(vector)} for i, vector in enumerate(vectors)]
        return [], orjson.dumps({"id": f"embd-{self._name}", **head, "data": data, "usage": usage})

    def _encoded(self, vector: list[float]) -> list[float] | str:
        if self._body.get("encoding_format") == "base64":  # what the openai client asks for
            return base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
        return vector


def _vector(content: bytes) -> list[float]:
    """Numbers from -1 to 1 with a norm of 1."""
    digest = blake2b(content, digest_size=4 * DIMENSIONS).digest()
    numbers = [number / 2**31 for number in struct.unpack(f"<{DIMENSIONS}i", digest)]
    norm = sum(number * number for number in numbers) ** 0.5 or 1.0
    return [number / norm for number in numbers]
