"""Decides which family a `model_type` is, without importing the readers of all others: the plan's start-up is counted.

Most models are uniform; the other tables (table.py) are imported when a name is not among those.
"""

from kvbudget.model.families.family import Family
from kvbudget.model.families.uniform import UNIFORM


def family_of(model_type: str) -> Family | None:
    """What is known of it; None when nothing is."""
    if model_type in UNIFORM:
        return UNIFORM[model_type]
    from kvbudget.model.families.table import FAMILIES

    return FAMILIES.get(model_type)


def known_families() -> list[str]:
    """Their names in order, for an error."""
    from kvbudget.model.families.table import FAMILIES

    return sorted(FAMILIES)


def text_inside(model_type: str) -> str | None:
    """The text model's type inside a multimodal wrapper, "" when its config must name it; None: no such wrapper."""
    if model_type in UNIFORM:
        return None
    from kvbudget.model.families.table import WRAPPERS

    return WRAPPERS.get(model_type)


def known_wrappers() -> list[str]:
    """Their names in order, for an error."""
    from kvbudget.model.families.table import WRAPPERS

    return sorted(WRAPPERS)
