"""A collector of traces: OTLP/HTTP on a real socket, bodies read by OpenTelemetry's own protobuf classes."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class Span:
    """One span, in plain values."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    since_ns: int
    until_ns: int
    attributes: dict[str, Any]
    error: bool
    flags: int
    state: str
    resource: dict[str, Any]
    scope: str


@dataclass
class Receiver:
    """`statuses`: what it answers first, one a request; then 200. `hold`: it answers nothing until let go."""

    statuses: deque[int] = field(default_factory=deque)
    retry_after: str = ""
    rejects: int = 0
    hold: bool = False
    spans: list[Span] = field(default_factory=list)
    requests: int = 0
    paths: list[str] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self, port: int = 0) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def until(self, number: int) -> list[Span]:
        """All spans, once there are so many."""
        async with asyncio.timeout(20):
            while len(self.spans) < number:
                await asyncio.sleep(0.005)
        return self.spans

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                await self._one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        head = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        body = await reader.readexactly(int(head["content-length"]))
        self.requests += 1
        self.paths.append(first.split(" ")[1])
        self.heads.append(head)
        self.bodies.append(body)
        if self.hold:
            await reader.read()
            raise ConnectionError
        status = self.statuses.popleft() if self.statuses else 200
        if status == 200:
            self.spans += spans_in(body)
        answer = ExportTraceServiceResponse()
        if self.rejects:
            answer.partial_success.rejected_spans = self.rejects
            answer.partial_success.error_message = "too many"
        told = answer.SerializeToString()
        more = f"retry-after: {self.retry_after}\r\n" if self.retry_after else ""
        writer.write(f"HTTP/1.1 {status} X\r\n{more}content-length: {len(told)}\r\n\r\n".encode() + told)


def spans_in(body: bytes) -> list[Span]:
    """Raises for what is no ExportTraceServiceRequest, or has fields that the official one has not."""
    request = ExportTraceServiceRequest.FromString(body)
    assert request.SerializeToString(deterministic=True)
    found = []
    for of_resource in request.resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for each in of_scope.spans:
                assert not each.ListFields() or len(each.trace_id) == 16
                found.append(
                    Span(
                        each.name, each.kind, each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex(),
                        each.start_time_unix_nano, each.end_time_unix_nano, _values(each.attributes),
                        each.status.code == 2, each.flags, each.trace_state, resource, of_scope.scope.name,
                    )
                )  # fmt: skip
    return found


def _values(pairs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        assert kind is not None, pair
        assert pair.key not in found, pair
        found[pair.key] = getattr(pair.value, kind)
    return found
