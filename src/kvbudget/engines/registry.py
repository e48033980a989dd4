"""Decides which engine rule `--engine NAME[@VERSION]` means."""

from kvbudget.engines.vllm import Vllm
from kvbudget.errors import UnsupportedError

DEFAULT_ENGINE = "vllm@0.32"
_PLANNED = ("sglang", "tgi", "trtllm", "llamacpp")


def engine_named(text: str) -> Vllm:
    """The rule of an engine and version. Raises UnsupportedError for one that is not known, naming those that are."""
    name, _, version = text.partition("@")
    if name in _PLANNED:
        raise UnsupportedError(
            f"--engine {name}: its pool rule is planned but not built yet", fix=f"use --engine {DEFAULT_ENGINE}"
        )
    if name != Vllm.name:
        raise UnsupportedError(f"--engine {name[:40]!r} is unknown", fix=f"use --engine {DEFAULT_ENGINE}")
    if version and version != Vllm.version and not version.startswith(Vllm.version + "."):
        raise UnsupportedError(
            f"--engine {text[:40]}: only the rule of version {Vllm.version} is known; older and newer pools differ",
            fix=f"use --engine {DEFAULT_ENGINE}",
        )
    return Vllm()
