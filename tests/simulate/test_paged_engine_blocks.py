"""State machine: with groups of every kind and every option, no block is lost, freed while it is held, or kept."""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.simulate.paged_engine import PagedEngine, SchedulerOutput, SchedulingPolicy
from kvbudget.units import Blocks, Bytes, Tokens

BLOCK_SIZE = 4
WINDOW = 48
BUDGETS = (5, 16, 64)


def layout_of(kinds: str, in_flight: int, caching: bool) -> Layout:
    """f: full attention, s: sliding, c: chunked, m: a state, M: one that can be put aside, x: cross attention."""
    size, page, none = Tokens(BLOCK_SIZE), Bytes(1), Bytes(0)
    window, chunk = Tokens(10), Tokens(8)
    sliding = Group(LayerKind.SLIDING, 1, size, page, none, Tokens(window - 1 + in_flight), Blocks(1), window=window)
    groups = {
        "f": Group(LayerKind.FULL, 1, size, page),
        "s": sliding,
        "c": Group(LayerKind.CHUNKED, 1, size, page, most_tokens=Tokens(chunk + in_flight), window=chunk),
        "m": Group(LayerKind.MAMBA, 1, size, page, fixed_blocks=Blocks(2 if caching else 1)),
        "M": Group(LayerKind.MAMBA, 1, size, page, fixed_blocks=Blocks(3 if caching else 1)),
        "x": Group(LayerKind.CROSS, 1, size, page, fixed_blocks=Blocks(2)),
    }
    return Layout(tuple(groups[kind] for kind in kinds))


class Machine(RuleBasedStateMachine):
    """Small pools and few prompts, so that preemption, sharing and eviction are common."""

    @initialize(
        kinds=st.sampled_from(["f", "s", "sf", "ssf", "c", "cf", "mf", "mmf", "Mf", "msf", "xf", "csf"]),
        caching=st.booleans(),
        more_blocks=st.integers(0, 20),
        seqs=st.integers(1, 6),
        budget=st.sampled_from(BUDGETS),
        policy=st.sampled_from(SchedulingPolicy),
        asynchronous=st.booleans(),
        whole=st.booleans(),
        watermark=st.sampled_from([0.0, 0.1]),
        retention=st.sampled_from([0, None, 8]),
    )
    def start(
        self,
        kinds: str,
        caching: bool,
        more_blocks: int,
        seqs: int,
        budget: int,
        policy: SchedulingPolicy,
        asynchronous: bool,
        whole: bool,
        watermark: float,
        retention: int | None,
    ) -> None:
        self.layout = layout_of(kinds, budget * (1 + asynchronous), caching)
        self.paged = PagedEngine(
            self.layout,
            self.layout.blocks_for(WINDOW) + 1 + more_blocks,
            seqs,
            budget,
            WINDOW,
            prefix_caching=caching,
            prefix_retention_interval=retention if {*kinds} & {*"smM"} else 0,
            scheduling_policy=policy,
            watermark=watermark,
            reserve_full_isl=whole,
            async_scheduling=asynchronous,
        )
        self.promised: dict[str, int] = {}  # id -> tokens that it will produce
        self.produced: dict[str, int] = {}
        self.in_flight: deque[SchedulerOutput] = deque()
        self.serial = 0

    @rule(
        prompt=st.integers(1, WINDOW - 1),
        new=st.integers(1, 20),
        stop=st.none() | st.integers(1, 8),
        shared=st.integers(0, 10),
        priority=st.integers(0, 2),
    )
    def arrive(self, prompt: int, new: int, stop: int | None, shared: int, priority: int) -> None:
        self.serial += 1
        name = f"r{self.serial}"
        keys = tuple(range(min(shared, prompt // self.paged.key_tokens)))
        clipped = self.paged.add(name, prompt, new, stop, priority=priority, block_keys=keys)
        self.promised[name], self.produced[name] = min(clipped, stop or clipped), 0

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.promised:
            name = data.draw(st.sampled_from(sorted(self.promised)))
            assert self.paged.abort(name)
            del self.promised[name]

    @rule()
    def schedule(self) -> None:
        if len(self.in_flight) < self.paged.steps_in_flight:
            output = self.paged.schedule()
            assert output.total_num_scheduled_tokens <= self.paged.max_num_batched_tokens
            assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
            assert not (output.preempted and output.admitted)
            self.in_flight.append(output)

    @rule()
    def update(self) -> None:
        if self.in_flight:
            result = self.paged.update_from_output(self.in_flight.popleft())
            for name in result.produced:
                self.produced[name] += 1
            for name, _ in result.finished:
                assert self.produced[name] == self.promised.pop(name)

    @invariant()
    def every_block_is_free_or_held_and_the_free_ones_are_counted(self) -> None:
        pool = self.paged.block_pool
        held = {block for name in self.promised for block in self.paged.block_ids(name)}
        assert 0 not in held
        assert len(held) + self.paged.free_blocks == pool.usable_blocks
        assert all(pool.is_free(block) != (block in held) for block in range(1, pool.num_blocks))
        assert pool.cached_blocks <= pool.usable_blocks
        assert pool.cached_blocks == 0 or self.paged.kv_cache.prefix_caching

    @invariant()
    def who_waits_holds_nothing_and_who_runs_no_more_than_its_groups_say(self) -> None:
        assert sorted((*self.paged.running, *self.paged.waiting)) == sorted(self.promised)
        assert self.paged.num_running <= self.paged.max_num_seqs
        for name in self.paged.waiting:
            assert not any(self.paged.held_blocks(name))
        for name in self.paged.running:
            held = self.paged.held_blocks(name)
            assert sum(held) == len(set(self.paged.block_ids(name)))
            for mine, group in zip(held, self.layout.groups, strict=True):
                # vLLM does not count that a state moves on before the step that reads the old one has ended.
                more = self.paged.steps_in_flight - 1 if group.kind is LayerKind.MAMBA else 0
                assert mine <= group.blocks_for(WINDOW) + more

    def teardown(self) -> None:
        """When all have left, the pool is whole again, and every block of it can be taken."""
        if not hasattr(self, "paged"):
            return
        while self.in_flight:
            self.update()
        for name in [*self.promised]:
            assert self.paged.abort(name)
        pool = self.paged.block_pool
        assert not self.paged.has_unfinished_requests
        assert pool.free_blocks == pool.usable_blocks == len(set(pool.take(pool.usable_blocks)))
        assert pool.cached_blocks == 0


TestBlocks = Machine.TestCase
TestBlocks.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
