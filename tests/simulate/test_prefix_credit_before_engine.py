"""Prefix credit before the paged engine model, which shares, overwrites and preempts exactly as vLLM 0.32 does."""

import random
from typing import NamedTuple

import pytest

from kvbudget.gate.commands import Command, Forward, Reject
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived, Ended, Preempted, Progressed, Tick
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.simulate.paged_engine import PagedEngine, SchedulerOutput
from kvbudget.simulate.prefix_keys import PrefixKeys
from kvbudget.units import Blocks, Tokens

BLOCKS = 60
BLOCK = 16
LAYOUT = uniform_layout(BLOCK)
SAFE = [Policy.WORST_CASE, Policy.TRAJECTORY]


class Wish(NamedTuple):
    arrival: int
    name: str
    prompt: int
    new: int
    stop: int
    keys: tuple[int, ...]
    leaves_after: int | None  # tokens after which its client goes


class Run(NamedTuple):
    engine: PagedEngine
    gate: Gate
    at_once: int  # most requests that ran at once
    steps: int
    most_credit: int
    overpromised: int  # steps in which the engine held more than was promised


def wishes(seed: int, count: int) -> list[Wish]:
    """Prompts that begin with one of four long beginnings, of which two begin alike, and go on as some others do."""
    rng = random.Random(seed)
    keys = PrefixKeys(BLOCK, BLOCK)
    made = []
    for i in range(count):
        family = rng.choice([(1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 9, 10), (11, 12, 13, 14), (15,), ()])
        ids = family[: rng.randint(0, len(family))] if rng.random() < 0.2 else family
        ids += tuple([20 + rng.randrange(3) for _ in range(rng.randint(0, 3))])
        # Often the prompt ends where a block does: then that block must be computed again.
        prompt = len(ids) * BLOCK + rng.choice([0, 0, rng.randint(1, 60)])
        prompt = max(1, prompt)
        new = rng.randint(1, 150)
        leaves = rng.randint(1, 60) if rng.random() < 0.15 else None
        made.append(
            Wish(rng.randrange(4 * count), f"r{i}", prompt, new, rng.randint(1, new), keys.keys(ids, prompt), leaves)
        )
    return made


def run(
    seed: int,
    policy: Policy,
    sharing: Sharing = Sharing.SCHEDULED,
    *,
    asynchronous: bool = False,
    threshold: int = 0,
    told: bool = False,
    strangers: int = 0,
    count: int = 150,
    late: int = 3,
) -> Run:
    """`threshold`: the engine reads several prompts side by side; `told`: it tells what it reused; `strangers`: so many
    requests reach the engine past the gate."""
    rng = random.Random(seed)
    budget = 64
    engine = PagedEngine(
        LAYOUT, BLOCKS + 1, 32, budget, 512,
        prefix_caching=True, async_scheduling=asynchronous, long_prefill_token_threshold=threshold,
    )  # fmt: skip
    config = GateConfig(
        policy=policy,
        max_num_seqs=32,
        sharing=sharing,
        prefill_tokens_per_step=budget - 32,
        lag_steps=late + 2,
        queue_requests=1000,
        queue_tokens=Tokens(10**6),
        queue_ns=10**9,
        abort_tail_ns=3,
    )
    gate = Gate(config, LAYOUT, Blocks(BLOCKS))
    waiting = wishes(seed, count)
    by_name = {wish.name: wish for wish in waiting}
    for i in range(strangers):
        engine.add(f"s{i}", 100, 100)
    outputs: list[SchedulerOutput] = []
    made: dict[str, int] = {}
    unreported: dict[str, int] = {}
    leaving: dict[str, int] = {}  # step at which the engine hears of it
    inside: set[str] = set()
    most = step = most_credit = over = told_preemptions = 0

    def obey(commands: list[Command]) -> None:
        for command in commands:
            assert not isinstance(command, Reject)
            if isinstance(command, Forward):
                wish = by_name[command.request_id]
                inside.add(wish.name)
                engine.add(wish.name, wish.prompt, command.max_new_tokens, wish.stop, block_keys=wish.keys)

    while waiting or engine.has_unfinished_requests or len(gate.queue):
        for wish in [one for one in waiting if one.arrival <= step]:
            waiting.remove(wish)
            prompt = (Tokens(wish.prompt),)
            obey(
                gate.handle(Arrived(wish.name, prompt, Tokens(wish.new), Tokens(1), paced=True, prefix=wish.keys), step)
            )
        for name in [one for one, when in leaving.items() if when <= step]:
            del leaving[name]
            engine.abort(name)
        while len(outputs) < engine.steps_in_flight:
            outputs.append(engine.schedule())
        output = outputs.pop(0)
        result = engine.update_from_output(output)
        reused = {work.request.request_id: work.request.cached_tokens for work in output.work}
        most = max(most, engine.num_running)
        if engine.preemptions > told_preemptions:
            gate.handle(Preempted(None, engine.preemptions - told_preemptions), step)
            told_preemptions = engine.preemptions
        for name in result.produced:
            if name not in inside:
                continue
            made[name] = made.get(name, 0) + 1
            unreported[name] = unreported.get(name, 0) + 1
            cached = reused[name] if told and made[name] == 1 else None
            if unreported[name] > rng.randint(0, late) or unreported[name] > late or cached is not None:
                tokens = None if cached is None else Tokens(cached)
                obey(gate.handle(Progressed(name, unreported.pop(name), tokens), step))
        for name, _ in result.finished:
            if name in inside:
                inside.remove(name)
                obey(gate.handle(Ended(name, Outcome.FINISHED), step))
        for name in sorted(inside):
            leaves = by_name[name].leaves_after
            if leaves is not None and made.get(name, 0) >= leaves:
                inside.remove(name)
                leaving[name] = step + 1 + rng.randrange(3)
                obey(gate.handle(Ended(name, Outcome.CLIENT_GONE, engine_done=False), step))
        held = BLOCKS - engine.free_blocks
        most_credit = max(most_credit, gate.ledger.shared_prefix_blocks)
        over += held > gate.promised_blocks() and not strangers
        if step % 16 == 0:
            assert sum(gate.promised_by_tenant().values()) == gate.promised_blocks()
        step += 1
        obey(gate.handle(Tick(), step))
        assert step < 100_000
    gate.handle(Tick(), step + config.abort_tail_ns)
    assert gate.promised_blocks() == 0
    assert (gate.ledger.peak_sum_blocks, gate.ledger.shared_prefix_blocks, engine.free_blocks) == (0, 0, BLOCKS)
    return Run(engine, gate, most, step, most_credit, over)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", SAFE)
@pytest.mark.parametrize("seed", range(6))
def test_with_credit_the_engine_never_runs_out_of_blocks(seed: int, policy: Policy, asynchronous: bool) -> None:
    done = run(seed, policy, asynchronous=asynchronous)
    assert (done.engine.preemptions, done.overpromised) == (0, 0)
    assert done.most_credit > 10


@pytest.mark.parametrize("policy", SAFE)
@pytest.mark.parametrize("seed", range(6))
def test_nor_where_prompts_are_read_side_by_side_and_only_the_computed_is_credited(seed: int, policy: Policy) -> None:
    done = run(seed, policy, Sharing.COMPUTED, threshold=16, told=seed % 2 == 0)
    assert (done.engine.preemptions, done.overpromised) == (0, 0)
    assert done.most_credit > 0


@pytest.mark.parametrize(("threshold", "sharing", "enough"), [
    (0, Sharing.SCHEDULED, True),
    (16, Sharing.SCHEDULED, False),
    (16, Sharing.COMPUTED, True),
])  # fmt: skip
def test_only_where_prompts_are_read_one_after_another_what_is_scheduled_is_shared(
    threshold: int, sharing: Sharing, enough: bool
) -> None:
    engine = PagedEngine(LAYOUT, BLOCKS + 1, 32, 64, 512, prefix_caching=True, long_prefill_token_threshold=threshold)
    gate = Gate(GateConfig(policy=Policy.WORST_CASE, sharing=sharing), LAYOUT, Blocks(BLOCKS))
    keys = PrefixKeys(BLOCK, BLOCK).keys((1, 2, 3, 4, 5, 6, 7, 8), 8 * BLOCK + 1)
    for i in range(6):
        name = f"r{i}"
        for command in gate.handle(Arrived(name, (Tokens(8 * BLOCK + 1),), Tokens(5), Tokens(1), prefix=keys), 0):
            if isinstance(command, Forward):
                engine.add(name, 8 * BLOCK + 1, 5, block_keys=keys)
    most = 0
    while engine.has_unfinished_requests:
        output = engine.schedule()
        most = max(most, BLOCKS - engine.free_blocks)
        engine.update_from_output(output)
    assert (most <= gate.promised_blocks()) is enough


@pytest.mark.parametrize("policy", SAFE)
def test_credit_lets_more_run_at_once_and_the_work_end_sooner(policy: Policy) -> None:
    # Small ones that go before a large one fill the pool without credit too, so it takes some loads to see the rest.
    without = [run(seed, policy, Sharing.OFF) for seed in range(8)]
    credited = [run(seed, policy) for seed in range(8)]
    assert sum(one.at_once for one in credited) > 1.05 * sum(one.at_once for one in without)
    assert sum(one.steps for one in credited) < 0.91 * sum(one.steps for one in without)


def test_preemptions_that_cannot_be_end_every_credit_until_calm_returns() -> None:
    done = run(1, Policy.TRAJECTORY, strangers=8)
    assert done.engine.preemptions > 0
    assert done.gate.trust.doubt + done.gate.trust._penalty > 0
