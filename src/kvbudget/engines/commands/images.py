"""Decides what a container image says of the engine in it: its entry point and its version."""

from typing import NamedTuple

from kvbudget.engines.commands.command import UNRESOLVED
from kvbudget.units import is_digits


class Image(NamedTuple):
    """`entrypoint` is what the image runs before the arguments, () when it is not known. `engine` "" likewise."""

    engine: str
    version: str | None
    entrypoint: tuple[str, ...]


def image_named(image: str) -> Image:
    """What `image` (registry/path/name:tag@digest) is known for."""
    path, _, _ = image.partition("@")
    folder, _, last = path.rpartition("/")
    name, _, tag = last.partition(":")
    name = name.lower()
    if name.startswith("vllm-openai") or name in ("vllm", "vllm-cpu", "vllm-cpu-release-repo", "vllm-rocm"):
        # NVIDIA's own images (nvcr.io/nvidia/vllm:25.09-py3) count months, not versions, and have no entry point
        entrypoint: tuple[str, ...] = () if folder.startswith("nvcr.io/") else ("vllm", "serve")
        return Image("vllm", _version(tag, below=20), entrypoint)
    if name == "text-generation-inference":
        return Image("tgi", _version(tag, below=20), ("text-generation-launcher",))
    if name.startswith("sglang"):
        return Image("sglang", _version(tag, below=20), ())
    if "tensorrt-llm" in folder or name.startswith(("tensorrt-llm", "tensorrt_llm")):
        return Image("trtllm", _version(tag, below=20), ())
    if name in ("llama.cpp", "llamacpp", "llama-cpp"):
        program = {"server": "llama-server", "light": "llama-cli"}.get(tag.partition("-")[0], "")
        return Image("llamacpp", _build(tag), (program,) if program else ())
    return Image("", None, ())


def version_in(text: str, package: str) -> str | None:
    """The version of a requirement such as vllm==0.32.0, vllm[flashinfer]==0.32.0 or vllm@0.32.0 (uvx)."""
    for sign in ("==", "@"):
        before, found, after = text.partition(sign)
        if found and before.partition("[")[0] == package:
            return _version(after, below=20)
    return None


def _version(tag: str, *, below: int) -> str | None:
    """The version at the beginning of a tag: v0.32.0-cu129 is 0.32.0. Years, "latest" and digests are none."""
    if UNRESOLVED in tag:
        return None
    text = tag.removeprefix("v")
    end = 0
    while end < len(text) and (is_digits(text[end]) or text[end] == "."):
        end += 1
    parts = text[:end].strip(".").split(".")
    if len(parts) < 2 or not all(is_digits(part) and len(part) < 6 for part in parts) or int(parts[0]) >= below:
        return None
    return ".".join(parts)


def _build(tag: str) -> str | None:
    last = tag.rpartition("-")[2]
    return last if last[:1] == "b" and is_digits(last[1:]) else None
