"""Percentiles as people write them."""

import pytest

from kvbudget.errors import BadValueError
from kvbudget.plan.lengths import parse_lengths


def test_percentiles_are_read_in_any_order_and_unit() -> None:
    lengths = parse_lengths(" p95=4k, p50=800", "--prompt-lengths")
    assert (lengths.at("p50"), lengths.at("p95"), lengths.at("p99")) == (800, 4096, None)


@pytest.mark.parametrize(
    "text", ["", "800", "p50", "p50=", "p51=3", "p50=1,p50=2", "p50=9,p95=8", "p50=-1", "p50=1e3", "p50=1,"]
)
def test_what_is_no_list_of_percentiles_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadValueError, match="--output-lengths") as caught:
        parse_lengths(text, "--output-lengths")
    assert caught.value.fix
