"""What counts as one for a cache of results."""

from kvbudget.model.same import Same


def test_only_one_object_is_the_same() -> None:
    first, second = [1, 2], [1, 2]
    assert Same(first) == Same(first)
    assert hash(Same(first)) == hash(Same(first))
    assert Same(first) != Same(second)
    assert Same(first) != first
