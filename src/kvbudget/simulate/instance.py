"""Decides what a gate before one engine hears, when, and what its commands do to the engine.

The gate is driven as the asyncio gateway drives it (edge/request/gateway.py): Arrived when a prompt is counted,
Progressed at the first token and then every `PROGRESS_STRIDE` tokens, Ended once, with the true count of output
tokens. "No gate" is the same gate with rules that never bind. How the engine works is the business of two kinds of
instances: stepping.py walks through every step, jumping.py leaps over those in which nothing happens, with the same
result.
"""

from collections import deque
from typing import Final, Protocol

from kvbudget.gate.commands import Command, Forward, Reject
from kvbudget.gate.config import GateConfig, worthwhile_wait_ns
from kvbudget.gate.events import Arrived, Ended, Event, Preempted, Tick
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.pool.prefix import Sharing, key_tokens
from kvbudget.simulate.clients import Client
from kvbudget.simulate.gate_prefixes import GatePrefixes
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.policies import Contender
from kvbudget.simulate.settings import Settings
from kvbudget.units import Blocks, Tokens

# The gate hears of preemptions from a counter of the engine's metrics, so not at once.
METRICS_PERIOD_NS: Final = 10**9
NEVER_NS: Final = 1 << 61  # later than anything; a machine word where this is compiled
_UNBOUNDED: Final = 10**15
_TICK: Final = Tick()


class Owner(Protocol):
    """Whom an instance tells what became of a client's try."""

    def refused(self, client: Client, reason: Refusal, told_ns: int | None, *, hopeless: bool, now_ns: int) -> None:
        """The try was refused; `told_ns` is what Retry-After says, None if it is not sent."""

    def forwarded(self, client: Client) -> None:
        """The gate let the try in."""

    def finished(self, client: Client, output_tokens: int, now_ns: int) -> None:
        """The answer is whole."""


class Instance:
    """One gate and its engine, of which only the gate's side is here."""

    def __init__(self, settings: Settings, contender: Contender, result: Result, owner: Owner) -> None:
        self._settings = settings
        self._contender = contender
        self._result = result
        self._owner = owner
        self.gate = gate_of(settings, contender)
        self._prefixes = gate_prefixes_of(settings, contender)
        self.has_ended_one = False  # since it was last looked at: room may have come
        self.wake_ns = NEVER_NS  # when the gate wants its Tick
        self.end_ns = NEVER_NS  # when the work that is under way ends
        self._usable = settings.engine.usable_blocks
        self._clients: dict[str, Client] = {}  # that the gate knows of
        self._prefilling_tokens = 0  # prompts inside that have produced nothing yet
        self._commands: deque[Command] = deque()
        self._executing = False
        self._produced_ns = 0  # end of the last step
        self._untold_preemptions = 0
        self._tell_preemptions_ns = 0

    @property
    def load(self) -> int:
        """Requests that it has, waiting ones included."""
        return len(self._clients)

    @property
    def promised_blocks(self) -> int:
        """By its gate, or by all of them."""
        return self.gate.promised_blocks()

    def client_of(self, key: str) -> Client:
        """Who tries under this key."""
        return self._clients[key]

    @property
    def may_begin(self) -> bool:
        """Whether `begin_step` might have something to do."""
        raise NotImplementedError

    def tell_all(self, now_ns: int) -> None:
        """Let the gate hear of all tokens that it would have heard of by now: it is about to be compared."""

    # Clients come and leave

    def event_of(self, client: Client, now_ns: int) -> Arrived:
        """A try of a client as a gate hears of it."""
        request, habits = client.request, self._settings.clients
        declared: Tokens | None = request.max_new_tokens if request.declared else None
        known: Tokens | None = None
        if self._contender.clairvoyant:
            declared = known = request.output_tokens
        deadline_ns = None if habits.deadline_ns is None else now_ns + habits.deadline_ns
        return Arrived(
            client.key,
            (request.prompt_tokens,),
            declared,
            self._settings.gate.default_new_tokens,
            1,
            request.tenant,
            request.priority,
            True,  # it is paced
            deadline_ns,
            known_tokens=known,
            prefix=self._prefixes.of(request.hash_ids) if self._prefixes and request.hash_ids else (),
        )

    def arrive(self, client: Client, event: Arrived, now_ns: int) -> None:
        """A try of a client reaches the gate; `event` is as `event_of` gives it."""
        as_told = client.at_told_time  # a refusal now sets it for the next try
        self.take_over(client, event, now_ns)
        inside = self._is_inside(client.key)
        self._result.retry_times.came(client, now_ns, as_told=as_told, at_once=inside)

    def take_over(self, client: Client, event: Arrived, now_ns: int) -> None:
        """A try reaches the gate, perhaps after it has waited at another one."""
        self._clients[client.key] = client
        client.event = event
        self._push(event, now_ns)

    def leave(self, client: Client, now_ns: int) -> None:
        """The client gives up before its first token."""
        key = client.key
        del self._clients[key]
        wasted = self._take_out(key, now_ns)
        if wasted is None:
            self._push(Ended(key, Outcome.WITHDRAWN), now_ns)
            return
        self._prefilling_tokens -= client.request.prompt_tokens
        self._result.wasted_tokens += wasted
        self._push(Ended(key, Outcome.CLIENT_GONE, None, engine_done=False), now_ns)

    def wake(self, now_ns: int) -> None:
        """Give the gate its Tick when it is due."""
        if self.wake_ns <= now_ns:
            self._push(_TICK, now_ns)

    # The gate decides

    def _push(self, event: Event, now_ns: int) -> None:
        gate = self.gate
        if type(event) is Ended:
            self.has_ended_one = True
        commands = gate.handle(event, now_ns)
        wake_ns = gate.next_wake_ns
        self.wake_ns = NEVER_NS if wake_ns is None else wake_ns
        if not commands:
            return
        self._commands.extend(commands)
        if self._executing:
            return  # an outer call is at it
        self._executing = True
        try:
            while self._commands:
                self._execute(self._commands.popleft(), now_ns)
        finally:
            self._executing = False

    def _execute(self, command: Command, now_ns: int) -> None:
        client = self._clients[command.request_id]
        if type(command) is Forward:
            since_ns = client.waits_since_ns
            self._result.waits.add(command.waited_ns if since_ns is None else now_ns - since_ns)
            self._result.retry_times.admitted += client.at_told_time
            self._owner.forwarded(client)
            self._forward(client, command, now_ns)
        elif type(command) is Reject:
            del self._clients[client.key]
            hopeless = command.retry_after_ns == 0
            self._owner.refused(client, command.refusal, command.retry_after_ns, hopeless=hopeless, now_ns=now_ns)

    def _forward(self, client: Client, command: Forward, now_ns: int) -> None:
        request, flags, key = client.request, self._contender.flags, client.key
        if (flags.max_num_queued_reqs is not None and self._num_inside() >= flags.max_num_queued_reqs) or (
            flags.max_num_queued_tokens is not None and self._prefilling_tokens >= flags.max_num_queued_tokens
        ):
            # The engine answers 503, and tells no time.
            del self._clients[key]
            self._push(Ended(key, Outcome.UPSTREAM_REFUSED), now_ns)
            self._owner.refused(client, Refusal.ENGINE_BUSY, None, hopeless=False, now_ns=now_ns)
            return
        self._prefilling_tokens += request.prompt_tokens
        self._take_in(client, command.max_new_tokens, now_ns)

    # The engine works

    def begin_step(self, now_ns: int) -> None:
        """Start what the engine starts now."""
        raise NotImplementedError

    def end_step(self) -> None:
        """What is under way is over: tokens go out, answers end."""
        raise NotImplementedError

    def _is_inside(self, key: str) -> bool:
        """Whether the engine has it."""
        raise NotImplementedError

    def _num_inside(self) -> int:
        """Requests in the engine."""
        raise NotImplementedError

    def _take_in(self, client: Client, max_new_tokens: int, now_ns: int) -> None:
        """The engine gets a request."""
        raise NotImplementedError

    def _take_out(self, key: str, now_ns: int) -> int | None:
        """The engine loses a request that has produced nothing; tokens lost by it, None if it is not there."""
        raise NotImplementedError

    def _tell_preemptions(self, now_ns: int) -> None:
        """The gate's driver reads the engine's metrics from time to time."""
        if self._untold_preemptions and now_ns >= self._tell_preemptions_ns:
            self._push(Preempted(None, self._untold_preemptions), now_ns)
            self._untold_preemptions = 0


def gate_of(settings: Settings, contender: Contender) -> Gate:
    """The gate that stands before each instance, empty. Without a policy nothing in it ever binds."""
    sizes, bounds = settings.engine, settings.gate
    window = Tokens(sizes.window)
    if contender.policy is None:
        config = GateConfig(policy=Policy.WORST_CASE, max_num_seqs=_UNBOUNDED, max_context=window, fair=False)
        return Gate(config, sizes.layout, Blocks(_UNBOUNDED))
    config = GateConfig(
        policy=contender.policy,
        max_num_seqs=sizes.max_num_seqs,
        max_context=window,
        margin_blocks=bounds.margin_blocks,
        queue_requests=bounds.queue_requests,
        queue_tokens=bounds.queue_tokens,
        queue_ns=bounds.queue_ns,
        # As `kvbudget serve --slo-ttft`: whoever waits longer is no good answer.
        worthwhile_wait_ns=bounds.queue_ns
        if settings.slo.ttft_ns is None
        else worthwhile_wait_ns(settings.slo.ttft_ns),
        # As `kvbudget serve` derives it: what a step leaves for prefill when every other sequence decodes.
        prefill_tokens_per_step=max(1, sizes.max_num_batched_tokens - sizes.max_num_seqs),
        sharing=bounds.sharing,
        tenants=bounds.tenants,
        classes=bounds.classes,
        key_blocks=max(1, sizes.prefix_id_tokens // max(1, key_tokens(sizes.layout))),
    )
    return Gate(config, sizes.layout, sizes.usable_blocks)


def gate_prefixes_of(settings: Settings, contender: Contender) -> GatePrefixes | None:
    """What tells the gate which prompts begin alike; None where it would not look at that."""
    sizes = settings.engine
    if contender.policy is None or not sizes.prefix_caching or settings.gate.sharing is Sharing.OFF:
        return None
    block = key_tokens(sizes.layout)
    return GatePrefixes() if block and sizes.prefix_id_tokens % block == 0 else None
