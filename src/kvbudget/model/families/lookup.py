"""Decides which family a `model_type` is without importing the readers of all others: a plan's start-up is counted."""

from kvbudget.model.families.family import Family

# Types of the later tables that are in large models of the day, which need no other table.
_LATENT = ("deepseek_v3", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "kimi_k2")
_RECURRENT = ("kimi_linear", "nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
# Multimodal wrappers around one of those.
_WRAPPING = ("kimi_k25", "kimi_k3", "qwen3_5", "qwen3_5_moe")


def family_of(model_type: str) -> Family | None:
    """What is known of it; None when nothing is. The tables (table.py) that most people's models are in come first."""
    if model_type in _RECURRENT:
        from kvbudget.model.families.recurrent import RECURRENT

        return RECURRENT[model_type]
    if model_type not in _LATENT:
        from kvbudget.model.families.uniform import UNIFORM

        if model_type in UNIFORM:
            return UNIFORM[model_type]
    from kvbudget.model.families.latent import LATENT

    if model_type in LATENT:
        return LATENT[model_type]
    from kvbudget.model.families.sliding import SLIDING

    if model_type in SLIDING:
        return SLIDING[model_type]
    from kvbudget.model.families.table import FAMILIES

    return FAMILIES.get(model_type)


def near_names(model_type: str) -> str:
    """What may have been meant, for an error: a few of the known names."""
    import difflib  # only an error needs it

    from kvbudget.model.families.multimodal import WRAPPERS
    from kvbudget.model.families.table import FAMILIES

    near = difflib.get_close_matches(model_type[:64], [*FAMILIES, *WRAPPERS], n=4, cutoff=0.5)
    return f"near ones are {', '.join(near)}; kvbudget models lists all" if near else "kvbudget models lists all"


def text_inside(model_type: str) -> str | None:
    """The text model's type inside a multimodal wrapper, "" when its config must name it; None: no such wrapper."""
    if model_type in _LATENT or model_type in _RECURRENT:
        return None
    if model_type not in _WRAPPING:
        from kvbudget.model.families.uniform import UNIFORM

        if model_type in UNIFORM:
            return None
    from kvbudget.model.families.multimodal import WRAPPERS

    return WRAPPERS.get(model_type)
