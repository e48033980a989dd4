"""Decides how one request is put to an OpenAI-compatible endpoint, and what its answer means."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from kvbudget.edge.replay.outcome import REFUSAL_STATUSES, Ending, Outcome
from kvbudget.edge.replay.prompts import CountError
from kvbudget.errors import BadValueError
from kvbudget.units import decimal_number

CONTROL_TIMEOUT_S = 30.0
MAX_EVENT_BYTES = 4 * 1024 * 1024
MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 120.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits for the whole answer, and how often it comes back after a 429 or 503."""

    timeout_s: float = 120.0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as it will be sent. `exact_output`: the engine is told to ignore its end-of-sequence token."""

    prompt: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    exact_output: bool
    tenant: str | None = None


@dataclass(slots=True)
class _Answer:
    """What has come so far of one answer; times are of the monotonic clock."""

    events: int = 0
    first_at: float | None = None
    last_at: float = 0.0
    gaps: list[float] | None = None
    usage_prompt: int | None = None
    usage_output: int | None = None
    done: bool = False
    error: str = ""


class Endpoint:
    """An endpoint at `url` (scheme and host, with or without /v1) for one model."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        model: str,
        chat: bool,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._session = session
        self._base = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._chat = chat
        self._headers = dict(headers or {})

    async def count_tokens(self, text: str) -> int:
        """Tokens of a prompt by the endpoint's own /tokenize (vLLM's form). Raises CountError."""
        body: dict[str, object] = {"model": self._model}
        if self._chat:
            body |= {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        else:
            body["prompt"] = text
        timeout = aiohttp.ClientTimeout(total=CONTROL_TIMEOUT_S)
        try:
            async with self._post("/tokenize", body, timeout, {}) as answer:
                if answer.status != 200:
                    raise CountError(f"/tokenize answered {answer.status}")
                count = orjson.loads(await answer.read())["count"]
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            raise CountError(f"/tokenize: {_words(error)}") from None
        if not isinstance(count, int) or count < 0:
            raise CountError("/tokenize: its count is no number of tokens")
        return count

    async def send(self, ask: Ask, patience: Patience, late_s: float) -> Outcome:
        """Sends one request, again after a refusal if `patience` says so; always returns an outcome.

        Cancellation ends the request as interrupted. The time-out covers all tries and the pauses between them.
        """
        began = time.monotonic()
        answer = _Answer(gaps=[])
        tries, status, ending = 0, None, Ending.FAILED
        try:
            async with asyncio.timeout(patience.timeout_s):
                while True:
                    tries += 1
                    status, pause_s = await self._try(ask, answer)
                    if pause_s is None or tries > patience.retries:
                        break
                    await asyncio.sleep(pause_s)
            ending = _ending(status, answer)
        except TimeoutError:
            ending = Ending.TIMED_OUT
        except asyncio.CancelledError:
            ending = Ending.INTERRUPTED
        except (aiohttp.ClientError, OSError, ValueError) as error:
            answer.error = _words(error)
        first = answer.first_at - began if answer.first_at is not None and ask.stream else None
        return Outcome(
            ending=ending,
            stream=ask.stream,
            prompt_tokens=ask.prompt_tokens,
            output_tokens=answer.usage_output if answer.usage_output is not None else answer.events,
            usage_prompt_tokens=answer.usage_prompt,
            status=status,
            ttft_s=first,
            gaps_s=tuple(answer.gaps or ()),
            total_s=time.monotonic() - began,
            late_s=late_s,
            tries=tries,
            error=answer.error if ending is Ending.FAILED else "",
        )

    async def _try(self, ask: Ask, answer: _Answer) -> tuple[int, float | None]:
        """One exchange: the status, and the pause that the endpoint asks for before another try."""
        extra = {"x-kvbudget-tenant": ask.tenant} if ask.tenant else {}
        path = "/v1/chat/completions" if self._chat else "/v1/completions"
        async with self._post(path, self._body(ask), aiohttp.ClientTimeout(total=None), extra) as response:
            if response.status != 200:
                await response.content.read(MAX_ERROR_BODY_BYTES)
                answer.error = f"status {response.status}"
                return response.status, _pause_s(response)
            answer.error = ""
            if ask.stream:
                async for data in _events(response.content):
                    _take_event(data, answer)
            else:
                _take_plain(await response.read(), answer)
            return response.status, None

    def _body(self, ask: Ask) -> dict[str, object]:
        body: dict[str, object] = {"model": self._model, "max_tokens": ask.max_tokens, "stream": ask.stream}
        if self._chat:
            body["messages"] = [{"role": "user", "content": ask.prompt}]
        else:
            body["prompt"] = ask.prompt
        if ask.stream:
            body["stream_options"] = {"include_usage": True}
        if ask.exact_output:
            body["ignore_eos"] = True
        return body

    def _post(
        self, path: str, body: Mapping[str, object], timeout: aiohttp.ClientTimeout, extra: Mapping[str, str]
    ) -> "aiohttp.client._RequestContextManager":
        headers = {**self._headers, **extra, "content-type": "application/json"}
        return self._session.post(self._base + path, data=orjson.dumps(body), headers=headers, timeout=timeout)


async def find_model(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> tuple[str | None, int | None]:
    """Name and max_model_len of the first model that the endpoint serves; None where it does not tell.

    Raises BadValueError when there is no endpoint to ask.
    """
    address = url.rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        timeout = aiohttp.ClientTimeout(total=CONTROL_TIMEOUT_S)
        async with session.get(address, headers=headers, timeout=timeout) as answer:
            body = await answer.content.read(MAX_EVENT_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise BadValueError(
            f"{address}: cannot be reached ({_words(error)})", fix="start the endpoint or correct --url"
        ) from None
    try:
        first = orjson.loads(body)["data"][0]
        name, window = first["id"], first.get("max_model_len")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None, None
    return str(name), window if isinstance(window, int) else None


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of each server-sent event. Raises ValueError for one that grows without end."""
    pending = b""
    async for piece in content.iter_any():
        pending += piece
        if b"\n" not in piece:
            if len(pending) > MAX_EVENT_BYTES:
                raise ValueError("an event longer than the limit")
            continue
        *lines, pending = pending.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _take_event(data: bytes, answer: _Answer) -> None:
    if data == b"[DONE]":
        answer.done = True
        return
    event = orjson.loads(data)
    if not isinstance(event, dict):
        raise ValueError("an event that is no JSON object")
    if event.get("error"):
        answer.error = "error event in the stream"
    _take_usage(event, answer)
    choices = event.get("choices") or ()
    # An answer whose tokens have no text (special tokens, half a character) still begins, at the latest when it ends.
    ended = answer.first_at is None and any(choice.get("finish_reason") for choice in choices)
    if ended or any(_has_token(choice) for choice in choices):
        now = time.monotonic()
        if answer.first_at is None:
            answer.first_at = now
        elif answer.gaps is not None:
            answer.gaps.append(now - answer.last_at)
        answer.last_at = now
        answer.events += 1


def _has_token(choice: dict[str, Any]) -> bool:
    """True unless the choice only opens the answer (a role, no text), as vLLM's first event does."""
    delta = choice.get("delta") or {}
    text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")
    return bool(text)


def _take_plain(body: bytes, answer: _Answer) -> None:
    document = orjson.loads(body)
    if not isinstance(document, dict):
        raise ValueError("an answer that is no JSON object")
    _take_usage(document, answer)
    answer.done = bool(document.get("choices"))


def _take_usage(document: dict[str, Any], answer: _Answer) -> None:
    usage = document.get("usage")
    if isinstance(usage, dict):
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        answer.usage_prompt = prompt if isinstance(prompt, int) else answer.usage_prompt
        answer.usage_output = output if isinstance(output, int) else answer.usage_output


def _ending(status: int | None, answer: _Answer) -> Ending:
    if status in REFUSAL_STATUSES:
        return Ending.REFUSED
    if status == 200 and answer.done and not answer.error:
        return Ending.FINISHED
    answer.error = answer.error or "the answer broke off"
    return Ending.FAILED


def _pause_s(response: aiohttp.ClientResponse) -> float | None:
    """The pause before another try that a 429 or 503 asks for; None when another try is not wanted."""
    if response.status not in (429, 503) or response.headers.get("x-should-retry") == "false":
        return None
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return min(max(decimal_number(response.headers[name]) * unit_s, 0.0), MAX_RETRY_AFTER_S)
        except (KeyError, ValueError):
            continue
    return 1.0


def _words(error: BaseException) -> str:
    """One short stable line, so that equal failures count together."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"connection failed: {error.os_error.strerror or type(error.os_error).__name__}"
    return type(error).__name__
