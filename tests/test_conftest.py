"""What `conftest.py` sets for all tests is what they run with."""

from hypothesis import settings


def test_no_property_is_failed_by_the_clock() -> None:
    assert settings().deadline is None
