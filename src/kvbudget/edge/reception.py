"""From an HTTP exchange to an arrival at the gate: which path, who, what is asked, how many tokens."""

import asyncio
import logging
from collections.abc import Awaitable
from itertools import count

from kvbudget.edge.answers import bad_request, plain_error
from kvbudget.edge.flow import Flow, State
from kvbudget.edge.gateway import SHUTTING_DOWN, Gateway
from kvbudget.edge.http.server import Exchange
from kvbudget.edge.identity import Identities
from kvbudget.edge.models import model_in, models_of
from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.passing import PassingBy
from kvbudget.edge.paths import CHARGED, passes
from kvbudget.edge.tokens.bound import ThreadedBoundCounter
from kvbudget.edge.tokens.count import Count, Counter, CountFailedError
from kvbudget.gate.refusals import Outcome, Refusal
from kvbudget.units import Tokens

log = logging.getLogger("kvbudget.reception")

_UNCOUNTED = Count((Tokens(1),), exact=False)
_JSON = [(b"content-type", b"application/json")]


class Reception:
    """What the data plane calls with every complete request. No task is made unless counting has to wait."""

    def __init__(self, gateway: Gateway, counter: Counter, identities: Identities) -> None:
        self.gateway = gateway
        self.counter = counter
        self.identities = identities
        self.passing: set[PassingBy] = set()
        self.counting: dict[asyncio.Future[Count], Flow] = {}
        self._bound = ThreadedBoundCounter()
        self._keys = count(1)

    def app(self, exchange: Exchange) -> None:
        """Begin one exchange; it is answered now or later, by us or by a relay."""
        target = exchange.target
        surface = CHARGED.get(target)
        if surface is None:
            path = target.partition(b"?")[0]
            surface = CHARGED.get(path)
            if surface is None:
                self._uncharged(exchange, path)
                return
        request_id = self.identities.request_id(exchange.headers)
        if exchange.method != b"POST":
            shown = exchange.method.decode("latin-1")
            plain_error(exchange, 405, f"{shown} is not allowed here; use POST.", request_id, "method_not_allowed")
            return
        self._begin(exchange, surface, request_id)

    async def stop(self) -> None:
        """Cut off what is still being counted or passes by; its clients are told."""
        for passing in list(self.passing):
            if passing.relay is not None:
                passing.relay.cancel()
        waiting = list(self.counting)
        for counting in waiting:
            counting.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _uncharged(self, exchange: Exchange, path: bytes) -> None:
        if path == b"/health":
            exchange.respond(200, _JSON, b'{"status":"ok"}')
            return
        request_id = self.identities.request_id(exchange.headers)
        if passes(path):
            gateway = self.gateway
            if path == b"/v1/models" and gateway.fleet.only is None and exchange.method == b"GET":
                exchange.respond(200, [*_JSON, (b"x-request-id", request_id)], models_of(gateway))
                return
            backend = gateway.backend
            if gateway.fleet.only is None:
                backend = gateway.backend_for(model_in(exchange.body))
            PassingBy(exchange, backend, request_id, gateway.answer_for_engine, self.passing)
        else:
            told = "No such path: this gate serves the OpenAI API under /v1; metrics and state are on its admin port."
            plain_error(exchange, 404, told, request_id, "not_found")

    def _begin(self, exchange: Exchange, surface: Surface, request_id: bytes) -> None:
        admission, fleet = self.gateway.admission, self.gateway.fleet
        try:
            identity = self.identities.read(exchange.headers, request_id)
            ask = parse_ask(surface, exchange.body)
            flow = Flow(self.gateway, f"r{next(self._keys)}", exchange, identity, ask)
            unknown = fleet.only is None and not fleet.serves(ask.model)
            if unknown or admission.draining or not admission.backend_up:
                # Who will be refused whatever its length needs no count, least of all from an engine that is down.
                self.gateway.arrive(flow, ask, _UNCOUNTED)
            else:
                self._take(flow, ask, self.counter.count(ask))
        except BadRequestError as error:
            exchange.on_gone = None
            self._refuse(exchange, request_id, error)
        except CountFailedError as error:
            self._bound_instead(flow, ask, error)

    def _take(self, flow: Flow, ask: Ask, counted: Count | Awaitable[Count], *, instead: bool = False) -> None:
        """Arrive with a count, now or when it comes."""
        if isinstance(counted, Count):
            self.gateway.arrive(flow, ask, counted, instead=instead)
            return
        # A future, not a coroutine: cancelled before it ever ran, it still ends, and its flow with it.
        counting = flow.counting = asyncio.ensure_future(counted)
        self.counting[counting] = flow
        counting.add_done_callback(lambda done: self._counted(flow, ask, done, instead=instead))

    def _counted(self, flow: Flow, ask: Ask, counting: asyncio.Future[Count], *, instead: bool) -> None:
        """The count came, or will not come. Called exactly once for each flow that had to wait for it."""
        del self.counting[counting]
        error = None if counting.cancelled() else counting.exception()
        if flow.state is not State.COUNTING:
            return  # its client left meanwhile
        if counting.cancelled():
            self._give_up(flow)
            self.gateway.refuser.later(Refusal.DRAINING, SHUTTING_DOWN, flow.exchange, flow.identity.request_id)
        elif error is None:
            self.gateway.arrive(flow, ask, counting.result(), instead=instead)
        elif isinstance(error, BadRequestError):
            flow.state = State.OVER
            self._refuse(flow.exchange, flow.identity.request_id, error)
        elif isinstance(error, CountFailedError) and not instead:
            self._bound_instead(flow, ask, error)
        else:  # a bug of the counter: the client must get an answer all the same
            log.error("counting failed in a way that no counter should", exc_info=error)
            self._give_up(flow)
            told = "The prompt could not be counted."
            plain_error(flow.exchange, 500, told, flow.identity.request_id, "internal_error")

    def _bound_instead(self, flow: Flow, ask: Ask, error: CountFailedError) -> None:
        log.warning("counting failed, the upper bound is charged instead: %s", error)
        self._take(flow, ask, self._bound.count(ask), instead=True)

    def _refuse(self, exchange: Exchange, request_id: bytes, error: BadRequestError) -> None:
        metrics = self.gateway.metrics
        metrics.refusals[Refusal.BAD_REQUEST] += 1
        metrics.outcomes[Outcome.REFUSED] += 1
        bad_request(exchange, request_id, error)

    def _give_up(self, flow: Flow) -> None:
        flow.state = State.OVER
        self.gateway.metrics.outcomes[Outcome.SHUT_DOWN] += 1
