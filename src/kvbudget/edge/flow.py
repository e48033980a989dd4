"""One request's way through the gate: counted, admitted or parked, relayed, and ended exactly once.

    COUNTING -> PARKED -> FORWARDED -> OVER
        \\__________\\___________________/

A flow is the watcher of its own relay. Every path ends in `Gateway.end(flow, ...)`, which does nothing for a flow
that is over.
"""

import asyncio
from enum import Enum
from typing import Protocol

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.server import Exchange
from kvbudget.edge.http.upstream import Relay, RelayEnd
from kvbudget.edge.identity import Identity
from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.tokens.count import Count, TokenIds


class State(Enum):
    """Where a flow stands."""

    COUNTING = "counting"
    PARKED = "parked"
    FORWARDED = "forwarded"
    OVER = "over"


class FlowOwner(Protocol):
    """What a flow tells of; the gateway."""

    def client_gone(self, flow: "Flow") -> None:
        """The client left before its answer was complete."""

    def passes_on(self, status: int) -> bool:
        """Whether an answer with this status is for the client."""

    def relay_progressed(self, flow: "Flow", events: int) -> None:
        """So many more events of its stream passed."""

    def relay_stalled(self, flow: "Flow") -> None:
        """Its client does not keep up."""

    def relay_ended(self, flow: "Flow", end: RelayEnd) -> None:
        """Its relay is over."""


class Flow:
    """What the gateway knows of one request. `key` is its id in the gate: never the client's, which may repeat."""

    __slots__ = (
        "as_ids",
        "ask",
        "counting",
        "exact",
        "exchange",
        "identity",
        "instead",
        "key",
        "owner",
        "paced",
        "prompt_tokens",
        "relay",
        "seen_events",
        "state",
        "token_ids",
        "unreported_events",
    )

    def __init__(self, owner: FlowOwner, key: str, exchange: Exchange, identity: Identity, ask: Ask) -> None:
        self.owner = owner
        self.key = key
        self.exchange = exchange
        self.identity = identity
        self.ask: Ask | None = ask  # until it is forwarded: prompts are large, streams are long
        self.state = State.COUNTING
        self.counting: asyncio.Future[Count] | None = None
        self.prompt_tokens = 0
        self.exact = False
        self.instead = False  # bounded only because the counter failed
        self.paced = False
        self.token_ids: TokenIds | None = None  # to forward in place of the text, until it is forwarded
        self.as_ids = False
        self.relay: Relay | None = None
        self.seen_events = 0
        self.unreported_events = 0
        exchange.on_gone = self.on_gone

    def counted(self, count: Count, *, instead: bool) -> None:
        """Its prompts are counted, or bounded `instead` because the counter failed."""
        self.instead = instead
        self.prompt_tokens = sum(count.prompt_tokens)
        self.exact = count.exact

    def let_go(self) -> None:
        """Over: cut the cycles between exchange, flow and relay, so that memory comes back without the collector."""
        self.exchange.on_gone = None
        if self.counting is not None:
            self.counting.cancel()  # nobody waits for it any more; done, this does nothing
            self.counting = None
        self.relay = None
        self.ask = self.token_ids = None

    def on_gone(self) -> None:
        """For the exchange."""
        self.owner.client_gone(self)

    def on_head(self, status: int, headers: Headers) -> bool:
        """For the relay: pass on what the engine answers, its overload aside."""
        return self.owner.passes_on(status)

    def on_events(self, count: int) -> None:
        """For the relay."""
        self.owner.relay_progressed(self, count)

    def on_stall(self) -> None:
        """For the relay."""
        self.owner.relay_stalled(self)

    def on_end(self, end: RelayEnd) -> None:
        """For the relay."""
        self.owner.relay_ended(self, end)
