"""The engine behind the gate: where it is, whether it is up, how large its pool is, what it holds."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.upstream import Response, UpstreamError
from kvbudget.edge.http.way import Way
from kvbudget.edge.instances.details import Details, details_of
from kvbudget.edge.instances.scrape import EngineReading, reading_of
from kvbudget.edge.request.engine_headers import EngineHeaders
from kvbudget.engines.readings import EnginePool
from kvbudget.errors import InputError
from kvbudget.units import Tokens

log = logging.getLogger("kvbudget.backend")

_PROBE_TIMEOUT_S: Final = 5.0
_SOON_NS: Final = 500_000_000


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of the engine after a look. `models`: ids that it serves; `max_context` in tokens, None if unknown.

    `reading` is of this look; models, context and pool are the last ones told since the engine came up: a scrape that
    fails takes nothing away from an engine that is healthy. `listed` are its models as it lists them, `engine` its name
    (empty: it does not tell), `max_num_seqs` its own limit.
    """

    up: bool
    models: tuple[str, ...] = ()
    max_context: Tokens | None = None
    reading: EngineReading | None = None
    pool: EnginePool | None = None
    problem: str = ""
    looked_ns: int = 0  # when, on the monotonic clock
    engine: str = ""
    max_num_seqs: int | None = None
    listed: tuple[dict[str, object], ...] = ()


class Backend:
    """One engine instance. `watch` looks at it again and again and tells of every change."""

    def __init__(
        self,
        url: str,
        upstream: Way,
        *,
        interval_s: float = 2.0,
        down_interval_s: float = 0.2,
        name: str = "",
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.upstream: Way = upstream
        self.url = url
        self.name = name or url.split("://", 1)[-1].rstrip("/")
        self.last_looked_ns = 0  # when it was last seen to be what it was
        self.began_ns = 0  # the look that the facts are of, or that is under way
        self.busy_in_row = 0  # answers by which the engine said that it is overloaded, since it last took one
        self.aliases = {} if aliases is None else dict(aliases)
        self._details: Details | None = None  # asked for once, since the engine came up
        self.facts = EngineFacts(up=False, problem="not looked at yet")
        self._interval_s = interval_s
        self._down_interval_s = down_interval_s
        self._look_now = asyncio.Event()
        self.on_down: Callable[[], None] = lambda: None
        self.on_scrape: Callable[[str], None] = lambda text: None  # of an engine that is known, as it came
        self.credentials: Headers = []  # of the gate's own calls
        self.replaces_keys = False  # the engine gets its own key in place of the clients'
        self.headers = EngineHeaders()  # as it gets those of clients

    def use_api_key(self, key: str | None, *, replacing: bool) -> None:
        """From now on the engine's own key, if it has one. `replacing`: clients' keys are the gate's, so that the
        engine gets its own in their place; else theirs are for the engine, which judges them as without a gate."""
        self.credentials = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
        self.replaces_keys = key is not None and replacing
        self.headers = EngineHeaders(key if replacing else None)

    def own_name(self, model: str) -> str:
        """The engine's own name for a model that is asked for by another: an alias, or what it stands in for."""
        served = self.facts.models
        if model in self.aliases:
            return self.aliases[model]
        return served[0] if served and model not in served else model

    def found_down(self) -> None:
        """A relay could not reach it: tell at once, and look again soon."""
        if self.facts.up:
            self.facts = EngineFacts(up=False, problem="a request could not reach it")
            self.on_down()
        self._look_now.set()

    def look_soon(self) -> None:
        """Something happened that it may not have survived. A storm of that is one reason to look."""
        if time.monotonic_ns() - self.facts.looked_ns > _SOON_NS:
            self._look_now.set()

    async def look(self) -> EngineFacts:
        """Ask the engine for health, models and metrics. What goes wrong is in `problem`."""
        self.began_ns = time.monotonic_ns()
        last = self.facts if self.facts.up else EngineFacts(up=True)
        if not self.facts.up:
            self._details = None
        try:
            health = await self._get(b"/health")
        except UpstreamError as error:
            if error.kind != "no_connection":  # that is our own want, and says nothing of the engine
                self.facts = EngineFacts(up=False, problem=str(error))
            return self.facts
        if health.status >= 500:
            self.facts = EngineFacts(up=False, problem=f"/health answered {health.status}")
            return self.facts
        listed, max_context = await self._models()
        models = tuple(str(entry.get("id")) for entry in listed)
        reading, problem = await self._reading(b"/metrics")
        if reading is None or not reading.engine:  # TensorRT-LLM has JSON there, and its metrics elsewhere
            other, _ = await self._reading(b"/prometheus/metrics")
            reading, problem = (other, "") if other is not None and other.engine else (reading, problem)
        engine = reading.engine if reading is not None else last.engine
        if self._details is None and engine != "vllm":
            self._details = await details_of(self._get, engine)
        details = self._details or Details()
        pool = details.pool_of(reading.pool if reading is not None else None) or last.pool
        max_context = max_context if max_context is not None else details.max_context
        self.last_looked_ns = self.facts.looked_ns or self.last_looked_ns
        self.facts = EngineFacts(
            True,
            models or details.models or last.models,
            max_context if max_context is not None else last.max_context,
            reading,
            pool,
            problem,
            time.monotonic_ns(),
            engine or details.engine,
            details.max_num_seqs or (None if reading is None else reading.max_num_seqs),
            listed or last.listed,
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
                # Not wait_for: in Python 3.11 it loses a cancellation that comes while the event is being set.
                async with asyncio.timeout(pause_s):
                    await self._look_now.wait()
                # A burst of failed relays is one reason to look, not many.
                await asyncio.sleep(self._down_interval_s / 5)
            except TimeoutError:
                pass

    async def _get(self, path: bytes) -> Response:
        return await self.upstream.request(b"GET", path, self.credentials, b"", _PROBE_TIMEOUT_S)

    async def _models(self) -> tuple[tuple[dict[str, object], ...], Tokens | None]:
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
        return tuple(listed), Tokens(min(known)) if known else None

    async def _reading(self, path: bytes) -> tuple[EngineReading | None, str]:
        try:
            answer = await self._get(path)
        except UpstreamError as error:
            return None, f"/metrics: {error}"
        if answer.status != 200:
            return None, f"/metrics answered {answer.status}"
        try:
            text = answer.body.decode("utf-8", "replace")
            reading = reading_of(text)
        except (ValueError, ArithmeticError, InputError) as wrong:
            return None, f"/metrics: {wrong}"
        if reading.engine:
            self.on_scrape(text)
        return reading, ""
