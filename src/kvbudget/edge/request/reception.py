"""From an HTTP exchange to an arrival at the gate: which path, who, what is asked, how many tokens."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.refused import Asked
from kvbudget.edge.http.server import Exchange
from kvbudget.edge.instances.models import model_in, models_of
from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.request.answers import identified
from kvbudget.edge.request.ends import SHUTTING_DOWN
from kvbudget.edge.request.flow import Flow, State
from kvbudget.edge.request.gateway import Gateway
from kvbudget.edge.request.identity import Identities, Identity
from kvbudget.edge.request.passing import PassingBy
from kvbudget.edge.request.paths import CHARGED, COUNT_TOKENS, errors_of, passes
from kvbudget.edge.request.prompt_logprobs import PromptLogprobs
from kvbudget.edge.request.token_counts import TokenCounts
from kvbudget.edge.surfaces.table import ROWS
from kvbudget.edge.tokens.bound import ThreadedBoundCounter
from kvbudget.edge.tokens.count import Count, Counter, CountFailedError
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.units import Tokens

log = logging.getLogger("kvbudget.reception")

_UNCOUNTED: Final = Count((Tokens(1),), exact=False)
_JSON: Final = [(b"content-type", b"application/json")]


class Reception:
    """What the data plane calls with every complete request. No task is made unless counting has to wait."""

    def __init__(
        self, gateway: Gateway, counter: Counter, identities: Identities, logprobs: PromptLogprobs | None = None
    ) -> None:
        self.gateway = gateway
        self.counter = counter
        self.identities = identities
        self.passing: set[PassingBy] = set()
        self.counting: dict[asyncio.Future[Count], Flow] = {}
        self.logprobs = PromptLogprobs() if logprobs is None else logprobs
        self._bound = ThreadedBoundCounter()
        self.token_counts = TokenCounts(counter, self._bound, gateway.refuser)
        self._taken = 0  # requests so far: each gets a key of its own

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
        exchange.errors = ROWS[surface].errors
        request_id = self.identities.request_id_of(exchange)
        if exchange.method == b"POST":
            self._begin(exchange, surface, request_id)
        else:
            self._other_method(exchange, request_id)

    def unread(self, status: int, code: str, message: str, asked: Asked) -> tuple[Headers, bytes]:
        """Headers and body of an error that the data plane answers by itself: before a request is whole, or for a
        bug."""
        request_id = self.identities.request_id(asked.headers)
        return self.gateway.refuser.unread(status, code, message, errors_of(asked.target), request_id)

    async def stop(self) -> None:
        """Cut off what is still being counted or passes by; its clients are told."""
        for passing in list(self.passing):
            if passing.relay is not None:
                passing.relay.cancel()
        waiting = list(self.counting)
        for counting in waiting:
            counting.cancel()
        self.token_counts.stop()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _other_method(self, exchange: Exchange, request_id: bytes) -> None:
        """What may be sent to a path that only takes POST. Which origins a browser may send from, the engine decides:
        its preflight passes."""
        if exchange.method == b"OPTIONS" and exchange.header(b"access-control-request-method") is not None:
            self._pass(exchange, request_id)
        elif exchange.method == b"OPTIONS":
            exchange.respond(204, [(b"allow", b"POST, OPTIONS"), *identified(exchange, request_id)], b"")
        else:
            shown = exchange.method.decode("latin-1")
            told = f"{shown} is not allowed here; use POST."
            self.gateway.refuser.plain_error(exchange, 405, told, request_id, "method_not_allowed")

    def _pass(self, exchange: Exchange, request_id: bytes) -> None:
        gateway = self.gateway
        backend = gateway.backend
        if gateway.fleet.only is None:
            if exchange.method == b"GET" and exchange.target.partition(b"?")[0] == b"/v1/models":
                exchange.respond(200, [*_JSON, *identified(exchange, request_id)], models_of(gateway))
                return
            backend = gateway.backend_for(model_in(exchange.body))
        PassingBy(exchange, backend, request_id, gateway.ends.unanswered, self.passing)

    def _uncharged(self, exchange: Exchange, path: bytes) -> None:
        request_id = self.identities.request_id_of(exchange)
        if path == b"/health":
            exchange.respond(200, [*_JSON, *identified(exchange, request_id)], b'{"status":"ok"}')
            return
        exchange.errors = errors_of(path)
        if passes(path):
            if not self._may_pass(exchange, request_id):
                return
            if path == COUNT_TOKENS and exchange.method == b"POST" and not self.gateway.shadow:
                self.token_counts.begin(exchange, request_id)
            else:
                self._pass(exchange, request_id)
        else:
            told = (
                "No such path: this gate serves the OpenAI and Anthropic APIs under /v1 and TGI's /generate; metrics "
                "and state are on its admin port."
            )
            self.gateway.refuser.plain_error(exchange, 404, told, request_id, "not_found")

    def _may_pass(self, exchange: Exchange, request_id: bytes) -> bool:
        """Whether it brings a key, where one is asked for; else it is answered."""
        if self.identities.ring:
            try:
                self.identities.ring.holder(exchange.headers)
            except BadRequestError as error:
                self._refuse(exchange, request_id, error)
                return False
        return True

    def _begin(self, exchange: Exchange, surface: Surface, request_id: bytes) -> None:
        gateway = self.gateway
        only = gateway.only
        try:
            identity = self.identities.read_of(exchange, request_id)
            ask = parse_ask(surface, exchange.body)
            if exchange.unseen:
                ask = ask._replace(paced=False)  # its tokens pass where nobody tells us of them
            self._taken += 1
            flow = Flow(gateway, f"r{self._taken}", exchange, identity, ask)
            if only is not None:
                refused = only.draining or not only.backend_up
            else:
                fleet = gateway.fleet
                refused = not fleet.serves(ask.model) or fleet.draining or not fleet.backend_up
            if refused:
                # Who will be refused whatever its length needs no count, least of all from an engine that is down.
                gateway.arrive(flow, ask, _UNCOUNTED)
                return
            if ask.beam:
                self._check_beam()
            if ask.prompt_logprobs:
                self.logprobs.check(Tokens(1))  # refused whatever its length, it need not be counted
            self._take(flow, ask, (self._bound if ask.bounded else self.counter).count(ask))
        except BadRequestError as error:
            exchange.on_gone = None
            self._refuse(exchange, request_id, error)
        except CountFailedError as error:
            self._bound_instead(flow, ask, error)

    def _take(self, flow: Flow, ask: Ask, counted: Count | Awaitable[Count], *, instead: bool = False) -> None:
        """Arrive with a count, now or when it comes."""
        if isinstance(counted, Count):
            self._arrive(flow, ask, counted, instead=instead)
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
            self._give_up(flow, 503)
            self.gateway.refuser.later(Refusal.DRAINING, SHUTTING_DOWN, flow.exchange, flow.identity.request_id)
        elif error is None:
            try:
                self._arrive(flow, ask, counting.result(), instead=instead)
            except BadRequestError as refused:
                self._refuse_flow(flow, refused)
        elif isinstance(error, BadRequestError):
            self._refuse_flow(flow, error)
        elif isinstance(error, CountFailedError) and not instead:
            self._bound_instead(flow, ask, error)
        else:  # a bug of the counter: the client must get an answer all the same
            log.error("counting failed in a way that no counter should", exc_info=error)
            if self._passes_in_shadow(flow.exchange, flow.identity, Refusal.COUNT_FAILED):
                flow.state = State.OVER
                return
            self._give_up(flow, 500)
            told = "The prompt could not be counted."
            self.gateway.refuser.plain_error(flow.exchange, 500, told, flow.identity.request_id, "internal_error")

    def _arrive(self, flow: Flow, ask: Ask, counted: Count, *, instead: bool) -> None:
        """To the gate, with what it needs beside the pool. Raises BadRequestError."""
        if ask.prompt_logprobs:
            tokens = Tokens(sum(counted.prompt_tokens))
            logprobs = self.logprobs
            logprobs.check(tokens)
            taken = logprobs.take(tokens)
            if not taken and self.gateway.shadow:
                self.gateway.metrics.shadow_refusals[Refusal.LOGPROBS_FULL] += 1
            elif not taken:
                told = (
                    f"Logprobs of {logprobs.in_use} prompt tokens are being computed, and of at most {logprobs.limit} "
                    "may be at once (--max-prompt-logprobs-tokens); please retry later."
                )
                flow.state = State.OVER
                self.gateway.metrics.refusals[Refusal.LOGPROBS_FULL] += 1
                self.gateway.metrics.outcomes[Outcome.REFUSED] += 1
                flow.let_go()
                self.gateway.refuser.later(Refusal.LOGPROBS_FULL, told, flow.exchange, flow.identity.request_id)
                return
            if taken:
                flow.on_over = lambda: logprobs.give_back(tokens)
        self.gateway.arrive(flow, ask, counted, instead=instead)

    def _check_beam(self) -> None:
        """Raises BadRequestError where the engine would compute every beam anew at every token (vllm pull request
        13421: 52 tokens a second instead of 552)."""
        pool = self.gateway.backend.facts.pool
        if pool is not None and pool.prefix_caching is False:
            raise BadRequestError(
                "use_beam_search is not accepted here: the engine runs without prefix caching, so that every beam "
                "would be computed anew for every token; start it with --enable-prefix-caching, or use n",
                "use_beam_search",
                "beam_search_refused",
            )

    def _refuse_flow(self, flow: Flow, error: BadRequestError) -> None:
        flow.state = State.OVER
        flow.exchange.on_gone = None
        self._refuse(flow.exchange, flow.identity.request_id, error)

    def _bound_instead(self, flow: Flow, ask: Ask, error: CountFailedError) -> None:
        log.warning("counting failed, the upper bound is charged instead: %s", error)
        self._take(flow, ask, self._bound.count(ask), instead=True)

    def _refuse(self, exchange: Exchange, request_id: bytes, error: BadRequestError) -> None:
        if error.status != 401 and self._passes_in_shadow(exchange, Identity(request_id), Refusal.BAD_REQUEST):
            return
        metrics = self.gateway.metrics
        metrics.refusals[Refusal.BAD_REQUEST] += 1
        metrics.outcomes[Outcome.REFUSED] += 1
        self.gateway.log_uncounted(exchange, Identity(request_id), Refusal.BAD_REQUEST, error.status)
        self.gateway.refuser.bad_request(exchange, request_id, error)

    def _passes_in_shadow(self, exchange: Exchange, identity: Identity, refusal: Refusal) -> bool:
        """In shadow mode what would be refused goes on as it came, if it cannot even be counted without a charge."""
        gateway = self.gateway
        if not gateway.shadow or exchange.gone or gateway.admission.draining:
            return False
        gateway.metrics.shadow_refusals[refusal] += 1
        exchange.on_gone = None
        backend = gateway.backend if gateway.fleet.only is not None else gateway.backend_for(model_in(exchange.body))
        PassingBy(
            exchange,
            backend,
            identity.request_id,
            gateway.ends.unanswered,
            self.passing,
            lambda end: gateway.ends.uncharged(exchange, identity, end),
        )
        return True

    def _give_up(self, flow: Flow, status: int) -> None:
        flow.state = State.OVER
        self.gateway.log_uncounted(flow.exchange, flow.identity, Outcome.SHUT_DOWN, status)
        self.gateway.metrics.outcomes[Outcome.SHUT_DOWN] += 1
