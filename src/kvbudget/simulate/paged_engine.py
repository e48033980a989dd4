"""Decides, step by step, which requests of a paged engine run, wait, lose their blocks and end.

The rules are those of vLLM 0.32's v1 scheduler (`v1/core/sched/scheduler.py`, policy fcfs, synchronous, no prefix
caching, no speculation, full-attention groups): running requests first, in admission order; then the waiting queue,
first come first served, until the token budget, the sequence limit or the pool ends it. A request enters only when its
whole sequence fits (`scheduler_reserve_full_isl`). When a running request cannot grow, the most recently admitted one
is preempted: it loses everything and goes to the head of the queue; a step that preempted admits nobody.

Pure: no clock, no randomness. A step is `schedule()` (what the engine works on, blocks taken) followed by
`update_from_output()` (one token for every sequence that is computed to its end); requests may come and be aborted
between the two, as they may in vLLM while the model executes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from kvbudget.errors import AccountingError, BadValueError
from kvbudget.pool.groups import Layout
from kvbudget.simulate.block_pool import BlockPool
from kvbudget.units import Tokens


class FinishReason(StrEnum):
    """Why a request ended by itself; an abort is the caller's doing and is not reported back."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """What one step works on.

    `num_scheduled_tokens`: tokens per request id, in scheduling order; `admitted`: ids that went from waiting to
    running (for the first time or again); `preempted`: ids that lost their blocks, in order.
    """

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step brought: `produced` ids got one token each, `finished` ended with it and hold nothing any more."""

    produced: tuple[str, ...]
    finished: tuple[tuple[str, FinishReason], ...]
    preempted: tuple[str, ...]
    scheduled_tokens: int


@dataclass(slots=True)
class EngineRequest:
    """One sequence inside the engine. Lengths in tokens; `max_new_tokens` is clipped to the model's window."""

    request_id: str
    prompt_tokens: int
    max_new_tokens: int
    stop_after: int | None
    block_ids: list[int]
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    running: bool = False

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far: what must be computed before the next token can be."""
        return self.prompt_tokens + self.num_output_tokens


class PagedEngine:
    """Continuous batching over a pool of real blocks; the only state of the model engine."""

    def __init__(
        self, layout: Layout, num_blocks: int, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> None:
        """`num_blocks` includes the null block. Raises BadValueError where vLLM would refuse to start."""
        for name, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if value < 1:
                raise BadValueError(f"{name}: {value} is below 1", fix="an engine must run something in each step")
        refusal = start_refusal(layout, num_blocks, max_model_len)
        if refusal:
            raise BadValueError(refusal, fix="add blocks or lower max_model_len")
        self.layout = layout
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.block_pool = BlockPool(num_blocks)
        self.preemptions = 0
        self.aborted = 0
        self.total_prompt_tokens = 0  # of requests that got their first token; recomputation is not counted again
        self.total_generation_tokens = 0
        self._requests: dict[str, EngineRequest] = {}
        self._running: list[EngineRequest] = []
        self._waiting: deque[EngineRequest] = deque()
        # Every running request asks at every step; at most max_model_len different lengths are ever asked.
        self._blocks_for = lru_cache(maxsize=None)(layout.blocks_for)

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds; the null block is never counted."""
        return self.block_pool.free_blocks

    @property
    def usage(self) -> float:
        """Share of the usable pool that is held, 0 to 1: vLLM's `kv_cache_usage_perc`."""
        return self.block_pool.usage

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of running requests, in admission order."""
        return tuple(request.request_id for request in self._running)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Ids of waiting and preempted requests, next one first."""
        return tuple(request.request_id for request in self._waiting)

    @property
    def num_running(self) -> int:
        """Running requests."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Waiting and preempted requests."""
        return len(self._waiting)

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether a step would have something to do."""
        return bool(self._requests)

    def block_ids(self, request_id: str) -> Sequence[int]:
        """Ids that the request holds now; empty while it waits. Raises KeyError for an unknown request."""
        return tuple(self._requests[request_id].block_ids)

    def add(self, request_id: str, prompt_tokens: int, max_new_tokens: int, stop_after: int | None = None) -> Tokens:
        """Queue a request; returns the most tokens that it can produce (clipped to the window, as vLLM does silently).

        It ends with reason `stop` at its `stop_after`-th token, if that comes before the limit (`length`).
        Raises BadValueError for lengths that the engine could never serve, AccountingError for an id in use.
        """
        if request_id in self._requests:
            raise AccountingError(f"request {request_id} is in the engine already")
        if not 1 <= prompt_tokens < self.max_model_len:
            raise BadValueError(
                f"prompt of {prompt_tokens} tokens, possible are 1 to {self.max_model_len - 1}",
                fix="shorten the prompt or raise max_model_len",
            )
        if max_new_tokens < 1 or (stop_after is not None and stop_after < 1):
            raise BadValueError(f"{max_new_tokens} new tokens, stop after {stop_after}", fix="ask for at least one")
        clipped = min(max_new_tokens, self.max_model_len - prompt_tokens)
        request = EngineRequest(request_id, prompt_tokens, clipped, stop_after, [])
        self._requests[request_id] = request
        self._waiting.append(request)
        return Tokens(clipped)

    def abort(self, request_id: str) -> bool:
        """Take the request out at once, blocks included; False if it is not (or no longer) in the engine."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request.running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._free(request)
        self.aborted += 1
        return True

    def step(self) -> StepResult:
        """One whole step: schedule, then one token for each sequence that is computed to its end."""
        return self.update_from_output(self.schedule())

    def schedule(self) -> SchedulerOutput:
        """Choose the tokens of the next step and take the blocks for them."""
        scheduled: dict[str, int] = {}
        preempted: list[str] = []
        budget = self._schedule_running(scheduled, preempted)
        admitted: list[str] = []
        if not preempted:
            budget = self._schedule_waiting(scheduled, admitted, budget)
        return SchedulerOutput(scheduled, self.max_num_batched_tokens - budget, tuple(admitted), tuple(preempted))

    def update_from_output(self, output: SchedulerOutput) -> StepResult:
        """The model has executed `output`: hand out tokens and end what is complete; aborted requests are skipped."""
        produced: list[str] = []
        finished: list[tuple[str, FinishReason]] = []
        for request_id in output.num_scheduled_tokens:
            request = self._requests.get(request_id)
            if request is None or request.num_computed_tokens < request.num_tokens:
                continue  # aborted while the model executed, or a prefill chunk that is not the last one
            if request.num_output_tokens == 0:
                self.total_prompt_tokens += request.prompt_tokens
            request.num_output_tokens += 1
            produced.append(request_id)
            if request.num_output_tokens == request.stop_after:
                finished.append((request_id, FinishReason.STOP))
            elif request.num_output_tokens == request.max_new_tokens:
                finished.append((request_id, FinishReason.LENGTH))
        self.total_generation_tokens += len(produced)
        if finished:
            for request_id, _ in finished:
                request = self._requests.pop(request_id)
                request.running = False
                self._free(request)
            self._running = [request for request in self._running if request.running]
        return StepResult(tuple(produced), tuple(finished), output.preempted, output.total_num_scheduled_tokens)

    def _schedule_running(self, scheduled: dict[str, int], preempted: list[str]) -> int:
        """Grow running requests in admission order; returns the token budget that is left."""
        budget = self.max_num_batched_tokens
        index = 0
        while index < len(self._running) and budget > 0:
            request = self._running[index]
            new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            while not self._allocate(request, new_tokens):
                victim = self._running.pop()  # may be the request itself
                self._preempt(victim)
                preempted.append(victim.request_id)
                if victim is request:
                    return budget
            scheduled[request.request_id] = new_tokens
            request.num_computed_tokens += new_tokens
            budget -= new_tokens
            index += 1
        return budget

    def _schedule_waiting(self, scheduled: dict[str, int], admitted: list[str], budget: int) -> int:
        """Admit from the head of the queue until something runs out; returns the token budget that is left."""
        while self._waiting and budget > 0 and len(self._running) < self.max_num_seqs:
            request = self._waiting[0]
            if self._blocks_for(request.num_tokens) > self.block_pool.free_blocks:
                break  # nobody overtakes the head
            new_tokens = min(request.num_tokens, budget)
            self._allocate(request, new_tokens)
            self._waiting.popleft()
            request.running = True
            self._running.append(request)
            scheduled[request.request_id] = new_tokens
            admitted.append(request.request_id)
            request.num_computed_tokens = new_tokens
            budget -= new_tokens
        return budget

    def _allocate(self, request: EngineRequest, new_tokens: int) -> bool:
        """Take the blocks that `new_tokens` more tokens need; False, and nothing taken, if the pool lacks them."""
        missing = self._blocks_for(request.num_computed_tokens + new_tokens) - len(request.block_ids)
        if missing > 0:
            if missing > self.block_pool.free_blocks:
                return False
            request.block_ids += self.block_pool.take(missing)
        return True

    def _preempt(self, request: EngineRequest) -> None:
        """Back to the head of the queue with nothing computed; the tokens produced so far stay."""
        self._free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.running = False
        self._waiting.appendleft(request)
        self.preemptions += 1

    def _free(self, request: EngineRequest) -> None:
        self.block_pool.give_back(request.block_ids)
        request.block_ids = []


def start_refusal(layout: Layout, num_blocks: int, max_model_len: int) -> str | None:
    """Why vLLM 0.32 would not start with this pool, in its words; None when it would start.

    One request of `max_model_len` must fit the usable blocks, `num_blocks - 1` (`v1/core/kv_cache_utils.py`).
    """
    usable = num_blocks - 1
    if max_model_len < 2:
        return f"max_model_len: {max_model_len} leaves no room for a prompt and an answer"
    if usable < 1:
        return f"No available memory for the cache blocks: {num_blocks} blocks, one of them the null block"
    need = layout.blocks_for(max_model_len)
    if need <= usable:
        return None
    return (
        f"To serve at least one request with the model's max seq len ({max_model_len}), {need} KV cache blocks are "
        f"needed, which is larger than the {usable} usable ones ({num_blocks} with the null block). Based on the "
        f"available memory, the estimated maximum model length is {layout.largest_length(usable)}"
    )
