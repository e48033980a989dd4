from hypothesis import given
from hypothesis import strategies as st

from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.pool.reference import peak_by_stepping, peak_of_real_course
from kvbudget.pool.trajectory import Course, held_at, peak_over_time, shares_at_peak
from kvbudget.units import Blocks, Bytes, Tokens


@st.composite
def courses(draw: st.DrawFn, max_size: int = 7) -> list[Course]:
    pairs = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(1, 3)), max_size=max_size))
    return [Course(held, held + more, sequences) for held, more, sequences in pairs]


def test_what_one_frees_the_other_grows_into() -> None:
    layout = uniform_layout(1)
    short, long = Course(50, 60), Course(10, 100)
    assert layout.blocks_for(60) + layout.blocks_for(100) == 160  # the sum of peaks
    assert peak_over_time(layout, [short, long], 0) == 100  # long alone at its end; together they hold 60 + 20 = 80


def test_out_of_step_they_may_meet_at_their_peaks() -> None:
    assert peak_over_time(uniform_layout(1), [Course(50, 60), Course(10, 100)], 1000) == 160


@given(courses(), st.integers(1, 17), st.integers(0, 30))
def test_the_closed_form_equals_looking_at_every_step(batch: list[Course], block_size: int, skew: int) -> None:
    layout = uniform_layout(block_size)
    assert peak_over_time(layout, batch, skew) == peak_by_stepping(layout, batch, skew)


@given(courses(5), st.integers(0, 20))
def test_groups_of_different_block_sizes_are_summed(batch: list[Course], skew: int) -> None:
    layout = Layout(tuple(Group(LayerKind.FULL, 2, Tokens(size), Bytes(size)) for size in (4, 9)))
    assert peak_over_time(layout, batch, skew) == peak_by_stepping(layout, batch, skew)


@given(courses(5), st.integers(1, 9), st.integers(0, 12), st.integers(0, 12), st.data())
def test_no_course_out_of_step_by_at_most_the_skew_ever_holds_more(
    batch: list[Course], block_size: int, most_ahead: int, most_delay: int, data: st.DataObject
) -> None:
    layout = uniform_layout(block_size)
    ahead = [data.draw(st.integers(0, most_ahead)) for _ in batch]
    delays = [data.draw(st.integers(0, most_delay)) for _ in batch]
    promised = peak_over_time(layout, batch, most_ahead + most_delay)
    assert peak_of_real_course(layout, batch, ahead, delays) <= promised


@given(courses(), st.integers(1, 17), st.integers(0, 30))
def test_it_is_never_more_than_the_sum_of_peaks(batch: list[Course], block_size: int, skew: int) -> None:
    layout = uniform_layout(block_size)
    worst = sum(layout.blocks_for(c.peak_tokens) * c.sequences for c in batch)
    assert peak_over_time(layout, batch, skew) <= worst
    assert peak_over_time(layout, batch, 10_000) == worst


@given(courses(), st.integers(1, 17), st.integers(0, 30))
def test_shares_add_up_to_the_peak(batch: list[Course], block_size: int, skew: int) -> None:
    layout = uniform_layout(block_size)
    assert sum(shares_at_peak(layout, batch, skew)) == peak_over_time(layout, batch, skew)


def test_who_ended_holds_nothing() -> None:
    layout = uniform_layout(16)
    assert held_at(layout, Course(16, 20), 4, 0) == 2
    assert held_at(layout, Course(16, 20), 5, 0) == 0
    assert held_at(layout, Course(16, 20), 5, 1) == 2


HYBRID = Layout(
    (
        Group(LayerKind.FULL, 2, Tokens(4), Bytes(4)),
        Group(LayerKind.SLIDING, 2, Tokens(4), Bytes(4), most_tokens=Tokens(20), extra_blocks=Blocks(1)),
        Group(LayerKind.MAMBA, 2, Tokens(4), Bytes(4), fixed_blocks=Blocks(3)),
    )
)


@given(courses(5), st.integers(0, 20))
def test_windows_and_states_are_counted_at_their_peak_while_the_sequence_lives(batch: list[Course], skew: int) -> None:
    assert peak_over_time(HYBRID, batch, skew) == peak_by_stepping(HYBRID, batch, skew)
    assert sum(shares_at_peak(HYBRID, batch, skew)) == peak_over_time(HYBRID, batch, skew)


@given(courses(5), st.integers(0, 8), st.integers(0, 8), st.data())
def test_no_course_of_a_hybrid_out_of_step_ever_holds_more(
    batch: list[Course], most_ahead: int, most_delay: int, data: st.DataObject
) -> None:
    ahead = [data.draw(st.integers(0, most_ahead)) for _ in batch]
    delays = [data.draw(st.integers(0, most_delay)) for _ in batch]
    promised = peak_over_time(HYBRID, batch, most_ahead + most_delay)
    assert peak_of_real_course(HYBRID, batch, ahead, delays) <= promised
    assert promised <= sum(HYBRID.blocks_for(c.peak_tokens) * c.sequences for c in batch)


@given(courses(), st.integers(1, 17), st.integers(0, 30), st.integers(0, 60))
def test_above_a_limit_it_is_not_reckoned_to_its_end(
    batch: list[Course], block_size: int, skew: int, limit: int
) -> None:
    layout = uniform_layout(block_size)
    whole, within = peak_over_time(layout, batch, skew), peak_over_time(layout, batch, skew, limit)
    assert within == whole if whole <= limit else limit < within <= whole
