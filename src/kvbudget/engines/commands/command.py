"""What a command line says: how the engine is started, and what of it the planner uses, leaves aside or cannot see."""

from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.engines.flags import EngineFlags

# Stands before the name of a variable whose value nobody said; no argument of a process can hold a NUL.
UNRESOLVED = "\0"


class Note(str):
    """A sentence on what cannot be seen, or means another thing than it seems to; `fix`: what people do about it."""

    __slots__ = ("fix",)
    fix: str

    def __new__(cls, what: str, fix: str) -> "Note":
        """`fix` names a flag, or the place to correct."""
        note = super().__new__(cls, what)
        note.fix = fix
        return note


class Invocation(NamedTuple):
    """A process that would be started, whatever it is: its arguments, its environment, and where they were read.

    `image` is the container's, or "". `entrypoint` False: the image's own entry point comes before `argv`. `gpus` is
    what the container asks for, None when it does not say; `mig_profile`: the slice of a card that each is, or "".
    `names`: by what people may choose it. `files`: text of files that the input itself brings along (Kubernetes
    ConfigMaps), by their base name.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}
    image: str = ""
    entrypoint: bool = True
    gpus: int | None = None
    gpu: str = ""
    where: str = ""
    names: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    files: Mapping[str, str] = {}
    mig_profile: str = ""


class Start(NamedTuple):
    """An invocation that starts an engine. `arguments` are the engine's own, entry point and wrappers taken off."""

    engine: str
    version: str | None
    arguments: tuple[str, ...]
    invocation: Invocation


class Unmodelled(NamedTuple):
    """A flag or variable that touches the KV budget in a way that is not computed, and in a word how."""

    flag: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.flag} {self.value}".rstrip() + f" ({self.why})"


class Change(NamedTuple):
    """Why a release of an engine does not take a flag. `gone`: it had been there; else it came later. `since`: the
    release that it is gone from, or that brought it; `other`: one that takes it; `instead`: what to write now, or "".
    """

    flag: str
    gone: bool
    since: str
    other: str
    instead: str = ""


class Command(NamedTuple):
    """One engine command, read.

    `engine` is as --engine takes it ("vllm@0.32", or "vllm" when the version is not said); `version` is the whole one.
    `model` is "" when none is named, or when its name is in a variable that nobody set. `given` are the fields of
    `flags` that the command sets; the others hold the engine's defaults. `speculative_config` has vLLM's keys
    (method, num_speculative_tokens, model, ...), other engines' words translated; the draft model is not loaded.
    `environment` are the variables that were used. `ignored`: flags that do not touch the KV budget; `unknown`: flags
    that the engine's list does not have. `hidden`: what could not be seen. `image`: the container's. `hf_overrides`:
    what is set in the model's config.json before it is read. `spelled`: all flags of the list that were used, as the
    list spells them. `mig_profile`: the slice of a card that the container asks for ("3g.40gb"), or "".
    """

    engine: str
    version: str | None
    model: str
    flags: EngineFlags
    given: frozenset[str] = frozenset()
    gpus: int | None = None
    gpu: str = ""
    kv_cache_memory_bytes: int | None = None
    speculative_config: Mapping[str, object] | None = None
    quantization: str = ""
    revision: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    unmodelled: tuple[Unmodelled, ...] = ()
    unknown: tuple[str, ...] = ()
    hidden: tuple[Note, ...] = ()
    where: str = ""
    names: tuple[str, ...] = ()
    image: str = ""
    hf_overrides: Mapping[str, object] | None = None
    spelled: tuple[str, ...] = ()
    mig_profile: str = ""


# What --command cannot see is said with flags of the plan's own, which win over the command.
SAY_WITH_FLAGS = "give what it sets as flags of kvbudget plan, which win: --max-model-len, --tensor-parallel-size, ..."


def shown(text: str, limit: int = 60) -> str:
    """`text` fit to be printed in a message: bounded, control characters replaced, unset variables by their names."""
    text = text[:limit].replace(UNRESOLVED, "")
    return "".join(c if c.isprintable() else "?" for c in text)
