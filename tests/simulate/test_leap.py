"""Steps that grow by the same time each: when they end, and what is held until the last."""

from hypothesis import given
from hypothesis import strategies as st

from kvbudget.simulate.leap import Leap

FIRST, SLOPE, STEPS = st.integers(2, 10**6), st.integers(0, 1000), st.integers(1, 60)


def leap_of(first_ns: int, slope_ns: int, steps: int) -> Leap:
    leap = Leap()
    leap.begin_ns, leap.first_ns, leap.slope_ns, leap.steps = 1000, first_ns, min(slope_ns, first_ns - 1), steps
    return leap


def ends_of(leap: Leap) -> list[int]:
    """Of its steps, one after another."""
    now_ns, ends = leap.begin_ns, []
    for step in range(leap.steps):
        now_ns += leap.first_ns + step * leap.slope_ns
        ends.append(now_ns)
    return ends


@given(FIRST, SLOPE, STEPS)
def test_a_step_has_ended_from_its_last_nanosecond_on(first_ns: int, slope_ns: int, steps: int) -> None:
    leap = leap_of(first_ns, slope_ns, steps)
    ends = ends_of(leap)
    assert leap.end_ns == ends[-1]
    for step, end_ns in enumerate(ends):
        assert (leap.ended_by(end_ns - 1), leap.ended_by(end_ns)) == (step, step + 1)


@given(FIRST, SLOPE, STEPS, st.integers(0, 10**8))
def test_a_cut_leaves_the_step_that_is_under_way(first_ns: int, slope_ns: int, steps: int, after_ns: int) -> None:
    leap = leap_of(first_ns, slope_ns, steps)
    now_ns = leap.begin_ns + after_ns
    whole = ends_of(leap)
    ended = [end_ns for end_ns in whole if end_ns >= now_ns]
    assert leap.cut(now_ns) is (len(ended) > 1)
    assert leap.end_ns == (ended[0] if ended else whole[-1])


@given(FIRST, SLOPE, STEPS, st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 7))
def test_blocks_are_held_from_the_step_that_takes_them_to_the_end(
    first_ns: int, slope_ns: int, steps: int, phases: list[int], phase: int
) -> None:
    leap = leap_of(first_ns, slope_ns, steps)
    begins = [leap.begin_ns, *ends_of(leap)[:-1]]
    needs = [phases[(phase + step) % len(phases)] for step in range(steps)]
    held = sum(need * (leap.end_ns - begin_ns) for need, begin_ns in zip(needs, begins, strict=True))
    assert leap.blocks_taken(phases, phase % len(phases)) == (sum(needs), held)
