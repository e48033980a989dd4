"""Margins as people write them."""

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.workload.margin import parse_margin


@pytest.mark.parametrize(
    ("text", "blocks"), [("5%", 51), ("0.05", 51), (".5", 501), ("512", 512), ("0", 0), ("0%", 0), ("99999", 1001)]
)
def test_shares_are_rounded_up_and_blocks_never_exceed_the_pool(text: str, blocks: int) -> None:
    assert parse_margin(text).of(1001) == blocks


@pytest.mark.parametrize("text", ["", "%", ".", "1.5", "100%", "-1", "5 GiB", "1e3", "0.5.5", "nan", "٣"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="--margin"):
        parse_margin(text)


def test_an_empty_pool_has_no_margin() -> None:
    assert parse_margin("5%").of(0) == parse_margin("7").of(-3) == 0
