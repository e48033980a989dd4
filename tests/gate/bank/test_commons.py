"""What a gate holds in common with the others before its pool, and when it is charged for it again."""

from collections.abc import Callable, Sequence

import pytest

from kvbudget.gate.bank.bank import Bank
from kvbudget.gate.bank.branch import Branch
from kvbudget.gate.bank.commons import MOST, name_of
from kvbudget.gate.bank.replica import BEAT_NS, Replica
from kvbudget.gate.bank.terms import BLOCKS
from kvbudget.gate.commands import Forward, Parked
from kvbudget.gate.events import Arrived, Ended, Preempted, Progressed, Tick
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Tokens

MS = 10**6
SECOND = 10**9
LEASE_NS = 4 * SECOND
POOL = 400
COMMON = tuple(range(1, 41))

Maker = Callable[..., Gate]
Arriver = Callable[..., Arrived]


class Scene:
    """Gates before one pool, whose calls are answered at once."""

    def __init__(self, make_gate: Maker, arrive: Arriver, gates: int = 2, **config: object) -> None:
        self.now_ns = 0
        self.bank = Bank()
        self._arrive = arrive
        settings = {"policy": Policy.WORST_CASE, "sharing": Sharing.SCHEDULED, **config}
        self.gates = [make_gate(POOL, **settings) for _ in range(gates)]
        self.replicas = [Replica(gate, Branch(f"gate-{number}", LEASE_NS), 0) for number, gate in enumerate(self.gates)]
        self.begun = 0
        for gate, replica in zip(self.gates, self.replicas, strict=True):
            gate.handle(replica.first, 0)
        self.passes(BEAT_NS)

    def passes(self, ns: int) -> None:
        """In steps of 50 ms."""
        end_ns = self.now_ns + ns
        while self.now_ns < end_ns:
            self.now_ns += 50 * MS
            for number, replica in enumerate(self.replicas):
                call = replica.due(self.now_ns)
                if call is not None:
                    self.answer(number, call)

    def answer(self, number: int, call: object) -> None:
        answer, woken = self.bank.call(call, self.now_ns // MS)  # type: ignore[arg-type]
        assert answer is not None
        event = self.replicas[number].heard(answer, self.now_ns)
        assert event is not None
        self.gates[number].handle(event, self.now_ns)
        for other, replica in enumerate(self.replicas):
            if replica.branch.name in woken and (called := replica.called(self.now_ns)) is not None:
                self.answer(other, called)

    def begin(self, number: int, prefix: Sequence[int] = COMMON, own: int = 4, *, waits: bool = False) -> str:
        """One whose prompt begins with these blocks; of its own it needs `own`. `waits`: it has no room now."""
        self.begun += 1
        name = f"request-{self.begun}"
        tokens = 16 * (len(prefix) + own - 1) + 1
        event = self._arrive(name, tokens, new=15, prefix=tuple(prefix))
        call = self.replicas[number].call_for([event], self.now_ns)
        if call is not None:
            self.answer(number, call)
        commands = self.gates[number].handle(event, self.now_ns)
        assert isinstance(commands[-1], Parked if waits else Forward), commands
        return name

    def end(self, number: int, name: str) -> None:
        self.gates[number].handle(Ended(name, Outcome.FINISHED, Tokens(1)), self.now_ns)

    def promised(self) -> list[int]:
        return [gate.promised_blocks() for gate in self.gates]

    def names(self) -> list[list[str]]:
        return [list(gate.ledger.commons) for gate in self.gates]

    def charged(self) -> int:
        """By the bank, to the pool."""
        commons = self.bank.slice_of("gate-0", name_of(COMMON)), self.bank.slice_of("gate-1", name_of(COMMON))
        return self.bank.granted(BLOCKS) + max(commons)


@pytest.fixture
def scene(make_gate: Maker, arrive: Arriver) -> Scene:
    return Scene(make_gate, arrive)


def test_what_many_have_at_both_is_charged_to_the_pool_once(scene: Scene) -> None:
    for number in (0, 1):
        for _ in range(3):
            scene.begin(number)
    assert scene.promised() == [40 + 12, 40 + 12]
    scene.passes(3 * SECOND)
    assert scene.names() == [[name_of(COMMON)], [name_of(COMMON)]]
    assert scene.promised() == [12, 12]
    scene.passes(BEAT_NS)
    assert scene.replicas[0].promised_elsewhere == 12 + 40
    assert scene.charged() <= 40 + 2 * (12 + 8)
    scene.begin(0)
    assert scene.promised() == [16, 12]


def test_of_two_that_begin_alike_one_is_held_in_common(scene: Scene) -> None:
    """Both would pay for the same blocks, and every gate would take these off what it promises."""
    other = (*COMMON[:20], *range(1001, 1021))
    first = [(number, scene.begin(number)) for number in (0, 1) for _ in range(3)]
    for number in (0, 1):
        scene.begin(number, (), own=60)
    scene.passes(2 * SECOND)
    for number in (0, 1):
        for _ in range(3):
            scene.begin(number, other)
    for number, name in first:
        scene.end(number, name)
    scene.passes(3 * SECOND)  # there is no room to give the first up, of which a part is counted on
    common = {name for names in scene.names() for name in names}
    assert sum(scene.promised()) + 40 * len(common) >= 40 + 20 + 2 * (60 + 12)  # what the engine may come to hold
    assert scene.names() == [[name_of(COMMON)], [name_of(COMMON)]]


def test_one_alone_or_where_copies_are_not_sure_takes_nothing_out(make_gate: Maker, arrive: Arriver) -> None:
    for gates, sharing in ((1, Sharing.SCHEDULED), (2, Sharing.COMPUTED), (2, Sharing.OFF)):
        scene = Scene(make_gate, arrive, gates, sharing=sharing)
        for _ in range(3):
            scene.begin(0)
        scene.passes(2 * SECOND)
        assert not any(scene.names())


def test_two_do_not_make_it_common_nor_three_for_a_moment_nor_what_is_small(scene: Scene) -> None:
    first, _ = scene.begin(0), scene.begin(0)
    scene.passes(3 * SECOND)
    last = scene.begin(0)
    scene.passes(200 * MS)
    scene.end(0, last)
    for _ in range(3):
        scene.begin(0, (7,))
    scene.passes(2 * SECOND)
    assert scene.names() == [[], []]
    scene.end(0, first)


def test_only_so_many_names_are_kept(make_gate: Maker, arrive: Arriver) -> None:
    scene = Scene(make_gate, arrive)
    for kind in range(MOST + 1):
        for _ in range(3):
            scene.begin(0, range(1000 * (kind + 1), 1000 * (kind + 1) + 10), own=2)
    scene.passes(3 * SECOND)
    assert len(scene.names()[0]) == MOST


def test_what_begins_with_what_is_common_gets_no_name_of_its_own(scene: Scene) -> None:
    for _ in range(3):
        scene.begin(0)
    scene.passes(3 * SECOND)
    for _ in range(5):
        scene.begin(0, (*COMMON, *range(100, 120)))
    scene.passes(3 * SECOND)
    assert scene.names()[0] == [name_of(COMMON)]


def test_it_is_given_up_when_nobody_here_has_it(scene: Scene) -> None:
    names = [scene.begin(0) for _ in range(3)]
    scene.passes(3 * SECOND)
    for name in names:
        scene.end(0, name)
    scene.passes(BEAT_NS)
    assert scene.promised() == [0, 0]
    scene.passes(2 * SECOND)
    assert scene.names() == [[], []]
    assert scene.bank.slice_of("gate-0", name_of(COMMON)) == 0


def test_it_is_given_up_at_once_where_somebody_waits_and_nobody_else_keeps_it(scene: Scene) -> None:
    names = [scene.begin(0) for _ in range(3)]
    scene.passes(3 * SECOND)
    large = scene.begin(1, (), own=POOL - 1, waits=True)
    for name in names:
        scene.end(0, name)
    scene.passes(400 * MS)
    assert scene.names() == [[], []]
    assert scene.gates[1].ledger.get(large) is not None


def test_who_has_only_a_part_of_it_keeps_it_until_the_slice_has_room_for_that_part(scene: Scene) -> None:
    names = [scene.begin(0) for _ in range(3)]
    scene.passes(3 * SECOND)
    scene.begin(0, COMMON[:30])
    for name in names:
        scene.end(0, name)
    large = scene.begin(1, (), own=POOL - 1, waits=True)  # nothing lies idle meanwhile
    scene.passes(3 * SECOND)
    gate, branch = scene.gates[0], scene.replicas[0].branch
    assert branch.slices[BLOCKS] < 34
    assert scene.names()[0] == [name_of(COMMON)]
    assert gate.promised_blocks() == 4
    scene.gates[1].handle(Ended(large, Outcome.WITHDRAWN), scene.now_ns)
    scene.passes(2 * SECOND)
    assert scene.names()[0] == [name_of(COMMON)]
    scene.begin(0, (), own=60)
    scene.end(0, f"request-{scene.begun}")
    scene.passes(50 * MS)
    assert scene.names()[0] == []
    assert gate.promised_blocks() == 34 <= branch.slices[BLOCKS]


def test_what_the_bank_does_not_confirm_is_charged_here_again(scene: Scene) -> None:
    for _ in range(3):
        scene.begin(0)
    scene.passes(3 * SECOND)
    replica, gate = scene.replicas[0], scene.gates[0]
    assert gate.promised_blocks() == 12
    scene.now_ns += BEAT_NS
    call = replica.due(scene.now_ns)
    assert call is not None
    answer, _ = scene.bank.call(call, scene.now_ns // MS)
    assert answer is not None
    lost = answer.slices[name_of(COMMON)]._replace(granted=0)
    event = replica.heard(answer._replace(slices={**answer.slices, name_of(COMMON): lost}), scene.now_ns)
    assert event is not None
    gate.handle(event, scene.now_ns)
    assert gate.promised_blocks() == 12 + 40
    assert replica.overdrawn_blocks > 0
    assert scene.names()[0] == []


def test_without_a_bank_a_gate_pays_for_all_of_its_own(scene: Scene) -> None:
    for _ in range(3):
        scene.begin(0)
    scene.passes(3 * SECOND)
    scene.gates[0].handle(scene.replicas[0].alone(scene.now_ns), scene.now_ns)
    assert scene.names()[0] == []
    assert scene.gates[0].promised_blocks() == 12 + 40


def test_after_its_lease_it_claims_what_it_keeps_in_common_as_well(scene: Scene) -> None:
    for _ in range(3):
        scene.begin(0)
    scene.passes(3 * SECOND)
    scene.now_ns += 2 * LEASE_NS
    scene.gates[0].handle(Tick(), scene.now_ns)
    assert scene.gates[0].ledger_lost
    call = scene.replicas[0].due(scene.now_ns)
    assert call is not None
    keeps = {line.account: line.keeps for line in call.lines}
    assert (keeps[BLOCKS], keeps[name_of(COMMON)]) == (12, 40)
    scene.answer(0, call)
    assert scene.promised()[0] == 12
    assert scene.bank.slice_of("gate-0", name_of(COMMON)) == 40


def test_where_the_engine_does_not_share_after_all_nothing_is_common(scene: Scene) -> None:
    for _ in range(3):
        scene.begin(0)
    scene.passes(3 * SECOND)
    scene.gates[0].handle(Preempted(None), scene.now_ns)
    assert scene.names()[0] == []
    assert scene.promised()[0] == 3 * 44
    scene.passes(2 * SECOND)  # credit is not given for now
    assert scene.names()[0] == []
    assert scene.bank.slice_of("gate-0", name_of(COMMON)) == 0


def test_where_the_engine_does_not_share_what_was_common_is_lent_to_nobody_else(
    make_gate: Maker, arrive: Arriver
) -> None:
    scene = Scene(make_gate, arrive, gates=3)
    for number in (0, 1):
        for _ in range(3):
            scene.begin(number)
    scene.passes(3 * SECOND)
    scene.begin(2, (), 310)
    waits = scene.begin(2, (), 50, waits=True)
    for gate in scene.gates[:2]:
        gate.handle(Preempted(None), scene.now_ns)
    assert scene.promised()[:2] == [3 * 44, 3 * 44]
    scene.passes(SECOND)
    assert scene.names()[:2] == [[], []]
    assert waits in scene.gates[2].queue  # what those who live hold after all is not free
    first, second = [scene.bank.slice_of(f"gate-{number}", BLOCKS) for number in (0, 1)]
    assert 2 * 12 + 40 <= first + second <= POOL - 310


def test_what_was_common_is_claimed_until_the_bank_has_answered(scene: Scene) -> None:
    names = [scene.begin(0) for _ in range(3)]
    scene.passes(3 * SECOND)
    replica, name = scene.replicas[0], name_of(COMMON)
    had = replica.branch.slices[BLOCKS]
    scene.gates[0].handle(Preempted(None), scene.now_ns)
    for _ in range(2):  # the first is lost
        call = replica.called(scene.now_ns)
        assert call is not None
        assert call.lines[0].account == BLOCKS
        assert call.lines[0].keeps == had + 40
        assert name not in [line.account for line in call.lines]
        assert replica.branch.slices[BLOCKS] == had  # it goes by no more before
        assert scene.gates[0].slice_at(scene.now_ns)[0] == had
        replica.branch.failed()
    call = replica.called(scene.now_ns)
    scene.answer(0, call)
    assert replica.branch.slices[BLOCKS] >= 3 * 44
    for one in names:
        scene.end(0, one)
    call = replica.called(scene.now_ns)
    assert call is not None
    assert call.lines[0].keeps < 3 * 44


def test_who_has_promised_beyond_its_slice_takes_nothing_out_of_it(scene: Scene) -> None:
    for _ in range(3):
        scene.begin(0)
    replica = scene.replicas[0]
    replica.branch.slices[BLOCKS] = 50  # of 52 that are promised
    for _ in range(2):
        scene.now_ns += SECOND
        replica.commons.review(scene.now_ns, is_short=False)
    assert scene.names()[0] == []
    assert scene.promised()[0] == 52
    replica.branch.slices[BLOCKS] = 52
    scene.now_ns += SECOND
    replica.commons.review(scene.now_ns, is_short=False)
    assert scene.names()[0] == [name_of(COMMON)]
    assert (scene.promised()[0], replica.branch.slices[BLOCKS]) == (12, 12)


def test_a_prompt_that_is_read_changes_nothing(scene: Scene) -> None:
    names = [scene.begin(0) for _ in range(3)]
    scene.passes(3 * SECOND)
    for name in names:
        scene.gates[0].handle(Progressed(name, 1), scene.now_ns)
    assert scene.promised()[0] == 12
    assert scene.gates[0].ledger.capacity_blocks <= Blocks(POOL)
