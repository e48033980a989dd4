"""Decides what the arguments and the environment of an engine say: flags to plan with, and what is left aside."""

from collections.abc import Iterable, Mapping
from typing import Any

from kvbudget.engines.commands.command import SAY_WITH_FLAGS, UNRESOLVED, Command, Note, Start, Unmodelled, shown
from kvbudget.engines.commands.dialects import DIALECTS, Dialect
from kvbudget.engines.commands.options import MANY, ONE, SWITCH, TOGGLE, Option, Scanned, Use, scan
from kvbudget.engines.commands.trtllm import flattened
from kvbudget.engines.commands.values import human, human_or_auto
from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadValueError

# vLLM's rules are told apart by minor version; the others' by the whole one.
_MINOR_ONLY = ("vllm",)
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_NOTHING = ("0", "0.0", "false", "none", "null", "{}", "[]", '""', "")
_MOST_ARGUMENTS = 4096
_PLAN_FIELDS = ("kv_cache_memory_bytes", "speculative_config", "hf_overrides")  # beside the engine's flags
_NAME_THE_MODEL = "name it: kvbudget plan MODEL --command ..."
_MOST_SHOWN = 100  # of each list: a hostile command must not fill a report


def command_of(start: Start) -> Command:
    """Read one start. Raises BadValueError for values that the engine itself would refuse."""
    dialect = DIALECTS[start.engine]
    invocation = start.invocation
    scanned = scan(_prepared(start), dialect.table, dialect.syntax)
    notes = [*invocation.notes, *scanned.notes]
    used: dict[str, str] = {}
    uses = (*_environment_uses(dialect, invocation.environment, scanned, used), *scanned.uses)
    values, ignored, unmodelled = _sorted(uses, notes)
    _add_dotted(scanned, dialect, values, unmodelled, ignored)
    _add_positional(scanned, values, notes)
    values.pop("config", None)
    dialect.settle(values, notes)
    for name, why in dialect.variables.items():
        if name in invocation.environment:
            used[name] = invocation.environment[name]
            unmodelled.append(Unmodelled(name, shown(used[name]), why))
    for name, (field, parse) in dialect.from_variables.items():
        if name in invocation.environment:
            used[name] = invocation.environment[name]
            if UNRESOLVED in used[name]:
                notes.append(
                    Note(f"{name} is {shown(used[name])}, which is not defined in the text", _said_here(field, name))
                )
            elif used[name].strip():
                values[field] = parse(name, used[name])
    gpus = _gpus(invocation.gpus, values.pop("gpus", None), invocation.environment, used, notes)
    slices = next((name for name in _VISIBLE if used.get(name, "").startswith("MIG-")), "")
    if slices and not invocation.mig_profile:
        notes.append(Note(f"{slices} names a MIG slice, and not of which size", "give --gpu CARD:SLICE (h100:3g.40gb)"))
    if UNRESOLVED in invocation.image:
        notes.append(
            Note(
                f"the image is {shown(invocation.image)}, which is not defined in the text",
                f"give --engine {start.engine}@VERSION",
            )
        )
    model = str(values.pop("model", ""))
    if UNRESOLVED in model:
        notes.append(Note(f"the model is named by {shown(model)}, which is not defined in the text", _NAME_THE_MODEL))
        model = ""
    elif not model:
        served = f"; {start.engine} would serve its default, {dialect.default_model}" if dialect.default_model else ""
        notes.append(Note(f"the command names no model{served}", _NAME_THE_MODEL))
    fields: dict[str, Any] = {name: values[name] for name in EngineFlags._fields if name in values}
    fields = {name: value for name, value in fields.items() if value is not None}
    speculation = values.get("speculative_config")
    overrides = values.get("hf_overrides")
    pool = values.get("kv_cache_memory_bytes")
    return Command(
        engine=_engine_name(start),
        version=start.version,
        model=model,
        flags=EngineFlags()._replace(**fields),
        given=frozenset(fields),
        gpus=gpus,
        gpu=invocation.gpu,
        kv_cache_memory_bytes=pool if isinstance(pool, int) else None,
        speculative_config=speculation if isinstance(speculation, Mapping) and speculation else None,
        quantization=str(values.get("quantization", "")),
        revision=str(values.get("revision", "")),
        environment=tuple(used.items()),
        ignored=_listed(ignored),
        unmodelled=tuple(dict.fromkeys(unmodelled))[:_MOST_SHOWN],
        unknown=_listed(scanned.unknown),
        hidden=tuple(dict.fromkeys(notes))[:_MOST_SHOWN],
        where=invocation.where,
        names=invocation.names,
        image=shown(invocation.image, 200),
        hf_overrides=overrides if isinstance(overrides, Mapping) and overrides else None,
        spelled=_spelled(scanned, dialect),
        mig_profile=invocation.mig_profile,
    )


def config_path(start: Start) -> str:
    """The path of the YAML file that --config names, "" when none."""
    dialect = DIALECTS[start.engine]
    scanned = scan(start.arguments, dialect.table, dialect.syntax)
    return next((use.value for use in scanned.uses if use.option.effect == "config"), "")


def with_config(start: Start, settings: Mapping[str, object]) -> Start:
    """`start` as if the settings of its --config file stood in the command; the command's own flags win.

    vLLM 0.32 utils/argparse_utils.py: load_config_file; SGLang reads its file the same way.
    """
    arguments = flattened(settings) if start.engine == "trtllm" else _flags_of(settings, DIALECTS[start.engine])
    own = start.arguments
    positional = 1 if own and not own[0].startswith("-") else 0
    return start._replace(arguments=(*own[:positional], *arguments, *own[positional:]))


def _flags_of(settings: Mapping[str, object], dialect: Dialect) -> list[str]:
    """Flags that say what flat YAML settings say."""
    import json

    arguments: list[str] = []
    for key, value in settings.items():
        flag = f"--{key}"
        if isinstance(value, bool):
            option = dialect.table.get(flag.replace("_", "-"))
            if value:
                arguments.append(flag)
            elif option is not None and option.arity == TOGGLE:
                arguments.append(f"--no-{key}")
        elif isinstance(value, list):
            arguments += [flag, *map(str, value)] if value else []
        elif isinstance(value, Mapping):
            arguments += [flag, json.dumps(value, default=str)]
        elif value is not None:
            arguments.append(f"{flag}={value}")
    return arguments


def _prepared(start: Start) -> list[str]:
    """Spellings that no table holds: vLLM's -O3 and -O=3, TensorRT-LLM's --set path=value, which wins over all."""
    if len(start.arguments) > _MOST_ARGUMENTS:
        raise BadValueError(
            f"the engine's command has more than {_MOST_ARGUMENTS} arguments", fix="give the command itself"
        )
    out: list[str] = []
    if start.engine == "trtllm":
        sets = [index for index, argument in enumerate(start.arguments[:-1]) if argument == "--set"]
        taken = {*sets, *(index + 1 for index in sets)}
        out = [argument for index, argument in enumerate(start.arguments) if index not in taken]
        return out + [f"--{start.arguments[index + 1]}" for index in sets]
    if start.engine != "vllm":
        return list(start.arguments)
    for argument in start.arguments:
        level = argument[2:].removeprefix("=") if argument.startswith("-O") else ""
        out += ["--optimization-level", level] if level and "." not in level else [argument]
    return out


def _environment_uses(
    dialect: Dialect, environment: Mapping[str, str], scanned: Scanned, used: dict[str, str]
) -> list[Use]:
    given = {use.option.name for use in scanned.uses}
    uses = []
    for variable, flag in dialect.from_environment.items():
        option = dialect.table[flag]
        if variable in environment and option.name not in given:
            used[variable] = environment[variable]
            uses.append(Use(option, variable, environment[variable]))
    return uses


def _sorted(uses: tuple[Use, ...], notes: list[Note]) -> tuple[dict[str, object], list[str], list[Unmodelled]]:
    """(values by field, flags without effect, flags that are not modelled). Of a repeated flag the last one counts."""
    values: dict[str, object] = {}
    ignored: list[str] = []
    unmodelled: list[Unmodelled] = []
    for use in uses:
        option = use.option
        if option.effect:
            _set(option, use, values, notes)
        elif option.why and not _is_harmless(option, use.value):
            value = "" if option.arity in (SWITCH, TOGGLE) and use.value == "true" else shown(use.value)
            unmodelled.append(Unmodelled(use.written, value, option.why))
        else:
            ignored.append(use.written)
    return values, ignored, unmodelled


def _set(option: Option, use: Use, values: dict[str, object], notes: list[Note]) -> None:
    if UNRESOLVED in use.value and option.effect != "model":
        notes.append(
            Note(
                f"{use.written}: {shown(use.value)} is not defined in the text, so the flag is left out",
                _said_here(option.effect, use.written),
            )
        )
        return
    if option.parse is None:
        return
    try:
        values[option.effect] = option.parse(use.written, use.value)
    except BadValueError as error:
        raise BadValueError(f"in the command: {error.message}", fix=error.fix) from error
    if option.parse in (human, human_or_auto) and use.value.strip()[-1:] in ("k", "m", "g"):
        # where kvbudget's own flags, as model cards, count 1024
        binary = shown(use.value.strip()[:-1] + use.value.strip()[-1:].upper())
        notes.append(
            Note(
                f"{use.written} {shown(use.value)} is {values[option.effect]} to vLLM: small letters count 1000",
                f"write {use.written} {binary} in the command if powers of 1024 are meant",
            )
        )


def _is_harmless(option: Option, value: str) -> bool:
    """Whether the value switches off what the option is about, or is the one that changes nothing."""
    if option.harmless:
        return value in option.harmless
    return value.strip().lower() in _NOTHING and option.arity in (ONE, TOGGLE, MANY)


def _add_dotted(
    scanned: Scanned,
    dialect: Dialect,
    values: dict[str, object],
    unmodelled: list[Unmodelled],
    ignored: list[str],
) -> None:
    """JSON options given key by key, as --speculative-config.method mtp."""
    for name, parts in scanned.dotted.items():
        option = dialect.table[name]
        if option.effect in ("speculative_config", "hf_overrides"):
            before = values.get(option.effect)
            values[option.effect] = {**(before if isinstance(before, Mapping) else {}), **parts}
        elif option.why or option.effect:
            why = option.why or "changes the memory of CUDA graphs"
            unmodelled.append(Unmodelled(f"{name}.{next(iter(parts), '')}", "", why))
        else:
            ignored.append(name)


def _add_positional(scanned: Scanned, values: dict[str, object], notes: list[Note]) -> None:
    """The model as the first positional argument; the positional wins over --model, as in vLLM."""
    if not scanned.positionals:
        return
    first, *others = scanned.positionals
    if UNRESOLVED not in first or "model" not in values:
        values["model"] = first
    else:
        notes.append(Note(f"arguments in {shown(first)} are not said", SAY_WITH_FLAGS))
    if others:
        notes.append(
            Note(
                f"arguments without a flag are left out: {shown(' '.join(others))}",
                "write the flags that they belong to in the command, or take them out",
            )
        )


def _gpus(
    contained: int | None, named: object, environment: Mapping[str, str], used: dict[str, str], notes: list[Note]
) -> int | None:
    """How many cards the engine sees: what it names itself, else what the environment shows, else the container's."""
    if isinstance(named, int):
        return named
    for name in _VISIBLE:
        value = environment.get(name, "").strip()
        if UNRESOLVED in value:
            said = f"{name} is {shown(value)}, which is not defined in the text: how many cards it names is not known"
            notes.append(Note(said, "give --gpus N: the cards that this engine sees"))
            continue
        if not value or value in ("all", "void", "none"):
            continue
        used[name] = value
        return len([one for one in value.split(",") if one.strip() and one.strip() != "-1"])
    return contained


def _said_here(field: str, written: str) -> str:
    """How people say a value that the text leaves to a variable."""
    if field in EngineFlags._fields or field in _PLAN_FIELDS:
        return f"give --{field.replace('_', '-')}, or define the variable in the text"
    return f"define the variable in the text, or write {written} with its value"


def _spelled(scanned: Scanned, dialect: Dialect) -> tuple[str, ...]:
    """The flags of the list that were used; a beginning of one by the name that it stands for."""
    found = list(scanned.dotted)
    for use in scanned.uses:
        name = "--" + use.written[2:].replace("_", "-") if use.written.startswith("--") else use.written
        found.append(name if name in dialect.table else use.option.name)
    return tuple(dict.fromkeys(found))


def _engine_name(start: Start) -> str:
    if start.version is None:
        return start.engine
    version = ".".join(start.version.split(".")[:2]) if start.engine in _MINOR_ONLY else start.version
    return f"{start.engine}@{version}"


def _listed(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))[:_MOST_SHOWN]
