"""Decides what an exchange is whose client Envoy holds: its answer is given to Envoy, whole, and by nobody else."""

from typing import Protocol

from kvbudget.edge.http.exchange import Carrier, Exchange
from kvbudget.edge.http.heads import RequestHead
from kvbudget.edge.http.messages import Headers


class Holder(Carrier, Protocol):
    """What the stream to Envoy is for an exchange."""

    def refuse(self, status: int, headers: Headers, body: bytes) -> None:
        """Let Envoy answer with this."""


class HeldExchange(Exchange):
    """One request, whole, which Envoy holds until it is told what becomes of it."""

    __slots__ = ("holder",)

    def __init__(self, head: RequestHead, body: bytes, peer: str, received_ns: int, holder: Holder) -> None:
        super().__init__(head, body, peer, received_ns, holder)
        self.holder = holder

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """As of any exchange: nothing when the client is gone, RuntimeError when it is answered already."""
        if self.gone:
            return
        if not self.open:
            raise RuntimeError("the exchange is answered already")
        self.started = True
        self.holder.refuse(status, headers, body)
        self.finish()
