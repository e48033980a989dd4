"""Counting by asking the engine's own `/tokenize`: exact by definition, at the price of a round trip."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import orjson

from kvbudget.edge.openai.ask import Ask, ChatPrompt, OpaquePrompt, Surface, TextPrompt
from kvbudget.edge.openai.errors import BadRequestError, ModelNotFoundError
from kvbudget.edge.tokens.bound import ThreadedBoundCounter
from kvbudget.edge.tokens.count import Count, CountFailedError, TokenIds, counted

# `(path, body) -> (status, body)`; the time-out is the poster's.
Post = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]

PATH = "/tokenize"
# What a chat will really take, whichever way the model renders it; vLLM 0.32 has it with --enable-scale-out alone.
RENDER_PATH = "/v1/chat/completions/render"
# Prompts of one request that are asked for at the same time.
PARALLEL_CALLS = 8
# Bytes of body below which no structure can be refused as absurd: at 200 levels, 64 MiB of indentation take 84,000
# members of two bytes.
STRUCTURE_BYTES = 128 * 1024
_OK = 200
_NOT_FOUND = 404
# Statuses by which vLLM 0.32 blames the prompt; 404 and 405 blame the route, 401 and 403 us, 429 nobody.
_PROMPT_AT_FAULT = frozenset((400, 413, 422))
_MESSAGE_CHARS = 500
_FIXES = {PATH: "does it serve /tokenize?", RENDER_PATH: "was it started with --enable-scale-out?"}
_TGI = frozenset((Surface.TGI_GENERATE, Surface.TGI_GENERATE_STREAM))


class EngineCounter:
    """Counts through `POST /tokenize` as vLLM 0.32 has it (`entrypoints/serve/tokenize/protocol.py`), or for TGI's own
    requests as TGI 3 has it (`router/src/server.rs`: `inputs` in, a list of tokens out).

    What `/tokenize` cannot render gets the bound. `render`: chats are asked for at `/v1/chat/completions/render`,
    because /tokenize renders them otherwise than the engine does (gpt-oss).
    """

    name = "engine"

    def __init__(self, post: Post, *, render: bool = False) -> None:
        self._post = post
        self._chat_path = RENDER_PATH if render else PATH
        self._bound = ThreadedBoundCounter()

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """Awaitable for text and chat; at once for token ids; the bound's way for what can only be bounded."""
        prompt = ask.prompt
        if isinstance(prompt, ChatPrompt):
            if self._chat_path is RENDER_PATH and ask.surface is Surface.CHAT:  # its own body is the question there
                return self._ask_engine(ask, [ask.raw], RENDER_PATH)
            return self._ask_engine(ask, [_chat_question(ask, prompt)], PATH)
        if isinstance(prompt, TextPrompt):
            return self._ask_engine(ask, [_text_question(ask, prompt, text) for text in prompt.texts], PATH)
        if isinstance(prompt, OpaquePrompt):
            return self._bound.count(ask)
        return counted(ask, prompt.lengths, exact=True)

    async def _ask_engine(self, ask: Ask, questions: list[bytes], path: str) -> Count:
        if len(ask.raw) >= STRUCTURE_BYTES:
            # Before the engine's template may indent it; and the bound that stands in for a failed count cannot refuse.
            bound = self._bound.count(ask)
            if not isinstance(bound, Count):
                await bound
        if len(questions) == 1:
            length, token_ids = await self._one(questions[0], path)
            return counted(ask, (length,), exact=True, token_ids=token_ids)
        turnstile = asyncio.Semaphore(PARALLEL_CALLS)

        async def bounded(question: bytes) -> int:
            async with turnstile:
                return (await self._one(question, path))[0]

        tasks = [asyncio.ensure_future(bounded(question)) for question in questions]
        try:
            return counted(ask, tuple(await asyncio.gather(*tasks)), exact=True)
        finally:
            for task in tasks:
                task.cancel()

    async def _one(self, question: bytes, path: str) -> tuple[int, TokenIds | None]:
        """(tokens, their ids where the engine tells them)."""
        try:
            status, answer = await self._post(path, question)
        except (OSError, TimeoutError) as error:
            raise CountFailedError(f"the engine's {path} cannot be reached: {error}") from error
        if status in _PROMPT_AT_FAULT:
            raise BadRequestError(_told(answer, status), None, "prompt_refused_by_engine")
        if status == _NOT_FOUND and _names_model(answer):
            raise ModelNotFoundError(_told(answer, status), "model", "model_not_found")
        if status != _OK:
            raise CountFailedError(f"the engine's {path} answered {status}", fix=_FIXES[path])
        if answer.startswith(b"["):  # TGI's: [{"id", "text", "start", "stop"}]
            return _listed(answer)
        document = _document(answer)
        tokens = document.get("token_ids" if path is RENDER_PATH else "tokens")
        count = len(tokens) if path is RENDER_PATH and isinstance(tokens, list) else document.get("count")
        if type(count) is not int or count < 0:
            raise CountFailedError(f"the engine's {path} answered without a count")
        told = isinstance(tokens, list) and len(tokens) == count and set(map(type, tokens)) == {int}
        return count, cast("list[int]", tokens) if told else None


def _chat_question(ask: Ask, prompt: ChatPrompt) -> bytes:
    question: dict[str, object] = {
        "messages": [_with_reasoning(message) for message in prompt.messages],
        "add_generation_prompt": prompt.add_generation_prompt,
        "continue_final_message": prompt.continue_final_message,
        "add_special_tokens": prompt.add_special_tokens,
    }
    if prompt.tools is not None:
        question["tools"] = prompt.tools
    if prompt.template_kwargs:
        # /tokenize knows no `documents` and no `reasoning_effort` of its own; as template arguments they arrive.
        question["chat_template_kwargs"] = prompt.template_kwargs
    return _question(ask, question)


def _with_reasoning(message: dict[str, object]) -> dict[str, object]:
    """Thoughts under the name that /tokenize reads: chat itself takes the older one as well, /tokenize drops it.

    vLLM 0.32: `ChatCompletionRequest._normalize_messages_before`, which TokenizeChatRequest has not.
    """
    if "reasoning_content" not in message:
        return message
    renamed = {name: value for name, value in message.items() if name != "reasoning_content"}
    if renamed.get("reasoning") is None and message["reasoning_content"] is not None:
        renamed["reasoning"] = message["reasoning_content"]
    return renamed


def _text_question(ask: Ask, prompt: TextPrompt, text: str) -> bytes:
    question: dict[str, object] = {"prompt": text, "add_special_tokens": prompt.add_special_tokens}
    if ask.surface in _TGI:
        question["inputs"] = text  # each of the two engines passes over the name that is not its own
    return _question(ask, question)


def _question(ask: Ask, question: dict[str, object]) -> bytes:
    if ask.model is not None:
        question["model"] = ask.model
    try:
        return orjson.dumps(question)
    except orjson.JSONEncodeError as error:  # an integer beyond 64 bit in a tool or a template argument
        raise BadRequestError(f"The body cannot be passed on to be counted: {error}") from error


def _told(answer: bytes, status: int) -> str:
    """The engine's own words, from vLLM's `{"error": {"message"}}`, older `{"message"}` or FastAPI's `{"detail"}`."""
    document = _document(answer)
    error = document.get("error")
    for message in (error.get("message") if isinstance(error, dict) else error, document.get("message")):
        if isinstance(message, str) and message:
            return message[:_MESSAGE_CHARS]
    return f"The engine refused the prompt with status {status}"


def _names_model(answer: bytes) -> bool:
    """vLLM's 404 for a model that it does not serve names `model`; a missing route (`{"detail"}`) does not."""
    error = _document(answer).get("error")
    if not isinstance(error, dict):
        return False
    return error.get("param") == "model" or "model" in str(error.get("message", "")).lower()


def _listed(answer: bytes) -> tuple[int, TokenIds | None]:
    try:
        tokens = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise CountFailedError(f"the engine's {PATH} answered without a count") from None
    ids = [token.get("id") if isinstance(token, dict) else None for token in tokens]
    return len(tokens), cast("list[int]", ids) if set(map(type, ids)) == {int} else None


def _document(answer: bytes) -> dict[str, object]:
    try:
        document = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
