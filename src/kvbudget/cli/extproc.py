"""`kvbudget extproc`: the gate for an Envoy in front of the engines, or any gateway that asks an endpoint picker."""

import argparse
from typing import TYPE_CHECKING

from kvbudget.cli.serve import Kind, run_gate
from kvbudget.cli.serving.flags import add_flags
from kvbudget.cli.serving.ready_line import Ready, Told, found_by, page_of, urls_of, verb_of

if TYPE_CHECKING:  # --help must work without the libraries of the gate
    from kvbudget.cli.serving.worker import Worker
    from kvbudget.edge.service import GateService
    from kvbudget.edge.service_settings import ServiceSettings

EPILOG = """examples:
  kvbudget extproc --backend http://10.0.0.7:8000
      Envoy's ext_proc filter asks 127.0.0.1:9002; pool, context cap and token counts are the engine's own
  kvbudget extproc --backend http://10.0.0.7:8000 --backend http://10.0.0.8:8000 --host 0.0.0.0
      before two: Envoy is told which one by x-gateway-destination-endpoint
  kvbudget extproc --backend http://10.0.0.7:8000 --message-timeout 2 --max-message-timeout 40
      a filter that gives up soon on a gate that is silent, and waits when it is asked to
  kvbudget extproc --embedded-engine
      try it, with docs/examples/envoy.yaml

exit: 0 stopped by SIGINT or SIGTERM with nothing cut off, 1 requests had to be cut off, 2 wrong usage
"""
DEFAULT_GRPC_PORT = 9002
DEFAULT_MESSAGE_TIMEOUT_S = 40.0
# Of `serve`: Envoy is the data plane, and has these itself.
_OF_THE_DATA_PLANE = frozenset({"--port", "--proxy-protocol", "--workers"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `serve` but for its data plane, and those of Envoy's side."""
    add_flags(parser, without=_OF_THE_DATA_PLANE)
    envoy = parser.add_argument_group("Envoy")
    envoy.add_argument("--grpc-port", type=int, help="default 9002; 0 takes a free one")
    envoy.add_argument(
        "--message-timeout",
        type=float,
        metavar="S",
        help="message_timeout of Envoy's filter: nobody is held longer, but refused in time (default 40; Envoy's own "
        "default is 0.2)",
    )
    envoy.add_argument(
        "--max-message-timeout",
        type=float,
        metavar="S",
        help="max_message_timeout of Envoy's filter: Envoy is asked to wait so long for who is counted or waits "
        "(default: it is not asked)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; 0 when drained, 1 when requests had to be cut off."""
    return run_gate(args, _kind)


def _kind(args: argparse.Namespace) -> Kind:
    from dataclasses import replace

    from kvbudget.edge.extproc.service import Timeouts, start_extproc

    timeouts = Timeouts(
        getattr(args, "message_timeout", DEFAULT_MESSAGE_TIMEOUT_S), getattr(args, "max_message_timeout", None)
    )
    port = getattr(args, "grpc_port", DEFAULT_GRPC_PORT)

    def prepare(settings: "ServiceSettings") -> "ServiceSettings":
        return timeouts.bounded(replace(settings, port=port, proxy_protocol=(), workers=1))

    async def start(settings: "ServiceSettings", worker: "Worker | None") -> "GateService":
        return await start_extproc(settings, timeouts)

    return Kind(prepare, start, _told)


def _told(ready: Ready) -> Told:
    gate, admin = ready["gate"], ready["admin"]
    return Told(
        f"kvbudget {verb_of(ready)}: external processor {gate} (gRPC) before {urls_of(ready)}, admin {admin}"
        f"{found_by(ready)}",
        "  Envoy:  docs/examples/envoy.yaml; x-gateway-destination-endpoint says where a request goes\n"
        f"  look:   curl {admin}/v1/state\n"
        f"  pages:  {page_of(admin)} in a browser",
    )
