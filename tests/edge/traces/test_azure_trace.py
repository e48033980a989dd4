"""Rows of the Azure traces: the quick way over a row says what the careful one says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.traces.azure import azure_columns
from kvbudget.errors import BadValueError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
SECONDS = st.builds("2023-11-1{}{}18:{:02d}:{:02d}".format, st.integers(6, 7), st.sampled_from(" T"),
                    st.integers(0, 2), st.integers(0, 61))  # fmt: skip
FRACTIONS = st.sampled_from(["", ".", ".5", ".6805900", ".123456789", ".1234567890", ".x", ".\u0665"])
STAMPS = st.builds("{}{}{}".format, SECONDS, FRACTIONS, st.sampled_from(["", "Z", "+01:00", " -0530"]))


def arrivals(stamps: list[str]) -> list[int] | None:
    try:
        return azure_columns([HEADER, *(f"{stamp},1,2" for stamp in stamps)], "t").arrivals_ns
    except BadValueError:
        return None


@given(st.lists(STAMPS, max_size=20), st.data())
def test_a_stamp_is_read_the_same_whatever_came_before(stamps: list[str], data: st.DataObject) -> None:
    stamps += data.draw(st.lists(st.sampled_from(stamps), max_size=5)) if stamps else []
    alone = [arrivals([stamp]) for stamp in stamps]
    known = [found for found in alone if found]
    assert arrivals(stamps) == ([found[0] for found in known] if len(known) == len(alone) else None)


def test_damage_is_named_by_its_line() -> None:
    good = "2023-11-16 18:15:46.6,10,20"
    for row, why in (
        ("2023-11-16 18:15:46.6,10", "2 fields"),
        ("2023-11-16 18:15:46.6,x,1", "ContextTokens 'x'"),
        ("2023-11-16 18:15:46.6,1,-1", "GeneratedTokens '-1'"),
        ("2023-11-16 18:15:66.6,1,1", "TIMESTAMP"),
    ):
        with pytest.raises(BadValueError, match=f"^t:3: {why}"):
            azure_columns([HEADER, good, row], "t")
