"""Decides what people are told of how --command was understood: what is not in the plan is named, never dropped."""

import difflib

from kvbudget.engines.commands.command import Change, Command, Note
from kvbudget.engines.commands.dialects import DIALECTS
from kvbudget.engines.commands.options import long_names
from kvbudget.engines.registry import engine_named
from kvbudget.planner.request import Finding, PlanRequest

# Methods that an engine applies to 16-bit weights while it loads them; any other word names what the files hold.
# vLLM 0.32 model_executor/layers/quantization, SGLang srt/layers/quantization, TGI launcher --quantize.
_AT_LOAD = frozenset(
    {"fp8", "mxfp8", "ptpc_fp8", "fp8_per_tensor", "fp8_per_block", "experts_int8", "int8_per_channel_weight_only",
     "tpu_int8", "deepspeedfp", "torchao", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "eetq", "w8a8_fp8"}
)  # fmt: skip


def notes_on(command: Command, request: PlanRequest, *, version_given: bool) -> tuple[Finding, ...]:
    """Findings in the order of their weight. `version_given`: --engine says which version runs."""
    engine = command.engine.partition("@")[0]
    planned, _, version = request.engine.partition("@")
    changes: list[Change] = []
    if planned == engine:  # else the command is planned as another engine's, which has flags of its own
        refused_by = DIALECTS[engine].refused_by
        changes = [change for flag in command.spelled if (change := refused_by(flag, version)) is not None]
    return (
        *(_unknown(flag, engine, command.version) for flag in command.unknown),
        *(_changed(change, engine, version) for change in changes),
        *_unmodelled(command, engine, version if planned == engine else "", {change.flag for change in changes}),
        *_quantisation(command, request),
        *(() if version_given else _version(command, engine)),
        *(_unclear(note) for note in command.hidden if not _said_otherwise(note, request)),
    )


def _unknown(flag: str, engine: str, version: str | None) -> Finding:
    """The engine refuses a flag that it does not have; one that is newer than our list may have it."""
    known = engine_named(engine).version
    newer = version is not None and _numbers(version) > _numbers(known)
    written = flag.partition(" ")[0].partition("=")[0]
    near = difflib.get_close_matches(written, long_names(DIALECTS[engine].table), n=1, cutoff=0.6)
    meant = f"did you mean {near[0]}? " if near else ""
    if newer:
        message = f"{flag} is not a flag of {engine} {known}, the newest whose flags are known here; it is not planned"
        return Finding("command_flag_unknown", "warning", f"--command: {message}", f"{meant}check its spelling")
    return Finding(
        "command_flag_unknown",
        "error",
        f"--command: {flag} is not a flag of {engine}, which refuses to start with it",
        f"{meant}correct it in the command",
    )


def _changed(change: Change, engine: str, version: str) -> Finding:
    """A flag that was gone by this version, or came later. "" is the newest, which nobody asked for."""
    known = version or engine_named(engine).version
    if change.gone:
        message = f"{change.flag} is gone since {engine} {change.since}: {known} refuses to start with it"
        fix = change.instead or "leave it out"
        if not version:
            fix += f"; {known} is assumed: if you run an older one, give --engine {engine}@{change.other}"
    else:
        message = f"{change.flag} came with {engine} {change.since}: {known} refuses to start with it"
        fix = f"leave it out, or run {engine} {change.since} or newer"
    return Finding("command_flag_unknown", "error", f"--command: {message}", fix)


def _numbers(version: str) -> tuple[int, ...]:
    """0.5.25 is newer than 0.5.23, and 0.32.0 is no newer than 0.32."""
    parts = ("".join(c for c in part if c in "0123456789") for part in version[:40].split(".")[:3])
    numbers = [int(digits) for digits in parts if digits]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _unmodelled(command: Command, engine: str, version: str, refused: set[str]) -> list[Finding]:
    unread = DIALECTS[engine].unread
    return [
        Finding(
            "command_flag_unmodelled",
            "warning",
            f"--command: {flag} touches memory in a way that is not computed",
            "compare with the engine's start-up log: kvbudget receipt",
        )
        for flag in command.unmodelled
        if flag.flag not in refused and not unread(flag.flag, flag.value, version)
    ]


def _quantisation(command: Command, request: PlanRequest) -> list[Finding]:
    """A method on the command line, and a config.json that says nothing of one."""
    given = request.weights is not None and request.weights.source == "given"
    if not command.quantization or request.model.quantization is not None or given:
        return []
    method = command.quantization[:40]
    if method.lower() in _AT_LOAD:
        said = f"quantization {method} is done while loading, and the weights are counted as the checkpoint has them"
        fix = "give --weights SIZE, as the start-up log of the engine has it"
    else:
        counted = "from its files" if request.weights is not None else "as if they were not"
        said = (
            f"quantization {method} needs a checkpoint whose weights are so; the config.json that is read here does "
            f"not say it, and the weights are counted {counted}"
        )
        fix = "give the quantised checkpoint itself, with its weight files, or --weights SIZE"
    return [Finding("command_flag_unmodelled", "warning", f"--command: {said}", fix)]


def _version(command: Command, engine: str) -> list[Finding]:
    if not command.image or command.version is not None:
        return []
    assumed = engine_named(engine).version
    return [
        Finding(
            "command_unclear",
            "warning",
            f"--command: image {command.image} does not say a version of {engine}: {assumed} is assumed",
            f"give --engine {engine}@VERSION, or pin the tag",
        )
    ]


def _unclear(note: Note) -> Finding:
    return Finding("command_unclear", "warning", f"--command: {note}", note.fix)


def _said_otherwise(note: Note, request: PlanRequest) -> bool:
    """A slice of unknown size, when --gpu says which one."""
    sliced = request.gpu is not None and request.gpu.mig_profile != ""
    return "--gpu CARD:SLICE" in note.fix and (sliced or request.gpu_memory is not None)
