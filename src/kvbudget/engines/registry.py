"""Decides which engine rule `--engine NAME[@VERSION]` means."""

from kvbudget.engines.rule import Engine
from kvbudget.errors import UnsupportedError

DEFAULT_ENGINE = "vllm@0.32"
NAMES = ("vllm", "sglang", "tgi", "trtllm", "llamacpp")
_OTHER_NAMES = {"tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm", "llama.cpp": "llamacpp", "llama-cpp": "llamacpp"}


def engine_named(text: str) -> Engine:
    """The rule of an engine and version. Raises UnsupportedError for one that is not known, naming those that are."""
    name, _, version = text.partition("@")
    name = _OTHER_NAMES.get(name, name)
    # Each rule is imported when it is asked for: a plan uses one of them, and its start-up time is counted.
    if name == "vllm":
        from kvbudget.engines.vllm.rule import Vllm

        return Vllm(version)
    if name == "sglang":
        from kvbudget.engines.sglang.rule import Sglang

        return Sglang(version)
    if name == "tgi":
        from kvbudget.engines.tgi import Tgi

        return Tgi(version)
    if name == "trtllm":
        from kvbudget.engines.trtllm import Trtllm

        return Trtllm(version)
    if name == "llamacpp":
        from kvbudget.engines.llamacpp.rule import Llamacpp

        return Llamacpp(version)
    raise UnsupportedError(f"--engine {name[:40]!r} is unknown", fix=f"use one of {', '.join(NAMES)}")
