"""A whole gate, put together: data plane, control plane, backend watch and, if wanted, the embedded engine."""

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from kvbudget.edge.admin import admin_app
from kvbudget.edge.answers import Refuser
from kvbudget.edge.asgi import AsgiServer, check_port, start_asgi
from kvbudget.edge.backend import Backend, EngineFacts
from kvbudget.edge.gateway import Gateway
from kvbudget.edge.http.limits import ServerLimits, UpstreamLimits
from kvbudget.edge.http.server import HttpServer, start_server
from kvbudget.edge.http.upstream import Upstream, UpstreamError
from kvbudget.edge.identity import Identities
from kvbudget.edge.learned_file import LearnedFile
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.openai.errors import error_body
from kvbudget.edge.reception import Reception
from kvbudget.edge.scrape import EngineReading
from kvbudget.edge.tokens.count import Counter, CountFailedError
from kvbudget.edge.tokens.counting import CountingSettings, counter_of, heed_context, watched
from kvbudget.engines.vllm_metrics import EnginePool
from kvbudget.errors import BadValueError
from kvbudget.gate.events import CapacityChanged
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.pool.groups import Layout, uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Tokens

log = logging.getLogger("kvbudget.service")

_COUNT_TIMEOUT_S = 10.0
_LARGEST_BLOCK = 65536  # tokens; vLLM's largest so far are hybrids' 4,128


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Everything that `kvbudget serve` can be told. `pool_blocks`: blocks that requests can use (no null block).

    `layout`: the groups of a reviewed budget, for models whose layers do not all keep every token; then `block_size`
    is not used. None: one group that does. `prefix_cache_assumed`: `gate.sharing` holds even if the engine does not
    tell whether it has a prefix cache. `learned_state`: the file in which policy `learned` keeps what it has seen.
    """

    backend_url: str
    tokenizer: str = "engine"
    counting: CountingSettings = field(default_factory=CountingSettings)
    pool_blocks: int | None = None
    block_size: int | None = None
    layout: Layout | None = None
    gate: GateConfig = field(default_factory=GateConfig)
    default_max_tokens: int = 2048
    host: str = "127.0.0.1"
    port: int = 8800
    admin_host: str = "127.0.0.1"
    admin_port: int = 8801
    overload_status: int = 429
    prefix_cache_assumed: bool = False
    learned_state: str | None = None
    server_limits: ServerLimits = field(default_factory=ServerLimits)
    upstream_limits: UpstreamLimits = field(default_factory=UpstreamLimits)


class GateService:
    """A running gate. Made by `start_service`; `drain` and then `close` end it."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.upstream = Upstream(settings.backend_url, settings.upstream_limits)
        self.backend = Backend(settings.backend_url, self.upstream)
        layout = settings.layout or uniform_layout(settings.block_size or 16)
        self.gate = Gate(settings.gate, layout, Blocks(settings.pool_blocks or 0))
        self.gate.backend_up = False  # until the first look at it
        jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self.gateway = Gateway(
            self.gate,
            self.backend,
            Refuser(self.backend.name, jitter, overload_status=settings.overload_status),
            GateMetrics(),
            default_new_tokens=Tokens(settings.default_max_tokens),
            now_ns=time.monotonic_ns,
        )
        identities = Identities(f"kvb-{os.urandom(6).hex()}", settings.gate.tenants, settings.gate.classes)
        self.reception = Reception(self.gateway, self._counter(), identities)
        self.backend.on_down = lambda: self.gateway.backend_changed(False)
        self._data_plane: HttpServer | None = None
        self._control_plane: AsgiServer | None = None
        self._watch: asyncio.Task[None] | None = None
        self._fewer: tuple[int, int] | None = None  # (usable, told): what was last warned of
        self._preemptions: int | None = None  # the engine's counter, when it was last read
        self._deaf = False  # it was said that the engine does not tell
        path = settings.learned_state
        self._learned = None if path is None else LearnedFile(path, self.gate.learned)

    @property
    def url(self) -> str:
        """Address of the data plane."""
        assert self._data_plane is not None  # noqa: S101 - only a started service is handed out
        host = self.settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._data_plane.port}"

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
        check_port(settings.port)
        try:
            self._data_plane = await start_server(
                self.reception.app,
                settings.host,
                settings.port,
                settings.server_limits,
                on_error=lambda status, code, message: error_body(message, None, None, code),
            )
        except OSError as error:
            told = f"cannot listen on {settings.host}:{settings.port}: {error}"
            raise BadValueError(told, fix="choose another --host or --port") from None
        self._control_plane = await start_asgi(
            admin_app(self.reception, time.monotonic_ns), settings.admin_host, settings.admin_port
        )
        self._watch = asyncio.create_task(self.backend.watch(self._looked), name="backend watch")
        if self._learned is not None:
            self._learned.keep()

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
        return bool(list(self.gateway.flows) or reception.counting or reception.passing)

    async def _cut_off(self) -> None:
        await self.reception.stop()
        self.gateway.cut_off()

    async def close(self) -> None:
        """End everything; may be called in any state."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._data_plane is not None:
            self._data_plane.stop_accepting()
        await self._cut_off()
        self.gateway.close()
        if self._data_plane is not None:
            await self._data_plane.close(0.5)
        if self._control_plane is not None:
            await self._control_plane.close()
        self.upstream.close()
        if self._learned is not None:
            await self._learned.close()

    def _looked(self, facts: EngineFacts) -> None:
        """A look at the engine: its pool and context become the gate's, unless they were set by hand."""
        if not facts.up:
            self.gateway.backend_changed(False)
            return
        settings = self.settings
        pool = facts.pool
        problem = facts.problem or "no vllm:cache_config_info on /metrics"
        if pool is not None and (unusable := _why_unusable(pool, settings.layout)):
            pool, problem = None, unusable
        usable = _usable_blocks(settings.pool_blocks, pool)
        self._warn_of_fewer(settings.pool_blocks, usable)
        block_size = settings.block_size or (pool.block_size if pool else 16)
        if usable is None:
            self.backend.facts = replace(
                facts,
                up=False,
                problem=f"the pool cannot be read from the engine ({problem}): give --pool-blocks and --block-size",
            )
            self.gateway.backend_changed(False)
            return
        layout = settings.layout or uniform_layout(block_size)
        ledger = self.gate.ledger
        if (layout, usable, facts.max_context) != (ledger.layout, ledger.usable_blocks, self.gate.engine_context):
            log.info("pool: %d usable blocks of %s, context %s", usable, _told_sizes(layout), facts.max_context)
            self.gateway.push(CapacityChanged(layout, Blocks(usable), facts.max_context))
        heed_context(self.reception.counter, self.gate.max_context)
        self.gateway.prefix_credit = _shares_prompts(settings, pool)
        self.gateway.backend_changed(True)
        self._heed_preemptions(facts.reading)
        self._heed_what_is_held(facts.reading)

    def _heed_preemptions(self, reading: EngineReading | None) -> None:
        """Tell the gate how many more there are. A counter that fell is that of a restarted engine: what it says are
        those since. What was there before we came says nothing of us."""
        count = None if reading is None else reading.preemptions
        if count is None:
            if reading is not None and not self._deaf and self.gate.config.policy is Policy.LEARNED:
                self._deaf = True
                log.warning(
                    "the engine does not tell its preemptions: policy learned cannot correct itself by them; "
                    "--policy trajectory takes no risk"
                )
            return
        before, self._preemptions = self._preemptions, count
        if before is not None and count != before:
            more = count - before if count > before else count
            if more:
                self.gateway.preempted(more)

    def _heed_what_is_held(self, reading: EngineReading | None) -> None:
        """Tell the gate what the engine holds, by a gauge that is of now: one that shows fewer running than whose
        tokens we see is stale, or of an engine that was restarted, and would look as if prompts shared blocks."""
        if reading is None or reading.pool is None or reading.usage is None or reading.running is None:
            return
        seen = sum(1 for living in self.gate.ledger if living.seen_tokens)
        if seen and reading.running >= seen:
            self.gateway.pool_held(Blocks(round(reading.usage * reading.pool.usable_blocks)))

    def _warn_of_fewer(self, told: int | None, usable: int | None) -> None:
        """Once for each such finding: the engine is looked at every two seconds."""
        fewer = (usable, told) if told is not None and usable is not None and usable < told else None
        if fewer is not None and fewer != self._fewer:
            log.warning("the engine has %d usable blocks, fewer than the %d it was to have", *fewer)
        self._fewer = fewer

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
            headers = [(b"content-type", b"application/json")]
            try:
                answer = await self.upstream.request(b"POST", path.encode(), headers, body, _COUNT_TIMEOUT_S)
            except UpstreamError as error:
                if error.kind == "unreachable":
                    self.backend.found_down()
                raise CountFailedError(f"the engine did not count: {error}") from error
            return answer.status, answer.body

        return post


def _usable_blocks(told: int | None, pool: EnginePool | None) -> int | None:
    """What was told, but never more than the engine itself says that it has; None when nobody knows."""
    if told is None or pool is None:
        return told if pool is None else pool.usable_blocks
    return min(told, pool.usable_blocks)


def _shares_prompts(settings: ServiceSettings, pool: EnginePool | None) -> bool:
    """Whether the engine lets requests use one another's blocks. Without its own word only if we were told so."""
    told = None if pool is None else pool.prefix_caching
    return settings.gate.sharing is not Sharing.OFF and (settings.prefix_cache_assumed if told is None else told)


def _told_sizes(layout: Layout) -> str:
    """`16 tokens`; of a layout with several groups all block sizes that they have."""
    sizes = sorted({group.block_size for group in layout.groups})
    groups = f" ({len(layout.groups)} groups of caches)" if len(layout.groups) > 1 else ""
    return f"{' and '.join(map(str, sizes))} tokens{groups}"


def _why_unusable(pool: EnginePool, layout: Layout | None) -> str:
    """Why the gate cannot account for a pool that an engine told; empty if it can."""
    if pool.single_group is False and layout is None:
        # Sliding windows, state layers: a request holds blocks by rules that block_size alone does not tell.
        return "the engine has several KV cache groups: plan the model, and give the budget with --config"
    if pool.usable_blocks < 1 or not 0 < pool.block_size <= _LARGEST_BLOCK:
        return f"it says {pool.usable_blocks} usable blocks of {pool.block_size} tokens"
    return ""


async def start_service(settings: ServiceSettings, *, look_for_s: float = 10.0) -> GateService:
    """Start a gate in the running loop and wait for the backend, at most `look_for_s`; it may come up later."""
    service = GateService(settings)
    try:
        await service.start()
        deadline = time.monotonic() + look_for_s
        while not service.gate.backend_up and time.monotonic() < deadline:  # noqa: ASYNC110 - once, at start
            await asyncio.sleep(0.02)
    except BaseException:
        await service.close()
        raise
    return service
