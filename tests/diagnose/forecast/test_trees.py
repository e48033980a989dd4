"""Trees in their written form say what they say when read by hand."""

import pytest

from kvbudget.diagnose.forecast.features import NAMES, PLAIN
from kvbudget.diagnose.forecast.learned.chance import CHANCE, PRIOR
from kvbudget.diagnose.forecast.learned.growth import HIGH, LOW, MIDDLE, WHEN
from kvbudget.diagnose.forecast.trees import Trees

TWO = "0.5 0<1.0 1<2.0 =10 =20 =30 =-1"


@pytest.mark.parametrize(
    ("looked_at", "sum_of_leaves"), [([1.0, 2.0], 9.5), ([1.0, 2.1], 19.5), ([1.1, 0.0], 29.5), ([9.0, 9.0], 29.5)]
)
def test_at_most_the_threshold_goes_left(looked_at: list[float], sum_of_leaves: float) -> None:
    assert Trees(TWO).value(looked_at) == sum_of_leaves


def test_a_tree_may_be_one_leaf() -> None:
    assert len(Trees(TWO)) == 2
    assert Trees("1.5 =2").value([]) == 3.5


@pytest.mark.parametrize(
    ("text", "features"), [(CHANCE, len(NAMES)), (LOW, len(PLAIN)), (MIDDLE, len(PLAIN)), (HIGH, len(PLAIN)),
                           (WHEN, len(NAMES))],
)  # fmt: skip
def test_what_is_shipped_looks_only_at_features_that_there_are(text: str, features: int) -> None:
    looked_at = {int(item.partition("<")[0]) for item in text.split() if "<" in item}
    assert looked_at <= set(range(features))
    assert len(Trees(text)) > 20


def test_the_prior_is_a_share_of_all_decisions() -> None:
    assert len(PRIOR) == 20
    assert sum(count for count, _ in PRIOR) == pytest.approx(1.0, abs=1e-3)
    for at, (count, chance) in enumerate(PRIOR):
        assert at / 20 * count - 1e-5 <= chance <= (at + 1) / 20 * count + 1e-5
