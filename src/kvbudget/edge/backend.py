"""The engine behind the gate: where it is, whether it is up, how large its pool is, what it holds."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from kvbudget.edge.http.messages import ClientHeaders, OwnLines
from kvbudget.edge.http.server import Exchange
from kvbudget.edge.http.upstream import Response, Upstream, UpstreamError
from kvbudget.edge.scrape import EngineReading, reading_of
from kvbudget.engines.vllm_metrics import EnginePool
from kvbudget.errors import InputError
from kvbudget.units import Tokens

log = logging.getLogger("kvbudget.backend")

_PROBE_TIMEOUT_S = 5.0
_REQUEST_ID = frozenset({b"x-request-id"})
# A client's word to the gate is none to the engine. Host, Content-Length and Expect are the upstream's own matter.
_NOT_FORWARDED = frozenset(
    {
        b"x-request-id",
        b"x-kvbudget-tenant",
        b"x-kvbudget-priority",
        b"x-kvbudget-deadline-ms",
    }
)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of the engine after a look. `models`: ids that it serves; `max_context` in tokens, None if unknown.

    `reading` is of this look; models, context and pool are the last ones told since the engine came up: a scrape that
    fails takes nothing away from an engine that is healthy.
    """

    up: bool
    models: tuple[str, ...] = ()
    max_context: Tokens | None = None
    reading: EngineReading | None = None
    pool: EnginePool | None = None
    problem: str = ""
    looked_ns: int = 0  # when, on the monotonic clock


class Backend:
    """One engine instance. `watch` looks at it again and again and tells of every change."""

    def __init__(self, url: str, upstream: Upstream, *, interval_s: float = 2.0, down_interval_s: float = 0.2) -> None:
        self.upstream = upstream
        self.url = url
        self.name = url.split("://", 1)[-1].rstrip("/")
        self.facts = EngineFacts(up=False, problem="not looked at yet")
        self._interval_s = interval_s
        self._down_interval_s = down_interval_s
        self._look_now = asyncio.Event()
        self.on_down: Callable[[], None] = lambda: None

    def request_headers(self, exchange: Exchange, request_id: bytes) -> ClientHeaders:
        """The client's headers as the engine gets them: hop-by-hop ones aside, ours added."""
        return ClientHeaders(_NOT_FORWARDED, OwnLines(_REQUEST_ID, b"x-request-id: %b\r\n" % request_id))

    def found_down(self) -> None:
        """A relay could not reach it: tell at once, and look again soon."""
        if self.facts.up:
            self.facts = EngineFacts(up=False, problem="a request could not reach it")
            self.on_down()
        self._look_now.set()

    async def look(self) -> EngineFacts:
        """Ask the engine for health, models and metrics. What goes wrong is in `problem`."""
        last = self.facts if self.facts.up else EngineFacts(up=True)
        try:
            health = await self._get(b"/health")
        except UpstreamError as error:
            if error.kind != "no_connection":  # that is our own want, and says nothing of the engine
                self.facts = EngineFacts(up=False, problem=str(error))
            return self.facts
        if health.status >= 500:
            self.facts = EngineFacts(up=False, problem=f"/health answered {health.status}")
            return self.facts
        models, max_context = await self._models()
        reading, problem = await self._reading()
        pool = reading.pool if reading is not None and reading.pool is not None else last.pool
        self.facts = EngineFacts(
            True,
            models or last.models,
            max_context if max_context is not None else last.max_context,
            reading,
            pool,
            problem,
            time.monotonic_ns(),
        )
        return self.facts

    async def watch(self, changed: Callable[[EngineFacts], None]) -> None:
        """Look for ever; `changed` is called after every look. Nothing that an engine says can end it."""
        while True:
            try:
                changed(await self.look())
            except Exception:
                log.exception("looking at the engine failed in a way that it should not")
            pause_s = self._interval_s if self.facts.up else self._down_interval_s
            self._look_now.clear()
            try:
                await asyncio.wait_for(self._look_now.wait(), pause_s)
                # A burst of failed relays is one reason to look, not many.
                await asyncio.sleep(self._down_interval_s / 5)
            except TimeoutError:
                pass

    async def _get(self, path: bytes) -> Response:
        return await self.upstream.request(b"GET", path, [], b"", _PROBE_TIMEOUT_S)

    async def _models(self) -> tuple[tuple[str, ...], Tokens | None]:
        try:
            answer = await self._get(b"/v1/models")
        except UpstreamError:
            return (), None
        if answer.status != 200:
            return (), None
        try:
            listed = [entry for entry in orjson.loads(answer.body)["data"] if isinstance(entry, dict)]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return (), None
        lengths = [entry.get("max_model_len") for entry in listed]
        known = [length for length in lengths if type(length) is int and length > 0]
        return tuple(str(entry.get("id")) for entry in listed), Tokens(min(known)) if known else None

    async def _reading(self) -> tuple[EngineReading | None, str]:
        try:
            answer = await self._get(b"/metrics")
        except UpstreamError as error:
            return None, f"/metrics: {error}"
        if answer.status != 200:
            return None, f"/metrics answered {answer.status}"
        try:
            return reading_of(answer.body.decode("utf-8", "replace")), ""
        except (ValueError, ArithmeticError, InputError) as error:
            return None, f"/metrics: {error}"
