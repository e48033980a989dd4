"""Decides how streams are served over gRPC: many at once, each in order, none of them left behind."""

import asyncio
import logging
from collections import deque
from typing import Any, Final

import grpc
from grpc import aio

from kvbudget.edge.extproc.health import Health
from kvbudget.edge.extproc.heard import ProtocolError
from kvbudget.edge.extproc.stream import Processor, Stream
from kvbudget.edge.extproc.wire import SERVICE
from kvbudget.edge.http.address import host_port
from kvbudget.errors import BadValueError

log = logging.getLogger("kvbudget.extproc")

_SWEEP_S: Final = 1.0
_SETTLE_S: Final = 1.0  # for a message that is on its way when its stream ends
_MESSAGE_SLACK: Final = 1 << 20  # a message is its body and little more
_PEER_DEAD_MS: Final = 20_000  # a data plane whose machine is gone says nothing; its requests end when a ping fails


class Call:
    """One RPC: the sink of its stream. Messages go out in the order of `send`, and by one writer at a time."""

    __slots__ = ("_context", "_inline", "_outbox", "_reset", "_task", "_writer", "_writing")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._outbox: deque[bytes] = deque()
        self._inline = False  # whoever called `receive` sends what it brought
        self._writing = False
        self._writer: asyncio.Task[None] | None = None
        self._task = asyncio.current_task()
        self._reset: bool | None = None  # how it was cut

    async def serve(self, stream: Stream) -> None:
        """Until Envoy, or we, end it."""
        context, outbox = self._context, self._outbox
        try:
            while True:
                data = await context.read()
                if data is aio.EOF:
                    await self.settle()
                    return
                self._inline = True
                try:
                    stream.receive(data)
                finally:
                    self._inline = False
                if outbox and not self._writing:
                    await self._flush()
        except asyncio.CancelledError:
            if self._reset is None or self._task is None:
                raise  # by the peer, or by the server that stops
            self._task.uncancel()
        if self._reset:
            await self.settle()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the request was ended by the gate")

    def send(self, message: bytes) -> None:
        """To Envoy."""
        self._outbox.append(message)
        if not self._inline and not self._writing:
            self._writer = asyncio.get_running_loop().create_task(self._flush_late())

    def cut(self, reset: bool) -> None:
        """End the RPC, as an error or not."""
        if self._reset is None and self._task is not None:
            self._reset = reset
            self._task.cancel()

    async def settle(self) -> None:
        """Until no message is on its way: gRPC takes no status while one is."""
        if self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer], timeout=_SETTLE_S)

    async def _flush(self) -> None:
        outbox, write = self._outbox, self._context.write
        self._writing = True
        try:
            while outbox:
                await write(outbox.popleft())
        finally:
            self._writing = False

    async def _flush_late(self) -> None:
        """What the gate decided while nobody was in `receive`."""
        try:
            if not self._writing:
                await self._flush()
        except Exception as error:  # the peer has gone meanwhile: the RPC's own task finds that out, and ends it
            log.debug("a message to Envoy was lost: %s", error)


class GrpcServer:
    """A listening external processor. Made by `start_grpc`."""

    def __init__(self, processor: Processor, health: Health) -> None:
        limits = processor.limits
        self.port = 0
        self._processor = processor
        self._streams: set[Stream] = set()
        self._server = aio.server(
            options=[
                ("grpc.max_receive_message_length", limits.body_bytes + _MESSAGE_SLACK),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", limits.connections),
                ("grpc.max_metadata_size", limits.header_bytes),
                ("grpc.keepalive_time_ms", _PEER_DEAD_MS),
                ("grpc.keepalive_timeout_ms", _PEER_DEAD_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
                ("grpc.so_reuseport", 0),  # a second one on this port is a mistake, which must be seen
            ]
        )
        process = grpc.stream_stream_rpc_method_handler(self._process)
        handlers = (grpc.method_handlers_generic_handler(SERVICE, {"Process": process}), health.handler())
        self._server.add_generic_rpc_handlers(handlers)
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, credentials: Any = None) -> None:
        """Listen. Raises BadValueError for an address that cannot be had."""
        address = host if host.startswith("unix:") else host_port(host, port)
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise BadValueError(
                f"cannot listen on {address}: {error}", fix="choose another --host or --grpc-port"
            ) from None
        await self._server.start()
        self._sweeping = asyncio.create_task(self._sweep(), name="sweep over streams")

    def stop_accepting(self) -> None:
        """gRPC refuses new streams from `close` on."""

    async def close(self, grace_s: float) -> None:
        """No new streams; what is left after `grace_s` is cancelled."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._server.stop(grace_s)

    async def _process(self, _: Any, context: Any) -> None:
        processor = self._processor
        if len(self._streams) >= processor.limits.connections:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams")
        call = Call(context)
        stream = Stream(processor, call)
        self._streams.add(stream)
        try:
            await call.serve(stream)
        except ProtocolError as error:
            processor.counts.protocol_errors += 1
            log.warning("a peer broke the protocol: %s", error)
            await call.settle()
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._streams.discard(stream)
            stream.closed()

    async def _sweep(self) -> None:
        """Ends streams of which a part does not come."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_ns = self._processor.now_ns()
            for stream in list(self._streams):
                if stream.due_ns <= now_ns:
                    stream.overdue()


async def start_grpc(processor: Processor, health: Health, host: str, port: int, credentials: Any = None) -> GrpcServer:
    """Serve; port 0 takes a free one. Raises BadValueError when the address cannot be had."""
    server = GrpcServer(processor, health)
    try:
        await server.start(host, port, credentials)
    except BaseException:
        await server.close(0)
        raise
    return server
