"""Decides by what a gate judges a request that is counted: its prompts and their charge, keys, route, deadline."""

from typing import TYPE_CHECKING, Final

from kvbudget.edge.instances.vocabularies import counts_of
from kvbudget.edge.openai.ask import Ask, Surface
from kvbudget.edge.request.flow import Flow
from kvbudget.edge.surfaces import members
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.keys import PrefixKeys
from kvbudget.gate.events import Arrived
from kvbudget.units import Tokens

if TYPE_CHECKING:
    from kvbudget.edge.request.gateway import Gateway

_ROUTES: Final = {surface: f"{surface} " for surface in Surface}
_NO_KEYS: Final[tuple[int, ...]] = ()


class Arrivals:
    """Makes the event of each request of a gateway."""

    def __init__(self, gateway: "Gateway", default_new_tokens: Tokens, prefix_keys: PrefixKeys | None) -> None:
        self.default_new_tokens = default_new_tokens  # promised and asked for where a request names no limit
        self._gateway = gateway
        self._prefix_keys = PrefixKeys() if prefix_keys is None else prefix_keys

    def event_of(self, flow: Flow, ask: Ask, counted: Count) -> Arrived:
        """What the gate is told; the flow knows it from here on, and how far it can be watched."""
        gateway = self._gateway
        exchange, identity = flow.exchange, flow.identity
        prompts, exact, charge = counted.prompt_tokens, counted.exact, ask.charge
        if charge is not None:  # what it holds is not what was counted
            prompts = charge(ask, prompts, gateway.gate)
            if ask.inexact:
                exact = flow.exact = False
                flow.prompt_tokens = sum(prompts)
        paced = flow.paced = ask.paced and exact and len(prompts) == 1 and not exchange.unseen
        flow.seen_events = flow.unreported_events = -ask.lead_events
        if gateway.ids_to_forward is not None:
            flow.token_ids = gateway.ids_to_forward(ask, counted)
        deadline_ns = identity.deadline_ns
        if deadline_ns is not None:
            deadline_ns += exchange.received_ns
        prefix = _NO_KEYS
        if charge is None and exact and gateway.prefix_credit:  # nothing that was only bounded has keys
            prefix = self._prefix_keys.of(ask, counted, gateway.fleet.key_tokens)
        model, default = ask.model, self.default_new_tokens
        if ask.max_new_tokens is None:
            default = members.at_least(ask.body, default)
        route = _ROUTES[ask.surface] + (model or "")
        most, sequences, tenant, priority = ask.max_new_tokens, ask.sequences, identity.tenant, identity.priority
        event = Arrived(
            flow.key, prompts, most, default, sequences, tenant, priority, paced, deadline_ns,
            exact=exact, route=route, prefix=prefix, model=model,
        )  # fmt: skip
        if counted.by_vocabulary is not None:
            keys_of = self._prefix_keys.of
            counts = counts_of(ask, counted, gateway.gate, lambda count: keys_of(ask, count, gateway.fleet.key_tokens))
            event = event._replace(counts=counts)
        flow.arrived = event
        return event
