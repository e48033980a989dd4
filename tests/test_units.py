import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.errors import BadValueError
from kvbudget.pool.reference import blocks_by_filling
from kvbudget.units import GIB, blocks_for, format_size, parse_length, parse_size, whole_blocks


@given(st.integers(0, 3000), st.integers(1, 300))
def test_blocks_for_equals_filling_blocks_one_token_at_a_time(tokens: int, block_size: int) -> None:
    assert blocks_for(tokens, block_size) == blocks_by_filling(tokens, block_size)


def test_whole_blocks_rounds_down() -> None:
    assert whole_blocks(16 * GIB - 1, GIB) == 15


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("80GB", 80 * 10**9),
        ("6442450944", 6442450944),
        ("0.5 gib", GIB // 2),
        ("79.19GiB", 85029615042),
    ],
)
def test_sizes_are_read_exactly(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e9", "24 GiB GiB", "24Gi", "nan", "1" * 30, "0x10", "٣GiB"])
def test_what_is_no_size_is_refused_with_the_next_step(text: str) -> None:
    with pytest.raises(BadValueError, match="write 24GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("8k", 8192), ("1m", 1048576), ("128K", 131072), ("1.5k", 1536)]
)
def test_lengths_are_read_as_model_cards_write_them(text: str, tokens: int) -> None:
    assert parse_length(text) == tokens


@pytest.mark.parametrize("text", ["8g", "k", "", "-8k", "8kk"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="not a length"):
        parse_length(text)


def test_sizes_are_shown_for_people() -> None:
    assert [format_size(n) for n in (131072, 16 * GIB, 512, 1536 * 1024)] == [
        "128 KiB",
        "16.00 GiB",
        "512 B",
        "1.50 MiB",
    ]
