"""What a branch goes by between its calls and their answers (`gate.bank.branch`)."""

from kvbudget.gate.bank.branch import DRIFT, Branch, Stand
from kvbudget.gate.bank.terms import BLOCKS, Answer, Call, Line, Slice

LEASE_NS = 3 * 10**9
LASTS_NS = int(LEASE_NS * (1 - DRIFT))


def stand(promised: int = 0, needs: int = 0, reserve: int = 5, limit: int = 100) -> Stand:
    return Stand(BLOCKS, limit, promised, max(needs, promised), reserve)


def answer(call: Call, granted: int, *, short: bool = False, elsewhere: int = 0, settling: bool = False) -> Answer:
    return Answer(call.number, True, short, settling, 2, {BLOCKS: Slice(granted, elsewhere)})


def with_slice(granted: int, now_ns: int = 0, *, short: bool = False) -> Branch:
    branch = Branch("a", LEASE_NS)
    assert branch.heard(answer(branch.call([stand(needs=granted)], now_ns), granted, short=short), now_ns)
    return branch


def line_of(call: Call) -> Line:
    (line,) = call.lines
    return line


def test_nothing_is_its_own_before_the_first_answer() -> None:
    branch = Branch("a", LEASE_NS)
    assert branch.is_lost(0)
    call = branch.call([stand(needs=10)], 0)
    assert branch.slices == {}
    assert call == Call("a", 1, 3000, (Line(BLOCKS, 100, 0, 10, 15, 0),))


def test_an_answer_gives_it_the_slice_from_when_the_call_was_made() -> None:
    branch = Branch("a", LEASE_NS)
    call = branch.call([stand(needs=10)], 100)
    assert branch.waits_since_ns == 100
    assert branch.heard(answer(call, 15, elsewhere=7), 500)
    assert branch.slices == {BLOCKS: 15}
    assert branch.elsewhere == {BLOCKS: 7}
    assert branch.until_ns == 100 + LASTS_NS
    assert not branch.is_lost(100 + LASTS_NS - 1)
    assert branch.is_lost(100 + LASTS_NS)
    assert branch.waits_since_ns is None


def test_an_answer_that_comes_after_the_lease_does_not_count() -> None:
    branch = Branch("a", LEASE_NS)
    call = branch.call([stand(needs=10)], 0)
    assert not branch.heard(answer(call, 15), LASTS_NS)
    assert branch.slices == {}


def test_an_answer_to_an_earlier_call_does_not_count() -> None:
    branch = with_slice(20)
    earlier = branch.call([stand(promised=3)], 10)
    branch.call([stand(promised=3)], 20)
    assert not branch.heard(answer(earlier, 90), 30)
    assert branch.slices[BLOCKS] < 20


def test_an_answer_does_not_count_twice() -> None:
    branch = with_slice(20)
    call = branch.call([stand(promised=20)], 10)
    assert branch.heard(answer(call, 30), 20)
    assert not branch.heard(answer(call, 30), 21)


def test_the_answer_to_a_call_that_was_given_up_does_not_count() -> None:
    branch = with_slice(20)
    call = branch.call([stand(promised=20)], 10)
    branch.failed(call.number - 1)
    waited_ns = branch.waits_since_ns
    branch.failed(call.number)
    assert (waited_ns, branch.waits_since_ns) == (10, None)
    assert not branch.heard(answer(call, 30), 20)
    branch.call([stand(promised=20)], 30)
    branch.failed()
    assert branch.waits_since_ns is None


def test_it_keeps_its_slice_unless_it_has_far_more_than_it_needs() -> None:
    branch = with_slice(30)
    assert line_of(branch.call([stand(promised=20, reserve=5)], 1)).keeps == 30
    branch = with_slice(31)
    assert line_of(branch.call([stand(promised=20, reserve=5)], 1)).keeps == 25
    assert branch.slices == {BLOCKS: 25}


def test_where_another_lacks_something_it_keeps_what_is_promised() -> None:
    branch = with_slice(30, short=True)
    line = line_of(branch.call([stand(promised=20, needs=28)], 1))
    assert (line.keeps, line.needs, line.wants) == (20, 28, 28)
    assert branch.slices == {BLOCKS: 20}


def test_after_its_lease_it_claims_what_it_has_promised() -> None:
    branch = with_slice(30)
    line = line_of(branch.call([stand(promised=20)], LASTS_NS))
    assert line.keeps == 20
    assert branch.slices == {}


def test_who_leaves_keeps_nothing() -> None:
    branch = with_slice(30)
    assert branch.leave(1) == Call("a", 2, 3000, (), leaves=True)
    assert branch.slices == {}
    assert branch.is_lost(1)


def test_while_the_bank_settles_it_is_known_when_that_is_over_at_the_latest() -> None:
    branch = Branch("a", LEASE_NS)
    for now_ns, settling, opens_ns in (
        (10, True, 10 + LEASE_NS),
        (20, True, 10 + LEASE_NS),  # as was told
        (10 + LEASE_NS, True, 10 + 2 * LEASE_NS),  # it has lost its memory anew
        (20 + LEASE_NS, False, 0),
        (30 + LEASE_NS, True, 30 + 2 * LEASE_NS),
    ):
        call = branch.call([], now_ns)
        assert branch.heard(answer(call, 0, settling=settling), now_ns)
        assert branch.opens_ns == opens_ns
