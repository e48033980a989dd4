"""Decides what an exchange is whose client Envoy holds: its answer is given to Envoy, whole, and by nobody else."""

from typing import Protocol

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.heads import RequestHead
from kvbudget.edge.http.messages import Headers


class Holder(Protocol):
    """What the stream to Envoy is for an exchange; also its `Carrier`."""

    @property
    def may_keep_alive(self) -> bool:
        """No concern of ours."""

    def send(self, data: bytes) -> None:
        """No byte of HTTP/1.1 is for Envoy."""

    def answered(self, keep_alive: bool) -> None:
        """The answer is given."""

    def cut(self, reset: bool) -> None:
        """The answer cannot be completed."""

    def body_released(self, size_bytes: int) -> None:
        """A body that was counted is not held any more."""

    def error_body(self, status: int, code: str, message: str) -> bytes:
        """The body of an error that is no refusal of the gate."""

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
