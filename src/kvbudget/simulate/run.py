"""Decides what happens next: a load of clients against gates and engines, on a clock that jumps from event to event.

Time is whole nanoseconds. At one moment things happen in this order: engine steps end, requests arrive, clients come
back or leave, gates wake, engines begin their next step. The same load, settings, contender and seed give the same
result, to the byte.
"""

import heapq
from collections import deque
from collections.abc import Iterable

from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.simulate.chance import Chance
from kvbudget.simulate.choice import instances_of
from kvbudget.simulate.clients import Client, Ending
from kvbudget.simulate.instance import NEVER_NS
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.placing import Placing
from kvbudget.simulate.policies import Contender
from kvbudget.simulate.settings import Settings


def simulate(load: Iterable[TraceRequest], settings: Settings, contender: Contender, chance: Chance) -> Result:
    """Run `load`, which is ordered by arrival, to its end. `chance` decides how long refused clients pause.

    Raises BadValueError for sizes with which the engine would not start.
    """
    return Simulation(load, settings, contender, chance).run()


class Simulation:
    """One run; can be done once."""

    def __init__(
        self,
        load: Iterable[TraceRequest],
        settings: Settings,
        contender: Contender,
        chance: Chance,
        *,
        every_step: bool = False,
    ) -> None:
        """`every_step`: walk through them even where a leap gives the same."""
        self.result = Result(contender.name, settings.slo)
        self.instances = instances_of(settings, contender, self.result, self, every_step=every_step)
        self._placing = Placing(self.instances) if len(self.instances) > 1 else None
        self._arrivals = iter(load)
        self._settings = settings
        self._chance = chance
        # (when, number, who): clients who come back, and clients who leave if they have no token then. All have the
        # same patience, so the latter stand in order of arrival.
        self._due: list[tuple[int, int, Client]] = []
        self._leaving: deque[tuple[int, int, Client]] = deque()
        self._dues = 0

    def run(self) -> Result:
        """To the end of the last request."""
        result, instances, due = self.result, self.instances, self._due
        coming = next(self._arrivals, None)
        result.first_ns = result.last_ns = coming.arrival_ns if coming else 0
        alone = instances[0] if len(instances) == 1 else None
        while True:
            now_ns = coming.arrival_ns if coming is not None else NEVER_NS
            due_ns = self._due_ns()
            now_ns = min(now_ns, due_ns)
            for instance in instances:
                now_ns = min(now_ns, instance.end_ns)
                now_ns = min(now_ns, instance.wake_ns)
            if now_ns == NEVER_NS:
                break
            for instance in instances:
                if instance.end_ns == now_ns:
                    instance.end_step()
            while coming is not None and coming.arrival_ns <= now_ns:
                self._arrive(coming, now_ns)
                coming = next(self._arrivals, None)
            if due_ns <= now_ns or (due and due[0][0] <= now_ns):
                self._do_due(now_ns)
            if self._placing is not None:
                self._placing.move(now_ns)
            if alone is not None:
                if alone.wake_ns <= now_ns:
                    alone.wake(now_ns)
                if alone.may_begin:
                    alone.begin_step(now_ns)
                continue
            for instance in instances:
                instance.wake(now_ns)
                instance.begin_step(now_ns)
        result.usable_blocks = settings_blocks(self._settings)
        result.promised_at_end = sum(instance.promised_blocks for instance in instances)
        return result

    def _due_ns(self) -> int:
        """When the next client comes back or loses its patience."""
        leaving, due = self._leaving, self._due
        while leaving and (leaving[0][2].first_token_ns is not None or leaving[0][2].ending is not None):
            leaving.popleft()  # it will not leave
        if not leaving:
            return due[0][0] if due else NEVER_NS
        return min(leaving[0][0], due[0][0]) if due else leaving[0][0]

    def _do_due(self, now_ns: int) -> None:
        """In the order in which it was settled."""
        leaving, due = self._leaving, self._due
        while True:
            is_due = bool(due) and due[0][0] <= now_ns
            if leaving and leaving[0][0] <= now_ns and not (is_due and due[0][:2] < leaving[0][:2]):
                self._lose_patience(leaving.popleft()[2], now_ns)
            elif is_due:
                self._send(heapq.heappop(due)[2], now_ns)
            else:
                return

    def refused(self, client: Client, reason: Refusal, told_ns: int | None, *, hopeless: bool, now_ns: int) -> None:
        """An instance refused a client's try."""
        result = self.result
        result.refused(client, reason.value)
        if told_ns and not hopeless:
            result.retry_times.was_told(client, told_ns, now_ns)
        pause_ns = None
        if not hopeless:
            pause_ns = client.comes_back_in_ns(self._settings.clients, told_ns, now_ns, self._chance)
        client.at_told_time = told_ns is not None
        client.key = ""
        if pause_ns is None:
            self._end(client, Ending.REFUSED, now_ns)
        else:
            self._dues += 1
            heapq.heappush(self._due, (now_ns + pause_ns, self._dues, client))

    def forwarded(self, client: Client) -> None:
        """An instance let a client's try in."""
        if self._placing is not None:
            self._placing.forwarded(client)

    def finished(self, client: Client, output_tokens: int, now_ns: int) -> None:
        """An instance has answered a client."""
        self._end(client, Ending.FINISHED, now_ns, output_tokens)

    def _arrive(self, request: TraceRequest, now_ns: int) -> None:
        client = Client(self.result.requests, request)
        self.result.arrived(client)
        patience_ns = self._settings.clients.patience_ns
        if patience_ns is not None:
            self._dues += 1
            self._leaving.append((now_ns + patience_ns, self._dues, client))
        self._send(client, now_ns)

    def _send(self, client: Client, now_ns: int) -> None:
        """To the instance that the gateway's placement chooses."""
        client.next_try()
        self.result.tries += 1
        event = self.instances[0].event_of(client, now_ns)
        if self._placing is not None:
            client.instance = self._placing.choose(event, now_ns)
        self.instances[client.instance].arrive(client, event, now_ns)

    def _lose_patience(self, client: Client, now_ns: int) -> None:
        if client.first_token_ns is None and client.ending is None:
            self.instances[client.instance].leave(client, now_ns)
            self._end(client, Ending.TIMED_OUT, now_ns)

    def _end(self, client: Client, ending: Ending, now_ns: int, output_tokens: int = 0) -> None:
        client.ending = ending
        self.result.ended(client, ending, now_ns, output_tokens)


def settings_blocks(settings: Settings) -> int:
    """Usable blocks of all instances."""
    return settings.engine.usable_blocks * settings.instances
