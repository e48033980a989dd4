"""Decides which path of the embedded engine answers what, and what a leaving client does to its request."""

import asyncio
import time
import uuid
from hashlib import blake2b
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kvbudget import __version__
from kvbudget.edge.engine import asks, messages, pooling, responses, tgi
from kvbudget.edge.engine.asks import ApiError, Ask
from kvbudget.edge.engine.driver import EngineDriver
from kvbudget.edge.engine.metrics import EngineMetrics
from kvbudget.edge.engine.replies import Reply
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.engine.text import Answer
from kvbudget.edge.engine.wire import Events, Headers, Writer
from kvbudget.simulate.paged_engine import FinishReason

MAX_BODY_BYTES = 64 * 1024**2
_FIXED_CREATED = 1_700_000_000  # any constant: with `deterministic`, two answers must not differ by their second
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class EngineApp:
    """The HTTP face of one engine."""

    def __init__(self, settings: EngineSettings, driver: EngineDriver, metrics: EngineMetrics) -> None:
        self._settings = settings
        self._driver = driver
        self._started = int(time.time())
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(metrics)
        self.asgi = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completion, methods=["POST"]),
                Route("/v1/responses", self._responses, methods=["POST"]),
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/v1/messages/count_tokens", self._count_tokens, methods=["POST"]),
                Route("/generate", self._generate, methods=["POST"]),
                Route("/generate_stream", self._generate_stream, methods=["POST"]),
                *[Route(path, self._pooled, methods=["POST"]) for path in pooling.PATHS],
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/ping", self._health),
                Route("/version", self._version),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={ApiError: _refuse, HTTPException: _http_error, ClientDisconnect: _nobody_there},
        )
        self.alive = True

    async def _chat(self, request: Request) -> Response:
        ask = asks.parse_chat(await _body(request), self._settings)
        name, created = self._named(request, ask)
        return self._generation(ask, Events(ask, True, f"chatcmpl-{name}", created, self._settings.served_model_name))

    async def _completion(self, request: Request) -> Response:
        ask = asks.parse_completion(await _body(request), self._settings)
        name, created = self._named(request, ask)
        return self._generation(ask, Events(ask, False, f"cmpl-{name}", created, self._settings.served_model_name))

    async def _responses(self, request: Request) -> Response:
        body = await _body(request)
        ask = responses.parse(body, self._settings)
        name, created = self._named(request, ask)
        return self._generation(ask, responses.Events(ask, body, name, created, self._settings.served_model_name))

    async def _messages(self, request: Request) -> Response:
        ask = messages.parse(await _body(request), self._settings)
        name, _ = self._named(request, ask)
        return self._generation(ask, messages.Events(ask, f"msg_{name}", self._settings.served_model_name))

    async def _count_tokens(self, request: Request) -> Response:
        tokens = messages.count_tokens(await _body(request), self._settings)
        return _json({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})

    async def _generate(self, request: Request) -> Response:
        body = await _body(request)
        ask = tgi.parse(body, self._settings, stream=False)
        return self._generation(ask, tgi.Events(ask, body))

    async def _generate_stream(self, request: Request) -> Response:
        body = await _body(request)
        ask = tgi.parse(body, self._settings, stream=True)
        return self._generation(ask, tgi.Events(ask, body))

    async def _pooled(self, request: Request) -> Response:
        path, body = request.url.path, await _body(request)
        ask = pooling.parse(path, body, self._settings)
        name, created = self._named(request, ask)
        naming = (name, created, self._settings.served_model_name)
        return self._generation(ask, pooling.Answers(path, body, ask, *naming), pooled=True)

    def _named(self, request: Request, ask: Ask) -> tuple[str, int]:
        """(the answer's id without its prefix, `created`)."""
        if self._settings.deterministic:
            content = b"\0".join(prompt.content for prompt in ask.prompts)
            return blake2b(content, digest_size=16, key=str(ask.seed).encode()[:64]).hexdigest(), _FIXED_CREATED
        return request.headers.get("x-request-id") or uuid.uuid4().hex, int(time.time())

    def _generation(self, ask: Ask, writer: Writer, *, pooled: bool = False) -> Response:
        return Generation(self._driver, self._settings, ask, writer, pooled=pooled)

    async def _tokenize(self, request: Request) -> Response:
        ids = asks.parse_tokenize(await _body(request), self._settings)
        return _json(
            {"count": len(ids), "max_model_len": self._settings.max_model_len, "tokens": ids, "token_strs": None}
        )

    async def _models(self, request: Request) -> Response:
        name = self._settings.served_model_name
        created = _FIXED_CREATED if self._settings.deterministic else self._started
        model = {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "kvbudget",
            "root": name,
            "parent": None,
        }
        return _json({"object": "list", "data": [{**model, "max_model_len": self._settings.max_model_len}]})

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if self.alive else 503)

    async def _version(self, request: Request) -> Response:
        return _json({"version": __version__, "engine": "kvbudget embedded"})

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})


class Generation(Response):
    """One generation request, from submission to its last byte; it leaves the engine on every path."""

    def __init__(
        self, driver: EngineDriver, settings: EngineSettings, ask: Ask, writer: Writer, *, pooled: bool = False
    ) -> None:
        """`pooled`: nothing is generated. Then the last token of the prompt stands for the one output token of a
        sequence, so that it holds the blocks of its prompt alone, until that is computed."""
        self._driver = driver
        self._ask = ask
        self._writer = writer
        self._answers = [
            Answer(prompt, ask.seed, choice, settings.mean_output_tokens)
            for prompt in ask.prompts
            for choice in range(ask.n)
        ]
        limits = [
            (max(1, prompt.tokens - 1), 1) if pooled else (prompt.tokens, limit)
            for prompt, limit in zip(ask.prompts, ask.max_tokens, strict=True)
            for _ in range(ask.n)
        ]
        self._sequences = [
            (tokens, limit, None if ask.ignore_eos else answer.natural_tokens)
            for (tokens, limit), answer in zip(limits, self._answers, strict=True)
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run it. Returns without an answer when the client has gone."""
        reply = self._driver.submit(self._sequences, every_token=self._ask.stream)
        watcher = asyncio.create_task(self._watch(reply, receive))
        try:
            await (self._stream(reply, send) if self._ask.stream else self._plain(reply, send))
        finally:
            self._driver.abort(reply)
            watcher.cancel()

    async def _watch(self, reply: Reply, receive: Receive) -> None:
        """The body has been read: the only message that can still come is that the client left."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._driver.abort(reply)

    async def _stream(self, reply: Reply, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        events = self._writer
        answers = self._answers
        open_choices, tokens = len(answers), 0
        head = events.roles(open_choices)
        while open_choices:
            batch = await reply.events()
            if not batch:
                return
            chunks = [head]
            head = b""
            for choice, reason in batch:
                tokens += 1
                piece = b"" if reason is FinishReason.STOP else answers[choice].next_piece()
                chunks.append(events.token(choice, piece, reason, tokens))
                if reason is not None:
                    open_choices -= 1
            if not open_choices:
                chunks.append(events.end(tokens))
            await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": open_choices > 0})

    async def _plain(self, reply: Reply, send: Send) -> None:
        events = await reply.events()
        if not events:
            return
        texts: list[list[bytes]] = [[] for _ in self._answers]
        reasons = [FinishReason.LENGTH] * len(texts)
        for choice, reason in events:
            if reason is not FinishReason.STOP:
                texts[choice].append(self._answers[choice].next_piece())
            if reason is not None:
                reasons[choice] = reason
        choices = list(zip(map(b"".join, texts), reasons, strict=True))
        headers, body = self._writer.plain(choices, len(events))
        await _send_json(send, headers, body)


async def _send_json(send: Send, own: Headers, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *own]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _body(request: Request) -> dict[str, Any]:
    return asks.parse_json(await _read(request))


async def _read(request: Request) -> bytes:
    """The whole body, if it is not too large. Raises ApiError 413."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", "Request Entity Too Large")
    return bytes(data)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


async def _refuse(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    path = request.url.path
    if path.startswith("/v1/messages"):
        return _json({"type": "error", "error": {"type": error.kind, "message": error.message}}, error.status)
    if path.startswith("/generate"):  # TGI answers what it cannot validate with 422
        told = {"error": error.message, "error_type": "validation"}
        return _json(told, 422 if error.status == 400 else error.status)
    return Response(error.body, error.status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    body = {"message": error.detail, "type": error.detail, "param": None, "code": error.status_code}
    return _json({"error": body}, error.status_code)


async def _nobody_there(request: Request, error: Exception) -> Response:
    """The client left while it was still sending: there is nobody to answer, and nothing was begun."""
    return Response(status_code=499)
