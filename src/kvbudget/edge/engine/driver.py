"""Decides when the paged engine steps, and hands each step's tokens to the requests that wait for them.

One task drives all steps. A step takes its cost in time between `schedule()` and `update_from_output()`; a request that
leaves in between gives its blocks back at once. Without work the task sleeps on an event: an idle engine costs nothing.
"""

import asyncio
import time
from collections.abc import Callable

from kvbudget.edge.engine.metrics import EngineMetrics
from kvbudget.edge.engine.replies import Reply, Sequence
from kvbudget.simulate.paged_engine import PagedEngine, SchedulerOutput

# uvloop's timers have a resolution of 1 ms: shorter waits are carried over to the next step instead.
_SHORTEST_SLEEP_S = 0.001
# A loop that fell further behind than this (a suspended process) does not try to catch up.
_LONGEST_LAG_S = 0.1


class EngineDriver:
    """The engine and the task that steps it."""

    def __init__(
        self,
        engine: PagedEngine,
        metrics: EngineMetrics,
        step_cost_s: float,
        token_cost_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self._metrics = metrics
        self._step_cost_s = step_cost_s
        self._token_cost_s = token_cost_s
        self._clock = clock
        self._sequences: dict[str, Sequence] = {}
        self._work = asyncio.Event()
        self._serial = 0

    def submit(self, sequences: list[tuple[int, int, int | None]], every_token: bool) -> Reply:
        """Queue one sequence per choice: (prompt tokens, most new tokens, natural end or None). In one go, no await."""
        reply = Reply(every_token)
        now = self._clock()
        for choice, (prompt_tokens, max_new_tokens, stop_after) in enumerate(sequences):
            self._serial += 1
            sequence = Sequence(str(self._serial), choice, reply, prompt_tokens, now)
            self.engine.add(sequence.id, prompt_tokens, max_new_tokens, stop_after)
            self._sequences[sequence.id] = sequence
            reply.open_sequences[sequence.id] = sequence
        self._work.set()
        return reply

    def abort(self, reply: Reply) -> None:
        """The client is gone: take what is left of the request out of the engine now. Harmless when complete."""
        if reply.closed:
            return
        reply.closed = True
        for sequence_id in reply.open_sequences:
            self.engine.abort(sequence_id)
            del self._sequences[sequence_id]
        reply.open_sequences.clear()
        reply.wake()

    async def run(self) -> None:
        """Step for ever; cancel to stop."""
        due = self._clock()
        while True:
            if not self.engine.has_unfinished_requests:
                self._work.clear()
                await self._work.wait()
                due = self._clock()
            output = self.engine.schedule()
            self._note_admitted(output)
            due += self._step_cost_s + self._token_cost_s * output.total_num_scheduled_tokens
            early_s = due - self._clock()
            if early_s < -_LONGEST_LAG_S:
                due = self._clock()
            await asyncio.sleep(early_s if early_s >= _SHORTEST_SLEEP_S else 0)
            self._deliver(output)

    def _note_admitted(self, output: SchedulerOutput) -> None:
        now = self._clock()
        for sequence_id in output.admitted:
            sequence = self._sequences[sequence_id]
            if not sequence.scheduled_at:  # preempted ones return here too
                sequence.scheduled_at = now

    def _deliver(self, output: SchedulerOutput) -> None:
        result = self.engine.update_from_output(output)
        now = self._clock()
        ended = dict(result.finished)
        self._metrics.step(result.scheduled_tokens)
        for sequence_id in result.produced:
            sequence = self._sequences[sequence_id]
            sequence.tokens += 1
            if sequence.tokens == 1:
                sequence.first_token_at = now
                self._metrics.first_token(now - sequence.arrived_at)
            else:
                self._metrics.next_token(now - sequence.last_token_at)
            sequence.last_token_at = now
            reason = ended.get(sequence_id) if ended else None
            if reason is not None:
                del self._sequences[sequence_id]
                del sequence.reply.open_sequences[sequence_id]
                self._metrics.finished(reason, sequence)
            sequence.reply.push((sequence.choice, reason))
