"""One accounting for the KV cache of self-hosted LLM servers: plan it, gate every request by it, watch it.

From Python: `from kvbudget import load, plan`, see `kvbudget.api`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbudget.api import LoadedModel, load, plan, plan_json, solve

__all__ = ["LoadedModel", "__version__", "load", "plan", "plan_json", "solve"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """The planner is imported when it is first asked for: the gate and the CLI start without it."""
    if name in ("LoadedModel", "load", "plan", "plan_json", "solve"):
        from kvbudget import api

        return getattr(api, name)
    raise AttributeError(f"module 'kvbudget' has no attribute {name!r}")
