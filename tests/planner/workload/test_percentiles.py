"""Lengths at percentiles: given ones as they are, others from the same distribution."""

from collections.abc import Callable

import pytest

from kvbudget.planner.request import PlanRequest
from kvbudget.planner.workload.lengths import SHARES, at_share, drawn_through, parse_lengths
from kvbudget.planner.workload.percentiles import derived_names, totals_of

MakeRequest = Callable[..., PlanRequest]


def test_given_percentiles_are_added_as_they_are() -> None:
    prompts, outputs = parse_lengths("p50=800,p95=4k,p99=8k", "--x"), parse_lengths("p50=200,p95=900,p99=2k", "--x")
    assert totals_of(prompts, outputs) == (1000, 4996, 10240)


@pytest.mark.parametrize("text", ["p50=800,p95=4000", "p50=800,p99=9000", "p95=4000,p99=9000", "p95=4000"])
def test_what_is_not_given_is_what_the_drawn_distribution_has_there(text: str) -> None:
    lengths = parse_lengths(text, "--x")
    drawn = drawn_through(lengths, 10_000)
    for share, total in zip(SHARES.values(), totals_of(lengths, parse_lengths("p50=1", "--x")), strict=True):
        assert total - 1 == pytest.approx(at_share(drawn, share), rel=0.01)


def test_names_of_what_was_not_given(request_of: MakeRequest) -> None:
    both, all_three = parse_lengths("p50=1,p95=2", "--x"), parse_lengths("p50=1,p95=2,p99=3", "--x")
    assert derived_names(request_of(prompt_lengths=both, output_lengths=all_three)) == ("p99",)
    assert derived_names(request_of(prompt_lengths=all_three, output_lengths=all_three)) == ()
    assert derived_names(request_of()) == ()
    assert derived_names(request_of(prompt_lengths=both, output_lengths=both, requests=((1, 1),))) == ()
