"""Decides when each step of an engine begins and ends: arrivals, steps that cost time, and what each request saw of it.

The slow and exact walk, one step after the other, on a clock of whole nanoseconds. The loop is that of vLLM 0.32
`v1/engine/core.py` (`step`, and `step_with_batch_queue` under asynchronous scheduling, where the next step is scheduled
while one executes and begins when the device is free): what has arrived is queued, a step is scheduled, time passes,
its output is handed in. When nothing can be done the clock jumps to the next arrival or abort.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvbudget.errors import BadValueError
from kvbudget.simulate.cost import StepCost
from kvbudget.simulate.paged_engine import PagedEngine, SchedulerOutput


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """One request as it reaches the engine. It produces `output_tokens` and stops by itself, unless `max_tokens`, the
    model's window or an abort ends it before. `block_keys` as of `PagedEngine.add`."""

    request_id: str
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    priority: int = 0
    abort_ns: int | None = None
    block_keys: tuple[int, ...] = ()


@dataclass(slots=True)
class Served:
    """What became of a request so far. `cached_tokens`: found in the prefix cache when it first ran; `finish_reason`:
    stop, length or abort. None: not yet."""

    first_token_ns: int | None = None
    finish_ns: int | None = None
    output_tokens: int = 0
    preemptions: int = 0
    cached_tokens: int | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. `now_ns`: when it was scheduled; it executes from `start_ns` to `end_ns`.

    `scheduled`: (tokens computed before, tokens now) by id, in scheduling order; `running`, `waiting`, `free_blocks`
    and `held` (blocks per group) as they are after scheduling; `finished`: whose last token this step produced.
    """

    step: int
    now_ns: int
    start_ns: int
    end_ns: int
    scheduled: dict[str, tuple[int, int]]
    running: tuple[str, ...]
    waiting: int
    free_blocks: int
    held: dict[str, tuple[int, ...]]
    preempted: tuple[str, ...]
    finished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """A step that is under way. `number` None: it does nothing, and only keeps its place in the queue."""

    output: SchedulerOutput
    number: int | None
    now_ns: int
    start_ns: int
    end_ns: int
    running: tuple[str, ...]
    waiting: int
    free_blocks: int
    held: dict[str, tuple[int, ...]]


class Replay:
    """A trace on its way through an engine; iterate over it for the steps. `served` grows with them."""

    def __init__(self, trace: Sequence[TimedRequest], engine: PagedEngine, cost: StepCost) -> None:
        """Requests of equal arrival keep the order of `trace`."""
        self.engine = engine
        self.served = {request.request_id: Served() for request in trace}
        self.now_ns = 0
        self._cost = cost
        self._arrivals = deque(sorted(trace, key=lambda request: request.arrival_ns))
        aborts = [(request.abort_ns, request.request_id) for request in trace if request.abort_ns is not None]
        self._aborts = deque(sorted(aborts, key=lambda abort: abort[0]))
        self._device_free_ns = 0
        self._steps = 0

    def __iter__(self) -> Iterator[StepRecord]:
        """Raises BadValueError when requests are left that this engine can never run."""
        engine = self.engine
        under_way: deque[_Scheduled] = deque()
        while True:
            self._arrive()
            if not engine.has_unfinished_requests and not under_way:
                if not self._arrivals:
                    return
                self.now_ns = self._arrivals[0].arrival_ns
                continue
            if engine.has_unfinished_requests:
                step = self._schedule()
                if step.number is None and all(other.number is None for other in under_way):
                    under_way.clear()
                    self._wait()
                    continue
                under_way.append(step)
                if len(under_way) < engine.steps_in_flight:
                    continue
            step = under_way.popleft()
            if step.number is not None:
                self.now_ns = max(self.now_ns, step.end_ns)
            self._abort()
            finished = self._hand_in(step.output)
            if step.number is not None:
                yield _record(step, step.number, finished)

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0].arrival_ns <= self.now_ns:
            request = self._arrivals.popleft()
            self.engine.add(
                request.request_id,
                request.prompt_tokens,
                request.max_tokens,
                request.output_tokens,
                priority=request.priority,
                arrival=request.arrival_ns,
                block_keys=request.block_keys,
            )
        self._abort()

    def _abort(self) -> None:
        while self._aborts and self._aborts[0][0] <= self.now_ns:
            _, request_id = self._aborts.popleft()
            if self.engine.abort(request_id):
                served = self.served[request_id]
                served.finish_ns, served.finish_reason = self.now_ns, "abort"

    def _wait(self) -> None:
        """Nothing can run and nothing is under way: only an arrival or an abort changes that."""
        events = [request.arrival_ns for request in [*self._arrivals][:1]] + [abort[0] for abort in [*self._aborts][:1]]
        if not events:
            engine = self.engine
            stuck = (*engine.waiting, *engine.running)
            raise BadValueError(
                f"{len(stuck)} requests can never run, the first is {stuck[0]}; the pool has "
                f"{engine.block_pool.usable_blocks} blocks",
                fix="enlarge the pool",
            )
        self.now_ns = max(self.now_ns, min(events))

    def _schedule(self) -> _Scheduled:
        engine = self.engine
        output = engine.schedule()
        for request_id in output.preempted:
            self.served[request_id].preemptions += 1
        prefill_tokens = decodes = context_tokens = 0
        for work in output.work:
            context_tokens += work.computed_tokens + work.new_tokens
            if work.new_tokens == 1:
                decodes += 1
            else:
                prefill_tokens += work.new_tokens
        number = None
        start_ns = max(self.now_ns, self._device_free_ns)
        end_ns = start_ns
        if output.work:
            end_ns += self._cost.step_ns(prefill_tokens, decodes, context_tokens)
            self._device_free_ns = end_ns
            number = self._steps
            self._steps += 1
        for work in output.work:
            served = self.served[work.request.request_id]
            if served.cached_tokens is None:
                served.cached_tokens = work.computed_tokens
        running = engine.running
        held = {request_id: engine.held_blocks(request_id) for request_id in running}
        return _Scheduled(
            output, number, self.now_ns, start_ns, end_ns, running, engine.num_waiting, engine.free_blocks, held
        )

    def _hand_in(self, output: SchedulerOutput) -> tuple[str, ...]:
        result = self.engine.update_from_output(output)
        for request_id in result.produced:
            served = self.served[request_id]
            served.output_tokens += 1
            if served.first_token_ns is None:
                served.first_token_ns = self.now_ns
        for request_id, reason in result.finished:
            served = self.served[request_id]
            served.finish_ns, served.finish_reason = self.now_ns, reason.value
        return tuple([request_id for request_id, _ in result.finished])


def replay(trace: Sequence[TimedRequest], engine: PagedEngine, cost: StepCost) -> Iterator[StepRecord]:
    """The steps of `trace` on `engine`; use `Replay` where what each request saw is wanted too."""
    return iter(Replay(trace, engine, cost))


def _record(step: _Scheduled, number: int, finished: tuple[str, ...]) -> StepRecord:
    return StepRecord(
        number,
        step.now_ns,
        step.start_ns,
        step.end_ns,
        {work.request.request_id: (work.computed_tokens, work.new_tokens) for work in step.output.work},
        step.running,
        step.waiting,
        step.free_blocks,
        step.held,
        step.output.preempted,
        finished,
    )
