"""Decides how an engine works off what its gate forwards: one step after the other, the slow and exact way.

For every engine; what jumping.py does must be the same. Most sequences of a step do the same as in the step before: one
token each. They are kept as one set with one sum of their contexts; only who joins or leaves it costs anything here.
"""

from collections import deque
from collections.abc import Set

from kvbudget.gate.config import PROGRESS_STRIDE
from kvbudget.gate.events import Ended, Progressed
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.simulate.clients import Client
from kvbudget.simulate.instance import METRICS_PERIOD_NS, NEVER_NS, Instance, Owner
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.paged_engine import PagedEngine, SchedulerOutput, SchedulingPolicy
from kvbudget.simulate.policies import Contender
from kvbudget.simulate.prefix_keys import PrefixKeys
from kvbudget.simulate.settings import Settings
from kvbudget.units import Tokens


class _Progress:
    """Where one sequence of the engine stands. While it decodes, `tokens` is as of the step `joined_step`."""

    __slots__ = ("cached", "client", "computed", "high_water", "joined_step", "last_ns", "reported", "tokens")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.tokens = 0  # produced
        self.reported = 0  # of them, told to the gate
        self.cached = 0  # found in the prefix cache at first
        self.computed = 0  # of prompt and output; while it decodes, follows from `tokens`
        self.high_water = 0  # most that was ever computed: below it, work is done again
        self.joined_step = 0
        self.last_ns = 0


class SteppingInstance(Instance):
    """One gate and a `PagedEngine`."""

    def __init__(self, settings: Settings, contender: Contender, result: Result, owner: Owner) -> None:
        super().__init__(settings, contender, result, owner)
        sizes = settings.engine
        self.engine = engine_of(settings, contender)
        self._keys = PrefixKeys(sizes.prefix_id_tokens, self.engine.key_tokens) if sizes.prefix_caching else None
        self._inside: dict[str, _Progress] = {}  # the engine
        self._outputs: deque[tuple[SchedulerOutput, int]] = deque()  # steps under way, with their ends
        self._in_step = self.engine.steps_in_flight == 1
        self._has_ended = False  # a step, and none was begun since
        self._free_ns = 0  # when the device is free again
        self._step = 0  # steps that have ended
        self._decoding: set[str] = set()
        self._decoding_context = 0  # tokens computed of all that decode
        self._reports: dict[int, list[str]] = {}  # step -> who reports then

    @property
    def may_begin(self) -> bool:
        """Whether a step has ended, or none is under way."""
        return self._has_ended or not self._outputs

    def _is_inside(self, key: str) -> bool:
        return key in self._inside

    def _num_inside(self) -> int:
        return len(self._inside)

    def _take_in(self, client: Client, max_new_tokens: int, now_ns: int) -> None:
        request, key = client.request, client.key
        self._inside[key] = _Progress(client)
        keys = self._keys.keys(request.hash_ids, request.prompt_tokens) if self._keys and request.hash_ids else ()
        self.engine.add(
            key,
            request.prompt_tokens,
            max_new_tokens,
            request.output_tokens,
            priority=request.priority,
            arrival=now_ns,
            block_keys=keys,
        )

    def _take_out(self, key: str, now_ns: int) -> int | None:
        inside = self._inside.pop(key, None)
        if inside is None:
            return None
        self.engine.abort(key)
        return max(inside.computed, inside.high_water) - inside.cached

    def begin_step(self, now_ns: int) -> None:
        """Start what the engine starts now: the next step when it is idle or one has just ended; with asynchronous
        scheduling also the one after it, which begins when the device is free (vLLM 0.32 `step_with_batch_queue`)."""
        engine, outputs = self.engine, self._outputs
        if outputs and not self._has_ended:
            return
        self._has_ended = False
        while len(outputs) < engine.steps_in_flight and engine.has_unfinished_requests:
            output = engine.schedule()
            for key in output.preempted:
                self._preempted(key, now_ns)
            if not output.num_scheduled_tokens:
                if output.preempted and self._in_step:
                    continue  # somebody made room by giving up itself: the engine's loop asks again at once
                break  # nobody could be given anything; an arrival or an end will change that
            duration_ns = self._settings.engine.cost.step_ns(*self._work_of(output))
            self._free_ns = max(now_ns, self._free_ns) + duration_ns
            outputs.append((output, self._free_ns))
            self.end_ns = outputs[0][1]
            result = self._result
            result.steps += 1
            result.scheduled_tokens += output.total_num_scheduled_tokens
            result.held_block_ns += (self._usable - engine.free_blocks) * duration_ns

    def end_step(self) -> None:
        """The step that is under way is over: tokens go out, answers end."""
        output, now_ns = self._outputs.popleft()
        self.end_ns = self._outputs[0][1] if self._outputs else NEVER_NS
        self._has_ended = True
        self._step += 1
        brought = self.engine.update_from_output(output)
        produced, ended = brought.produced, {key for key, _ in brought.finished}
        fresh = set(produced) - self._decoding
        steady = len(produced) - len(fresh)
        if steady != len(self._decoding):  # the step's budget ended before them
            for key in self._decoding.difference(produced):
                self._stop_decoding(key, self._step - 1)
        self._decoding_context += steady
        self._tell_preemptions(now_ns)
        self._gap(now_ns - self._produced_ns, steady)
        self._produced_ns = now_ns
        due = self._reports.pop(self._step, ())
        touched = fresh.union(due, ended)
        if touched:
            for key in produced:  # in the order of the batch, as the engine sends them
                if key in touched and key in self._inside:
                    self._produced(key, fresh=key in fresh, ended=key in ended, now_ns=now_ns)

    def _work_of(self, output: SchedulerOutput) -> tuple[int, int, int]:
        """(prefill tokens, sequences with one token, tokens of context) of a step."""
        scheduled, decoding = output.num_scheduled_tokens, self._decoding
        others: Set[str] = scheduled.keys() - decoding
        prefill_tokens, decodes, context = 0, len(decoding), self._decoding_context + len(decoding)
        if self._in_step and len(scheduled) - len(others) == len(decoding):
            if not others:
                return prefill_tokens, decodes, context
        else:  # not all of them take part, or outputs are on their way: nothing is known of the whole set
            others, decodes, context = scheduled.keys(), 0, 0
        for work in output.work:
            if work.request.request_id not in others:
                continue
            inside, start, tokens = self._inside[work.request.request_id], work.computed_tokens, work.new_tokens
            if not inside.computed and not inside.high_water:
                inside.cached = start
            inside.computed = start + tokens
            context += inside.computed
            if tokens == 1:
                decodes += 1
            else:
                prefill_tokens += tokens
            self._result.recomputed_tokens += max(0, min(inside.computed, inside.high_water) - start)
        return prefill_tokens, decodes, context

    def _preempted(self, key: str, now_ns: int) -> None:
        if not self._untold_preemptions:
            self._tell_preemptions_ns = now_ns + METRICS_PERIOD_NS
        self._untold_preemptions += 1
        if key in self._decoding:
            self._stop_decoding(key, self._step)
        inside = self._inside[key]
        self._result.preemptions += 1
        self._result.preempted_requests += inside.high_water == 0
        inside.high_water = max(inside.high_water, inside.computed)
        inside.computed = 0

    def _stop_decoding(self, key: str, step: int) -> None:
        """It got the last token of a row in `step`."""
        inside = self._inside[key]
        self._decoding.remove(key)
        inside.tokens += step - inside.joined_step
        computed = inside.client.request.prompt_tokens + inside.tokens - 1
        self._decoding_context -= computed
        inside.computed = max(inside.computed, computed)
        inside.last_ns = self._produced_ns

    def _gap(self, gap_ns: int, sequences: int) -> None:
        """All that decode got their next token after the same time."""
        if not sequences:
            return
        self._result.gaps.add(gap_ns, sequences)
        limit_ns = self._settings.slo.gap_ns
        if limit_ns is not None and gap_ns > limit_ns:
            for key in self._decoding:
                self._inside[key].client.late_gap = True

    def _produced(self, key: str, *, fresh: bool, ended: bool, now_ns: int) -> None:
        """A sequence got a token: its first one, its first after a pause, one that is to be reported, or its last."""
        inside = self._inside[key]
        if fresh:
            self._start_decoding(key, inside, now_ns)
            tokens = inside.tokens
        else:
            tokens = inside.tokens + self._step - inside.joined_step
        unreported = tokens - inside.reported
        if ended or not inside.reported or unreported >= PROGRESS_STRIDE:
            inside.reported = tokens
            if unreported:
                self._push(Progressed(key, unreported), now_ns)
            unreported = 0
            if not ended:
                self._reports.setdefault(self._step + PROGRESS_STRIDE, []).append(key)
        elif fresh:
            self._reports.setdefault(self._step + PROGRESS_STRIDE - unreported, []).append(key)
        if ended:
            self._decoding.remove(key)
            self._decoding_context -= inside.client.request.prompt_tokens + tokens - 1
            del self._inside[key], self._clients[key]
            self._result.cached_tokens += inside.cached
            for output, _ in self._outputs:  # scheduled before its end was known
                self._result.wasted_tokens += output.num_scheduled_tokens.get(key, 0)
            self._owner.finished(inside.client, tokens, now_ns)
            self._push(Ended(key, Outcome.FINISHED, Tokens(tokens)), now_ns)

    def _start_decoding(self, key: str, inside: _Progress, now_ns: int) -> None:
        client = inside.client
        inside.tokens += 1
        inside.joined_step = self._step
        self._decoding.add(key)
        self._decoding_context += client.request.prompt_tokens + inside.tokens - 1
        if client.first_token_ns is None:
            client.first_token_ns = now_ns
            self._prefilling_tokens -= client.request.prompt_tokens
            self._result.first_token(client, now_ns)
            return
        gap_ns = now_ns - inside.last_ns
        self._result.gaps.add(gap_ns)
        limit_ns = self._settings.slo.gap_ns
        client.late_gap |= limit_ns is not None and gap_ns > limit_ns


def engine_of(settings: Settings, contender: Contender) -> PagedEngine:
    """One instance's engine, empty. Raises BadValueError where vLLM would refuse to start."""
    sizes = settings.engine
    return PagedEngine(
        sizes.layout,
        sizes.num_blocks,
        sizes.max_num_seqs,
        sizes.max_num_batched_tokens,
        sizes.window,
        prefix_caching=sizes.prefix_caching,
        async_scheduling=sizes.async_scheduling,
        scheduling_policy=SchedulingPolicy.PRIORITY if sizes.by_priority else SchedulingPolicy.FCFS,
        watermark=contender.flags.watermark,
    )
