"""One code path: the simulator's driver and the asyncio gateway tell the gate the same, and it decides the same.

The gateway stands where the simulator's driver stands, on the same virtual clock, before the same engine: requests go
through `Gateway.arrive`, tokens through its relay's callbacks, refusals out of its HTTP answers, and its timer is the
loop's. Everything that the gate was told and what it commanded is then compared with a plain simulation.
"""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvbudget.edge.http.upstream import RelayEnd, RelayOutcome
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.openai.ask import Surface, parse_ask
from kvbudget.edge.request.answers import Refuser
from kvbudget.edge.request.engine_headers import EngineHeaders
from kvbudget.edge.request.flow import Flow
from kvbudget.edge.request.gateway import Gateway
from kvbudget.edge.request.identity import Identity
from kvbudget.edge.tokens.count import Count
from kvbudget.gate.commands import Forward
from kvbudget.gate.events import Arrived, Ended, Event, Preempted, Progressed, Tick
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.simulate.instance import NEVER_NS
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import Simulation
from kvbudget.simulate.scenarios import scenario_named
from kvbudget.simulate.settings import Settings
from kvbudget.simulate.stepping import SteppingInstance
from kvbudget.units import Tokens
from simulated import MS, SECOND, Seen, request, run, settings, watch


class Exchange:
    """A client's connection, as far as the gateway sees it."""

    target = b"/v1/chat/completions"
    open = True
    errors = None
    unseen = False
    avoid: frozenset[str] = frozenset()

    def __init__(self, received_ns: int) -> None:
        self.received_ns = received_ns
        self.on_gone: Callable[[], None] | None = None
        self.status: int | None = None

    def respond(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status


class Loop:
    """The part of a running event loop that the gateway uses: one timer."""

    def __init__(self, instance: "GatewayInstance") -> None:
        self.instance = instance
        self.timers: list[tuple[int, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        entry = (self.instance.now_ns + round(delay_s * 1e9), callback)
        self.timers.append(entry)
        timers = self.timers

        class Handle:
            def cancel(self) -> None:
                if entry in timers:
                    timers.remove(entry)

        return Handle()


class GatewayInstance(SteppingInstance):
    """The simulator's engine behind the real gateway; `_push` is what the world does to a gateway."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.now_ns = 0
        self.loop = Loop(self)
        self.name, self.busy_in_row = "pool", 0
        self.aliases: dict[str, str] = {}
        self.flows: dict[str, Flow] = {}
        self.gateway = Gateway(
            self.gate,
            self,  # type: ignore[arg-type]
            Refuser("pool", random.Random(0)),
            GateMetrics(),
            default_new_tokens=self._settings.gate.default_new_tokens,
            now_ns=lambda: self.now_ns,
        )
        self.upstream = self
        self.headers = EngineHeaders()
        self.said: dict[str, Any] = {}
        handle = self.gate.handle

        def noting(event: Event, now_ns: int) -> Any:
            commands = handle(event, now_ns)
            self.said.update({command.request_id: command for command in commands})
            return commands

        self.gate.handle = noting  # type: ignore[method-assign]

    # For the gateway: its backend, and the backend's upstream

    def own_name(self, model: str) -> str:
        return model

    def look_soon(self) -> None:
        """An abort is heard of; this engine needs no look to be known."""

    def relay(
        self, exchange: Exchange, method: bytes, target: bytes, headers: Any, body: bytes, own: Any, watcher: Flow
    ) -> object:
        """The engine gets what was written into the body."""
        client = self._clients[watcher.key]
        forward = self.said[watcher.key]
        assert json.loads(body)["max_tokens"] == forward.max_new_tokens
        self._result.waits.add(forward.waited_ns)
        self._forward(client, forward, self.now_ns)
        return object()

    # For the simulator

    def _push(self, event: Event, now_ns: int) -> None:
        self.now_ns = now_ns
        asyncio.events._set_running_loop(self.loop)  # type: ignore[arg-type]
        try:
            self._happens(event)
        finally:
            asyncio.events._set_running_loop(None)
        wake_ns = self.gate.next_wake_ns
        self.wake_ns = NEVER_NS if wake_ns is None else wake_ns

    def _happens(self, event: Event) -> None:
        gateway = self.gateway
        if isinstance(event, Arrived):
            self._arrives(event)
        elif isinstance(event, Progressed):
            for _ in range(event.new_tokens):
                self.flows[event.request_id].on_events(1)
        elif isinstance(event, Preempted):
            gateway.push(event)
        elif isinstance(event, Tick):
            (timer,) = self.loop.timers
            assert timer[0] == self.now_ns
            self.loop.timers.clear()
            timer[1]()
        else:
            assert isinstance(event, Ended)
            self._ends(event, self.flows.pop(event.request_id))
        for key, command in list(self.said.items()):
            if not isinstance(command, Forward) and key in self.flows:
                flow = self.flows[key]
                if flow.exchange.status is not None:  # type: ignore[attr-defined]
                    del self.flows[key]
                    self._execute(command, self.now_ns)
        self.said = {}

    def _arrives(self, event: Arrived) -> None:
        limit = {} if event.max_new_tokens is None else {"max_tokens": int(event.max_new_tokens)}
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], **limit}
        wait_ns = None if event.deadline_ns is None else event.deadline_ns - self.now_ns
        identity = Identity(event.request_id.encode(), event.tenant, event.priority, wait_ns)
        ask = parse_ask(Surface.CHAT, json.dumps(body).encode())
        flow = Flow(self.gateway, event.request_id, Exchange(self.now_ns), identity, ask)  # type: ignore[arg-type]
        self.flows[event.request_id] = flow
        self.gateway.arrive(flow, ask, Count(event.prompts, exact=True))

    def _ends(self, event: Ended, flow: Flow) -> None:
        if event.outcome is Outcome.WITHDRAWN:
            assert flow.exchange.on_gone is not None
            flow.exchange.on_gone()
        elif event.outcome is Outcome.CLIENT_GONE:
            self.gateway.relay_ended(flow, RelayEnd(RelayOutcome.CLIENT_GONE, 200, [], b"", 0, 0))
        else:
            assert event.outcome is Outcome.FINISHED
            usage = {"prompt_tokens": flow.prompt_tokens, "completion_tokens": event.output_tokens, "total_tokens": 0}
            tail = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
            self.gateway.relay_ended(flow, RelayEnd(RelayOutcome.DONE, 200, [], tail, 0, 0))


def through_the_gateway(load: list[TraceRequest], given: Settings, policy: str) -> list[Any]:
    simulation = Simulation(load, given, contender(policy), random.Random(1), every_step=True)
    decisions: list[Any] = []
    instance = GatewayInstance(given, contender(policy), simulation.result, simulation)
    simulation.instances = [instance]
    watch(instance.gate, 0, decisions)
    simulation.run()
    assert instance.gateway.metrics.ledger_errors == 0
    return [(gate, now_ns, _without_route(event), said) for gate, now_ns, event, said in decisions]


def _without_route(event: Event) -> Event:
    """A trace names no model; the gateway's requests all have one."""
    return event._replace(route="", model=None) if isinstance(event, Arrived) else event


LOADS: dict[str, Callable[[], list[TraceRequest]]] = {
    "overload": lambda: list(scenario_named("overload-1.7").load(random.Random(5), 150)),
    "alternating": lambda: list(scenario_named("alternating").load(random.Random(6), 220)),
    "bursts": lambda: list(scenario_named("bursty-code").load(random.Random(7), 150)),
    "urgent and open": lambda: list(mixed()),
}


def mixed() -> Iterator[TraceRequest]:
    """Priorities, and clients who name no max_tokens."""
    chance = random.Random(8)
    for number in range(150):
        prompt, output = chance.randint(10, 900), chance.randint(1, 300)
        declared = chance.random() < 0.6
        yield request(
            number * 90 * MS,
            prompt,
            output,
            most=output + 200,
            declared=declared,
            priority=number % 3,
            tenant="ab"[number % 2],
        )


@pytest.mark.parametrize("policy", ["worst-case", "trajectory", "learned"])
@pytest.mark.parametrize("load", LOADS)
def test_the_simulators_driver_and_the_gateway_get_the_same_decisions(load: str, policy: str) -> None:
    requests = LOADS[load]()
    given = settings(
        600, max_model_len=8192, patience_ns=4 * SECOND, queue_requests=40, default_new_tokens=Tokens(400),
        deadline_ns=3 * SECOND if load == "bursts" else None, prefix_caching=False,
    )  # fmt: skip
    seen: Seen = run(requests, given, policy)
    through = through_the_gateway(requests, given, policy)
    assert len(through) == len(seen.decisions)
    for here, there in zip(seen.decisions, through, strict=True):
        assert here == there
    said = [type(command) for *_, commands in through for command in commands]
    assert said.count(Forward) > 10


def test_the_loads_make_the_gate_park_refuse_expire_and_let_clients_go() -> None:
    """Else the comparison above would say little."""
    kinds: set[str] = set()
    for load in LOADS.values():
        seen = run(load(), settings(600, max_model_len=8192, patience_ns=4 * SECOND, queue_requests=40), "trajectory")
        kinds |= {event.outcome.value for _, _, event, _ in seen.decisions if isinstance(event, Ended)}
        kinds |= set(seen.document["refusals"])
    assert kinds >= {"finished", "withdrawn", "queue_full"}
