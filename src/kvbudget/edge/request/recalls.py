"""Decides which forwarded requests are called back: their engine is lost or stuck, or their blocks were given away."""

from typing import TYPE_CHECKING

from kvbudget.edge.request.ends import SHUTTING_DOWN
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.refusing.refusals import Outcome, Refusal

if TYPE_CHECKING:
    from kvbudget.edge.request.gateway import Gateway


class Recalls:
    """What a gateway ends before its engines do."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def engine_lost(self, member: Member) -> None:
        """The engine's process is another one: who was forwarded to the old one gets nothing any more."""
        backend = self._gateway.backends[member.name]
        since_ns = backend.last_looked_ns
        for flow in list(self._gateway.flows):
            if flow.relay is not None and flow.backend is backend and flow.forwarded_ns < since_ns:
                flow.lost = flow.recalled = True
                flow.relay.cancel()

    def engine_stuck(self, member: Member) -> None:
        """Who got nothing of an answer yet is tried elsewhere."""
        backend = self._gateway.backends[member.name]
        for flow in list(self._gateway.flows):
            if flow.relay is not None and flow.backend is backend and flow.arrived is not None:
                flow.recalled = True
                flow.relay.cancel()

    def forfeit(self, member: Member, blocks: int) -> None:
        """So many blocks were given to another gate while this one was not heard of: the youngest end for it."""
        backend = self._gateway.backends[member.name]
        running = [flow for flow in self._gateway.flows if flow.relay is not None and flow.backend is backend]
        for flow in sorted(running, key=lambda flow: flow.forwarded_ns, reverse=True):
            living = member.gate.ledger.get(flow.key)
            if blocks <= 0:
                return
            if living is not None and flow.relay is not None:
                blocks -= living.net_blocks
                flow.forfeited = True
                flow.relay.cancel()

    def cut_off(self) -> None:
        """End every flow that is left; its client is told. First those that wait: nobody is to get the others' room."""
        gateway = self._gateway
        for flow in sorted(gateway.flows, key=lambda flow: flow.relay is not None):
            if flow.relay is not None:
                flow.relay.cancel()
            else:
                exchange, request_id = flow.exchange, flow.identity.request_id
                waited_ns = gateway.now_ns() - flow.parked_ns if flow.parked_ns else 0
                gateway.end(flow, Outcome.SHUT_DOWN, output_tokens=None, engine_done=True)
                gateway.refuser.later(Refusal.DRAINING, SHUTTING_DOWN, exchange, request_id, waited_ns=waited_ns)
