"""A whole gate on the virtual network: clients of many manners before it, engines of some moods behind it.

Before several engines an operator is at work as well: switches shadow mode on and off, drains and resumes.
"""

import asyncio
import json
import logging
import random
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import h11

from kvbudget.edge.http.limits import ServerLimits, UpstreamLimits
from kvbudget.edge.http.server import HttpServer
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import GateService, ServiceSettings
from kvbudget.gate.config import GateConfig
from kvbudget.gate.fleet.events import Drained
from kvbudget.gate.policies import Policy
from virtual_network import Fault, VirtualLoop, VirtualTransport, virtual_time

ENGINE_PORT, GATE_PORT = 9000, 8800
METRICS = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="65",engine="0"} 1.0\nvllm:kv_cache_usage_perc 0.1\n'
MOODS = ("plain", "stream", "stream", "slow", "busy", "breaks", "garbage", "flood")
MANNERS = ("waits", "waits", "waits", "leaves", "slow reader", "pipelines", "malformed")


@dataclass
class Told:
    """What came of one run."""

    operations: int = 0
    failures: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Engine(asyncio.Protocol):
    """Answers by the mood that a request names; `sent` keeps the bytes of every body, by request."""

    def __init__(self, loop: VirtualLoop, sent: dict[str, bytes]) -> None:
        self._loop = loop
        self._sent = sent
        self._data = b""
        self._transport: Any = None
        self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            if len(rest) < length:
                return
            self._data = rest[length:]
            self._answer(head.split(b" ")[1].decode(), rest[:length])

    def _answer(self, path: str, body: bytes) -> None:
        if path == "/health":
            self._whole(b"{}")
        elif path == "/metrics":
            self._whole(METRICS)
        elif path == "/v1/models":
            self._whole(b'{"data":[{"id":"m","max_model_len":512}]}')
        elif path != "/v1/chat/completions":
            self._whole(b"{}", 404)
        else:
            ask = json.loads(body)
            self._chat(ask["user"], ask)

    def _chat(self, key: str, ask: dict[str, Any]) -> None:
        mood = MOODS[int(key.split("-")[1]) % len(MOODS)]
        usage = json.dumps({"usage": {"prompt_tokens": 9, "completion_tokens": ask["max_tokens"]}}).encode()
        if mood in ("plain", "slow"):
            body = b'{"choices":[],"pad":"' + b"x" * random.Random(key).randrange(50_000) + b'",' + usage[1:]
            self._sent[key] = body
            self._loop.call_later(0.05 if mood == "plain" else 5.0, self._whole, body)
        elif mood == "busy":
            self._whole(b'{"error":"busy"}', 503)
        elif mood == "garbage":
            self._write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!")
        elif mood == "breaks":
            self._write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nda")
            self._loop.call_later(0.1, self._transport.abort)
        else:
            size = 20 if mood == "stream" else 3000
            events = [b'data: {"n":%d,"pad":"%b"}\n\n' % (n, b"y" * size) for n in range(40)]
            events += [b"data: " + usage + b"\n\n", b"data: [DONE]\n\n"]
            self._sent[key] = b"".join(events)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            self._write(head)
            self._stream(events, 0.0 if mood == "flood" else 0.05)

    def _stream(self, events: list[bytes], pause_s: float) -> None:
        if self._gone:
            return
        if not events:
            self._write(b"0\r\n\r\n")
            return
        self._write(b"%x\r\n%b\r\n" % (len(events[0]), events[0]))
        self._loop.call_later(pause_s, self._stream, events[1:], pause_s)

    def _whole(self, body: bytes, status: int = 200) -> None:
        self._write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    def _write(self, data: bytes) -> None:
        if not self._gone:
            self._transport.write(data)


class Client(asyncio.Protocol):
    """Sends one request after another in its manner, and reads the answers with a parser that is not ours."""

    def __init__(self, loop: VirtualLoop, number: int, sent: dict[str, bytes], told: Told) -> None:
        self._loop = loop
        self._number = number
        self._manner = MANNERS[number % len(MANNERS)]
        self._sent = sent
        self._told = told
        self._parser = h11.Connection(h11.CLIENT)
        self._transport: Any = None
        self._body = b""
        self._status = 0
        self._keys: list[str] = []
        self.done: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._next(0)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def eof_received(self) -> bool:
        self._read(b"")
        return False

    def data_received(self, data: bytes) -> None:
        self._read(data)

    def _next(self, turn: int) -> None:
        if turn == 3 or self._transport.is_closing():
            self._transport.close()
            return
        key = f"{turn}-{self._number * 3 + turn}"
        self._keys.append(key)
        ask = {"model": "m", "user": key, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}
        body = json.dumps(
            ask | {"stream": MOODS[(self._number * 3 + turn) % len(MOODS)] in ("stream", "flood")}
        ).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        if self._manner == "malformed":
            head = head.replace(b"host: x", b"host: x\r\ncontent-length: 3")
        self._parser = h11.Connection(h11.CLIENT)
        self._parser.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
        self._parser.send(h11.EndOfMessage())
        self._body, self._status = b"", 0
        self._transport.write(head)
        self._transport.write(
            body + (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" if self._manner == "pipelines" else b"")
        )
        if self._manner == "leaves":
            self._loop.call_later(self._loop.chance.choice((0.0005, 0.02, 0.3, 2)), self._transport.abort)
        if self._manner == "slow reader":
            self._transport.pause_reading()
            self._loop.call_later(3, self._transport.resume_reading)

    def _read(self, data: bytes) -> None:
        try:
            self._parser.receive_data(data)
            while True:
                event = self._parser.next_event()
                if isinstance(event, h11.Response):
                    self._status = event.status_code
                elif isinstance(event, h11.Data):
                    self._body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self._answered()
                    return
                else:
                    return
        except h11.RemoteProtocolError:
            self._transport.abort()  # cut short: nothing that could be taken for a whole answer

    def _answered(self) -> None:
        told, key = self._told, self._keys[-1]
        told.answers.append(self._status)
        broken = b'"upstream_failed"' in self._body or b'"request_cancelled"' in self._body
        if self._status == 200 and self._body != self._sent.get(key) and not broken:
            told.wrong.append(f"{key}: {len(self._body)} bytes, {self._body[:60]!r}")
        if self._manner == "pipelines":
            self._transport.close()
            return
        self._next(len(self._keys))


def run(seed: int, fault: Fault | None = None, clients: int = 7, engines: int = 1) -> Told:
    """One run to its end. Whatever went wrong, nothing may be left of it: that is asserted here."""
    loop = VirtualLoop(seed, fault)
    told = Told()
    sent: dict[str, bytes] = {}
    http, bugs = logging.getLogger("kvbudget.http"), list[str]()

    def note(what: str, *_: object) -> None:
        bugs.append(f"{what}: {sys.exc_info()[1]!r}")

    with (
        virtual_time(loop),
        patch("kvbudget.edge.service.start_asgi", _no_admin),
        patch.object(http, "exception", note),  # what the data plane catches is a fault all the same
    ):
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(_run(loop, told, sent, clients, engines))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
    told.operations, told.failures = loop.operations, loop.failures + bugs
    return told


async def _run(loop: VirtualLoop, told: Told, sent: dict[str, bytes], clients: int, engines: int) -> None:
    for number in range(engines):
        await loop.create_server(lambda: Engine(loop, sent), port=ENGINE_PORT + number)
    urls = [f"http://10.0.0.1:{ENGINE_PORT + number}" for number in range(engines)]
    settings = ServiceSettings(
        backend_url=urls[0],
        instances=tuple([InstanceSettings(url) for url in urls]) if engines > 1 else (),
        tokenizer="bound",
        port=GATE_PORT,
        gate=GateConfig(policy=Policy.LEARNED, queue_ns=5 * 10**9),
        server_limits=ServerLimits(),
        upstream_limits=UpstreamLimits(response_s=20, read_stall_s=20),
    )
    service = GateService(settings)
    await service.start()
    for _ in range(100):
        if all(one.member.gate.backend_up for one in service.instances):
            break
        await asyncio.sleep(0.1)
    operator = asyncio.create_task(_operate(loop, service)) if engines > 1 else None
    living: list[Client] = []
    for number in range(clients):
        client = Client(loop, number, sent, told)
        try:
            await loop.create_connection(partial(_same, client), port=GATE_PORT)
            living.append(client)
        except OSError:
            continue
        await asyncio.sleep(loop.chance.choice((0, 0.01, 0.2)))
    if living:
        _, late = await asyncio.wait([client.done for client in living], timeout=300)
        assert not late, f"{len(late)} clients hang"
    if operator is not None:
        operator.cancel()
        await asyncio.gather(operator, return_exceptions=True)
        service.gateway.set_shadow(False)
    quiet_s = 0.0
    while list(service.gateway.flows) and quiet_s < 120:
        await asyncio.sleep(1)
        quiet_s += 1
    assert not list(service.gateway.flows), "flows are left"
    await asyncio.sleep(10)  # tails of what was cut off are given back
    for one in service.instances:
        gate = one.member.gate
        assert gate.promised_blocks() == 0, f"{gate.promised_blocks()} blocks leaked"
        assert len(gate.queue) == 0
    metrics = service.gateway.metrics
    assert metrics.ledger_errors == 0
    server = service._data_plane
    assert isinstance(server, HttpServer)
    await service.close()
    await asyncio.sleep(1)
    assert server.buffered_bytes == 0
    assert server.connections == 0
    assert [one.upstream.connections for one in service.instances] == [0] * engines


async def _operate(loop: VirtualLoop, service: GateService) -> None:
    """Switches and drains at moments that the seed decides; at the least one engine stays in."""
    while True:
        await asyncio.sleep(loop.chance.choice((0.01, 0.1, 0.5)))
        service.gateway.set_shadow(loop.chance.random() < 0.4)
        number = loop.chance.randrange(len(service.instances))
        for at, one in enumerate(service.instances):
            out = at == number and loop.chance.random() < 0.5
            service.gateway.push_at(one.member, Drained(out))


def _same(client: Client) -> Client:
    return client


async def _no_admin(*_: object) -> Any:
    class Nothing:
        url = ""

        async def close(self) -> None:
            """Nothing is open."""

    return Nothing()


__all__ = ["Fault", "Told", "VirtualTransport", "run"]
