"""Decides what gRPC health checks are told: that the process lives, and whether it takes requests."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc

from kvbudget.edge.extproc.wire import HEALTH_SERVICE, SERVICE, HealthCheckRequest, HealthCheckResponse

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
_LOOK_S: Final = 0.25  # how often a watch looks; what is asked for costs nothing
_READY: Final = frozenset({"", READINESS, SERVICE})


class Health:
    """`grpc.health.v1.Health`. `ready`: whether requests are taken now."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def handler(self) -> Any:
        """For a gRPC server."""
        kinds = {"request_deserializer": HealthCheckRequest.FromString, "response_serializer": _encoded}
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, **kinds),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, **kinds),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)

    def status_of(self, service: str) -> int:
        """1 serving, 2 not serving, 3 no such service."""
        if service == LIVENESS:
            return _SERVING
        if service not in _READY:
            return _SERVICE_UNKNOWN
        return _SERVING if self._ready() else _NOT_SERVING

    async def _check(self, request: Any, context: Any) -> Any:
        status = self.status_of(request.service)
        if status == _SERVICE_UNKNOWN:
            known = f"{LIVENESS}, {READINESS}, {SERVICE}"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service here; there are {known}")
        return HealthCheckResponse(status=status)

    async def _watch(self, request: Any, context: Any) -> None:
        """The status now, and again after each change."""
        told = None
        while True:
            status = self.status_of(request.service)
            if status != told:
                told = status
                await context.write(HealthCheckResponse(status=status))
            await asyncio.sleep(_LOOK_S)


def _encoded(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
