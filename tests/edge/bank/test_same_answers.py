"""Whatever is called, the script answers as `gate.bank.bank` does, and keeps the same slices."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvbudget.gate.bank.bank import Bank
from kvbudget.gate.bank.terms import Call, Line, Reading

# Prefixes, cases and more than ASCII: names are compared where two ask since the same moment.
NAMES = ["a", "ab", "B", "b", "ä", "€"]
ACCOUNTS = ["blocks", "sequences", "1", "prefix 3 a", "prefix 5 b"]
READINGS = st.one_of(
    st.none(), st.builds(Reading, st.integers(0, 80), st.integers(0, 20), st.sampled_from([0, 0, 1, 700, 5000]))
)
AMOUNTS = st.one_of(st.integers(0, 12), st.integers(0, 200), st.integers(0, 2**40))


class ServerTime:
    """How the script takes its clock, its memory and another server: the model of what `redis_store` says."""

    def __init__(self) -> None:
        self.bank: Bank | None = None
        self._wall_ms = 0
        self._now_ms = 0
        self._run_id = b""

    def call(self, call: Call, wall_ms: int, run_id: bytes) -> tuple[Any, list[str]]:
        if self.bank is None:
            self._now_ms = wall_ms
            self.bank = Bank(settling_until_ms=wall_ms + call.lease_ms)
        else:
            self._now_ms += max(0, min(wall_ms - self._wall_ms, call.lease_ms // 2))
            if run_id != self._run_id:
                self.bank.settling_until_ms = max(self.bank.settling_until_ms, self._now_ms + call.lease_ms)
        self._wall_ms, self._run_id = wall_ms, run_id
        return self.bank.call(call, self._now_ms)


class SameAnswers(RuleBasedStateMachine):
    make: Callable[[], Any]

    def __init__(self) -> None:
        super().__init__()
        self.script = self.make()
        self.model = ServerTime()
        self.numbers: dict[str, int] = {}

    def _called(self, call: Call) -> None:
        self.numbers[call.branch] = max(call.number, self.numbers.get(call.branch, 0))
        expected = self.model.call(call, self.script.now_ms, self.script.run_id)
        assert self.script.call(call) == expected

    @rule(
        branch=st.sampled_from(NAMES),
        step=st.sampled_from([1, 1, 1, 1, 2, 0, -1]),
        lease_ms=st.sampled_from([3000, 3000, 3000, 3001, 700]),
        accounts=st.sets(st.sampled_from(ACCOUNTS), max_size=4),
        figures=st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS), min_size=4, max_size=4),
        limit=st.one_of(st.integers(0, 120), st.sampled_from([0, 100, 2**45])),
        priority=st.integers(-1, 1),
        waited_ms=st.sampled_from([0, 0, 1, 5, 4000]),
        reading=READINGS,
    )
    def calls(
        self,
        branch: str,
        step: int,
        lease_ms: int,
        accounts: set[str],
        figures: list[tuple[int, int, int, int]],
        limit: int,
        priority: int,
        waited_ms: int,
        reading: Reading | None,
    ) -> None:
        lines = tuple(Line(account, limit, *some) for account, some in zip(sorted(accounts), figures, strict=False))
        number = self.numbers.get(branch, 0) + step
        self._called(Call(branch, number, lease_ms, lines, priority, waited_ms, reading=reading))

    @rule(branch=st.sampled_from(NAMES), needs=st.integers(0, 60), wants=st.integers(0, 60), reading=READINGS)
    def calls_as_a_branch_does(self, branch: str, needs: int, wants: int, reading: Reading | None) -> None:
        has = self.model.bank.slice_of(branch, "blocks") if self.model.bank is not None else 0
        lines = (Line("blocks", 100, min(has, needs + wants), needs, needs + wants, needs // 2),)
        self._called(Call(branch, self.numbers.get(branch, 0) + 1, 3000, lines, reading=reading))

    @rule(
        branch=st.sampled_from(NAMES),
        prefixes=st.dictionaries(st.sampled_from(ACCOUNTS[3:]), st.integers(1, 40)),
        reading=READINGS,
    )
    def keeps_in_common(self, branch: str, prefixes: dict[str, int], reading: Reading | None) -> None:
        """Out of its slice."""
        has = self.model.bank.slice_of(branch, "blocks") if self.model.bank is not None else 0
        keeps = max(0, has - sum(prefixes.values()))
        lines = [Line("blocks", 100, keeps, keeps, keeps, keeps)]
        lines += [Line(name, 0, blocks, 0, 0, blocks) for name, blocks in prefixes.items()]
        self._called(Call(branch, self.numbers.get(branch, 0) + 1, 3000, tuple(lines), reading=reading))

    @rule(branch=st.sampled_from(NAMES), step=st.sampled_from([0, 1]))
    def leaves(self, branch: str, step: int) -> None:
        self._called(Call(branch, self.numbers.get(branch, 0) + step, 3000, (), leaves=True))

    @rule(
        ms=st.one_of(
            st.integers(0, 20), st.integers(0, 1500), st.sampled_from([999, 1000, 1001, 1500, 3000, 10**6, 10**7])
        )
    )
    def time_passes(self, ms: int) -> None:
        self.script.now_ms += ms

    @rule(ms=st.sampled_from([-1, -2000, -(10**6)]))
    def the_clock_is_set_back(self, ms: int) -> None:
        self.script.now_ms += ms

    @rule()
    def another_server_takes_over(self) -> None:
        self.script.run_id = b"2" * 40 if self.script.run_id != b"2" * 40 else b"3" * 40

    @invariant()
    def slices_are_the_same(self) -> None:
        if self.model.bank is not None:
            stored = self.script.slices()
            for name in NAMES:
                for account in ACCOUNTS:
                    assert stored.get(name, {}).get(account, 0) == self.model.bank.slice_of(name, account)


def test_the_script_answers_and_keeps_what_the_bank_does(in_server: Callable[[], Any]) -> None:
    class Machine(SameAnswers):
        make = staticmethod(in_server)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
