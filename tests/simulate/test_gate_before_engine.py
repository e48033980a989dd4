"""The gate before the paged engine model: with it (almost) nothing is preempted; without it the same load is."""

import random
from collections.abc import Callable

import pytest

from kvbudget.gate.commands import Command, Forward, Reject
from kvbudget.gate.events import Arrived, Ended, Progressed
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.paged_engine import PagedEngine
from kvbudget.units import Blocks, Tokens

BLOCKS = 48
LAYOUT = uniform_layout(16)


def run(seed: int, policy: Policy | None, *, batched_tokens: int = 64, late: int = 3) -> tuple[PagedEngine, int]:
    """Overload an engine of 48 usable blocks with 120 requests; returns it and the most requests that ran at once.

    Reports of tokens reach the gate up to `late` tokens late, and prefill is slow, so that sequences get out of step.
    """
    rng = random.Random(seed)
    engine = PagedEngine(LAYOUT, BLOCKS + 1, 32, batched_tokens, 512)
    config = GateConfig(
        policy=policy or Policy.WORST_CASE,
        max_num_seqs=32,
        prefill_tokens_per_step=batched_tokens - 32,
        lag_steps=late + 1,
        queue_requests=1000,
        queue_tokens=Tokens(10**6),
        queue_ns=10**9,
    )
    gate = Gate(config, LAYOUT, Blocks(BLOCKS if policy else 10**6))
    waiting = [
        (rng.randrange(400), f"r{i}", rng.randint(1, 200), rng.randint(1, 250), rng.random()) for i in range(120)
    ]
    stops: dict[str, int] = {}
    unreported: dict[str, int] = {}
    most = step = 0

    def obey(commands: list[Command]) -> None:
        for command in commands:
            assert not isinstance(command, Reject)
            if isinstance(command, Forward):
                engine.add(
                    command.request_id, prompts[command.request_id], command.max_new_tokens, stops[command.request_id]
                )

    prompts: dict[str, int] = {}
    while waiting or engine.has_unfinished_requests or len(gate.queue):
        for entry in [one for one in waiting if one[0] <= step]:
            waiting.remove(entry)
            _, name, prompt, new, share = entry
            prompts[name], stops[name] = prompt, max(1, int(new * share))
            obey(gate.handle(Arrived(name, (Tokens(prompt),), Tokens(new), Tokens(1), paced=True), step))
        result = engine.step()
        most = max(most, engine.num_running)
        for name in result.produced:
            unreported[name] = unreported.get(name, 0) + 1
            if unreported[name] > rng.randint(0, late) or unreported[name] > late:
                obey(gate.handle(Progressed(name, unreported.pop(name)), step))
        for finished in result.finished:
            obey(gate.handle(Ended(finished[0], Outcome.FINISHED), step))
        step += 1
        assert step < 100_000
    assert gate.promised_blocks() == 0
    assert engine.free_blocks == BLOCKS
    return engine, most


@pytest.mark.parametrize("policy", [Policy.WORST_CASE, Policy.TRAJECTORY])
@pytest.mark.parametrize("seed", range(6))
def test_no_safe_policy_ever_lets_the_engine_run_out_of_blocks(seed: int, policy: Policy) -> None:
    engine, _ = run(seed, policy)
    assert engine.preemptions == 0


def test_the_learned_policy_runs_more_at_once_for_a_small_risk() -> None:
    """Whoever asks for up to 250 tokens takes half of them on average, and a pool of 48 blocks holds only a few."""
    learned = [run(seed, Policy.LEARNED) for seed in range(6)]
    assert sum(most for _, most in learned) > 1.2 * sum(run(seed, Policy.WORST_CASE)[1] for seed in range(6))
    assert sum(engine.preemptions for engine, _ in learned) <= 0.01 * 6 * 120


def test_without_the_gate_the_same_load_is_preempted() -> None:
    assert sum(run(seed, None)[0].preemptions for seed in range(3)) > 20


def test_trajectory_runs_more_at_once_than_worst_case() -> None:
    at_once: Callable[[Policy], int] = lambda policy: sum(run(seed, policy)[1] for seed in range(6))  # noqa: E731
    assert at_once(Policy.TRAJECTORY) > at_once(Policy.WORST_CASE)
