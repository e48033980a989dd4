"""What a flood does to others, in short runs of the simulator: the rule as a whole, not its parts."""

from dataclasses import replace
from random import Random

import pytest

from kvbudget.gate.gate import Gate
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import Simulation, simulate
from kvbudget.simulate.scenarios import SCENARIOS
from kvbudget.simulate.settings import ClientHabits, EngineSizes, Settings
from kvbudget.units import Tokens

SETTINGS = Settings(EngineSizes(uniform_layout(16), 1025, max_model_len=4096))
SECONDS = 60
SMALL = SCENARIOS["small-pool"]


def requests(seed: int, tenant: str, per_s: float, begin_s: float = 0.0, priority: int = 0) -> list[TraceRequest]:
    """Chat with prompts of 20 to 400 tokens and answers of 20 to 300."""
    chance, at_ns = Random(seed), int(begin_s * 1e9)
    found: list[TraceRequest] = []
    while True:
        at_ns += int(chance.expovariate(per_s) * 1e9)
        if at_ns >= SECONDS * 10**9:
            return found
        prompt, output = chance.randint(20, 400), chance.randint(20, 300)
        found.append(TraceRequest(at_ns, Tokens(prompt), Tokens(1024), Tokens(output), tenant, priority=priority))


def small_settings(retries: int) -> Settings:
    sizes = EngineSizes(uniform_layout(16), SMALL.num_blocks, SMALL.max_model_len)
    return Settings(sizes, clients=ClientHabits(retries=retries))


def run(*loads: list[TraceRequest]) -> Result:
    load = sorted([one for load in loads for one in load], key=lambda one: one.arrival_ns)
    return simulate(load, SETTINGS, contender("learned"), Random(1))


def p99_ns(result: Result, tenant: str) -> int:
    return result.tenants[tenant].ttft.percentile(0.99) or 0


def lost(result: Result, tenant: str) -> int:
    tally = result.tenants[tenant]
    return tally.requests - tally.good


@pytest.mark.parametrize("priority", [0, 1])
def test_a_flood_hardly_moves_others_and_takes_nothing_from_them(priority: int) -> None:
    """`priority` 1: one less urgent class floods, and what is urgent is interactive."""
    quiet = requests(1, "quiet", 2.0)
    alone = run(quiet)
    flooded = run(quiet, requests(2, "flood", 60.0, 10.0, priority))
    assert flooded.refusals.total() > 500  # else there was no flood
    assert lost(flooded, "quiet") <= lost(alone, "quiet") + 2
    assert p99_ns(flooded, "quiet") < 2 * p99_ns(alone, "quiet")  # 54 ms of 33: steps are longer; 3 s without shares
    assert flooded.preemptions <= 0.01 * flooded.all.requests
    assert flooded.promised_at_end == 0


def test_equal_tenants_in_overload_are_served_alike_though_some_ask_for_more() -> None:
    rates = (12.0, 15.0, 25.0, 60.0)
    result = run(*[requests(number, f"t{number}", rate) for number, rate in enumerate(rates)])
    good = [result.tenants[f"t{number}"].good_tokens for number in range(len(rates))]
    assert sum(good) ** 2 / (len(good) * sum(one**2 for one in good)) > 0.97  # Jain's index


def test_weights_divide_what_is_served() -> None:
    load = sorted(requests(1, "gold", 50.0) + requests(2, "tin", 50.0), key=lambda one: one.arrival_ns)
    simulation = Simulation(load, SETTINGS, contender("learned"), Random(1))
    gate = simulation.instances[0].gate
    config = replace(gate.config, tenants={"gold": TenantLimits(weight=3.0)})
    simulation.instances[0].gate = Gate(config, gate.ledger.layout, gate.ledger.usable_blocks)
    result = simulation.run()
    assert 2.3 < result.tenants["gold"].good_tokens / result.tenants["tin"].good_tokens < 3.7


@pytest.mark.parametrize("tenants", [8, 10**6])
def test_many_equal_tenants_preempt_no_more_than_one(tenants: int) -> None:
    """Of many, one borrows at nearly any time; then all the others took what caution keeps free: 4 % were preempted."""
    preempted = asked = 0
    for seed in range(1, 4):
        chance = Random(seed)
        load = [
            replace(one, tenant=f"t{number % tenants}") for number, one in enumerate(SMALL.load(chance, SMALL.requests))
        ]
        result = simulate(load, small_settings(retries=0), contender("learned"), Random(seed + 1))
        preempted, asked = preempted + result.preemptions, asked + len(load)
    assert preempted <= 0.01 * asked


def test_clients_that_are_tenants_of_their_own_come_back_one_after_another() -> None:
    """Each was told the bare wait, with a promise; all of them came at once, and half of the goodput was lost."""
    good: list[float] = []
    for named in (False, True):
        load = [
            replace(one, tenant=f"t{number}" if named else "t")
            for number, one in enumerate(SMALL.load(Random(2), SMALL.requests))
        ]
        good.append(
            simulate(load, small_settings(retries=5), contender("learned"), Random(3)).document()[
                "goodput_tokens_per_s"
            ]
        )
    assert good[1] > 0.95 * good[0]
