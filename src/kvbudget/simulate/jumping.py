"""Decides how an engine works off what its gate forwards: in leaps over the steps in which nothing happens.

The result is that of stepping.py, to the byte (tests/simulate/test_jumping.py). A leap (leap.py) ends where somebody
ends or the blocks do. Whatever happens in between (somebody enters or leaves the engine) cuts it at the end of the
step that is under way then, as a real engine takes in what has arrived when its step ends.

Reports of tokens to the gate are put off, where nobody waits: nothing follows from them before the next decision. With
`learned`, which measures the engine's pace by them, and with several tenants or classes, all are told one by one
before the gate hears of anything else, with the times at which they were due. The other policies only look at tokens
to decide about requests that find no room at once; for them the sum of several reports, told before an arrival that
might not fit and before an end, leaves the same state as each of them (`Ledger.progress`). While somebody waits,
a report makes the gate look again some time later: that time is foreseen, and what was to be told until then is told
before the look.
"""

from kvbudget.gate.config import PROGRESS_STRIDE
from kvbudget.gate.events import Arrived, Ended, Event, Progressed
from kvbudget.gate.policies import Policy
from kvbudget.gate.promises import RECHECK_NS
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.simulate.clients import Client
from kvbudget.simulate.cost import Clock
from kvbudget.simulate.gate_prefixes import GatePrefixes
from kvbudget.simulate.instance import METRICS_PERIOD_NS, NEVER_NS, Instance, Owner
from kvbudget.simulate.jump_engine import JumpEngine, Stream, serial_of
from kvbudget.simulate.leap import Leap
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.policies import Contender
from kvbudget.simulate.prefix_chains import PrefixChains
from kvbudget.simulate.prefix_runs import Path
from kvbudget.simulate.settings import Settings
from kvbudget.simulate.strides import Strides
from kvbudget.units import Tokens


class JumpingInstance(Instance):
    """One gate and a `JumpEngine`."""

    def __init__(self, settings: Settings, contender: Contender, result: Result, owner: Owner) -> None:
        """The settings must be such as `choice.can_jump` allows."""
        super().__init__(settings, contender, result, owner)
        sizes = settings.engine
        self._block_size = block_size = int(sizes.layout.groups[0].block_size)
        self.engine = JumpEngine(
            usable_blocks=sizes.usable_blocks,
            block_size=block_size,
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            watermark_blocks=int(contender.flags.watermark * sizes.num_blocks),
            by_priority=sizes.by_priority,
            blocks_per_id=max(1, sizes.prefix_id_tokens // block_size),
        )
        self._window = sizes.window
        self._chains: PrefixChains | None = None
        if sizes.prefix_caching:
            numbers = self._prefixes or GatePrefixes()
            self._chains = PrefixChains(sizes.prefix_id_tokens, block_size, numbers)
        self._clock = Clock(sizes.cost)
        self._gap_limit_ns = settings.slo.gap_ns
        self._policy = contender.policy
        self._inside: dict[str, Stream] = {}
        self._kind: tuple[str, int] | None = None  # tenant and priority of everybody so far
        self._always = contender.policy is Policy.LEARNED  # each report is told as it was due
        self._eager = self._always  # the same, for now
        self._strides = Strides()  # meanwhile
        self._leap = Leap()
        self._told = 0  # steps of it of which the gate has heard
        self._foresees = False  # `wake_ns` is when the gate will want to be woken, once it has heard of some step
        self._steady = 0  # who decoded before the step under way, and gets a token from it
        self._gate_limit = self.gate.config.max_num_seqs

    @property
    def may_begin(self) -> bool:
        """Whether nothing is under way."""
        return self.end_ns == NEVER_NS

    def tell_all(self, now_ns: int) -> None:
        """What was put off."""
        if self._eager:
            self._catch_up(now_ns)
        elif self._policy is not None:
            self._report_all(now_ns)

    def take_over(self, client: Client, event: Arrived, now_ns: int) -> None:
        """A try of a client reaches the gate."""
        request = client.request
        if self._kind != (request.tenant, request.priority) and not self._always:
            if self._kind is None:
                self._kind = request.tenant, request.priority
            else:
                self._always = self._policy is not None  # the gate is fair by what it heard and when
                if self._always and not self._eager:
                    self._report_all(now_ns)
                    self._report_when_due()
        if self._eager:
            self._catch_up(now_ns)
        elif self._policy is not None and not self._fits_for_sure(client):
            self._report_all(now_ns)
        super().take_over(client, event, now_ns)
        if not self._eager and self.gate.queue and self._policy is not Policy.WORST_CASE:
            self._report_when_due()
            self._cut(now_ns)

    def leave(self, client: Client, now_ns: int) -> None:
        """The client gives up before its first token."""
        if self._eager:
            self._catch_up(now_ns)
        super().leave(client, now_ns)

    def wake(self, now_ns: int) -> None:
        """Give the gate its Tick when it is due."""
        if self.wake_ns <= now_ns:
            if self._eager:
                self._catch_up(now_ns)
            elif self.gate.queue:
                self._report_all(now_ns)
            super().wake(now_ns)

    def begin_step(self, now_ns: int) -> None:
        """Start what the engine starts now, when it is idle or a step has just ended."""
        engine = self.engine
        if self.end_ns != NEVER_NS or not engine.unfinished:
            return
        if self._eager and not self._always and not self.gate.queue:
            self._eager = False
        steps = engine.steps_ahead()
        if not steps:
            self._begin_scheduled(now_ns)
            return
        decoders, leap = engine.decoders, self._leap
        leap.begin_ns = now_ns
        leap.first_ns = self._clock.step_ns(0, decoders, engine.context + decoders)
        leap.slope_ns = self._clock.context_ns * decoders
        if steps > 1 and leap.first_ns <= leap.slope_ns:
            steps = 1  # steps that cost nothing last a nanosecond: not a straight line
        leap.steps = steps
        self._told = 0
        self.end_ns = leap.end_ns
        if self._eager and steps > 1:
            self._foresee_look()
        if self._untold_preemptions:
            self._cut(self._tell_preemptions_ns)

    def _begin_scheduled(self, now_ns: int) -> None:
        engine = self.engine
        self._steady = engine.decoders
        work = engine.schedule()
        while work.preempted or engine.stopped:
            self._stopped(work.preempted, now_ns)
            self._steady = engine.decoders
            if work.tokens:
                break
            work = engine.schedule()  # somebody made room by giving up itself: the engine's loop asks again at once
        if not work.tokens:
            return  # nobody could be given anything; an arrival or an end will change that
        duration_ns = self._clock.step_ns(work.prefill_tokens, work.decodes, work.context_tokens)
        self._leap.steps = 0
        self.end_ns = now_ns + duration_ns
        result = self._result
        result.steps += 1
        result.scheduled_tokens += work.tokens
        result.recomputed_tokens += work.recomputed_tokens
        result.held_block_ns += (self._usable - engine.pool.free_blocks) * duration_ns

    def end_step(self) -> None:
        """What is under way is over: tokens go out, answers end."""
        engine, now_ns = self.engine, self.end_ns
        self.end_ns = NEVER_NS
        if self._foresees:
            self._foresees = False
            wake_ns = self.gate.next_wake_ns
            self.wake_ns = NEVER_NS if wake_ns is None else wake_ns
        fresh: list[Stream] = []
        leapt = self._leap.steps
        if leapt:
            if self._eager and leapt > 1:
                self._tell_steps(leapt - 1)
            self._end_leap()
        else:
            engine.end_step()
            fresh = [stream for stream in engine.sampling if stream.running]  # the clients of others left meanwhile
        ended = engine.end(fresh)
        if fresh and ended:
            ended = [stream for stream in ended if stream not in fresh]
        if self._untold_preemptions:
            self._tell_preemptions(now_ns)
        if not leapt and self._steady:
            self._gap(now_ns - self._produced_ns, self._steady, ended)
        self._produced_ns = now_ns
        touched = fresh + ended if fresh else ended
        if self._eager or self.wake_ns <= now_ns:
            touched = touched + self._due_now()
        if len(touched) > 1:
            touched.sort(key=serial_of)  # in the order of the batch, as the engine sends them
        for stream in touched:
            if stream in fresh:
                self._first_token(stream, now_ns)
            elif stream.running:
                self._report(stream, stream.base + engine.step, now_ns)
                if self._eager:
                    self._strides.add(stream)
            else:
                self._last_token(stream, now_ns)

    # The engine's side of clients

    def _is_inside(self, key: str) -> bool:
        return key in self._inside

    def _num_inside(self) -> int:
        return len(self._inside)

    def _take_in(self, client: Client, max_new_tokens: int, now_ns: int) -> None:
        request = client.request
        prompt = int(request.prompt_tokens)
        limit = min(max_new_tokens, self._window - prompt, int(request.output_tokens))
        path: Path | None = None
        if self._chains is not None:
            event = client.event
            chains = event.prefix if event is not None and self._prefixes is not None else ()  # as the gate knows them
            path = self._chains.path(request.hash_ids, prompt, chains)
        stream = Stream(client, prompt, limit, (request.priority, now_ns, client.key), path)
        self._inside[client.key] = stream
        self.engine.add(stream)
        self._cut(now_ns)

    def _take_out(self, key: str, now_ns: int) -> int | None:
        stream = self._inside.pop(key, None)
        if stream is None:
            return None
        self.engine.abort(stream)
        self._cut(now_ns)
        return max(stream.computed, stream.high_water) - max(stream.cached, 0)

    # Leaps

    def _cut(self, now_ns: int) -> None:
        """The leap that is under way, if one is, ends with the step that is under way at `now_ns`."""
        if self._leap.steps > 1 and self.end_ns != NEVER_NS and self._leap.cut(now_ns):
            self.end_ns = self._leap.end_ns

    def _end_leap(self) -> None:
        engine, result, leap = self.engine, self._result, self._leap
        decoders, first_ns, slope_ns, steps = engine.decoders, leap.first_ns, leap.slope_ns, leap.steps
        result.held_block_ns += (self._usable - engine.pool.free_blocks) * leap.lasts_ns(steps)
        taken, block_ns = leap.blocks_taken(engine.phases, engine.step % self._block_size)
        engine.advance(steps, taken)
        result.held_block_ns += block_ns
        result.steps += steps
        result.scheduled_tokens += steps * decoders
        result.gaps.add_ramp(first_ns, slope_ns, steps, decoders)
        if self._gap_limit_ns is not None and first_ns + (steps - 1) * slope_ns > self._gap_limit_ns:
            for stream in engine.decoding():
                stream.client.late_gap = True

    def _push(self, event: Event, now_ns: int) -> None:
        super()._push(event, now_ns)
        if self._eager and self._leap.steps > 1:
            self._foresee_look()

    def _foresee_look(self) -> None:
        """Where the next report of the leap would make the gate look again some time after it: wake it then."""
        if self.end_ns == NEVER_NS or not self.gate.waits_for_report:
            return
        leap, told = self._leap, self._told
        ahead = told + self._strides.steps_ahead(self.engine.step + told)
        if ahead < leap.steps:  # what the last step brings is told when it ends
            self._foresees = True
            self.wake_ns = min(self.wake_ns, leap.begin_ns + leap.lasts_ns(ahead) + RECHECK_NS)

    # Tokens and reports

    def _gap(self, gap_ns: int, sequences: int, ended: list[Stream]) -> None:
        """All that decoded before the step got their next token after the same time."""
        self._result.gaps.add(gap_ns, sequences)
        if self._gap_limit_ns is not None and gap_ns > self._gap_limit_ns:
            for stream in self.engine.decoding():
                stream.client.late_gap = True
            for stream in ended:
                stream.client.late_gap = True

    def _first_token(self, stream: Stream, now_ns: int) -> None:
        """It got its first token, or its first after a pause."""
        engine = self.engine
        if stream.running:
            engine.start_decoding(stream)
        client = stream.client
        if client.first_token_ns is None:
            client.first_token_ns = now_ns
            self._prefilling_tokens -= stream.prompt
            self._result.first_token(client, now_ns)
        else:
            gap_ns = now_ns - stream.last_ns
            self._result.gaps.add(gap_ns)
            client.late_gap |= self._gap_limit_ns is not None and gap_ns > self._gap_limit_ns
        if not stream.running:
            self._last_token(stream, now_ns)
            return
        if not stream.reported or stream.output - stream.reported >= PROGRESS_STRIDE:
            self._report(stream, stream.output, now_ns)
        if self._eager:
            self._strides.add(stream)

    def _last_token(self, stream: Stream, now_ns: int) -> None:
        key, tokens = stream.key, stream.output
        if self._eager:
            self._strides.discard(stream)
        if tokens > stream.reported:
            self._report(stream, tokens, now_ns)
        del self._inside[key], self._clients[key]
        self._result.cached_tokens += stream.cached
        self._owner.finished(stream.client, tokens, now_ns)
        self._push(Ended(key, Outcome.FINISHED, Tokens(tokens)), now_ns)

    def _report(self, stream: Stream, tokens: int, now_ns: int) -> None:
        """Tell the gate of all `tokens`."""
        gate, reported = self.gate, stream.reported
        stream.reported = tokens
        if not reported and gate.queue:  # somebody may have waited for its first token
            self._push(Progressed(stream.key, tokens), now_ns)
            return
        waits = gate.waits_for_report
        gate.progressed(stream.key, tokens - reported, now_ns)
        if waits:
            wake_ns = gate.next_wake_ns
            self.wake_ns = NEVER_NS if wake_ns is None else wake_ns

    def _due_now(self) -> list[Stream]:
        """Who is to be reported in this step: all that are, or, where the gate will look at waiting ones that were
        put off, those whose time is now; what was due before is told."""
        step = self.engine.step
        if self._eager:
            due = self._strides.due_in(step)
            return [one for one in due if one.decoding and step + one.base - one.reported >= PROGRESS_STRIDE]
        self._report_to(step - 1, self._produced_ns)
        return [one for one in self.engine.decoding() if step + one.base - one.reported >= PROGRESS_STRIDE]

    def _stopped(self, preempted: list[Stream], now_ns: int) -> None:
        """Some were preempted, or passed over by the step."""
        engine, result = self.engine, self._result
        for stream in engine.stopped:
            stream.last_ns = self._produced_ns
            if self._eager:
                self._strides.discard(stream)
        if preempted:
            if not self._untold_preemptions:
                self._tell_preemptions_ns = now_ns + METRICS_PERIOD_NS
            self._untold_preemptions += len(preempted)
            result.preemptions += len(preempted)
            result.preempted_requests += engine.first_preemptions
            engine.first_preemptions = 0

    def _fits_for_sure(self, client: Client) -> bool:
        """Whether the gate lets it in without a look at anybody's tokens."""
        gate, request = self.gate, client.request
        new = request.max_new_tokens if request.declared else self._settings.gate.default_new_tokens
        tokens = request.prompt_tokens + new
        ledger = gate.ledger
        return (
            tokens <= self._window
            and ledger.sequences < self._gate_limit
            and ledger.peak_sum_blocks - (-tokens // self._block_size) <= ledger.capacity_blocks
            and not gate.queue
        )

    def _report_when_due(self) -> None:
        """From now on."""
        self._eager = True
        self._strides.begin(self.engine.decoding())

    def _catch_up(self, now_ns: int) -> None:
        """Tell the gate, which is about to decide, what was to be told in the steps of the leap that are over."""
        if self._leap.steps > 1 and self.end_ns != NEVER_NS:
            self._tell_steps(min(self._leap.steps, self._leap.ended_by(now_ns)))

    def _tell_steps(self, steps: int) -> None:
        """What was to be told in the first so many steps of the leap, at the time at which it was."""
        begun = self.engine.step
        for ahead in range(self._told + 1, steps + 1):
            due = self._strides.due_in(begun + ahead)
            if not due:
                continue
            at_ns = self._leap.begin_ns + self._leap.lasts_ns(ahead)
            for stream in due:
                tokens = stream.base + begun + ahead
                if tokens - stream.reported >= PROGRESS_STRIDE:
                    self._report(stream, tokens, at_ns)
        self._told = max(self._told, steps)

    def _report_all(self, now_ns: int) -> None:
        """Tell the gate what was put off."""
        step = self.engine.step
        if self._leap.steps and self.end_ns != NEVER_NS:
            step += min(self._leap.steps, self._leap.ended_by(now_ns))
        self._report_to(step, now_ns)

    def _report_to(self, step: int, now_ns: int) -> None:
        for stream in self.engine.decoding():
            unreported = stream.base + step - stream.reported
            if unreported >= PROGRESS_STRIDE:
                self._report(stream, stream.reported + unreported - unreported % PROGRESS_STRIDE, now_ns)
