"""Percentiles as people write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.errors import BadValueError
from kvbudget.planner.workload.lengths import Lengths, at_share, deviation, drawn_through, normal_share, parse_lengths
from kvbudget.units import Tokens


def test_percentiles_are_read_in_any_order_and_unit() -> None:
    lengths = parse_lengths(" p95=4k, p50=800", "--prompt-lengths")
    assert (lengths.at("p50"), lengths.at("p95"), lengths.at("p99")) == (800, 4096, None)


@pytest.mark.parametrize(
    "text", ["", "p50", "p50=", "p51=3", "p50=1,p50=2", "p50=9,p95=8", "p50=-1", "p50=1e3", "p50=1,"]
)
def test_what_is_no_list_of_percentiles_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadValueError, match="--output-lengths") as caught:
        parse_lengths(text, "--output-lengths")
    assert caught.value.fix


@pytest.mark.parametrize(("text", "tokens"), [("4000", 4000), ("4k", 4096), (" 8k ", 8192)])
def test_one_number_is_the_length_of_all(text: str, tokens: int) -> None:
    lengths = parse_lengths(text, "--prompt-lengths")
    assert lengths == Lengths(Tokens(tokens), Tokens(tokens), Tokens(tokens))
    assert set(drawn_through(lengths, 40)) == {tokens}


@pytest.mark.parametrize("text", ["4000,5000", "4e3", "4000 tokens", "-4000", "4000="])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(BadValueError):
        parse_lengths(text, "--prompt-lengths")


def test_the_given_percentiles_come_out_again() -> None:
    drawn = drawn_through(parse_lengths("p50=800,p95=4000,p99=8000", "--prompt-lengths"), 1000)
    for share, length in ((0.50, 800), (0.95, 4000), (0.99, 8000)):
        assert at_share(drawn, share) == pytest.approx(length, rel=0.02)
    assert drawn[0] < 800 / 4 < 8000 < drawn[-1]


def test_one_percentile_alone_is_a_constant() -> None:
    assert set(drawn_through(Lengths(None, Tokens(700), None), 50)) == {700}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=3).map(sorted))
def test_lengths_never_fall_and_never_are_zero(lengths: list[int]) -> None:
    drawn = drawn_through(Lengths(*(Tokens(length) for length in lengths)), 100)
    assert list(drawn) == sorted(drawn)
    assert drawn[0] >= 1


def test_a_share_is_the_nearest_rank() -> None:
    assert [at_share([10, 20, 30, 40], share) for share in (0.01, 0.25, 0.26, 0.5, 0.99, 1.0)] == [
        10,
        10,
        20,
        20,
        40,
        40,
    ]
    assert at_share([], 0.5) == 0


@given(st.floats(0.001, 0.999))
def test_the_deviation_is_the_inverse_of_the_share(share: float) -> None:
    assert normal_share(deviation(share)) == pytest.approx(share, abs=1e-9)
