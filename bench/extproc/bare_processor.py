"""The floor: an ext_proc server on grpc.aio that says yes to everything. Given the engine's port, it prints its own."""

import sys

import grpc
import uvloop
from grpc import aio

from kvbudget.edge.extproc import told
from kvbudget.edge.extproc.wire import SERVICE, ProcessingRequest

CHANGES = told.Changes(f"127.0.0.1:{sys.argv[1]}", [], [])


async def process(_: object, context: aio.ServicerContext) -> None:
    while (data := await context.read()) is not aio.EOF:
        kind = ProcessingRequest.FromString(data).WhichOneof("request")
        await context.write(told.with_whole_body(CHANGES, None) if kind == "request_body" else told.GO_ON[kind])


async def main() -> None:
    server = aio.server()
    methods = {"Process": grpc.stream_stream_rpc_method_handler(process)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


uvloop.run(main())
