"""Decides over how many cards llama.cpp shares its layers out, where nobody says it: over all that it sees."""

from typing import TYPE_CHECKING

from kvbudget.engines.flags import EngineFlags

if TYPE_CHECKING:
    from kvbudget.planner.hardware.gpus import Gpu


def over_all_cards(
    engine: str, flags: EngineFlags, cards: int | None, card: "Gpu | None", *, said: bool
) -> EngineFlags:
    """`flags` with as many stages as there are `cards` (None: unknown), unless `said` how many; no more than have a
    share of a --tensor-split. Other engines are started with a number of ranks. A process sees one MIG slice only."""
    if engine.partition("@")[0] != "llamacpp":
        return flags
    if cards is None or (card is not None and card.mig_profile):
        shares = len(flags.pp_layer_partition or flags.tensor_split or ())
        return flags if said or not shares else flags._replace(pipeline_parallel_size=shares)
    stages = flags.pipeline_parallel_size if said else cards
    if flags.tensor_split is not None and flags.pp_layer_partition is None:
        stages = min(stages, len(flags.tensor_split))
    return flags._replace(pipeline_parallel_size=stages)
