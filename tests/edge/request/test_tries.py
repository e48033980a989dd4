import pytest

from kvbudget.edge.http.upstream import RelayEnd, RelayOutcome
from kvbudget.edge.request.tries import Again, again_after, busy_ns, heard_of
from kvbudget.gate.fleet.events import Heard

SECOND = 10**9


def end(outcome: RelayOutcome, status: int | None = None, body: bytes = b"", **headers: bytes) -> RelayEnd:
    return RelayEnd(outcome, status, [(name.replace("_", "-").encode(), v) for name, v in headers.items()], body, 0, 0)


@pytest.mark.parametrize(("outcome", "tries", "alone", "again"), [
    (RelayOutcome.UNREACHABLE, 0, False, Again.ELSEWHERE),
    (RelayOutcome.UNREACHABLE, 1, False, Again.ELSEWHERE),
    (RelayOutcome.UNREACHABLE, 2, False, Again.NO),
    (RelayOutcome.UNREACHABLE, 0, True, Again.NO),
    (RelayOutcome.BROKEN_BEFORE_HEAD, 0, False, Again.ELSEWHERE),
    (RelayOutcome.BROKEN_BEFORE_HEAD, 1, False, Again.NO),  # it may be the request that kills engines
    (RelayOutcome.TIMEOUT_BEFORE_HEAD, 0, False, Again.NO),  # its blocks may be held for minutes
    (RelayOutcome.BROKEN_MIDWAY, 0, False, Again.NO),
    (RelayOutcome.CLIENT_GONE, 0, False, Again.NO),
    (RelayOutcome.NO_CONNECTION, 0, False, Again.NO),
    (RelayOutcome.CANCELLED, 0, False, Again.NO),
])  # fmt: skip
def test_who_is_tried_again_and_where(outcome: RelayOutcome, tries: int, alone: bool, again: Again) -> None:
    assert again_after(end(outcome), tries, alone=alone, recalled=False) is again


def test_who_was_sent_before_the_engine_was_gone_is_tried_elsewhere_once() -> None:
    lost = end(RelayOutcome.UNREACHABLE)
    lost.sent = True
    assert [again_after(lost, tries, alone=False, recalled=False) for tries in (0, 1)] == [Again.ELSEWHERE, Again.NO]


def test_whom_we_recalled_is_tried_elsewhere_once() -> None:
    recalled = [again_after(end(RelayOutcome.CANCELLED), tries, alone=False, recalled=True) for tries in (0, 1)]
    assert recalled == [Again.ELSEWHERE, Again.NO]


@pytest.mark.parametrize(("status", "body", "again"), [
    (503, b"", Again.BUSY), (429, b"", Again.BUSY), (529, b"", Again.BUSY), (408, b"", Again.NO),
    (500, b'{"error":{"code":500,"message":"Context size has been exceeded."}}', Again.BUSY),
    (500, b'{"error":"a bug"}', Again.NO),
])  # fmt: skip
def test_what_an_overloaded_engine_says(status: int, body: bytes, again: Again) -> None:
    assert again_after(end(RelayOutcome.WITHHELD, status, body), 0, alone=True, recalled=False) is again


@pytest.mark.parametrize(("told", "heard"), [
    (end(RelayOutcome.DONE, 200), Heard.WELL), (end(RelayOutcome.DONE, 404), Heard.WELL),
    (end(RelayOutcome.DONE, 500), Heard.FAILED), (end(RelayOutcome.BROKEN_MIDWAY, 200), Heard.FAILED),
    (end(RelayOutcome.TIMEOUT_BEFORE_HEAD), Heard.FAILED), (end(RelayOutcome.WITHHELD, 503), Heard.NOTHING),
    (end(RelayOutcome.CLIENT_GONE), Heard.NOTHING),
])  # fmt: skip
def test_what_the_end_tells_of_the_engine(told: RelayEnd, heard: Heard) -> None:
    assert heard_of(told) is heard


def test_the_pause_grows_and_the_engine_may_name_it_within_bounds() -> None:
    silent = end(RelayOutcome.WITHHELD, 503)
    assert [busy_ns(silent, times) / SECOND for times in (1, 2, 3, 5, 50)] == [0.25, 0.5, 1, 4, 4]
    assert busy_ns(end(RelayOutcome.WITHHELD, 503, retry_after=b"2"), 1) == 2 * SECOND
    assert busy_ns(end(RelayOutcome.WITHHELD, 503, retry_after=b"999999999999"), 1) == 4 * SECOND
    assert busy_ns(end(RelayOutcome.WITHHELD, 503, retry_after=b"soon"), 1) == SECOND // 4
