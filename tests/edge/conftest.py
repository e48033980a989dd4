"""A gate before a scripted engine, on real sockets of this machine."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvloop

from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.service import GateService, ServiceSettings, start_service
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy

METRICS = (
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="%d",%s,engine="0"} 1.0\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
)

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate_stream")


@dataclass
class ScriptedEngine:
    """Speaks just enough of vLLM; every charged request is held until the test lets it go.

    `requests`: bodies in order of arrival; `closed`: how many connections the gate cut while a request was held.
    """

    num_blocks: int = 33
    cache_labels: str = 'kv_cache_size_tokens="None"'
    max_model_len: int | None = 512
    count: int | None = None  # what /tokenize says; None: 4 bytes a token; -1: it fails
    healthy: bool = True
    usage_prompt_tokens: int | None = None
    usage_cached_tokens: int | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    last_heads: dict[str, dict[str, str]] = field(default_factory=dict)  # of every path
    closed: int = 0
    hold: bool = False
    hold_counting: bool = False
    chunks: int = 3
    refuse_with: int = 0
    refuse_message: str = "no"
    metrics: bytes | None = None  # instead of the lawful ones; empty: status 500
    models_broken: bool = False
    models: list[str] = field(default_factory=lambda: ["m"])
    die: str = ""  # "before head", "midway", or "for good"
    release: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        self._server = await asyncio.start_server(self._serve, host, port)
        return f"http://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        path = lines[0].split(" ")[1]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.last_heads[path] = headers
        if path == "/health":
            return self._json(writer, {} if self.healthy else {"error": "sick"}, 200 if self.healthy else 500)
        if path == "/metrics" and self.metrics is not None:
            return self._send(writer, "text/plain", self.metrics, 200 if self.metrics else 500)
        if path == "/metrics":
            return self._send(writer, "text/plain", (METRICS % (self.num_blocks, self.cache_labels)).encode())
        if path == "/v1/models" and self.models_broken:
            return self._json(writer, {"error": "broken"}, 500)
        if path == "/v1/models":
            listed = [{"id": model, "max_model_len": self.max_model_len} for model in self.models]
            return self._json(writer, {"data": listed})
        if path == "/tokenize":
            if self.hold_counting and not await self._held(reader):
                return False
            if self.count == -1:
                return self._json(writer, {"error": "broken"}, 500)
            return self._json(writer, {"count": self._count(body), "max_model_len": 512, "tokens": []})
        if path not in GENERATING:
            return self._json(writer, {"path": path, "body": body.decode()}, 404 if "missing" in path else 200)
        ask = json.loads(body)
        self.requests.append(ask)
        self.heads.append(headers)
        if self.refuse_with:
            return self._json(
                writer, {"error": {"message": self.refuse_message, "code": "engine's own"}}, self.refuse_with
            )
        if self.die == "for good":
            assert self._server is not None
            self._server.close()
            for other in list(self._writers):
                other.transport.abort()
            return False
        if self.die == "before head":
            writer.transport.abort()
            return False
        if self.hold and not ask.get("stream") and not await self._held(reader):
            return False
        if ask.get("stream"):
            return await self._stream(reader, writer, ask)
        return self._json(writer, {"choices": [], "usage": self._usage(ask)})

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: dict[str, Any]) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(self.chunks):
            self._chunk(writer, b'data: {"n":%d}\n\n' % number)
        await writer.drain()
        if self.die == "midway":
            writer.transport.abort()
            return False
        if self.hold and not await self._held(reader):
            return False
        self._chunk(writer, b"data: " + json.dumps({"choices": [], "usage": self._usage(ask)}).encode() + b"\n\n")
        self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return True

    async def _held(self, reader: asyncio.StreamReader) -> bool:
        """Until released (True) or the gate closes the connection (False)."""
        gone = asyncio.create_task(reader.read(1))
        let_go = asyncio.create_task(self.release.wait())
        await asyncio.wait({gone, let_go}, return_when=asyncio.FIRST_COMPLETED)
        let_go.cancel()
        if gone.done():
            self.closed += 1
            return False
        gone.cancel()
        return True

    def _usage(self, ask: dict[str, Any]) -> dict[str, Any]:
        prompt = self.usage_prompt_tokens
        if prompt is None:
            prompt = self._count(json.dumps(ask).encode())
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": ask.get("max_tokens", 0)}
        if self.usage_cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.usage_cached_tokens}
        return usage

    def _count(self, body: bytes) -> int:
        return self.count if self.count is not None else len(body) // 4

    def _json(self, writer: asyncio.StreamWriter, document: object, status: int = 200) -> bool:
        return self._send(writer, "application/json", json.dumps(document).encode(), status)

    def _send(self, writer: asyncio.StreamWriter, kind: str, body: bytes, status: int = 200) -> bool:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        return True

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))


@dataclass
class Stand:
    """A gate before a scripted engine, and a client of the gate."""

    engine: ScriptedEngine
    service: GateService
    client: httpx.AsyncClient

    async def chat(self, *, headers: dict[str, str] | None = None, **body: object) -> httpx.Response:
        ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, **body}
        return await self.client.post("/v1/chat/completions", json=ask, headers=headers)

    async def open_chat(self, **body: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw connection with one chat request sent on it."""
        ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, **body}
        data = json.dumps(ask).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.service.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        return reader, writer

    def promised(self) -> int:
        return self.service.gate.promised_blocks()

    async def until(self, what: Callable[[], bool], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not what():
                await asyncio.sleep(0.005)

    def outcomes(self) -> dict[str, int]:
        return {name: count for name, count in self.service.gateway.metrics.outcomes.items() if count}

    def refusals(self) -> dict[str, int]:
        return {name: count for name, count in self.service.gateway.metrics.refusals.items() if count}


@asynccontextmanager
async def _stand(
    engine: ScriptedEngine, look_for_s: float, serve: dict[str, object], **config: object
) -> AsyncIterator[Stand]:
    url = await engine.start()
    gate = GateConfig(**{"policy": Policy.WORST_CASE, "abort_tail_ns": 0, **config})  # type: ignore[arg-type]
    settings = ServiceSettings(
        backend_url=url,
        port=0,
        admin_port=0,
        gate=gate,
        default_max_tokens=64,
        upstream_limits=UpstreamLimits(response_s=5.0),
        **serve,  # type: ignore[arg-type]
    )
    service = await start_service(settings, look_for_s=look_for_s)
    try:
        async with httpx.AsyncClient(base_url=service.url, timeout=10) as client:
            yield Stand(engine, service, client)
        assert service.gateway.metrics.ledger_errors == 0
    finally:
        await service.close()
        await engine.stop()
        assert service.gate.promised_blocks() == 0


Scene = Callable[[Stand], Awaitable[None]]


@pytest.fixture
def make_engine() -> Callable[..., ScriptedEngine]:
    """The class, which cannot be imported from here."""
    return ScriptedEngine


@pytest.fixture
def play() -> Callable[..., None]:
    """`play(scene, engine={...}, serve={service settings}, **gate config)`: run an async scene on a stand.

    Nothing may stay promised.
    """

    def run(
        scene: Scene,
        engine: dict[str, object] | None = None,
        look_for_s: float = 10.0,
        serve: dict[str, object] | None = None,
        **config: object,
    ) -> None:
        async def all_of_it() -> None:
            async with _stand(ScriptedEngine(**(engine or {})), look_for_s, serve or {}, **config) as stand:  # type: ignore[arg-type]
                async with asyncio.timeout(30):
                    await scene(stand)

        uvloop.run(all_of_it())

    return run
