"""In which steps the gate hears of whom."""

from kvbudget.gate.config import PROGRESS_STRIDE
from kvbudget.simulate.clients import Client
from kvbudget.simulate.jump_engine import Stream
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.strides import Strides
from kvbudget.units import Tokens


def stream(serial: int, base: int = 0, reported: int = 0) -> Stream:
    request = TraceRequest(0, Tokens(16), Tokens(64), Tokens(64))
    one = Stream(Client(serial, request), 16, 64, (0, 0, str(serial)), None)
    one.serial, one.base, one.reported = serial, base, reported
    return one


def test_each_is_due_once_in_a_stride_from_its_last_report_on() -> None:
    strides, one = Strides(), stream(1, base=-5, reported=3)
    strides.add(one)
    due = [step for step in range(8, 8 + 2 * PROGRESS_STRIDE) if strides.due_in(step)]
    assert due == [8, 8 + PROGRESS_STRIDE]
    assert strides.steps_ahead(8) == PROGRESS_STRIDE
    assert strides.steps_ahead(8 + PROGRESS_STRIDE - 3) == 3


def test_those_of_one_step_come_in_the_order_of_the_batch() -> None:
    strides = Strides()
    late, early = stream(9), stream(2)
    strides.add(late)
    strides.add(early)
    assert strides.due_in(0) == [early, late]


def test_who_ends_is_not_told_of_and_beginning_anew_forgets_all_others() -> None:
    strides, one, other = Strides(), stream(1), stream(2, reported=4)
    strides.add(one)
    strides.discard(one)
    strides.discard(one)
    assert not strides.due_in(0)
    strides.add(one)
    strides.begin([other])
    assert (strides.due_in(0), strides.due_in(4)) == ([], [other])
