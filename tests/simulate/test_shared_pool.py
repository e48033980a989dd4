"""Several gates before one engine, and the ways in which they share its pool (`simulate.shared_pool`)."""

import random
from dataclasses import replace

import pytest

from kvbudget.errors import BadValueError
from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import Simulation
from kvbudget.simulate.scenarios import SCENARIOS
from kvbudget.simulate.settings import ClientHabits, EngineSizes, Gates, PoolSharing, Settings
from kvbudget.simulate.shared_pool import SharedPool
from kvbudget.units import Tokens

MS = 10**6
WAYS = [
    Gates(4, 1 * MS),
    Gates(4, 5 * MS),
    Gates(4, 1 * MS, PoolSharing.EACH),
    Gates(4, 0, PoolSharing.STATIC),
]


def settings(shared: Gates | None, blocks: int = 4097, patience_ns: int | None = 30_000 * MS) -> Settings:
    engine = EngineSizes(uniform_layout(16), blocks, max_model_len=min(8192, 16 * (blocks - 1)))
    return Settings(engine, clients=ClientHabits(patience_ns=patience_ns), shared=shared)


def run(shared: Gates | None, policy: str, name: str = "overload-1.7", requests: int = 120) -> Simulation:
    load = SCENARIOS[name].load(random.Random(5), requests)
    simulation = Simulation(load, settings(shared), contender(policy), random.Random(6))
    simulation.run()
    return simulation


def shared_pool(simulation: Simulation) -> SharedPool:
    (instance,) = simulation.instances
    assert isinstance(instance, SharedPool)
    return instance


@pytest.mark.parametrize("policy", ["worst-case", "trajectory", "learned"])
@pytest.mark.parametrize("shared", WAYS, ids=lambda gates: f"{gates.sharing}-{gates.rtt_ns // MS}")
def test_every_request_ends_and_nothing_stays_promised(shared: Gates, policy: str) -> None:
    simulation = run(shared, policy, requests=60)
    result, pool = simulation.result, shared_pool(simulation)
    whole = result.all
    assert whole.finished + whole.refused + whole.timed_out == result.requests == 60
    assert result.promised_at_end == 0
    assert pool.bank.granted("blocks") <= pool.gate.ledger.pool_blocks
    if policy == "worst-case":
        assert result.preemptions == 0


def test_four_gates_serve_nearly_as_much_as_one() -> None:
    one, four = run(None, "worst-case"), run(Gates(4, 1 * MS), "worst-case")
    finished = [simulation.result.all.finished for simulation in (four, one)]
    assert finished[0] >= 0.95 * finished[1]
    pool = shared_pool(four)
    assert all(gate.expectation.used_share < 1.0 for gate in pool.gates)  # each had its part of the traffic
    assert pool.calls < 8 * four.result.tries
    assert pool.woken > 0
    assert pool.idle.blocks < 0.02 * pool.idle.looks * pool.gate.ledger.pool_blocks


def test_a_pool_in_equal_parts_lies_idle_where_slices_do_not() -> None:
    parts, slices = [
        shared_pool(run(shared, "worst-case")).idle for shared in (Gates(4, 0, PoolSharing.STATIC), Gates(4, 1 * MS))
    ]
    assert parts.blocks / parts.looks > 2 * slices.blocks / slices.looks


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = [run(Gates(3, 1 * MS), "learned", requests=50) for _ in range(2)]
    assert first.result.document() == second.result.document()
    assert shared_pool(first).calls == shared_pool(second).calls


@pytest.mark.parametrize("shared", [Gates(2, 400 * MS), Gates(2, 400 * MS, PoolSharing.EACH)])
def test_a_client_may_leave_before_the_ledger_has_answered(shared: Gates) -> None:
    load = [TraceRequest(n * 50 * MS, Tokens(100), Tokens(10), Tokens(10)) for n in range(20)]
    simulation = Simulation(load, settings(shared, patience_ns=300 * MS), contender("worst-case"), random.Random(1))
    whole = simulation.run().all
    assert whole.timed_out > 0
    assert whole.finished + whole.refused + whole.timed_out == 20
    assert simulation.result.promised_at_end == 0


def test_several_gates_are_no_more_than_can_be() -> None:
    with pytest.raises(BadValueError, match="gates: 65"):
        settings(Gates(65))
    with pytest.raises(BadValueError, match="ledger_rtt: 2000"):
        replace(settings(None), shared=Gates(2, 2000 * MS))


def test_several_gates_are_before_one_engine() -> None:
    with pytest.raises(BadValueError, match="gates: 2 before each of 3 instances"):
        replace(settings(None), shared=Gates(2), instances=3)


def test_who_comes_back_when_told_is_let_in_at_whatever_gate_it_comes_to() -> None:
    """Of three who came, two had been told by another gate: a fifth was refused once more, and hardly anybody seemed to
    come back."""
    returned = admitted = 0
    for seed in (21, 22):
        load = SCENARIOS["retrying"].load(random.Random(seed), 300)
        retrying = replace(settings(Gates(4, 1 * MS)), clients=ClientHabits(retries=5))
        one = Simulation(load, retrying, contender("learned"), random.Random(seed + 1))
        found = one.run().document()["retry_after"]
        returned, admitted = returned + found["returned"], admitted + found["admitted"]
        shares = [gate.returns.share.of_all for gate in shared_pool(one).gates]
        assert min(shares) > 0.6
    assert admitted >= 0.95 * returned > 0
