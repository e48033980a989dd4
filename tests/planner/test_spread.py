"""Over how many cards llama.cpp shares its layers out, where nobody says it."""

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.planner.hardware.gpus import gpus_named
from kvbudget.planner.spread import over_all_cards


@pytest.mark.parametrize(
    ("engine", "cards", "given", "said", "stages"),
    [
        ("llamacpp", 3, {}, False, 3),
        ("llamacpp@b7000", 3, {}, False, 3),
        ("llamacpp", None, {}, False, 1),
        ("llamacpp", 3, {"pipeline_parallel_size": 2}, True, 2),
        ("llamacpp", None, {"tensor_split": (3.0, 1.0)}, False, 2),
        ("llamacpp", 4, {"tensor_split": (3.0, 1.0)}, False, 2),
        ("llamacpp", 1, {"tensor_split": (3.0, 1.0)}, False, 1),
        ("llamacpp", None, {"pp_layer_partition": (4, 12, 16)}, False, 3),
        ("vllm@0.32", 3, {}, False, 1),
        ("sglang", 3, {}, False, 1),
    ],
)
def test_all_cards_hold_layers_unless_somebody_says_otherwise(
    engine: str, cards: int | None, given: dict[str, object], said: bool, stages: int
) -> None:
    flags = EngineFlags()._replace(**given)  # type: ignore[arg-type] # fields of it
    assert over_all_cards(engine, flags, cards, None, said=said).pipeline_parallel_size == stages


def test_slices_of_a_card_are_not_joined() -> None:
    card, cards = gpus_named("a100:3g.40gb")
    assert over_all_cards("llamacpp", EngineFlags(), 2, card, said=False).pipeline_parallel_size == 1
    assert cards is None
