"""A small endpoint whose every answer a test decides."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Coroutine[Any, Any, web.StreamResponse]]


class TinyEndpoint:
    """Says yes to everything; `answer` replaces the generation. Every body that came is in `asks`."""

    def __init__(self) -> None:
        self.url = ""
        self.asks: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Answer = self.finish
        self.tokenize_status = 200
        self.models: object = {"data": [{"id": "tiny", "max_model_len": 4096}]}
        self.metrics: str | None = None
        self.arrived = asyncio.Event()

    async def finish(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Three tokens, as a stream or whole."""
        usage = {"prompt_tokens": _count(body), "completion_tokens": 3}
        if not body.get("stream"):
            return web.json_response({"choices": [{"message": {"content": "a b c"}}], "usage": usage})
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        events: list[object] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
        events += [{"choices": [{"delta": {"content": word}}]} for word in "abc"]
        for event in [*events, {"choices": [], "usage": usage}]:
            await stream.write(f"data: {json.dumps(event)}\n\n".encode())
        await stream.write(b"data: [DONE]\n\n")
        return stream

    async def hang(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Never answers."""
        await asyncio.Event().wait()
        raise AssertionError

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asks.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.arrived.set()
        return await self.answer(request, body)

    async def tokenize(self, request: web.Request) -> web.Response:
        count = _count(await request.json())
        return web.json_response({"count": count}, status=self.tokenize_status)

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models)

    async def give_metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics or "", status=200 if self.metrics is not None else 404)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self.generate),
            web.post("/v1/completions", self.generate),
            web.post("/tokenize", self.tokenize),
            web.get("/v1/models", self.list_models),
            web.get("/metrics", self.give_metrics),
        ]


def _count(body: dict[str, Any]) -> int:
    """Words and marks; a chat has 4 tokens of template."""
    text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    return len(text.replace(".", " .").replace("!", " !").split()) + (4 if "messages" in body else 0)


@asynccontextmanager
async def _serve() -> AsyncIterator[TinyEndpoint]:
    endpoint = TinyEndpoint()
    app = web.Application()
    app.add_routes(endpoint.routes())
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield endpoint
    finally:
        await runner.cleanup()


@pytest.fixture
def tiny() -> Callable[[], AbstractAsyncContextManager[TinyEndpoint]]:
    """`async with tiny() as endpoint`: a running endpoint on a free port."""
    return _serve
