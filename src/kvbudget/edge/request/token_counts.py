"""`/v1/messages/count_tokens`: the gate's own counter answers, so that what it tells is what it will charge."""

import asyncio
import logging
from collections.abc import Awaitable

import orjson

from kvbudget.edge.http.server import Exchange
from kvbudget.edge.openai.body import read_object
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.request.answers import Refuser, identified
from kvbudget.edge.request.ends import SHUTTING_DOWN
from kvbudget.edge.surfaces import messages
from kvbudget.edge.surfaces.ask import Ask, Surface
from kvbudget.edge.tokens.count import Count, Counter, CountFailedError
from kvbudget.gate.refusing.refusals import Refusal

log = logging.getLogger("kvbudget.token_counts")


class TokenCounts:
    """Counts that are asked for by themselves. `instead` bounds what `counter` fails to count."""

    def __init__(self, counter: Counter, instead: Counter, refuser: Refuser) -> None:
        self._counter = counter
        self._instead = instead
        self._refuser = refuser
        self.under_way: set[asyncio.Future[Count]] = set()

    def begin(self, exchange: Exchange, request_id: bytes) -> None:
        """Answer `{"input_tokens": N}`, now or when it is counted."""
        try:
            ask = messages.parse(Surface.MESSAGES, read_object(exchange.body), exchange.body)
            counted = self._counter.count(ask)
            if isinstance(counted, Count):
                _answer(exchange, request_id, counted)
                return
        except BadRequestError as error:
            self._refuser.bad_request(exchange, request_id, error)
            return
        except CountFailedError as error:
            log.warning("counting failed, the upper bound is told instead: %s", error)
            counted = None
        counting = asyncio.ensure_future(self._settled(counted, ask))
        self.under_way.add(counting)

        def gone() -> None:
            counting.cancel()

        def done(counting: asyncio.Future[Count]) -> None:
            self.under_way.discard(counting)
            exchange.on_gone = None
            if exchange.gone:
                return
            error = None if counting.cancelled() else counting.exception()
            if counting.cancelled():
                self._refuser.later(Refusal.DRAINING, SHUTTING_DOWN, exchange, request_id)
            elif error is None:
                _answer(exchange, request_id, counting.result())
            elif isinstance(error, BadRequestError):
                self._refuser.bad_request(exchange, request_id, error)
            else:
                log.error("counting failed in a way that no counter should", exc_info=error)
                told = "The prompt could not be counted."
                self._refuser.plain_error(exchange, 500, told, request_id, "internal_error")

        exchange.on_gone = gone
        counting.add_done_callback(done)

    def stop(self) -> None:
        """Cut off what is still being counted; its clients are told."""
        for counting in list(self.under_way):
            counting.cancel()

    async def _settled(self, counting: Awaitable[Count] | None, ask: Ask) -> Count:
        if counting is not None:
            try:
                return await counting
            except CountFailedError as error:
                log.warning("counting failed, the upper bound is told instead: %s", error)
        bounded = self._instead.count(ask)
        return bounded if isinstance(bounded, Count) else await bounded


def _answer(exchange: Exchange, request_id: bytes, count: Count) -> None:
    """`x-kvbudget-count` says whether it is the count or an upper bound of it."""
    kind = b"exact" if count.exact else b"bound"
    headers = [(b"content-type", b"application/json"), (b"x-kvbudget-count", kind), *identified(exchange, request_id)]
    exchange.respond(200, headers, orjson.dumps({"input_tokens": sum(count.prompt_tokens)}))
