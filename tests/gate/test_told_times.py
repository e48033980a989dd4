"""Two tenants who want more than there is, before an engine of one token per step: what is told, and who gets what."""

from collections.abc import Callable
from itertools import count

import pytest

from kvbudget.gate.commands import Forward, Reject
from kvbudget.gate.events import Arrived, Ended, Event, Progressed, Tick
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.units import Tokens

SECOND = 10**9
STEP_NS = 10_000_000
STOP = 200  # tokens of every answer: the pool turns over in two seconds
MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


class Crowd:
    """Sends one request of each tenant in turn, `per_s` a second; nobody comes back."""

    def __init__(self, gate: Gate, arrive: Arrive, tenants: tuple[str, ...], lengths: Callable[[int], int]) -> None:
        self.gate = gate
        self.arrive = arrive
        self.tenants = tenants
        self.lengths = lengths
        self.now = 0
        self.running: dict[str, int] = {}
        self.came: dict[str, int] = {}
        self.served: list[tuple[str, int, int]] = []  # (tenant, came at, let in at)
        self.refused: list[tuple[str, int, int]] = []  # (tenant, at, told)
        self.block_steps: dict[str, int] = dict.fromkeys(tenants, 0)

    def push(self, event: Event) -> None:
        for command in self.gate.handle(event, self.now):
            tenant = command.request_id.partition(".")[0]
            if isinstance(command, Forward):
                self.running[command.request_id] = 0
                self.served.append((tenant, self.came[command.request_id], self.now))
            elif isinstance(command, Reject):
                self.refused.append((tenant, self.now, command.retry_after_ns))

    def run(self, seconds: int, per_s: int) -> None:
        numbers = count(len(self.came))
        for step in range(seconds * SECOND // STEP_NS):
            self.now += STEP_NS
            for name in list(self.running):
                self.running[name] += 1
                made = self.running[name]
                self.block_steps[name.partition(".")[0]] += 1
                if made == STOP:
                    del self.running[name]
                    self.push(Progressed(name, 8))
                    self.push(Ended(name, Outcome.FINISHED, Tokens(STOP)))
                elif made % 8 == 1:
                    self.push(Progressed(name, 1 if made == 1 else 8))
            self.push(Tick())
            if step * per_s // 100 != (step + 1) * per_s // 100:
                for tenant in self.tenants:
                    number = next(numbers)
                    name = f"{tenant}.{number}"
                    self.came[name] = self.now
                    self.push(self.arrive(name, self.lengths(number), 400, tenant=tenant, paced=True))

    def honesty(self) -> list[float]:
        """Told times over the time until the next one of its tenant who came was let in."""
        found = []
        for tenant, at, told in self.refused:
            later = [let_in for other, came, let_in in self.served if other == tenant and came >= at]
            if later:
                found.append(told / max(SECOND, later[0] - at))
        return found


def alike(number: int) -> int:
    return 1000


def apart(number: int) -> int:
    return 900 + number * 7919 % 601


@pytest.mark.parametrize("lengths", [alike, apart])
@pytest.mark.parametrize("enough_answers", [0.0, 4.0])
def test_refusals_of_those_who_never_return_do_not_lengthen_what_the_next_are_told(
    make_gate: MakeGate, arrive: Arrive, lengths: Callable[[int], int], enough_answers: float
) -> None:
    crowd = Crowd(make_gate(513, Policy.LEARNED, enough_answers=enough_answers), arrive, ("a", "b"), lengths)
    crowd.run(16, 10)
    # Until the first who were told a time did not come they are thought to, as clients do that honour Retry-After.
    crowd.refused = []
    crowd.run(30, 10)
    assert len(crowd.refused) > 300
    ratios = sorted(crowd.honesty())
    # Alike: whoever comes when somebody was told to takes that one's place, and is sooner let in.
    assert ratios[len(ratios) // 2] <= (2.6 if lengths is alike else 2.0)  # was 17 to 33
    assert ratios[len(ratios) * 9 // 10] <= 5.0
    assert max(told for _, _, told in crowd.refused) <= 12 * SECOND


def test_a_crowd_that_comes_before_anything_is_known_is_told_by_expected_lengths(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    """They declare ten times what answers take."""
    crowd = Crowd(make_gate(1025, Policy.LEARNED, enough_answers=1.0), arrive, ("a",), alike)
    for number in range(60):
        crowd.came[f"a.{number}"] = 0
        crowd.push(arrive(f"a.{number}", 200, 10 * STOP, tenant="a", paced=True))
    told = sorted(told_ns for _, _, told_ns in crowd.refused)
    assert len(told) > 20
    assert told[len(told) // 2] <= 20 * SECOND  # by limits 83 s
    assert told[-1] <= 40 * SECOND
    crowd.run(5, 0)
    assert len(crowd.served) + len(crowd.refused) == 60


@pytest.mark.parametrize(("weight", "least", "most"), [(1.0, 0.85, 1.2), (3.0, 2.5, 3.6)])
def test_who_all_want_more_get_it_by_weight(
    make_gate: MakeGate, arrive: Arrive, weight: float, least: float, most: float
) -> None:
    gate = make_gate(513, Policy.LEARNED, enough_answers=4.0, tenants={"a": TenantLimits(weight=weight)})
    crowd = Crowd(gate, arrive, ("a", "b"), apart)
    crowd.run(60, 10)
    assert least < crowd.block_steps["a"] / crowd.block_steps["b"] < most
