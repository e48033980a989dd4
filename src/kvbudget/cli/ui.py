"""`kvbudget ui`: the pages alone, without a gate: the KV ledger of any model."""

import argparse
import asyncio
import contextlib
import json
import signal

import uvloop
from starlette.applications import Starlette
from starlette.routing import Route

from kvbudget.cli.output import written_out
from kvbudget.edge.asgi import start_asgi
from kvbudget.edge.web.answering import ERROR_HANDLERS
from kvbudget.edge.web.pages import page_routes, to_ledger
from kvbudget.edge.web.simulation import Simulator

EPILOG = """\
examples:
  kvbudget ui                       # http://127.0.0.1:8802/ledger
  kvbudget ui --port 9000
  kvbudget ui --port 0 --json       # any free port, told as one JSON document

The page says everything in its address: share it. Numbers come from the planner of this machine; nothing is loaded from
anywhere else. A running gate has the same page on its admin port.
exit: 0 when it is stopped; 2 usage."""
DEFAULT_PORT = 8802


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"0 for any free one ({DEFAULT_PORT})")
    parser.add_argument("--json", action="store_true", help="the ready line as one JSON document")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; returns 0."""
    with contextlib.suppress(KeyboardInterrupt):  # a SIGINT before the handlers stand
        uvloop.run(_serve(args.host, args.port, args.json))
    return 0


async def _serve(host: str, port: int, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    routes = [Route("/", to_ledger), *page_routes(Simulator())]
    server = await start_asgi(Starlette(routes=routes, exception_handlers=ERROR_HANDLERS), host, port)
    try:
        url = f"{server.url}/ledger"
        with written_out():
            print(json.dumps({"schema": "kvbudget.ui/1", "url": url}) if as_json else f"KV ledger: {url}", flush=True)
        await stop.wait()
    finally:
        await server.close()
