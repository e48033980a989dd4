"""One request's way through the gate: counted, admitted or parked, relayed, and ended exactly once.

    COUNTING -> PARKED -> FORWARDED -> OVER
        \\__________\\___________________/

A flow is the watcher of its own relay. Every path ends in `Gateway.end(flow, ...)`, which does nothing for a flow
that is over.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.server import Exchange
from kvbudget.edge.http.upstream import RelayEnd
from kvbudget.edge.http.way import Relaying
from kvbudget.edge.instances.backend import Backend
from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.request.identity import Identity
from kvbudget.edge.tokens.count import Count, TokenIds
from kvbudget.gate.config import PROGRESS_STRIDE
from kvbudget.gate.events import Arrived

if TYPE_CHECKING:
    from kvbudget.edge.request.gateway import Gateway
    from kvbudget.edge.request.record import Record


class State(Enum):
    """Where a flow stands."""

    COUNTING = "counting"
    PARKED = "parked"
    FORWARDED = "forwarded"
    OVER = "over"


class Held(Enum):
    """What the gate has of a flow: it waits there, it has a reservation, or nothing any more (a shadow goes on)."""

    WAITING = "waiting"
    RESERVED = "reserved"
    NOTHING = "nothing"


# Read with every request; a member by its class is a slow look-up before Python 3.12.
_COUNTING: Final = State.COUNTING
_NOTHING: Final = Held.NOTHING


class Flow:
    """What the gateway knows of one request. `key` is its id in the gate: never the client's, which may repeat."""

    __slots__ = (
        "arrived",
        "as_ids",
        "ask",
        "backend",
        "counting",
        "exact",
        "exchange",
        "forfeited",
        "forwarded_ns",
        "held",
        "identity",
        "instead",
        "key",
        "lost",
        "on_over",
        "owner",
        "paced",
        "parked_ns",
        "prompt_tokens",
        "recalled",
        "record",
        "relay",
        "seen_events",
        "state",
        "surface",
        "token_ids",
        "tries",
        "unreported_events",
        "waited_ns",
    )

    def __init__(self, owner: "Gateway", key: str, exchange: Exchange, identity: Identity, ask: Ask) -> None:
        self.owner = owner
        self.key = key
        self.exchange = exchange
        self.identity = identity
        # Until the engine answers, in case that it is to be tried again: prompts are large, streams are long.
        self.ask: Ask | None = ask
        self.surface = ask.surface
        self.on_over: Callable[[], None] | None = None  # gives back what it took beside the pool
        self.arrived: Arrived | None = None
        self.backend: Backend | None = None  # that it was forwarded to
        self.forwarded_ns = 0
        self.tries = 0
        self.recalled = False  # we cut it off, so that it is tried elsewhere
        self.forfeited = False  # its blocks were given to another gate
        self.lost = False  # its engine is another process by now
        self.state = _COUNTING
        self.counting: asyncio.Future[Count] | None = None
        self.prompt_tokens = 0
        self.exact = False
        self.instead = False  # bounded only because the counter failed
        self.paced = False
        self.held = _NOTHING
        self.record: Record | None = None  # for the access log, if there is one
        self.token_ids: TokenIds | None = None  # to forward in place of the text, until the engine answers
        self.as_ids = False
        self.relay: Relaying | None = None
        self.seen_events = 0
        self.unreported_events = 0
        self.parked_ns = 0
        self.waited_ns = 0  # in the queue, once it was let in
        exchange.on_gone = self.on_gone

    def counted(self, count: Count, *, instead: bool) -> None:
        """Its prompts are counted, or bounded `instead` because the counter failed."""
        self.instead = instead
        prompts = count.prompt_tokens
        self.prompt_tokens = prompts[0] if len(prompts) == 1 else sum(prompts)
        self.exact = count.exact

    def let_go(self) -> None:
        """Over: cut the cycles between exchange, flow and relay, so that memory comes back without the collector."""
        self.exchange.on_gone = None
        if self.counting is not None:
            self.counting.cancel()  # nobody waits for it any more; done, this does nothing
            self.counting = None
        self.relay = None
        self.ask = self.arrived = self.token_ids = None
        on_over = self.on_over
        if on_over is not None:
            self.on_over = None
            on_over()

    def on_gone(self) -> None:
        """For the exchange."""
        self.owner.client_gone(self)

    def on_head(self, status: int, headers: Headers) -> bool:
        """For the relay: pass on what the engine answers, its overload aside."""
        if not self.owner.passes_on(self, status):
            return False
        self.ask = self.arrived = self.token_ids = None
        return True

    def on_events(self, count: int) -> None:
        """For the relay: one token each, give or take what GateConfig.lag_steps covers."""
        seen = self.seen_events
        self.seen_events = seen + count
        if self.paced:  # who is not watched has nothing to report, and every event of a stream passes here
            self.unreported_events += count
            if seen <= 0 or self.unreported_events >= PROGRESS_STRIDE:
                self.owner.relay_progressed(self)

    def on_stall(self) -> None:
        """For the relay."""
        self.owner.relay_stalled(self)

    def on_end(self, end: RelayEnd) -> None:
        """For the relay."""
        self.owner.relay_ended(self, end)
