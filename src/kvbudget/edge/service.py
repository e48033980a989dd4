"""A whole gate, put together: data plane, control plane, backend watch and, if wanted, the embedded engine."""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable
from typing import Protocol

from kvbudget.edge.access_log import AccessLog
from kvbudget.edge.asgi import AsgiServer, check_port, start_asgi
from kvbudget.edge.bank.store import BankStore
from kvbudget.edge.bank.urls import store_from_url
from kvbudget.edge.control.access import AdminAccess
from kvbudget.edge.control.admin import admin_app
from kvbudget.edge.control.demand import DemandWatch
from kvbudget.edge.control.past import Past
from kvbudget.edge.discovery.discovery import Discovery, discovery_of
from kvbudget.edge.discovery.nowhere import nowhere
from kvbudget.edge.http.address import host_port
from kvbudget.edge.http.peers import Trusted
from kvbudget.edge.http.server import start_server
from kvbudget.edge.http.tls import ServerTls, engine_context
from kvbudget.edge.instances.backend import EngineFacts
from kvbudget.edge.instances.instance import Instance
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.instances.vocabularies import counter_of_all, counters_of, heed_contexts, heed_model
from kvbudget.edge.learned_file import LearnedFile
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.request.answers import Refuser
from kvbudget.edge.request.gateway import Gateway
from kvbudget.edge.request.identity import Identities
from kvbudget.edge.request.keys import KeyRing
from kvbudget.edge.request.prompt_logprobs import PromptLogprobs
from kvbudget.edge.request.reception import Reception
from kvbudget.edge.service_settings import ServiceSettings
from kvbudget.edge.sharing.ledger import SharedLedger
from kvbudget.edge.tokens.by_model import CounterByModel
from kvbudget.edge.tokens.count import Counter
from kvbudget.edge.tokens.counting import watched
from kvbudget.edge.tokens.keys import PrefixKeys
from kvbudget.edge.tracing.settings import TracingSettings
from kvbudget.edge.tracing.tracer import Tracer
from kvbudget.errors import BadValueError
from kvbudget.gate.fleet.fleet import Fleet
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Tokens

__all__ = ["DataPlane", "GateService", "ServiceSettings", "start_service", "started"]

log = logging.getLogger("kvbudget.service")

ADMIN_FLAGS = "--admin-host or --admin-port"
_FIRST_LOOK_S = 1.0
_OTHERS_S = 2.0  # where one engine is up, how long the others are waited for at the start


class DataPlane(Protocol):
    """What brings requests to the reception."""

    @property
    def port(self) -> int:
        """Where it listens."""

    def stop_accepting(self) -> None:
        """Take no new connection."""

    async def close(self, grace_s: float) -> None:
        """End what is left after `grace_s`."""


class GateService:
    """A running gate. Made by `start_service`; `drain` and then `close` end it."""

    def __init__(self, settings: ServiceSettings, store: BankStore | None = None, worker: int | None = None) -> None:
        """`store`: the shared ledger, in place of the one that the settings name. `worker`: the number of this process
        among those that serve the same port."""
        self.settings = settings
        self.worker = worker
        self._tls = None if settings.tls_cert is None else ServerTls(settings.tls_cert, settings.tls_key)
        self._engine_tls = None if settings.backend_ca is None else engine_context(settings.backend_ca)
        self.instances = [self._made(one) for one in settings.each()]
        # Where instances come and go: who stands for all of them while there is none.
        self.home = nowhere(settings.sources, settings.gate, settings.fleet) if settings.sources else None
        home = None if self.home is None else self.home.member
        self.fleet = Fleet([instance.member for instance in self.instances], settings.fleet, home)
        first = self.instances[0] if self.instances else self.home
        assert first is not None  # noqa: S101 - without sources there is an instance
        self.gate, self.backend, self.upstream = first.member.gate, first.backend, first.upstream
        jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._access_log = None if settings.access_log is None else AccessLog(settings.access_log)
        prefix_keys = PrefixKeys()
        self.gateway = Gateway(
            self.gate,
            self.backend,
            Refuser(self.backend.name, jitter, overload_status=settings.overload_status),
            GateMetrics(),
            default_new_tokens=Tokens(settings.default_max_tokens),
            now_ns=time.monotonic_ns,
            prefix_keys=prefix_keys,
            access_log=self._access_log,
            fleet=self.fleet,
            backends={instance.backend.name: instance.backend for instance in self.instances},
        )
        self.gateway.shadow = settings.shadow
        self_id = f"kvb-{os.urandom(6).hex()}"
        self._tracer = None if settings.tracing is None else self._traced(settings.tracing, self_id)
        identities = Identities(self_id, settings.gate.tenants, settings.gate.classes, KeyRing(settings.keys))
        logprobs = PromptLogprobs(Tokens(settings.max_prompt_logprobs_tokens))
        self.reception = Reception(self.gateway, self._counter(), identities, logprobs)
        lease_ns = int(settings.lease_seconds * 1e9)
        if store is None and settings.ledger != "memory":
            store = store_from_url(settings.ledger, lease_ns=lease_ns, environment=os.environ)
        self._ledger = None if store is None else SharedLedger(
            store, lease_ns, self.gateway, self.gateway.lendings, time.monotonic_ns,
            lambda: self.fleet.home.gate.learned.lengths, alone_if_lost=settings.ledger_lost == "slice",
            keys=prefix_keys if settings.gate.sharing is Sharing.SCHEDULED else None,
        )  # fmt: skip
        for instance in self.instances:
            self._adopt(instance)
        self.discovery = self._discovery() if settings.sources else None
        self.demand = DemandWatch(self.gateway, time.monotonic_ns)
        self.past = Past(self.gateway, time.monotonic_ns)
        self._data_plane: DataPlane | None = None
        self._control_plane: AsgiServer | None = None
        # For the admin port: reads the settings anew. Set by whoever knows where they come from.
        self.take_over: Callable[[], tuple[list[str], list[str]]] | None = None
        path = settings.learned_state
        self._learned = None if path is None else LearnedFile(path, self.fleet.home.gate.learned)

    def _adopt(self, instance: Instance) -> None:
        """What an instance tells, and its part of a shared ledger."""
        if self._ledger is not None:
            self._ledger.take(instance)
        instance.push = self.gateway.push_at
        instance.lost, instance.recall = self.gateway.recalls.engine_lost, self.gateway.recalls.engine_stuck
        instance.found_up = self._heed_contexts
        self._use_api_key(instance)

    @property
    def ledger_address(self) -> str | None:
        """Where the ledger is that other gates share, without a password; None: there is none."""
        return None if self._ledger is None else self._ledger.store.address

    @property
    def url(self) -> str:
        """Address of the data plane."""
        return self._address("http://" if self._tls is None else "https://")

    def _address(self, scheme: str) -> str:
        assert self._data_plane is not None  # noqa: S101 - only a started service is handed out
        host = self.settings.host
        return host if host.startswith("unix:") else scheme + host_port(host, self._data_plane.port)

    @property
    def admin_url(self) -> str:
        """Address of the control plane."""
        assert self._control_plane is not None  # noqa: S101 - as above
        return self._control_plane.url

    async def start(self) -> None:
        """Begin to watch the backend, and listen on both ports: for requests once the first look was made, so that
        nobody gets a 503 of an engine that is well, be it from a worker that takes a dead one's place."""
        settings = self.settings
        if self._learned is not None:
            self._learned.load()
            self.fleet.share()
        if (access_log := self._access_log) is not None:
            self.gateway.metrics.access_log_lost = lambda: access_log.lost
            access_log.open()
        if (tracer := self._tracer) is not None:
            self.gateway.metrics.spans = lambda: (tracer.exporter.exported, tracer.exporter.lost)
            tracer.exporter.open()
        check_port(settings.port)
        self._control_plane = await start_asgi(
            AdminAccess(
                admin_app(self.reception, time.monotonic_ns, self._reload, self.demand, self.past),
                settings.admin_host,
                settings.admin_token,
            ),
            settings.admin_host,
            settings.admin_port,
            ADMIN_FLAGS,
        )
        if self._ledger is not None:
            await self._ledger.start()
        for instance in self.instances:
            instance.start()
        if self.discovery is not None:
            gauges, families = self.gateway.metrics.gauges, self.discovery.families
            self.gateway.metrics.gauges = lambda: [*gauges(), *families()]
            self.discovery.start()
        await self._first_looks()
        self._data_plane = await self.open_data_plane()
        self.demand.start()
        self.past.start()
        if self._learned is not None and not self.worker:  # of several, the first writes for all
            self._learned.keep()

    async def _first_looks(self) -> None:
        """At most `_FIRST_LOOK_S`: one that is away is known at once, and one that hangs is not waited for."""
        began = time.monotonic()
        while time.monotonic() - began < _FIRST_LOOK_S:
            told = self.discovery is None or self.discovery.answered
            if told and all(instance.was_looked_at for instance in self.instances):
                return
            await asyncio.sleep(0.005)

    async def open_data_plane(self) -> DataPlane:
        """Begin to take requests. Raises BadValueError for an address that cannot be had."""
        settings = self.settings
        try:
            return await start_server(
                self.reception.app,
                settings.host,
                settings.port,
                settings.server_limits,
                error_answer=self.reception.unread,
                tls=None if self._tls is None else self._tls.context,
                trusted=Trusted(settings.proxy_protocol) if settings.proxy_protocol else None,
                shared=self.worker is not None,
            )
        except OSError as error:
            told = f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
            raise BadValueError(told, fix="choose another --host or --port") from None

    def _reload(self) -> tuple[list[str], list[str]]:
        if self.take_over is None:
            raise BadValueError("this gate was not started from a file", fix="start it with --config")
        return self.take_over()

    def use_api_keys(self) -> None:
        """Tell the engines' key, and whether it stands in for those of clients: where they have keys of ours."""
        for instance in self.instances:
            self._use_api_key(instance)

    def _use_api_key(self, instance: Instance) -> None:
        instance.backend.use_api_key(self.settings.backend_api_key, replacing=bool(self.settings.keys))

    def reload_certificate(self) -> None:
        """Take what the files of the certificate hold now. Raises BadValueError, and keeps the old one."""
        if self._tls is not None:
            self._tls.reload()

    async def drain(self, grace_s: float) -> bool:
        """Answer new requests with 503, let the present ones end, cut off what is left after `grace_s`.

        True if nothing had to be cut. The port stays open meanwhile: a balancer that does not know yet gets a 503 with
        Retry-After instead of a refused connection.
        """
        self.gateway.start_draining()
        deadline = time.monotonic() + grace_s
        while self._busy() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # once, at the end: the data path pays nothing for it
        clean = not self._busy()
        await self._cut_off()
        return clean

    def _busy(self) -> bool:
        reception = self.reception
        counting = reception.counting or reception.token_counts.under_way
        held = any(lending.is_waiting for lending in self.gateway.lendings)
        return bool(list(self.gateway.flows) or counting or reception.passing or held)

    async def _cut_off(self) -> None:
        await self.reception.stop()
        self.gateway.recalls.cut_off()

    async def close(self) -> None:
        """End everything; may be called in any state."""
        await self.demand.close()
        await self.past.close()
        if self.discovery is not None:
            await self.discovery.close()
        for instance in self.instances:
            await instance.stop()
        if self._data_plane is not None:
            self._data_plane.stop_accepting()
        if self._ledger is not None:
            self._ledger.give_all()
        await self._cut_off()
        if self._ledger is not None:
            await self._ledger.close()
        self.gateway.close()
        if self._data_plane is not None:
            await self._data_plane.close(0.5)
        if self._control_plane is not None:
            await self._control_plane.close()
        for instance in self.instances:
            instance.upstream.close()
        if self.home is not None:
            self.home.upstream.close()
        if self._learned is not None:
            await self._learned.close()
        if self._access_log is not None:
            await self._access_log.close()
        if self._tracer is not None:
            await self._tracer.exporter.close()

    def _made(self, settings: InstanceSettings) -> Instance:
        own = self.settings
        return Instance(
            settings, own.gate, own.fleet, own.upstream_limits,
            prefix_cache_assumed=own.prefix_cache_assumed, tls=self._engine_tls,
        )  # fmt: skip

    def _discovery(self) -> Discovery:
        own = self.settings
        return discovery_of(
            own.sources, own.kubernetes, own.backend_ca, gateway=self.gateway, instances=self.instances,
            make=self._found, changed=self._came_or_went, gone=self._gone,
        )  # fmt: skip

    def _found(self, settings: InstanceSettings) -> Instance:
        """An instance that a source tells of."""
        instance = self._made(self.settings.completed(settings))
        self._adopt(instance)
        return instance

    async def _gone(self, instance: Instance) -> None:
        """An instance that a source told of has left the fleet; nothing of it is under way."""
        if self._ledger is not None:
            await self._ledger.gone(instance)
        instance.upstream.close()

    def each_with_settings(self) -> list[tuple[Instance, InstanceSettings]]:
        """Every instance, and what the settings say of it now."""
        named, told = self.settings.each(), []
        for number, instance in enumerate(self.instances):
            if number < len(named):  # those that are found come behind them
                told.append((instance, named[number]))
                continue
            assert self.discovery is not None  # noqa: S101 - else all are named
            told.append(
                (instance, self.settings.completed(self.discovery.settings_of(instance, self.settings.sources)))
            )
        return told

    def _came_or_went(self) -> None:
        """Whoever asks for the gate or the engine, gets those of the first that stays."""
        staying = [instance for instance in self.instances if not instance.member.leaving]
        first = next(iter(staying or self.instances), None) or self.home
        assert first is not None  # noqa: S101 - there is a home where instances come and go
        self.gate, self.backend, self.upstream = first.member.gate, first.backend, first.upstream
        self.gateway.gate, self.gateway.backend = self.gate, self.backend

    def _looked(self, facts: EngineFacts) -> None:
        self.instances[0].looked(facts)

    def _heed_contexts(self) -> None:
        """What no engine can take need not be tokenized; and which of them count alike may have changed."""
        heed_contexts(self.reception.counter, [instance.member.gate.max_context for instance in self.instances])
        for instance in self.instances:
            heed_model(instance)

    def _traced(self, settings: TracingSettings, instance_id: str) -> Tracer:
        """From now on what the access log hears, spans are made of."""
        scheme = "http" if self._tls is None else "https"
        tracer = Tracer(settings, self.gateway.access_log, instance_id=instance_id, scheme=scheme)
        self.gateway.access_log = self.gateway.tracer = tracer
        return tracer

    def _counter(self) -> Counter:
        settings = self.settings
        of = counter_of_all if settings.sources else counters_of
        counter = of(self.instances, self.fleet, settings.tokenizer, settings.counting)
        if isinstance(counter, CounterByModel):
            self.gateway.compared = counter.heed
            if settings.counting.forward_token_ids:
                self.gateway.ids_to_forward = counter.ids_to_forward
        elif (own := watched(counter)) is not None:
            self.gateway.compared = lambda counted, told, instance: own.heed(counted, told)
            if settings.counting.forward_token_ids:
                self.gateway.ids_to_forward = own.ids_to_forward
        return counter


async def start_service(
    settings: ServiceSettings,
    *,
    look_for_s: float = 10.0,
    store: BankStore | None = None,
    worker: int | None = None,
) -> GateService:
    """Start a gate in the running loop and wait for the backend, at most `look_for_s`; it may come up later."""
    service = GateService(settings, store, worker)
    await started(service, look_for_s)
    return service


async def started(service: GateService, look_for_s: float) -> None:
    """Start what was made, and wait for the backend, at most `look_for_s`."""
    try:
        await service.start()
        began = time.monotonic()
        if look_for_s and not _all_up(service):
            log.warning("waiting for %s, at most %g s", _awaited(service), look_for_s)
        while not _all_up(service) and time.monotonic() - began < look_for_s:
            if service.fleet.backend_up and time.monotonic() - began > _OTHERS_S:
                break
            await asyncio.sleep(0.02)
    except BaseException:
        await service.close()
        raise


def _awaited(service: GateService) -> str:
    """Whom a start waits for, and what is wrong with each."""
    if service.discovery is not None and not service.discovery.answered:
        return "what discovery finds"
    away = [one for one in service.instances if not one.member.gate.backend_up]
    return " and ".join(f"the engine at {one.backend.url} ({one.backend.facts.problem or 'no answer'})" for one in away)


def _all_up(service: GateService) -> bool:
    if service.discovery is not None and not service.discovery.answered:
        return False
    return all(one.member.gate.backend_up for one in service.instances)
