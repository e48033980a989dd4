"""State machine: whatever comes and goes, no block is lost or held twice, and every request ends."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.paged_engine import PagedEngine, SchedulerOutput

BLOCK_SIZE = 4
WINDOW = 32


class Machine(RuleBasedStateMachine):
    """Small pools, so that preemption is common."""

    @initialize(
        num_blocks=st.integers(WINDOW // BLOCK_SIZE + 1, 20), seqs=st.integers(1, 6), budget=st.sampled_from([1, 5, 64])
    )
    def start(self, num_blocks: int, seqs: int, budget: int) -> None:
        self.layout = uniform_layout(BLOCK_SIZE)
        self.paged = PagedEngine(self.layout, num_blocks, seqs, budget, WINDOW)
        self.limits: dict[str, tuple[int, int]] = {}  # id -> (prompt tokens, tokens that it will produce)
        self.produced: dict[str, int] = {}
        self.arrivals: list[str] = []
        self.in_flight: SchedulerOutput | None = None
        self.serial = 0

    @rule(prompt=st.integers(1, WINDOW - 1), new=st.integers(1, WINDOW), stop=st.none() | st.integers(1, 8))
    def arrive(self, prompt: int, new: int, stop: int | None) -> None:
        self.serial += 1
        name = f"r{self.serial}"
        clipped = self.paged.add(name, prompt, new, stop)
        self.limits[name] = (prompt, min(clipped, stop or clipped))
        self.produced[name] = 0
        self.arrivals.append(name)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.limits:
            name = data.draw(st.sampled_from(sorted(self.limits)))
            assert self.paged.abort(name)
            self.forget(name)

    @rule()
    def schedule(self) -> None:
        if self.in_flight is None:
            oldest = self.oldest_running()
            self.in_flight = self.paged.schedule()
            if self.limits:
                assert self.in_flight.num_scheduled_tokens, "a step that does nothing while requests wait"
            assert self.in_flight.total_num_scheduled_tokens == sum(self.in_flight.num_scheduled_tokens.values())
            assert oldest not in self.in_flight.preempted, "the oldest must go on, or nobody would ever end"

    @rule()
    def update(self) -> None:
        if self.in_flight is not None:
            result = self.paged.update_from_output(self.in_flight)
            self.in_flight = None
            for name in result.produced:
                self.produced[name] += 1
            for name, _ in result.finished:
                assert self.produced[name] == self.limits[name][1]
                self.forget(name)

    @invariant()
    def no_block_is_lost_or_held_twice(self) -> None:
        held = [block for name in self.limits for block in self.paged.block_ids(name)]
        assert len(set(held)) == len(held)
        assert 0 not in held
        assert len(held) + self.paged.free_blocks == self.paged.block_pool.usable_blocks

    @invariant()
    def nobody_holds_more_than_its_length_and_who_waits_holds_nothing(self) -> None:
        assert set(self.paged.running) | set(self.paged.waiting) == set(self.limits)
        assert self.paged.num_running + self.paged.num_waiting == len(self.limits)
        assert self.paged.num_running <= self.paged.max_num_seqs
        for name in self.paged.waiting:
            assert not self.paged.block_ids(name)
        for name in self.paged.running:
            prompt = self.limits[name][0]
            assert len(self.paged.block_ids(name)) <= self.layout.blocks_for(prompt + self.produced[name])

    @invariant()
    def the_queue_keeps_the_order_of_arrival(self) -> None:
        place = {name: index for index, name in enumerate(self.arrivals)}
        queue = [place[name] for name in (*self.paged.running, *self.paged.waiting)]
        assert queue == sorted(queue)

    def teardown(self) -> None:
        """Nobody starves: left alone, every request ends, and the pool is whole again."""
        if not hasattr(self, "paged"):
            return
        self.update()
        steps = sum(prompt + new for prompt, new in self.limits.values()) * (len(self.limits) + 1)
        for _ in range(steps):
            if not self.limits:
                break
            self.schedule()
            self.update()
            self.no_block_is_lost_or_held_twice()
            self.nobody_holds_more_than_its_length_and_who_waits_holds_nothing()
        assert not self.paged.has_unfinished_requests
        assert self.paged.free_blocks == self.paged.block_pool.usable_blocks

    def oldest_running(self) -> str | None:
        return next(iter(self.paged.running), None)

    def forget(self, name: str) -> None:
        del self.limits[name], self.produced[name]


TestPagedEngine = Machine.TestCase
TestPagedEngine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
