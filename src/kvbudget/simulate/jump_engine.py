"""Decides the same as `PagedEngine`, for one full-attention group and synchronous scheduling, many steps at a time.

While nobody enters, ends or runs out of blocks, each step gives each decoding sequence one token. How many blocks that
takes in which step follows from where in its block each of them stands (counts by residue of the block size), so any
number of such steps is done at once (`steps_ahead`, `advance`); other steps are scheduled by themselves (`schedule`,
`end_step`), by the rules that paged_engine.py names. tests/simulate/test_jumping.py holds the two against each
other.
"""

import heapq
from collections import deque
from collections.abc import Iterator

from kvbudget.simulate.clients import Client
from kvbudget.simulate.prefix_runs import Holding, Path, RunPool


class Stream:
    """One request in the engine. While it decodes, its tokens are `base` + the engine's step, and it has computed all
    but the last of them; otherwise `output` and `computed` tell."""

    __slots__ = (
        "base", "cached", "client", "computed", "decoding", "ends_at", "high_water", "holdings", "key", "keyed",
        "last_ns", "limit", "order", "output", "path", "prompt", "reported", "running", "serial",
    )  # fmt: skip

    def __init__(self, client: Client, prompt: int, limit: int, order: tuple[int, int, str], path: Path | None) -> None:
        self.client = client
        self.key = client.key
        self.prompt = prompt
        self.limit = limit  # tokens that it produces, whatever ends it
        self.order = order  # (priority, arrival, key): the smaller, the sooner
        self.path = path  # None without a prefix cache
        self.output = 0
        self.computed = 0
        self.base = 0
        self.ends_at = 0  # the step that brings its last token, while it decodes
        self.decoding = False
        self.running = False
        self.serial = 0  # of its admission
        self.holdings: list[Holding] = []
        self.keyed = 0  # leading blocks that can be found
        self.cached = -1  # tokens found when it was first admitted; -1: it was not
        self.high_water = 0  # most that was computed before a preemption
        self.last_ns = 0  # of its last token, while it does not decode
        self.reported = 0  # tokens told to the gate


class Scheduled:
    """A step that was put together: tokens of sequences that got several, sequences that got one, tokens of context,
    all tokens, those of them that had been computed before, and who was preempted."""

    __slots__ = ("context_tokens", "decodes", "preempted", "prefill_tokens", "recomputed_tokens", "tokens")

    def __init__(
        self, prefill_tokens: int, decodes: int, context_tokens: int, recomputed_tokens: int, preempted: list[Stream]
    ) -> None:
        self.prefill_tokens = prefill_tokens
        self.decodes = decodes
        self.context_tokens = context_tokens
        self.tokens = prefill_tokens + decodes
        self.recomputed_tokens = recomputed_tokens
        self.preempted = preempted


class JumpEngine:
    """Continuous batching over counts of blocks."""

    def __init__(
        self, *, usable_blocks: int, block_size: int, max_num_seqs: int, max_num_batched_tokens: int,
        watermark_blocks: int, by_priority: bool, blocks_per_id: int,
    ) -> None:  # fmt: skip
        """`max_num_batched_tokens` must not be below `max_num_seqs`: every running sequence gets a token each step."""
        self.pool = RunPool(usable_blocks, blocks_per_id)
        self.step = 0  # that have ended
        self.decoders = 0
        self.context = 0  # tokens that all who decode have computed
        self.phases = [0] * block_size  # who decodes, by the step modulo the block size in which it takes a block
        self.others: dict[int, Stream] = {}  # that run and do not decode: in prefill, or passed over in a step
        self.running: dict[int, Stream] = {}  # by serial, so in order of admission
        self.sampling: list[Stream] = []  # of `others`, those that get a token in the step under way
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._budget = max_num_batched_tokens
        self._watermark = watermark_blocks
        self._by_priority = by_priority
        self._queue: deque[Stream] = deque()
        self._heap: list[tuple[tuple[int, int, str], Stream]] = []
        self.stopped: list[Stream] = []  # that decoded until the step before the one under way
        self.first_preemptions = 0  # of requests that had not been preempted before
        self._look = False  # whether the head of the queue might fit now
        self._ends: list[tuple[int, int, Stream]] = []  # (step of the last token, serial, who), stale ones among them
        self._serial = 0

    @property
    def waiting(self) -> int:
        """Requests that wait, preempted ones included."""
        return len(self._heap) if self._by_priority else len(self._queue)

    @property
    def unfinished(self) -> bool:
        """Whether a step might have something to do."""
        return bool(self.running or self._queue or self._heap)

    def decoding(self) -> Iterator[Stream]:
        """All who decode, in order of admission."""
        return (stream for stream in self.running.values() if stream.decoding)

    def add(self, stream: Stream) -> None:
        """It waits from now on."""
        if self._by_priority:
            heapq.heappush(self._heap, (stream.order, stream))
            self._look = True
            return
        if not self._queue:
            self._look = True
        self._queue.append(stream)

    def abort(self, stream: Stream) -> None:
        """Take out one that waits or has not produced anything yet."""
        self._look = True
        if stream.running:
            del self.running[stream.serial]
            del self.others[stream.serial]
            stream.running = False
            self._release(stream, stream.computed)
        elif self._by_priority:
            self._heap = [entry for entry in self._heap if entry[1] is not stream]
            heapq.heapify(self._heap)
        else:
            self._queue.remove(stream)

    # Steps in which all that happens is that those who decode get a token

    def steps_ahead(self) -> int:
        """How many steps from now on are such steps, the last of them may end somebody; 0: `schedule` the next one."""
        if self.others or not self.decoders or (self._look and (self._queue or self._heap)):
            return 0
        ends = self._ends
        while not ends[0][2].decoding or ends[0][2].ends_at != ends[0][0]:
            heapq.heappop(ends)
        steps = ends[0][0] - self.step
        size, free = self._block_size, self.pool.free_blocks
        if self.decoders * (steps // size + 1) <= free:
            return steps
        rounds = min(steps // size, free // self.decoders)
        done, free = rounds * size, free - rounds * self.decoders
        while done < steps:
            free -= self.phases[(self.step + done) % size]
            if free < 0:
                break
            done += 1
        return done

    def advance(self, steps: int, blocks: int) -> None:
        """Do that many, which take so many blocks."""
        if blocks:
            self.pool.take(blocks)
        self.step += steps
        self.context += steps * self.decoders

    # Any step

    def schedule(self) -> Scheduled:
        """Put the next step together and take its blocks."""
        self.sampling = []
        self.stopped = []
        size, pool = self._block_size, self.pool
        need = self.phases[self.step % size]
        work = [(stream, stream.computed, stream.prompt + stream.output) for stream in self.others.values()]
        budget = self._budget - self.decoders
        for at, (stream, start, end) in enumerate(work):
            end = min(end, start + budget)  # noqa: PLW2901
            work[at] = (stream, start, end)
            budget -= end - start
            need += -(-end // size) - -(-start // size)
        if need > pool.free_blocks:
            return self._schedule_short()
        if need:
            pool.take(need)
        prefill, decodes, context = 0, self.decoders, self.context + self.decoders
        recomputed, stalled = 0, True
        if work:
            for stream, _, end in work:
                self._remember(stream, end)
            stalled = False
        if self._look and (self._queue or self._heap):
            before = len(work)
            stalled = self._admit(work, budget) and stalled and len(work) == before
        self._look = not stalled
        for stream, start, end in work:
            tokens = end - start
            context += end
            if tokens == 1:
                decodes += 1
            else:
                prefill += tokens
            recomputed += self._give(stream, start, end)
        return Scheduled(prefill, decodes, context, recomputed, [])

    def end_step(self) -> None:
        """The scheduled step is over."""
        self.step += 1
        self.context += self.decoders

    def start_decoding(self, stream: Stream) -> None:
        """It got a token, and gets one in each step from now on."""
        del self.others[stream.serial]
        step = self.step
        stream.output += 1
        stream.decoding = True
        stream.base = stream.output - step
        computed = stream.prompt + stream.output - 1
        self.phases[(step - computed) % self._block_size] += 1
        self.decoders += 1
        self.context += computed
        stream.ends_at = step + stream.limit - stream.output
        heapq.heappush(self._ends, (stream.ends_at, stream.serial, stream))

    def end(self, sampled: list[Stream]) -> list[Stream]:
        """Who got the last token just now, in order of admission; they are out of the engine. `sampled`: who did not
        decode before and got a token."""
        ends, step = self._ends, self.step
        found: list[Stream] = []
        while ends and ends[0][0] <= step:
            ends_at, _, stream = heapq.heappop(ends)
            if stream.decoding and stream.ends_at == ends_at:
                self._stop_decoding(stream)
                found.append(stream)
        for stream in sampled:
            if stream.output + 1 == stream.limit:
                stream.output += 1
                del self.others[stream.serial]
                found.append(stream)
        if len(found) > 1:
            found.sort(key=serial_of)
        for stream in found:
            del self.running[stream.serial]
            stream.running = False
            self._release(stream, stream.computed)
            self._look = True
        return found

    def _stop_decoding(self, stream: Stream) -> None:
        stream.decoding = False
        stream.output = stream.base + self.step
        stream.computed = computed = stream.prompt + stream.output - 1
        self.phases[(self.step - computed) % self._block_size] -= 1
        self.decoders -= 1
        self.context -= computed

    def _admit(self, work: list[tuple[Stream, int, int]], budget: int) -> bool:
        """Admit from the head of the queue; whether it was the pool or the places that ended it."""
        size, pool = self._block_size, self.pool
        queue, heap = self._queue, self._heap
        while queue or heap:
            if len(self.running) >= self._max_num_seqs:
                return True
            if budget <= 0:
                return False
            stream = heap[0][1] if self._by_priority else queue[0]
            tokens = stream.prompt + stream.output
            blocks = -(-tokens // size)
            path = stream.path
            found = pool.find(path, (tokens - 1) // size) if path is not None else []
            places = found[-1][2] if found else 0
            missing = blocks - places + (pool.free_among(found) if found else 0)
            if missing + (self._watermark if self.running else 0) > pool.free_blocks:
                # Blocks that are overwritten count no more than free ones did, so only an end changes this; but where
                # there are copies, one that is held may take the place of one that was free.
                return not pool.met_copies
            if self._by_priority:
                heapq.heappop(heap)
            else:
                queue.popleft()
            if found:
                stream.holdings = pool.hold(found)
            stream.keyed = places
            start = places * size
            end = min(tokens, start + budget)
            budget -= end - start
            pool.take(-(-end // size) - places)
            self._remember(stream, end)
            if stream.cached < 0:
                stream.cached = start
            self._serial += 1
            stream.serial = self._serial
            stream.running = True
            self.running[self._serial] = self.others[self._serial] = stream
            work.append((stream, start, end))
        return True

    def _give(self, stream: Stream, start: int, end: int) -> int:
        """It is worked on; returns how much of it had been done before."""
        stream.computed = end
        if end >= stream.prompt + stream.output:
            self.sampling.append(stream)
        return max(0, min(end, stream.high_water) - start)

    def _remember(self, stream: Stream, computed: int) -> None:
        full = computed // self._block_size
        if stream.path is not None and full > stream.keyed:
            self.pool.remember(stream.path, stream.keyed, full, stream.holdings)
            stream.keyed = full

    def _release(self, stream: Stream, computed: int) -> None:
        """Give back the blocks of so many tokens."""
        self._remember(stream, computed)
        self.pool.give_back(-(-computed // self._block_size) - stream.keyed)
        if stream.holdings:
            self.pool.release(stream.holdings)
            stream.holdings = []
        stream.keyed = 0

    # A step for which there are too few blocks

    def _schedule_short(self) -> Scheduled:
        """One running request after the other, preempting where there is no block left."""
        size, pool = self._block_size, self.pool
        order = list(self.running.values())
        given: dict[int, tuple[Stream, int, int]] = {}
        preempted: list[Stream] = []
        budget, index = self._budget, 0
        while index < len(order) and budget > 0:
            stream = order[index]
            if stream.decoding:
                start = stream.prompt + stream.base + self.step - 1
                end = start + 1
            else:
                start = stream.computed
                end = min(stream.prompt + stream.output, start + budget)
            missing = -(-end // size) - -(-start // size)
            while missing > pool.free_blocks:
                place = self._victim(order)
                victim = order.pop(place)
                index -= place < index
                _, from_, to = given.pop(victim.serial, (victim, 0, 0))
                budget += to - from_
                preempted.append(victim)
                self._preempt(victim, to)
                if victim is stream:
                    break
            if not stream.running:
                break
            if missing:
                pool.take(missing)
            if not stream.decoding:
                self._remember(stream, end)
            given[stream.serial] = (stream, start, end)
            budget -= end - start
            index += 1
        for stream in order:
            if stream.decoding and stream.serial not in given:  # the step ended before it
                self._stop_decoding(stream)
                self.stopped.append(stream)
                self.others[stream.serial] = stream
        self._look = True
        prefill = decodes = context = recomputed = 0
        for stream, start, end in given.values():
            context += end
            if end - start == 1:
                decodes += 1
            else:
                prefill += end - start
            if not stream.decoding:
                recomputed += self._give(stream, start, end)
        return Scheduled(prefill, decodes, context, recomputed, preempted)

    def _victim(self, order: list[Stream]) -> int:
        if not self._by_priority:
            return len(order) - 1
        return max(range(len(order)), key=lambda place: order[place].order[:2])

    def _preempt(self, stream: Stream, scheduled_to: int) -> None:
        """Back to the queue; `scheduled_to`: what this step had already planned to compute of it, 0: nothing."""
        if stream.decoding:
            self._stop_decoding(stream)
            self.stopped.append(stream)
        else:
            del self.others[stream.serial]
        self._release(stream, max(stream.computed, scheduled_to))
        self.first_preemptions += not stream.high_water
        stream.high_water = max(stream.high_water, stream.computed)
        stream.computed = 0
        stream.running = False
        del self.running[stream.serial]
        if self._by_priority:
            heapq.heappush(self._heap, (stream.order, stream))
        else:
            self._queue.appendleft(stream)


def serial_of(stream: Stream) -> int:
    """By which streams are in order of admission, which is that of a batch."""
    return stream.serial
