from kvbudget.gate.fleet.health import RAMP_STEPS, Circuit, SlowStart
from kvbudget.gate.fleet.options import FleetConfig

CONFIG = FleetConfig(failures=3, open_ns=10, longest_open_ns=25)


def test_failures_count_only_in_a_row() -> None:
    circuit = Circuit(CONFIG)
    for _ in range(5):
        assert not circuit.failed(0, may_open=True)
        assert not circuit.failed(0, may_open=True)
        assert not circuit.did_well()
    assert circuit.takes(0)


def test_it_stays_closed_while_too_many_others_are_out() -> None:
    circuit = Circuit(CONFIG)
    assert [circuit.failed(0, may_open=False) for _ in range(5)] == [False] * 5
    assert circuit.failed(0, may_open=True)


def test_open_it_takes_nobody_then_one_then_all() -> None:
    circuit = Circuit(CONFIG)
    assert [circuit.failed(0, may_open=True) for _ in range(4)] == [False, False, True, False]
    assert (circuit.is_open, circuit.takes(9), circuit.due_ns(9), circuit.takes(10)) == (True, False, 10, True)
    assert circuit.due_ns(10) is None
    circuit.given("trial")
    assert not circuit.takes(10)
    circuit.withdrawn("another")
    assert not circuit.takes(10)
    assert circuit.did_well()
    assert (circuit.is_open, circuit.takes(10)) == (False, True)
    circuit.given("any")
    assert circuit.takes(10)


def test_a_failed_trial_opens_it_for_longer_up_to_a_limit() -> None:
    circuit = Circuit(CONFIG)
    for _ in range(3):
        circuit.failed(0, may_open=True)
    waits = []
    for _ in range(3):
        now = circuit.until_ns or 0
        circuit.given("trial")
        assert circuit.failed(now, may_open=False)
        waits.append((circuit.until_ns or 0) - now)
    assert waits == [20, 25, 25]


def test_a_slow_start_gives_more_step_by_step() -> None:
    ramp = SlowStart(80)
    assert (ramp.share(0), ramp.due_ns(0)) == (1.0, None)
    ramp.begin(100)
    seen = []
    now: int | None = 100
    while now is not None:
        seen.append(ramp.share(now))
        now = ramp.due_ns(now)
    assert seen == [step / RAMP_STEPS for step in range(1, RAMP_STEPS + 1)]
    assert ramp.share(1000) == 1.0


def test_without_a_ramp_all_is_given_at_once() -> None:
    ramp = SlowStart(0)
    ramp.begin(100)
    assert ramp.share(100) == 1.0
