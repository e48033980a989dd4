"""A whole gate behind Envoy, put together: the parts of any gate, and an external processor as its data plane."""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvbudget.edge.extproc.endpoints import Endpoints
from kvbudget.edge.extproc.handover import Handover
from kvbudget.edge.extproc.health import Health
from kvbudget.edge.extproc.server import start_grpc
from kvbudget.edge.extproc.stream import Counts, Processor
from kvbudget.edge.instances.instance import Instance
from kvbudget.edge.service import DataPlane, GateService, started
from kvbudget.edge.service_settings import ServiceSettings
from kvbudget.errors import BadValueError
from kvbudget.gate.refusing.refusals import Refusal

log = logging.getLogger("kvbudget.extproc")

_RESOLVE_S: Final = 5.0
_COUNT_NS: Final = 500_000_000  # of Envoy's patience, for counting and the way back


@dataclass(frozen=True, slots=True)
class Timeouts:
    """As the filter in Envoy has them: `message_timeout`, and `max_message_timeout` where it lets us ask for more."""

    message_s: float = 40.0
    max_message_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("message-timeout", self.message_s), ("max-message-timeout", self.max_message_s)):
            if value is not None and not 0.001 <= value <= 86_400:
                raise BadValueError(f"--{name}: {value} is not within 0.001 and 86400", fix="give Envoy's own setting")

    def bounded(self, settings: ServiceSettings) -> ServiceSettings:
        """Nobody waits in the queue until Envoy has lost its patience: a refusal of ours says when to come back."""
        patience_ns = int(max(self.message_s, self.max_message_s or 0.0) * 1e9)
        most_ns = max(patience_ns // 2, patience_ns - _COUNT_NS)
        if settings.gate.queue_ns <= most_ns:
            return settings
        return replace(settings, gate=replace(settings.gate, queue_ns=most_ns))


class ExtProcService(GateService):
    """A running gate whose requests come by Envoy. Made by `start_extproc`."""

    def __init__(self, settings: ServiceSettings, timeouts: Timeouts) -> None:
        self.endpoints = Endpoints()
        super().__init__(timeouts.bounded(settings))
        if settings.host.startswith("unix:") and self._tls is not None:
            raise BadValueError("--tls-cert with a Unix socket", fix="leave one of them away")
        gateway, reception = self.gateway, self.reception
        self.processor = Processor(
            app=reception.app,
            refuser=gateway.refuser,
            request_id=reception.identities.request_id_of,
            error_answer=reception.unread,
            endpoints=self.endpoints,
            limits=settings.server_limits,
            now_ns=time.monotonic_ns,
            late=self._late,
            message_timeout_s=timeouts.message_s,
            max_message_timeout_s=timeouts.max_message_s,
        )
        gateway.metrics.more = self._families
        self.endpoints.is_up = self._takes_requests
        self._certificate: _Certificate | None = None
        self._resolving: asyncio.Task[None] | None = None

    def _adopt(self, instance: Instance) -> None:
        """As of any gate; and what is admitted goes to it by Envoy."""
        backend = instance.backend
        self.endpoints.add(backend.name, backend.url)  # one that Envoy cannot be sent to is not taken at all
        super()._adopt(instance)
        backend.upstream = Handover(backend.name, instance.upstream, self.endpoints)

    async def _gone(self, instance: Instance) -> None:
        """As of any gate; and it is no endpoint any more: first, as one of its name may come while the rest goes on."""
        self.endpoints.remove(instance.backend.name)
        await super()._gone(instance)

    @property
    def url(self) -> str:
        """Where Envoy finds it."""
        return self._address("")

    async def start(self) -> None:
        """As of any gate, once the engines' names have addresses."""
        await self.endpoints.resolve()
        await super().start()
        self._resolving = asyncio.create_task(self._resolve(), name="look up engines' names")

    async def close(self) -> None:
        """As of any gate."""
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.gather(self._resolving, return_exceptions=True)
        await super().close()

    async def _resolve(self) -> None:
        """For ever: names change their addresses, and instances come."""
        while True:
            await asyncio.sleep(_RESOLVE_S)
            await self.endpoints.resolve()

    async def open_data_plane(self) -> DataPlane:
        """The external processor, and the health service."""
        settings = self.settings
        if settings.tls_cert is not None:
            self._certificate = _Certificate(settings.tls_cert, settings.tls_key)
        credentials = None if self._certificate is None else self._certificate.credentials()
        return await start_grpc(self.processor, Health(self._ready), settings.host, settings.port, credentials)

    def reload_certificate(self) -> None:
        """As of any gate."""
        super().reload_certificate()
        if self._certificate is not None:
            self._certificate.reload()

    def _ready(self) -> bool:
        return self.fleet.backend_up and not self.gateway.admission.draining

    def _takes_requests(self, name: str) -> bool:
        member = self.fleet.named(name)
        return member is not None and member.in_service

    def _late(self) -> None:
        self.gateway.metrics.refusals[Refusal.DEADLINE] += 1

    def _families(self) -> Iterable[Metric]:
        return families(self.processor.counts)

    async def _cut_off(self) -> None:
        self.processor.leaving = True  # what Envoy carries by now, it may carry to its end
        await super()._cut_off()


class _Certificate:
    """What gRPC speaks TLS with; the files were judged by `ServerTls`."""

    def __init__(self, certificate: str, key: str | None) -> None:
        self._paths = (certificate, key or certificate)
        self._fresh = False

    def credentials(self) -> Any:
        """For a server. gRPC asks at each handshake whether there is something new."""
        return grpc.dynamic_ssl_server_credentials(self._read(), self._changed)

    def reload(self) -> None:
        """Handshakes from now on get what the files hold."""
        self._fresh = True

    def _changed(self) -> Any:
        fresh, self._fresh = self._fresh, False
        return self._read() if fresh else None

    def _read(self) -> Any:
        chain, key = [_bytes_of(path) for path in self._paths]
        return grpc.ssl_server_certificate_configuration([(key, chain)])


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


GAUGES: Final = {"kvbudget_extproc_streams": "Requests that Envoy tells of now: arriving, waiting, or on their way."}
COUNTERS: Final = {
    "kvbudget_extproc_protocol_errors": "Streams that were ended because their peer did not keep to the protocol.",
    "kvbudget_extproc_served_elsewhere": "Requests that the data plane sent to another endpoint than was picked.",
    "kvbudget_extproc_out_of_time": "Requests refused because Envoy waits no longer than its message_timeout.",
}


def families(counts: Counts) -> list[Metric]:
    """The figures of the streams, for `/metrics`."""
    gauge = GaugeMetricFamily("kvbudget_extproc_streams", GAUGES["kvbudget_extproc_streams"], counts.streams)
    told: list[Metric] = [gauge]
    values = (counts.protocol_errors, counts.served_elsewhere, counts.out_of_time)
    for (name, text), value in zip(COUNTERS.items(), values, strict=True):
        told.append(CounterMetricFamily(name, text, value))
    return told


async def start_extproc(settings: ServiceSettings, timeouts: Timeouts, *, look_for_s: float = 10.0) -> ExtProcService:
    """Start a gate behind Envoy in the running loop and wait for the engines, at most `look_for_s`."""
    service = ExtProcService(settings, timeouts)
    await started(service, look_for_s)
    return service
