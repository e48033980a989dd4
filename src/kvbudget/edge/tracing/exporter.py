"""Brings spans to the collector: in batches, in the background, never in the way of a request.

A collector that is away or slow is tried again for a while, as OTLP asks; what is too much meanwhile, or is not taken,
is lost and counted.
"""

import asyncio
import logging
import random
from typing import Final
from urllib.parse import urlsplit

from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.tls import engine_context
from kvbudget.edge.http.upstream import Response, Upstream, UpstreamError
from kvbudget.edge.tracing.otlp import rejected, request
from kvbudget.edge.tracing.settings import TracingSettings

log = logging.getLogger("kvbudget.tracing")

EVERY_S = 1.0
BATCH_BYTES: Final = 256 << 10  # of spans; sent as soon as there are so many
MOST_WAITING_BYTES = 8 << 20  # some ten thousand requests; more are lost, and counted
TIMEOUT_S = 10.0  # of one try; OTLP's own default
MOST_TRIES: Final = 5
FIRST_PAUSE_S = 1.0  # then twice as long each time
LONGEST_PAUSE_S: Final = 30.0
FLUSH_S = 2.0  # at the end, for all that is left
# OTLP/HTTP, "Retryable Response Codes"; no other is tried again.
_AGAIN: Final = frozenset({429, 502, 503, 504})


class Exporter:
    """Sends to one collector. `exported` and `lost` count spans."""

    def __init__(self, settings: TracingSettings, resource: bytes, scope: bytes) -> None:
        """Within a running loop. Raises BadValueError for certificates that cannot be read."""
        tls = None if settings.authorities is None else engine_context(settings.authorities)
        parts = urlsplit(settings.url)
        limits = UpstreamLimits(connections=1, response_s=TIMEOUT_S)
        self._upstream = Upstream(f"{parts.scheme}://{parts.netloc}", limits, tls)
        self._target = parts.path.encode() or b"/"
        self._headers: Headers = [(b"content-type", b"application/x-protobuf"), *settings.headers]
        self._resource, self._scope = resource, scope
        self._url = settings.url
        self.exported = 0
        self.lost = 0
        self._waiting: list[tuple[bytes, int]] = []
        self._waiting_bytes = 0
        self._full = asyncio.Event()  # a batch is; or it ends
        self._ending = asyncio.Event()
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Send from now on."""
        self._task = asyncio.create_task(self._keep_sending(), name="traces")

    def put(self, spans: bytes, count: int) -> None:
        """Those of one request."""
        waiting_bytes = self._waiting_bytes + len(spans)
        if waiting_bytes > MOST_WAITING_BYTES or self._ending.is_set():
            self.lost += count
            return
        self._waiting.append((spans, count))
        self._waiting_bytes = waiting_bytes
        if waiting_bytes >= BATCH_BYTES:
            self._full.set()

    def take(self) -> tuple[bytes, int]:
        """(spans of one batch, how many), which do not wait any more."""
        batch: list[bytes] = []
        size = count = 0
        for spans, spans_count in self._waiting:
            if size >= BATCH_BYTES:
                break
            batch.append(spans)
            size += len(spans)
            count += spans_count
        del self._waiting[: len(batch)]
        self._waiting_bytes -= size
        return b"".join(batch), count

    async def close(self) -> None:
        """Send what is left, within `FLUSH_S`; may be called in any state, and again."""
        self._ending.set()
        self._full.set()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait({task}, timeout=FLUSH_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.lost += sum([count for _, count in self._waiting])
        self._waiting, self._waiting_bytes = [], 0
        self._upstream.close()

    async def _keep_sending(self) -> None:
        while not self._ending.is_set():
            await _until(self._full, EVERY_S)
            self._full.clear()
            await self._send()
            while self._waiting_bytes >= BATCH_BYTES:
                await self._send()
        while self._waiting:
            await self._send()

    async def _send(self) -> None:
        """One batch, until it is taken or given up."""
        spans, count = self.take()
        if not spans:
            return
        lost = count
        try:
            lost = await self._deliver(request(self._resource, self._scope, spans), count)
        except Exception:
            log.exception("sending spans failed in a way that it should not")
        finally:  # cancelled as well
            self.lost += lost
            self.exported += count - lost

    async def _deliver(self, body: bytes, count: int) -> int:
        """How many of its `count` spans the collector did not take."""
        for number in range(MOST_TRIES):
            answer = None
            try:
                answer = await self._upstream.request(b"POST", self._target, self._headers, body, TIMEOUT_S)
                problem = f"it answered {answer.status}"
            except UpstreamError as error:
                problem = str(error)
            if answer is not None and 200 <= answer.status < 300:
                if self._failing:
                    log.info("the collector at %s takes spans again", self._url)
                self._failing = False
                return min(count, rejected(answer.body))
            if not self._failing:
                log.warning("the collector at %s does not take spans: %s", self._url, problem)
            self._failing = True
            last = self._ending.is_set() or number == MOST_TRIES - 1
            if last or (answer is not None and answer.status not in _AGAIN):
                break
            await _until(self._ending, _pause_s(number, answer))
        return count


def _pause_s(tries: int, answer: Response | None) -> float:
    """How long to wait after so many tries: what the collector says, else longer each time."""
    told = [] if answer is None else [value for name, value in answer.headers if name == b"retry-after"]
    told_s = int(told[0][:4]) if told and told[0].isdigit() else 0
    pause_s: float = max(FIRST_PAUSE_S * (1 << tries), told_s) * (1 + 0.25 * random.random())  # noqa: S311 - spreads tries
    return min(LONGEST_PAUSE_S, pause_s)


async def _until(event: asyncio.Event, most_s: float) -> None:
    """Not wait_for: in Python 3.11 it loses a cancellation that comes while the event is being set."""
    try:
        async with asyncio.timeout(most_s):
            await event.wait()
    except TimeoutError:
        pass
