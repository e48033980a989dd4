"""Decides when each request of a trace leaves: at its own time, whatever became of those before it (open loop)."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from kvbudget.edge.replay.endpoint import Ask, Endpoint, Patience, find_model
from kvbudget.edge.replay.outcome import Ending, Outcome
from kvbudget.edge.replay.prompts import CountError, PromptWriter
from kvbudget.edge.replay.readings import MetricsReader
from kvbudget.edge.replay.report import EngineReadings, Slo, build_report
from kvbudget.errors import BadValueError
from kvbudget.simulate.load import DEFAULT_TENANT, TraceRequest

COUNTERS_AT_ONCE = 8
METRICS_PERIOD_S = 0.5


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How a trace is put to an endpoint.

    `model` None: the first that the endpoint names. `stream_share` 0 to 1. `concurrency_limit` bounds what is in
    flight; requests over it are not sent, and counted. `exact_output`: the answer is held to the trace's length
    (`ignore_eos`), else the model ends by itself. `metrics_url` None: `/metrics` of the endpoint.
    """

    url: str
    model: str | None = None
    chat: bool = True
    stream_share: float = 1.0
    concurrency_limit: int = 2000
    seed: int = 0
    exact_output: bool = True
    patience: Patience = field(default_factory=Patience)
    slo: Slo = field(default_factory=Slo)
    metrics_url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises BadValueError."""
        if not self.url.startswith(("http://", "https://")) or any(char.isspace() for char in self.url):
            raise BadValueError(f"url: {self.url[:80]!r} is not an http address", fix="write http://HOST:PORT")
        if not 0 <= self.stream_share <= 1:
            raise BadValueError(f"stream_share: {self.stream_share} is not between 0 and 1")
        if not 1 <= self.concurrency_limit <= 100_000:
            raise BadValueError(f"concurrency_limit: {self.concurrency_limit} is not between 1 and 100000")
        if not 0 < self.patience.timeout_s <= 86_400:
            raise BadValueError(f"timeout: {self.patience.timeout_s} is not between 0 and 86400 seconds")
        if not 0 <= self.patience.retries <= 100:
            raise BadValueError(f"retries: {self.patience.retries} is not between 0 and 100")


async def replay(
    requests: Sequence[TraceRequest],
    settings: ReplaySettings,
    *,
    stop: asyncio.Event | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, object]:
    """Replays `requests` and reports. When `stop` is set, what is in flight is cut and the report says what was so far.

    Raises BadValueError when the endpoint cannot be reached or names no model.
    """
    stop = stop or asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)  # its default of 100 would close the loop
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True) as session:
        found, window = await find_model(session, settings.url, settings.headers)
        model = settings.model or found
        if model is None:
            raise BadValueError(f"{settings.url}: names no model under /v1/models", fix="give --model")
        endpoint = Endpoint(session, settings.url, model=model, chat=settings.chat, headers=settings.headers)
        notes = _window_notes(requests, window)
        writer = await _writer(endpoint, settings.seed, notes)
        say(f"preparing prompts of {_counted(len({one.prompt_tokens for one in requests}), 'length')} for {model}")
        if not await _prepare(writer, requests, stop, notes):
            notes.append("stopped early, before the first request")
            return build_report([], slo=settings.slo, elapsed_s=0.0, readings=EngineReadings(), notes=notes)
        span_s = requests[-1].arrival_ns / 1e9
        say(f"sending {_counted(len(requests), 'request')} over {span_s:.1f} s to {settings.url}")
        async with _Metrics(session, settings, notes) as metrics:
            outcomes, elapsed_s = await _Run(endpoint, writer, settings, stop).all(requests)
        if stop.is_set():
            notes.append(f"stopped early: {len(outcomes)} of {_counted(len(requests), 'request')} had arrived")
        return build_report(outcomes, slo=settings.slo, elapsed_s=elapsed_s, readings=metrics.readings(), notes=notes)


class _Run:
    """One pass over the trace."""

    def __init__(self, endpoint: Endpoint, writer: PromptWriter, settings: ReplaySettings, stop: asyncio.Event) -> None:
        self._endpoint = endpoint
        self._writer = writer
        self._settings = settings
        self._stop = stop
        self._dice = random.Random(settings.seed)  # noqa: S311 - which requests stream, no secret

    async def all(self, requests: Sequence[TraceRequest]) -> tuple[list[Outcome], float]:
        """Outcomes in the order of arrival, and the seconds from the first arrival to the last answer."""
        clock = asyncio.get_running_loop().time
        sent: list[tuple[Ask, asyncio.Task[Outcome] | None]] = []
        in_flight: set[asyncio.Task[Outcome]] = set()
        start = clock()
        try:
            for index, request in enumerate(requests):
                ask = self._ask(index, request)  # before its time comes: long texts take a moment
                due = start + request.arrival_ns / 1e9
                if await _set_within(self._stop, due - clock()):
                    break
                if len(in_flight) >= self._settings.concurrency_limit:
                    sent.append((ask, None))
                    continue
                task = asyncio.create_task(self._send(ask, due))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
                sent.append((ask, task))
            await self._last_answers(in_flight)
        finally:
            left = list(in_flight)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        return [_outcome(ask, task) for ask, task in sent], clock() - start

    async def _last_answers(self, in_flight: set[asyncio.Task[Outcome]]) -> None:
        """Waits for all, or for `stop`; every request ends by its own time-out at the latest."""
        answers = asyncio.gather(*in_flight, return_exceptions=True)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            either: set[asyncio.Future[Any]] = {stopped, answers}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()

    async def _send(self, ask: Ask, due: float) -> Outcome:
        late_s = max(0.0, asyncio.get_running_loop().time() - due)
        return await self._endpoint.send(ask, self._settings.patience, late_s)

    def _ask(self, index: int, request: TraceRequest) -> Ask:
        return Ask(
            prompt=self._writer.text(request.prompt_tokens, index),
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_new_tokens,
            stream=self._dice.random() < self._settings.stream_share,
            exact_output=self._settings.exact_output,
            tenant=None if request.tenant == DEFAULT_TENANT else request.tenant,
        )


class _Metrics:
    """Scrapes before, during and after the run; says so when there is nothing to scrape."""

    def __init__(self, session: aiohttp.ClientSession, settings: ReplaySettings, notes: list[str]) -> None:
        self._url = settings.metrics_url or settings.url.rstrip("/").removesuffix("/v1") + "/metrics"
        self._reader = MetricsReader(session, self._url, settings.headers)
        self._notes = notes
        self._sampler: asyncio.Task[None] | None = None

    async def __aenter__(self) -> MetricsReader:
        if await self._reader.scrape():
            self._sampler = asyncio.create_task(self._reader.sample_every(METRICS_PERIOD_S))
        if self._reader.is_gate:
            self._notes.append(
                f"{self._url} is a gate's: the use of the pool is read there, preemptions are unknown; the engine's "
                "own /metrics tells them (--metrics-url)"
            )
        elif self._sampler is None:
            self._notes.append(
                f"no engine metrics at {self._url}: preemptions and pool use are unknown; give --metrics-url, the "
                "engine's own /metrics or that of a gate's admin port"
            )
        return self._reader

    async def __aexit__(self, *_: object) -> None:
        if self._sampler is not None:
            self._sampler.cancel()
            await asyncio.gather(self._sampler, return_exceptions=True)
            await self._reader.scrape()


async def _writer(endpoint: Endpoint, seed: int, notes: list[str]) -> PromptWriter:
    try:
        await endpoint.count_tokens("The")
    except CountError as error:
        notes.append(f"prompt lengths are approximated, one word a token: {error}")
        return PromptWriter(None, seed)
    return PromptWriter(endpoint.count_tokens, seed)


async def _prepare(
    writer: PromptWriter, requests: Sequence[TraceRequest], stop: asyncio.Event, notes: list[str]
) -> bool:
    """Finds all lengths before the load starts, so that counting does not disturb it; False when stopped meanwhile."""
    inexact: set[int] = set()
    lengths = iter(sorted({request.prompt_tokens for request in requests}))

    async def work() -> None:
        for length in lengths:
            if stop.is_set():
                return
            if (await writer.prepare(length)).counted != length:
                inexact.add(length)

    async with asyncio.TaskGroup() as group:
        for _ in range(COUNTERS_AT_ONCE):
            group.create_task(work())
    if inexact:
        some = ", ".join(str(length) for length in sorted(inexact)[:5])
        notes.append(f"{_counted(len(inexact), 'prompt length')} could not be met exactly (such as {some})")
    return not stop.is_set()


async def _set_within(event: asyncio.Event, delay_s: float) -> bool:
    """Whether `event` is set, waiting for it at most `delay_s`; other tasks get a turn even when there is no delay."""
    if delay_s <= 0:
        await asyncio.sleep(0)
        return event.is_set()
    try:
        async with asyncio.timeout(delay_s):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()


def _outcome(ask: Ask, task: asyncio.Task[Outcome] | None) -> Outcome:
    if task is None:
        return Outcome(Ending.NOT_SENT, ask.stream, ask.prompt_tokens)
    if task.cancelled():  # stopped before it ran at all
        return Outcome(Ending.INTERRUPTED, ask.stream, ask.prompt_tokens)
    return task.result()


def _window_notes(requests: Sequence[TraceRequest], window: int | None) -> list[str]:
    over = sum(1 for one in requests if window is not None and one.prompt_tokens + one.max_new_tokens > window)
    if not over:
        return []
    return [
        f"longer than the endpoint's window of {window} tokens: {_counted(over, 'request')}; "
        f"--window {window} scales all lengths"
    ]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
