"""Several instances in the simulator: the gateway's own placement, and nobody waits at one while another has room."""

import random

from kvbudget.gate.events import Arrived
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import Simulation
from simulated import MS, SECOND, request, run, settings


def test_a_request_goes_to_the_instance_with_most_room() -> None:
    load = [request(0, 1000, 200), request(MS, 10, 10), request(2 * MS, 10, 10)]
    seen = run(load, settings(100, instances=2), "worst-case")
    assert [gate for gate, _, event, _ in seen.decisions if isinstance(event, Arrived)] == [0, 1, 1]


def test_who_waits_goes_on_to_the_instance_that_has_room_first() -> None:
    load = [request(0, 100, 400), request(1, 100, 50), request(2, 100, 400), request(3, 100, 400)]
    for every_step in (False, True):
        seen = run(load, settings(40, instances=2, max_model_len=512), "worst-case", every_step=every_step)
        assert seen.endings == (4, 0, 0)
        # The second ends after 50 steps of 10 ms: the third follows it there at once, the fourth when the first ends.
        assert seen.document["elapsed_s"] < 9.2


def test_what_is_learned_at_one_is_known_at_all() -> None:
    load = [request(number * SECOND, 100, 20) for number in range(12)]
    given = settings(100, instances=3)
    simulation = Simulation(load, given, contender("learned"), random.Random(0))
    simulation.run()
    known = {instance.gate.learned.lengths.answers for instance in simulation.instances}
    assert len(known) == 1
    assert known.pop() > 10
