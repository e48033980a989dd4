"""A whole gate, put together: data plane, control plane, backend watch and, if wanted, the embedded engine."""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import orjson

from kvbudget.edge.access_log import AccessLog
from kvbudget.edge.admin import admin_app
from kvbudget.edge.admin_access import AdminAccess
from kvbudget.edge.answers import Refuser
from kvbudget.edge.asgi import AsgiServer, check_port, start_asgi
from kvbudget.edge.backend import Backend, EngineFacts
from kvbudget.edge.bank.store import BankStore, LedgerError
from kvbudget.edge.bank.urls import store_from_url
from kvbudget.edge.demand import DemandWatch
from kvbudget.edge.gateway import Gateway
from kvbudget.edge.http.limits import ServerLimits, UpstreamLimits
from kvbudget.edge.http.peers import Trusted
from kvbudget.edge.http.server import HttpServer, start_server
from kvbudget.edge.http.tls import ServerTls, engine_context
from kvbudget.edge.http.upstream import UpstreamError
from kvbudget.edge.identity import Identities
from kvbudget.edge.instance import Instance
from kvbudget.edge.instance_settings import InstanceSettings
from kvbudget.edge.keys import ApiKey, KeyRing
from kvbudget.edge.learned_file import LearnedFile
from kvbudget.edge.lending import Lending
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.openai.errors import error_body
from kvbudget.edge.past import Past
from kvbudget.edge.prompt_logprobs import PromptLogprobs
from kvbudget.edge.reception import Reception
from kvbudget.edge.renaming import renamed
from kvbudget.edge.tokens.count import Counter, CountFailedError
from kvbudget.edge.tokens.counting import CountingSettings, counter_of, heed_context, watched
from kvbudget.errors import BadValueError
from kvbudget.gate.bank.branch import Branch
from kvbudget.gate.fleet.fleet import Fleet
from kvbudget.gate.fleet.options import FleetConfig
from kvbudget.gate.gate import GateConfig
from kvbudget.pool.groups import Layout
from kvbudget.units import Tokens

log = logging.getLogger("kvbudget.service")

_COUNT_TIMEOUT_S = 10.0
_OTHERS_S = 2.0  # where one engine is up, how long the others are waited for at the start


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Everything that `kvbudget serve` can be told. `pool_blocks`: blocks that requests can use (no null block).

    `layout`: the groups of a reviewed budget, for models whose layers do not all keep every token; then `block_size`
    is not used. None: one group that does. `prefix_cache_assumed`: `gate.sharing` holds even if the engine does not
    tell whether it has a prefix cache. `learned_state`: the file in which policy `learned` keeps what it has seen.
    `instances`: several engines, each by itself; else the one at `backend_url`.
    `max_prompt_logprobs_tokens`: see `edge.prompt_logprobs`. `keys`: API keys that are asked for, by name; none: nobody
    is asked. `access_log`: a file, or `-` for stdout. `shadow`: decide and count only. `host`: also `unix:/path` (then
    `port` is not used). `tls_cert`, `tls_key`: PEM files with which clients are spoken to in TLS. `backend_ca`: PEM
    file of authorities for https backends. `backend_api_key`: that of the engines, if they ask for one.
    `proxy_protocol`: addresses from which connections begin with a PROXY header. `ledger`: `memory`, or the address of
    the one that all gates before the same engines share, with slices that last `lease_seconds`; `ledger_lost`: what to
    do when it does not answer for so long: `refuse`, or go by an equal part of the pool (`slice`). `workers`: processes
    that serve the port, each with a service of its own.
    """

    backend_url: str
    instances: tuple[InstanceSettings, ...] = ()
    fleet: FleetConfig = field(default_factory=FleetConfig)
    tokenizer: str = "engine"
    counting: CountingSettings = field(default_factory=CountingSettings)
    pool_blocks: int | None = None
    block_size: int | None = None
    layout: Layout | None = None
    gate: GateConfig = field(default_factory=GateConfig)
    default_max_tokens: int = 2048
    max_prompt_logprobs_tokens: int = 0
    host: str = "127.0.0.1"
    port: int = 8800
    workers: int = 1
    admin_host: str = "127.0.0.1"
    admin_port: int = 8801
    overload_status: int = 429
    prefix_cache_assumed: bool = False
    learned_state: str | None = None
    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    access_log: str | None = None
    shadow: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    backend_ca: str | None = None
    backend_api_key: str | None = field(default=None, repr=False)
    proxy_protocol: tuple[str, ...] = ()
    admin_token: str | None = field(default=None, repr=False)
    ledger: str = field(default="memory", repr=False)  # it may have a password in it
    lease_seconds: float = 5.0
    ledger_lost: str = "refuse"
    server_limits: ServerLimits = field(default_factory=ServerLimits)
    upstream_limits: UpstreamLimits = field(default_factory=UpstreamLimits)

    def each(self) -> tuple[InstanceSettings, ...]:
        """Every instance, with what holds for all of them where it says nothing itself."""
        if not self.instances:
            return (InstanceSettings(self.backend_url, "", self.pool_blocks, self.block_size, self.layout),)
        return tuple([self._completed(one) for one in self.instances])

    def _completed(self, one: InstanceSettings) -> InstanceSettings:
        layout = self.layout if one.block_size is None else one.layout
        blocks = self.pool_blocks if one.pool_blocks is None else one.pool_blocks
        size = self.block_size if one.block_size is None else one.block_size
        return replace(one, pool_blocks=blocks, block_size=size, layout=layout)


class GateService:
    """A running gate. Made by `start_service`; `drain` and then `close` end it."""

    def __init__(self, settings: ServiceSettings, store: BankStore | None = None, worker: int | None = None) -> None:
        """`store`: the shared ledger, in place of the one that the settings name. `worker`: the number of this process
        among those that serve the same port."""
        self.settings = settings
        self.worker = worker
        self._tls = None if settings.tls_cert is None else ServerTls(settings.tls_cert, settings.tls_key)
        engine_tls = None if settings.backend_ca is None else engine_context(settings.backend_ca)
        self.instances = [
            Instance(
                one, settings.gate, settings.fleet, settings.upstream_limits,
                prefix_cache_assumed=settings.prefix_cache_assumed, tls=engine_tls,
            )
            for one in settings.each()
        ]  # fmt: skip
        self.fleet = Fleet([instance.member for instance in self.instances], settings.fleet)
        first = self.instances[0]
        self.gate, self.backend, self.upstream = first.member.gate, first.backend, first.upstream
        jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._access_log = None if settings.access_log is None else AccessLog(settings.access_log)
        self.gateway = Gateway(
            self.gate,
            self.backend,
            Refuser(self.backend.name, jitter, overload_status=settings.overload_status),
            GateMetrics(),
            default_new_tokens=Tokens(settings.default_max_tokens),
            now_ns=time.monotonic_ns,
            access_log=self._access_log,
            fleet=self.fleet,
            backends={instance.backend.name: instance.backend for instance in self.instances},
        )
        self.gateway.shadow = settings.shadow
        identities = Identities(
            f"kvb-{os.urandom(6).hex()}", settings.gate.tenants, settings.gate.classes, KeyRing(settings.keys)
        )
        logprobs = PromptLogprobs(Tokens(settings.max_prompt_logprobs_tokens))
        self.reception = Reception(self.gateway, self._counter(), identities, logprobs)
        for instance in self.instances:
            instance.push = self.gateway.push_at
            instance.lost, instance.recall = self.gateway.engine_lost, self.gateway.recall
            instance.found_up = self._heed_contexts
        self.use_api_keys()
        self.demand = DemandWatch(self.gateway, time.monotonic_ns)
        self.past = Past(self.gateway, time.monotonic_ns)
        lease_ns = int(settings.lease_seconds * 1e9)
        if store is None and settings.ledger != "memory":
            store = store_from_url(settings.ledger, lease_ns=lease_ns, environment=os.environ)
        self._store = store
        if self._store is not None:
            self._share(self._store, lease_ns)
        self._data_plane: HttpServer | None = None
        self._control_plane: AsgiServer | None = None
        # For the admin port: reads the settings anew. Set by whoever knows where they come from.
        self.take_over: Callable[[], tuple[list[str], list[str]]] | None = None
        path = settings.learned_state
        self._learned = None if path is None else LearnedFile(path, self.gate.learned)

    @property
    def url(self) -> str:
        """Address of the data plane."""
        assert self._data_plane is not None  # noqa: S101 - only a started service is handed out
        host = self.settings.host
        if host.startswith("unix:"):
            return host
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._data_plane.port}"

    @property
    def admin_url(self) -> str:
        """Address of the control plane."""
        assert self._control_plane is not None  # noqa: S101 - as above
        return self._control_plane.url

    async def start(self) -> None:
        """Listen on both ports and begin to watch the backend."""
        settings = self.settings
        if self._learned is not None:
            self._learned.load()
            self.fleet.share()
        if (access_log := self._access_log) is not None:
            self.gateway.metrics.access_log_lost = lambda: access_log.lost
            access_log.open()
        check_port(settings.port)
        try:
            self._data_plane = await start_server(
                self.reception.app,
                settings.host,
                settings.port,
                settings.server_limits,
                on_error=lambda status, code, message: error_body(message, None, None, code),
                tls=None if self._tls is None else self._tls.context,
                trusted=Trusted(settings.proxy_protocol) if settings.proxy_protocol else None,
                shared=self.worker is not None,
            )
        except OSError as error:
            told = f"cannot listen on {settings.host}:{settings.port}: {error}"
            raise BadValueError(told, fix="choose another --host or --port") from None
        self._control_plane = await start_asgi(
            AdminAccess(
                admin_app(self.reception, time.monotonic_ns, self._reload, self.demand, self.past),
                settings.admin_host,
                settings.admin_token,
            ),
            settings.admin_host,
            settings.admin_port,
        )
        if self._store is not None:
            try:
                await self._store.start()
            except LedgerError as error:  # it goes on trying; who comes meanwhile waits, and then gets 503
                log.error("%s", error)
                self.gateway.ledger_failed()
        for lending in self.gateway.lendings:
            lending.start()
        for instance in self.instances:
            instance.start()
        self.demand.start()
        self.past.start()
        if self._learned is not None and not self.worker:  # of several, the first writes for all
            self._learned.keep()

    def _share(self, store: BankStore, lease_ns: int) -> None:
        """Promise out of slices of the pools, which other gates before the same engines have as well."""
        life = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"  # never the same again
        alone = self.settings.ledger_lost == "slice"
        self.gateway.lendings = [
            Lending(
                instance.member,
                store,
                Branch(life, lease_ns),
                self.gateway,
                time.monotonic_ns,
                alone_if_lost=alone,
                tells_tenants=instance is self.instances[0],
            )
            for instance in self.instances
        ]
        for instance, lending in zip(self.instances, self.gateway.lendings, strict=True):
            instance.seen, lending.look_soon = lending.looked, instance.backend.look_soon
        by_pool = {lending.pool: lending for lending in self.gateway.lendings}
        store.woken = lambda pool, branch: by_pool[pool].woken(branch) if pool in by_pool else None

    def _reload(self) -> tuple[list[str], list[str]]:
        if self.take_over is None:
            raise BadValueError("this gate was not started from a file", fix="start it with --config")
        return self.take_over()

    def use_api_keys(self) -> None:
        """Tell the engines' key, and whether it stands in for those of clients: where they have keys of ours."""
        for instance in self.instances:
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
        self.gateway.cut_off()

    async def close(self) -> None:
        """End everything; may be called in any state."""
        await self.demand.close()
        await self.past.close()
        for instance in self.instances:
            await instance.stop()
        if self._data_plane is not None:
            self._data_plane.stop_accepting()
        for lending in self.gateway.lendings:
            lending.give_all()
        await self._cut_off()
        await asyncio.gather(*[lending.close() for lending in self.gateway.lendings])
        if self._store is not None:
            await self._store.close()
        self.gateway.close()
        if self._data_plane is not None:
            await self._data_plane.close(0.5)
        if self._control_plane is not None:
            await self._control_plane.close()
        for instance in self.instances:
            instance.upstream.close()
        if self._learned is not None:
            await self._learned.close()
        if self._access_log is not None:
            await self._access_log.close()

    def _looked(self, facts: EngineFacts) -> None:
        self.instances[0].looked(facts)

    def _heed_contexts(self) -> None:
        """What no engine can take need not be tokenized."""
        contexts = [instance.member.gate.max_context for instance in self.instances]
        heed_context(self.reception.counter, max(contexts))

    def _counter(self) -> Counter:
        counter = counter_of(self.settings.tokenizer, self.settings.counting, self._post())
        own = watched(counter)
        if own is not None:
            self.gateway.compared = own.heed
            if self.settings.counting.forward_token_ids:
                self.gateway.ids_to_forward = own.ids_to_forward
        return counter

    def _post(self) -> Callable[[str, bytes], Awaitable[tuple[int, bytes]]]:
        async def post(path: str, body: bytes) -> tuple[int, bytes]:
            backend, body = self._counting(body)
            headers = [(b"content-type", b"application/json"), *backend.credentials]
            try:
                answer = await backend.upstream.request(b"POST", path.encode(), headers, body, _COUNT_TIMEOUT_S)
            except UpstreamError as error:
                if error.kind == "unreachable":
                    backend.found_down()
                raise CountFailedError(f"the engine did not count: {error}") from error
            return answer.status, answer.body

        return post

    def _counting(self, body: bytes) -> tuple[Backend, bytes]:
        """Which engine counts a prompt, and its question: one that serves the model."""
        if self.fleet.only is not None:
            return self.backend, body
        model = orjson.loads(body).get("model")
        backend = self.gateway.backend_for(model)
        return backend, body if model is None else renamed(body, model, backend.own_name(model))


async def start_service(
    settings: ServiceSettings,
    *,
    look_for_s: float = 10.0,
    store: BankStore | None = None,
    worker: int | None = None,
) -> GateService:
    """Start a gate in the running loop and wait for the backend, at most `look_for_s`; it may come up later."""
    service = GateService(settings, store, worker)
    try:
        await service.start()
        began = time.monotonic()
        while not _all_up(service) and time.monotonic() - began < look_for_s:
            if service.fleet.backend_up and time.monotonic() - began > _OTHERS_S:
                break
            await asyncio.sleep(0.02)
    except BaseException:
        await service.close()
        raise
    return service


def _all_up(service: GateService) -> bool:
    return all(one.member.gate.backend_up for one in service.instances)
