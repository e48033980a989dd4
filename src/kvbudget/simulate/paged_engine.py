"""Decides, step by step, which requests of a paged engine run, wait, lose their blocks and end.

The rules are those of vLLM 0.32's v1 scheduler (`v1/core/sched/scheduler.py`, `async_scheduler.py`), without
speculation, LoRA, encoders and KV transfer: running requests first, in admission order; then the waiting queue until
the token budget, the sequence limit or the pool ends it. A request enters only when its whole sequence fits
(`scheduler_reserve_full_isl`), and `watermark` of the pool stays free if anybody runs. When a running request cannot
grow, the most recently admitted one is preempted (under priority scheduling: the one of the last priority and
arrival): it loses everything and waits again; a step that preempted admits nobody.

Pure: no clock, no randomness. A step is `schedule()` (what the engine works on, blocks taken) followed by
`update_from_output()` (one token for every sequence that is computed to its end); requests may come and be aborted
between the two, as they may in vLLM while the model executes. With asynchronous scheduling the next step is scheduled
before the output of the last one is handed in: a request that ends by itself is then worked on once more.
"""

from collections.abc import Sequence

from kvbudget.errors import AccountingError, BadValueError
from kvbudget.pool.groups import Layout
from kvbudget.simulate.engine_request import EngineRequest, FinishReason
from kvbudget.simulate.engine_start import start_refusal
from kvbudget.simulate.engine_step import SchedulerOutput, StepInMaking, StepResult, Work
from kvbudget.simulate.kv_cache import KvCache
from kvbudget.simulate.state_rule import prefill_chunk
from kvbudget.simulate.waiting import SchedulingPolicy, waiting_queue
from kvbudget.units import Tokens

__all__ = ["FinishReason", "PagedEngine", "SchedulerOutput", "SchedulingPolicy", "StepResult"]


class PagedEngine:
    """Continuous batching over a pool of real blocks; the only state of the model engine."""

    def __init__(
        self,
        layout: Layout,
        num_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        *,
        prefix_caching: bool = False,
        prefix_retention_interval: int | None = 0,
        scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS,
        watermark: float = 0.0,
        reserve_full_isl: bool = True,
        async_scheduling: bool = False,
        long_prefill_token_threshold: int = 0,
    ) -> None:
        """`num_blocks` includes the null block. The options are vLLM's, with its defaults, but for `prefix_caching`.

        `prefix_retention_interval` None keeps every prefix of sliding and state groups. The layout must be the one for
        these options: windows count what is in flight, states one block more with a prefix cache.
        Raises BadValueError where vLLM would refuse to start, UnsupportedError for what this model does not follow.
        """
        for name, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if value < 1:
                raise BadValueError(f"{name}: {value} is below 1", fix="an engine must run something in each step")
        if not 0 <= watermark < 1:
            raise BadValueError(f"watermark: {watermark} is not a share of the pool", fix="give 0 or more, below 1")
        if long_prefill_token_threshold < 0:
            raise BadValueError(f"long_prefill_token_threshold: {long_prefill_token_threshold} is below 0")
        refusal = start_refusal(layout, num_blocks, max_model_len)
        if refusal:
            raise BadValueError(refusal, fix="add blocks or lower max_model_len")
        self.layout = layout
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.scheduling_policy = scheduling_policy
        self.watermark_blocks = int(watermark * num_blocks)
        self.reserve_full_isl = reserve_full_isl
        self.async_scheduling = async_scheduling
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.kv_cache = KvCache(
            layout, num_blocks, max_model_len, prefix_caching=prefix_caching, retention=prefix_retention_interval
        )
        self.block_pool = self.kv_cache.pool
        self.preemptions = 0
        self.aborted = 0
        self.total_prompt_tokens = 0  # of requests that got their first token; recomputation is not counted again
        self.total_generation_tokens = 0
        self._requests: dict[str, EngineRequest] = {}
        self._running: list[EngineRequest] = []
        self._waiting = waiting_queue(scheduling_policy)
        self._serial = 0

    @property
    def steps_in_flight(self) -> int:
        """Steps that may be scheduled before the output of the first of them must be handed in."""
        return 2 if self.async_scheduling else 1

    @property
    def key_tokens(self) -> int:
        """Tokens that one of a request's `block_keys` stands for."""
        return self.kv_cache.hash_size

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
        return tuple([request.request_id for request in self._running])

    @property
    def waiting(self) -> tuple[str, ...]:
        """Ids of waiting and preempted requests, next one first."""
        return tuple([request.request_id for request in self._waiting.in_order()])

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
        return self.kv_cache.block_ids(self._requests[request_id])

    def held_blocks(self, request_id: str) -> tuple[int, ...]:
        """Blocks that the request holds now in each group. Raises KeyError for an unknown request."""
        return self.kv_cache.held(self._requests[request_id])

    def add(
        self,
        request_id: str,
        prompt_tokens: int,
        max_new_tokens: int,
        stop_after: int | None = None,
        *,
        priority: int = 0,
        arrival: int | None = None,
        block_keys: tuple[int, ...] = (),
    ) -> Tokens:
        """Queue a request; returns the most tokens that it can produce (clipped to the window, as vLLM does silently).

        It ends with reason `stop` at its `stop_after`-th token, if that comes before the limit (`length`).
        `priority`: the lower, the sooner; of equals, the one of the smaller `arrival` (None: in order of the calls).
        `block_keys`: what the prefix cache knows the prompt's first full blocks of `key_tokens` tokens by, numbers from
        0 on: two requests have the same key for a block where they are equal up to its end. What has no key is like
        nobody else's (see prefix_keys.py).
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
        if len(block_keys) * self.key_tokens > prompt_tokens:
            raise BadValueError(f"{len(block_keys)} block keys for a prompt of {prompt_tokens} tokens")
        clipped = min(max_new_tokens, self.max_model_len - prompt_tokens)
        self._serial += 1
        request = EngineRequest(
            request_id,
            self._serial,
            prompt_tokens,
            clipped,
            stop_after,
            priority,
            self._serial if arrival is None else arrival,
            block_keys,
        )
        self._requests[request_id] = request
        self._waiting.add(request)
        return Tokens(clipped)

    def abort(self, request_id: str) -> bool:
        """Take the request out at once, blocks included; False if it is not (or no longer) in the engine."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        request.left = True
        if request.running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self.kv_cache.release(request)
        self.aborted += 1
        return True

    def step(self) -> StepResult:
        """One whole step: schedule, then one token for each sequence that is computed to its end."""
        return self.update_from_output(self.schedule())

    def schedule(self) -> SchedulerOutput:
        """Choose the tokens of the next step and take the blocks for them."""
        self.kv_cache.begin_step()
        # One request alone need not leave room for others (vLLM).
        alone = len(self._running) + len(self._waiting) <= 1
        step = StepInMaking(self.max_num_batched_tokens, 0 if alone else self.long_prefill_token_threshold)
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        return SchedulerOutput(
            {request_id: work.new_tokens for request_id, work in step.work.items()},
            self.max_num_batched_tokens - step.budget,
            tuple(step.admitted),
            tuple(step.preempted),
            tuple(step.work.values()),
        )

    def update_from_output(self, output: SchedulerOutput) -> StepResult:
        """The model has executed `output`: hand out tokens and end what is complete; aborted requests are skipped.

        Outputs are handed in in the order in which they were scheduled, at most `steps_in_flight` after the first.
        """
        produced: list[str] = []
        finished: list[tuple[str, FinishReason]] = []
        for request, _, new_tokens, samples in output.work:
            if request.left:
                continue  # aborted, or ended before the engine knew (asynchronous scheduling)
            request.num_in_flight_tokens -= new_tokens
            stale = request.num_stale_tokens > 0
            if stale:
                request.num_stale_tokens -= new_tokens
            if not samples:
                continue  # a prefill chunk that is not the last one
            if request.num_output_tokens == 0:
                self.total_prompt_tokens += request.prompt_tokens
            request.num_output_tokens += 1
            produced.append(request.request_id)
            if self.async_scheduling:
                self._take_in(request, stale=stale)
            if request.num_output_tokens == request.last_output:
                finished.append((request.request_id, request.finish_reason))
                self._finish(request)
        self.total_generation_tokens += len(produced)
        if finished:
            self._running = [request for request in self._running if request.running]
        return StepResult(tuple(produced), tuple(finished), output.preempted, output.total_num_scheduled_tokens)

    def _schedule_running(self, step: StepInMaking) -> None:
        """Grow running requests in admission order."""
        index = 0
        while index < len(self._running) and step.budget > 0:
            request = self._running[index]
            new_tokens = self._next_tokens(request, step)
            if not new_tokens:
                index += 1
                continue
            # What is quiet needs no block: most sequences in most steps.
            if request.num_computed_tokens + new_tokens > request.quiet_until:
                while not self.kv_cache.grow(request, new_tokens):
                    place = self._victim()
                    victim = self._running.pop(place)  # may be the request itself
                    index -= place < index
                    step.take_away(victim)
                    step.preempted.append(victim.request_id)
                    self._preempt(victim)
                    if victim is request:
                        return
            self._give(step, request, new_tokens)
            index += 1

    def _next_tokens(self, request: EngineRequest, step: StepInMaking) -> int:
        """Tokens that a running request gets in this step."""
        computed, coming = request.num_computed_tokens, request.num_output_placeholders
        if coming and computed + 2 - coming >= request.prompt_tokens + request.max_new_tokens:
            return 0  # its last token is on its way
        new_tokens = request.prompt_tokens + request.num_output_tokens + coming - computed
        if new_tokens == 1:
            return 1  # a window is never outgrown: what a request may produce was clipped to it
        room = min(step.budget, self.max_model_len - computed - 1)
        return self._chunk(request, computed, min(new_tokens, room), step)

    def _chunk(self, request: EngineRequest, start: int, new_tokens: int, step: StepInMaking) -> int:
        """As many of the tokens as one step may take."""
        if 0 < step.chunk_limit < new_tokens:
            new_tokens = step.chunk_limit
        cache = self.kv_cache
        if not cache.state_block_size:
            return new_tokens
        most = self.max_num_batched_tokens
        if self.long_prefill_token_threshold:
            most = min(most, self.long_prefill_token_threshold)
        return prefill_chunk(
            request, start, new_tokens, cache.state_block_size, most, puts_aside=cache.puts_states_aside
        )

    def _schedule_waiting(self, step: StepInMaking) -> None:
        """Admit from the head of the queue until something runs out."""
        while self._waiting and step.budget > 0 and len(self._running) < self.max_num_seqs:
            request = self._waiting.head()
            hit = self.kv_cache.lookup(request)
            request.shared_prefix_tokens = hit.parted_at
            wanted = min(request.num_tokens - hit.tokens, step.budget)
            new_tokens = self._chunk(request, hit.tokens, wanted, step)
            headroom = self.watermark_blocks if self._running else 0
            whole = self.reserve_full_isl
            if not new_tokens or not self.kv_cache.admit(request, new_tokens, hit, whole=whole, headroom=headroom):
                break  # nobody overtakes the head
            self._waiting.take()
            request.running = True
            request.num_computed_tokens = hit.tokens
            if request.cached_tokens is None:
                request.cached_tokens = hit.tokens
            self._running.append(request)
            self._give(step, request, new_tokens)
            step.admitted.append(request.request_id)

    def _victim(self) -> int:
        """Place among the running of the one that loses its blocks."""
        if self.scheduling_policy is SchedulingPolicy.FCFS:
            return len(self._running) - 1
        # Of equals the first one, without a look at the id (vLLM).
        return max(range(len(self._running)), key=lambda i: (self._running[i].priority, self._running[i].arrival))

    def _preempt(self, request: EngineRequest) -> None:
        """Back to the queue with nothing computed; the tokens produced so far stay, and those that are on their way."""
        self.kv_cache.release(request)
        request.num_computed_tokens = 0
        request.num_output_placeholders = 0
        request.num_stale_tokens = request.num_in_flight_tokens
        request.running = False
        self._waiting.put_back([request])
        self.preemptions += 1

    def _give(self, step: StepInMaking, request: EngineRequest, new_tokens: int) -> None:
        """Work on these tokens of it: they count as computed from now on."""
        start = request.num_computed_tokens
        request.num_computed_tokens = end = start + new_tokens
        request.num_in_flight_tokens += new_tokens
        samples = end >= request.prompt_tokens + request.num_output_tokens + request.num_output_placeholders
        if samples and self.async_scheduling:
            request.num_output_placeholders += 1
        step.work[request.request_id] = Work(request, start, new_tokens, samples)
        step.budget -= new_tokens

    def _take_in(self, request: EngineRequest, *, stale: bool) -> None:
        """Asynchronous scheduling: a token that was on its way is here, and its block's content known."""
        if not stale:
            request.num_output_placeholders -= 1
        if request.running:
            self.kv_cache.remember(request, request.num_computed_tokens - request.num_output_placeholders)

    def _finish(self, request: EngineRequest) -> None:
        del self._requests[request.request_id]
        request.left = True
        if request.running:
            request.running = False
        else:
            self._waiting.remove(request)  # its last token was on its way when it was preempted
        self.kv_cache.release(request)
