"""Where the time of one request goes inside of the gate: everything but kernel and event loop, in one process.

Connections and clock of the loop are stand-ins that keep the bytes; the rest is what `kvbudget serve` is made of. Least
CPU time over many small batches, so that what else runs on the machine hardly matters.

    python bench/proxy/inside.py              # µs per request and per chunk
    python bench/proxy/inside.py --connections 64   # all of them in flight at a time, as in service: cold caches
    python bench/proxy/inside.py --profile 2kb
    python bench/proxy/inside.py --traces 1      # with spans of every request; 0: asked for, and none is recorded
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import random
import sys
import time
from collections.abc import Callable, Iterator

from kvbudget.edge.control.past import Past
from kvbudget.edge.http.limits import ServerLimits, UpstreamLimits
from kvbudget.edge.http.refused import openai_answer
from kvbudget.edge.http.server import HttpServer
from kvbudget.edge.http.upstream import Upstream
from kvbudget.edge.http.upstream_pool import UpstreamConnection
from kvbudget.edge.instances.backend import Backend
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.request.answers import Refuser
from kvbudget.edge.request.gateway import Gateway
from kvbudget.edge.request.identity import Identities
from kvbudget.edge.request.reception import Reception
from kvbudget.edge.tokens.bound import ThreadedBoundCounter
from kvbudget.edge.tokens.images import ImageCounter
from kvbudget.edge.tracing.context import Sampler
from kvbudget.edge.tracing.settings import TracingSettings
from kvbudget.edge.tracing.tracer import Tracer
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens

BATCH = 192
BATCHES = 60
CHUNK = (
    b'%x\r\ndata: {"id":"chatcmpl-bench","object":"chat.completion.chunk","choices":[{"delta":{"content":" w"}}]}\n\n'
)


class Wire(asyncio.Transport):
    """A transport that keeps nothing but the last write."""

    def __init__(self) -> None:
        super().__init__()
        self.last = b""

    def write(self, data: bytes) -> None:
        self.last = data

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 40000) if name == "peername" else default

    def abort(self) -> None:
        raise RuntimeError("the gate gave a connection up")

    close = abort


class Rig:
    """A gate between the wires of clients and of engines, as many of the one as of the other."""

    def __init__(self, traces: float | None = None, connections: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.upstream = Upstream("http://127.0.0.1:8000", UpstreamLimits())
        backend = Backend("http://127.0.0.1:8000", self.upstream)
        gate = Gate(GateConfig(), uniform_layout(16), Blocks(10_000_000))
        self.gateway = Gateway(
            gate, backend, Refuser("bench", random.Random(1)), GateMetrics(),
            default_new_tokens=Tokens(2048), now_ns=time.monotonic_ns,
        )  # fmt: skip
        if traces is not None:
            tracer = Tracer(TracingSettings("http://127.0.0.1:4318/v1/traces", Sampler(traces)))
            self.gateway.access_log = self.gateway.tracer = tracer
        self.past = Past(self.gateway, time.monotonic_ns)
        counter = ImageCounter(ThreadedBoundCounter(), None)
        reception = Reception(self.gateway, counter, Identities("kvb-0123456789ab"))
        self.server = HttpServer(reception.app, ServerLimits(), openai_answer, loop)
        pool = self.upstream._pool
        self.clients = [Wire() for _ in range(connections)]
        self.engines = [Wire() for _ in range(connections)]
        self.connections = [self.server.new_connection() for _ in range(connections)]
        self.lanes = [UpstreamConnection(pool) for _ in range(connections)]
        for connection, client, lane, engine in zip(
            self.connections, self.clients, self.lanes, self.engines, strict=True
        ):
            connection.connection_made(client)
            lane.connection_made(engine)
            pool._open.add(lane)
            pool.free(lane)
        self.client, self.engine = self.clients[0], self.engines[0]
        self.connection, self.lane = self.connections[0], self.lanes[0]

    def requests(self, asked: list[bytes], answers: list[bytes], number: int) -> None:
        """One on each connection; the answers come when all are under way."""
        for place, connection in enumerate(self.connections):
            # Bytes of their own, as from a socket: those of the batch would stay in the caches.
            connection.data_received(bytes(memoryview(asked[(number + place) & 31])))
        for place, lane in enumerate(self.lanes):
            lane.data_received(bytes(memoryview(answers[((number + place) * 7) & 31])))

    def check(self) -> None:
        assert self.client.last.startswith(b"HTTP/1.1 200"), self.client.last[:300]
        assert b"x-kvbudget-reserved-blocks: " in self.client.last
        assert self.engine.last.endswith(b'"}]}')
        assert self.gateway.gate.ledger.sequences == 0


def requests(size: int, stream: bool = False) -> list[bytes]:
    """Requests of about that size; no two neighbours have the same length or text."""
    made = []
    for number in range(32):
        text = f"{number} " + "token " * (size // 6 + number)
        extra = '"stream":true,' if stream else ""
        body = f'{{"model":"mock","max_tokens":16,{extra}"messages":[{{"role":"user","content":"{text}"}}]}}'.encode()
        made.append(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8800\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nx-mock-chunks: 0\r\nx-mock-pace-us: 0\r\n\r\n%b" % (len(body), body)
        )
    return made


def answers() -> list[bytes]:
    made = []
    for number in range(32):
        body = (
            b'{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"mock","choices":[{"index":0,'
            b'"message":{"role":"assistant","content":"the quick brown fox jumps %b"},"finish_reason":"stop"}],"usage":'
            b'{"prompt_tokens":512,"completion_tokens":5,"total_tokens":517}}' % (b"x" * number)
        )
        made.append(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
    return made


def batches(size: int) -> Callable[[Rig], None]:
    asked, answered = requests(size), answers()

    def run(rig: Rig) -> None:
        for number in range(0, BATCH, len(rig.connections)):
            rig.requests(asked, answered, number)
        if rig.gateway.tracer is not None:
            rig.gateway.tracer.exporter.take()

    return run


EVENT = b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"mock",\
"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
FRAMED = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunks(rig: Rig) -> None:
    received = rig.lane.data_received
    for _ in range(BATCH):
        received(FRAMED)


def least_us(rig: Rig, run: Callable[[Rig], None]) -> float:
    best = 1e9
    for _ in range(BATCHES):
        began = time.thread_time_ns()
        run(rig)
        best = min(best, (time.thread_time_ns() - began) / BATCH / 1000)
    return best


def cases() -> Iterator[tuple[str, Callable[[Rig], None]]]:
    yield "2kb", batches(2000)
    yield "100kb", batches(100_000)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=["2kb", "100kb", "chunks"])
    parser.add_argument("--connections", type=int, default=1, choices=range(1, BATCH + 1), metavar=f"1-{BATCH}")
    parser.add_argument("--traces", type=float, metavar="RATIO", help="record so many of the requests")
    args = parser.parse_args()
    rig = Rig(args.traces, args.connections)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # as `kvbudget serve` does
    figures = {}
    profile = cProfile.Profile()
    for name, run in cases():
        run(rig)
        rig.check()
        if args.profile == name:
            profile.runcall(lambda run=run: [run(rig) for _ in range(10)])
        figures[name] = least_us(rig, run)
    rig.connection.data_received(requests(2000, stream=True)[0])
    rig.lane = next(lane for lane in rig.lanes if lane.transfer is not None)
    rig.lane.data_received(SSE_HEAD)
    if args.profile == "chunks":
        profile.runcall(lambda: [chunks(rig) for _ in range(10)])
    figures["chunks"] = least_us(rig, chunks)
    for name, value in figures.items():
        print(f"{name}: {value:.2f} µs")
    if args.profile:
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    asyncio.run(main())
