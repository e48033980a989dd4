"""Clients who come back at the time that they were told find room, in short runs of the scenarios."""

from dataclasses import replace
from random import Random

import pytest

from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import simulate
from kvbudget.simulate.scenarios import BLOCK_SIZE, SCENARIOS
from kvbudget.simulate.settings import ClientHabits, EngineSizes, Settings

SEEDS = range(11, 15)


def run(name: str, retries: int, seed: int = 11) -> Result:
    scenario = SCENARIOS[name]
    settings = Settings(EngineSizes(uniform_layout(BLOCK_SIZE), scenario.num_blocks, scenario.max_model_len))
    settings = replace(settings, clients=ClientHabits(retries=retries))
    return simulate(scenario.load(Random(seed), scenario.requests), settings, contender("learned"), Random(seed + 1))


@pytest.mark.parametrize("name", ["overload-1.7", "prefixes", "shared-prompt", "tenant-flood"])
def test_who_comes_when_told_is_let_in_at_once_and_was_not_told_too_long(name: str) -> None:
    runs = [run(name, 5, seed).retry_times.document() for seed in SEEDS]
    returned = sum(told["returned"] for told in runs)
    assert returned >= 60, "so few that one or two decide"
    assert sum(told["admitted_at_once"] for told in runs) >= 0.8 * returned
    assert all(told["told_to_hindsight"] <= 1.5 for told in runs)


def test_where_overload_comes_in_waves_hindsight_may_shorten_told_times_by_far() -> None:
    told = run("alternating", 5, seed=9203).retry_times.document()  # 1.55 at 0.3 of the pace at least
    assert told["hindsight_known"] >= 10
    assert told["share_at_once"] >= 0.8
    assert told["told_to_hindsight"] <= 1.5


def test_clients_who_come_back_cost_little_of_what_is_served_to_others() -> None:
    alone, with_returns = run("overload-1.7", 0), run("overload-1.7", 5)
    assert with_returns.goodput_tokens_per_s > 0.75 * alone.goodput_tokens_per_s
