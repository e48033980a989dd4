"""Decides what the flags of `kvbudget plan` mean together: the model that is read, and the request that is planned."""

import argparse
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.edge.hub.folder import Checkpoint, clean, read_checkpoint
from kvbudget.engines.flags import AUTO_LENGTH, EngineFlags
from kvbudget.engines.registry import DEFAULT_ENGINE
from kvbudget.errors import BadValueError, InputError
from kvbudget.model.read import Model, model_from_config
from kvbudget.planner.request import Amount, Finding, PlanRequest, Told
from kvbudget.units import Bytes, is_digits, parse_length

if TYPE_CHECKING:
    from kvbudget.engines.commands.command import Command
    from kvbudget.planner.hardware.gpus import Gpu
    from kvbudget.planner.workload.lengths import Lengths
    from kvbudget.planner.workload.margin import Margin
    from kvbudget.planner.workload.mix import Workload
else:  # as a string it would be compiled when this is imported: its cost is that of ten modules
    Workload = object

_LARGEST_RATE = 1e9
_OBJECTS = {
    "--speculative-config": '{"method": "eagle3", "num_speculative_tokens": 3, "model": "FOLDER"}',
    "--hf-overrides": '{"max_position_embeddings": 131072}',
}
_LONGEST_PATH = 4096


class Inputs(NamedTuple):
    """What is planned, what it was read from, and what people should know of how it was understood.

    `workload`: what --trace holds. `ignored`: flags of --command that do not touch the KV budget.
    """

    request: PlanRequest
    checkpoint: Checkpoint
    notes: tuple[Finding, ...]
    ignored: tuple[str, ...]
    workload: Workload | None


def inputs_of(args: argparse.Namespace) -> Inputs:
    """Read everything that the flags name. Raises InputError for what cannot be planned."""
    refuse_unusable(args)
    command = _command(args)
    checkpoint = read_checkpoint(_reference(args, command), weights=args.weights is None)
    model = model_from_config(_config(args, command, checkpoint), checkpoint.name, args.assume or "")
    flags, draft_weights = _flags(args, command)
    card, cards = _cards(args, command)
    engine = args.engine or (command.engine if command else DEFAULT_ENGINE)
    if engine.startswith("llamacpp"):
        from kvbudget.planner.spread import over_all_cards

        flags = over_all_cards(engine, flags, cards, card, said=_says_stages(args, command))
    workload = _workload(args)
    request = PlanRequest(
        model=model,
        engine=engine,
        flags=flags,
        gpu=card,
        gpus=cards,
        gpu_memory=_size(args.gpu_memory, "--gpu-memory"),
        kv_cache_memory=_pool(args, command),
        weights=_weights(args, flags, model, checkpoint),
        activation=_size(args.activation, "--activation"),
        overhead=_size(args.overhead, "--overhead"),
        prompt_lengths=_lengths(args.prompt_lengths, "--prompt-lengths"),
        output_lengths=_lengths(args.output_lengths, "--output-lengths"),
        target_concurrency=args.target_concurrency,
        margin=_margin(args.margin),
        receipts=_receipts(args.receipts),
        draft_weights=draft_weights,
        requests=workload.requests if workload else (),
    )
    notes: tuple[Finding, ...] = ()
    if command is not None:
        from kvbudget.cli.planning.notes import notes_on

        notes = notes_on(command, request, version_given=args.engine is not None)
    return Inputs(request, checkpoint, notes, command.ignored if command else (), workload)


def _command(args: argparse.Namespace) -> "Command | None":
    if args.command_line is None:
        if args.command_name is not None:
            raise BadValueError("--command-name without --command", fix="give the file that holds the command")
        return None
    from kvbudget.edge.launch.read import one_command, read_commands

    return one_command(read_commands(args.command_line), args.command_name or "")


def _reference(args: argparse.Namespace, command: "Command | None") -> str:
    """MODEL, or the command's own; with its --revision where that is a hub id."""
    if args.model:
        return str(args.model)
    if command is None or not command.model:
        hidden = f" ({'; '.join(command.hidden)})" if command and command.hidden else ""
        raise BadValueError(
            f"MODEL is missing{hidden}", fix="give a folder with config.json, a config.json, a .gguf, or a hub id"
        )
    beside = _beside_command(args, command.model)
    if beside != command.model:
        return beside
    at_hub = command.model.count("/") == 1 and "@" not in command.model and not os.path.exists(command.model)
    return f"{command.model}@{command.revision}" if command.revision and at_hub else command.model


def _beside_command(args: argparse.Namespace, path: str) -> str:
    """A relative path counts from here, and where it is not, from the folder of the file with the command."""
    beside = os.path.join(os.path.dirname(args.command_line), path)
    there = not os.path.exists(path) and os.path.isfile(args.command_line) and os.path.exists(beside)
    return beside if there else path


def _config(args: argparse.Namespace, command: "Command | None", checkpoint: Checkpoint) -> object:
    """config.json with what --hf-overrides sets in it."""
    overrides = _object(args.hf_overrides, "--hf-overrides") if args.hf_overrides is not None else None
    if overrides is None and command is not None:
        overrides = command.hf_overrides
    if not overrides:
        return checkpoint.config
    from kvbudget.planner.overrides import with_overrides

    config = with_overrides(checkpoint.config, overrides)
    clean(config)
    return config


def _pool(args: argparse.Namespace, command: "Command | None") -> Bytes | None:
    """--kv-cache-memory-bytes, else that of --command, which beats the share of the card as it does in vLLM; but not a
    share that was given here, beside the command."""
    given = _size(args.kv_cache_memory_bytes, "--kv-cache-memory-bytes")
    if given is None and command is not None and command.kv_cache_memory_bytes and args.gpu_memory_utilization is None:
        return Bytes(command.kv_cache_memory_bytes)
    return given


def _receipts(path: str | None) -> tuple[Told, ...]:
    """What the receipts of a budget told of memory beside weights and pool."""
    if path is None:
        return ()
    from kvbudget.edge.budget.file import read_budget
    from kvbudget.planner.budget.record import told_by

    return told_by(read_budget(path))


def _workload(args: argparse.Namespace) -> Workload | None:
    if args.trace is None:
        return None
    if "\0" in args.trace or len(args.trace) > _LONGEST_PATH:
        raise BadValueError(f"--trace: {args.trace[:60]!r} is not a path", fix="give the file with the requests")
    from pathlib import Path

    from kvbudget.edge.lengths.read import read_workload

    return read_workload(Path(args.trace), args.trace_format)


def _flags(args: argparse.Namespace, command: "Command | None") -> tuple[EngineFlags, Amount | None]:
    """What was given here, else what the command says, else the engine's defaults; and the weights of a draft model."""
    flags = command.flags if command else EngineFlags()
    given: dict[str, object] = {
        name: getattr(args, name) for name in EngineFlags._fields if getattr(args, name, None) is not None
    }
    if args.max_model_len is not None:
        given["max_model_len"] = _length(args.max_model_len)
    if args.pp_layer_partition is not None:
        given["pp_layer_partition"] = _partition(args.pp_layer_partition)
    if args.tensor_split is not None:
        from kvbudget.engines.commands.llamacpp import shares_of

        given["tensor_split"] = shares_of("--tensor-split", args.tensor_split)
    draft_weights = None
    config = _object(args.speculative_config, "--speculative-config") if args.speculative_config is not None else None
    if config is None and command is not None:
        config = command.speculative_config
    if config:
        from kvbudget.edge.hub.speculative import speculation_of

        named = config.get("model")
        if command is not None and args.speculative_config is None and isinstance(named, str):
            config = {**config, "model": _beside_command(args, named)}
        try:
            given["speculation"], draft_weights = speculation_of(config)
        except InputError as error:
            if not error.message.startswith("MODEL:"):
                raise
            said = error.message.removeprefix("MODEL:")
            raise type(error)(f"--speculative-config: model{said}", fix=error.fix) from error
    return flags._replace(**given), draft_weights  # type: ignore[arg-type] # argparse has checked the types


def _says_stages(args: argparse.Namespace, command: "Command | None") -> bool:
    return args.pipeline_parallel_size is not None or (
        command is not None and "pipeline_parallel_size" in command.given and args.tensor_split is None
    )


def _cards(args: argparse.Namespace, command: "Command | None") -> "tuple[Gpu | None, int | None]":
    """The card, and how many there are: `--gpu h100:8` says both."""
    cards: int | None = args.gpus if args.gpus is not None else command.gpus or None if command else None
    named = args.gpu if args.gpu is not None else command.gpu if command and args.gpu_memory is None else None
    if not named and args.gpu is None:
        _refuse_slice_of_nothing(args, command)
        return None, cards
    from kvbudget.planner.hardware.gpus import gpu_named, gpus_named

    profile = command.mig_profile if command else ""
    if args.gpu is not None:
        card, counted = gpus_named(args.gpu)
        if profile and not card.mig_profile:
            card, _ = gpus_named(f"{args.gpu}:{profile}")
        return card, args.gpus if args.gpus is not None else counted if counted is not None else cards
    try:  # the label of the machine's accelerator is a hint, not a wish
        card = gpu_named(named or "")
        return gpu_named(f"{named}:{profile}") if profile and not card.mig_profile else card, cards
    except InputError:
        return None, cards


def _refuse_slice_of_nothing(args: argparse.Namespace, command: "Command | None") -> None:
    """A slice is part of a card, and the command does not say of which."""
    sized = args.gpu_memory, args.kv_cache_memory_bytes, args.num_gpu_blocks_override
    if command is None or not command.mig_profile or command.kv_cache_memory_bytes or any(x is not None for x in sized):
        return
    raise BadValueError(
        f"--command asks for a MIG slice {command.mig_profile}, and does not say of which card",
        fix=f"give the card, --gpu h100:{command.mig_profile} for one, or --gpu-memory SIZE of the slice",
    )


def _lengths(text: str | None, flag: str) -> "Lengths | None":
    if text is None:
        return None
    from kvbudget.planner.workload.lengths import parse_lengths

    return parse_lengths(text, flag)


def _margin(text: str | None) -> "Margin | None":
    if text is None:
        return None
    from kvbudget.planner.workload.margin import parse_margin

    return parse_margin(text)


def _weights(args: argparse.Namespace, flags: EngineFlags, model: Model, checkpoint: Checkpoint) -> Amount | None:
    given = _size(args.weights, "--weights")
    if given is not None:
        return Amount(given, "given", "--weights")
    if checkpoint.tensors is None:
        return None
    from kvbudget.edge.hub.loaded import weights_beside

    return weights_beside(checkpoint, model, 4 if flags.dtype in ("float32", "float") else 2)


def _object(text: str, flag: str) -> Mapping[str, object]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise BadValueError(
            f"{flag}: {text[:60]!r} is not a JSON object",
            fix=f"write {_OBJECTS[flag]}",
        )
    return given


def _partition(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(is_digits(part.strip()) and len(part) < 8 for part in parts):
        raise BadValueError(
            f"--pp-layer-partition: {text[:40]!r} is not a list of layers", fix="one number for each stage: 16,32"
        )
    return tuple(int(part) for part in parts)


def refuse_unusable(args: argparse.Namespace) -> None:
    """Raise BadValueError for numbers that no plan can use, also where nothing would look at them."""
    for flag, value in (
        ("--arrival-rate", args.arrival_rate),
        ("--seconds-per-token", args.seconds_per_token),
        ("--prefill-tokens-per-s", args.prefill_tokens_per_s),
        ("--price-per-hour", args.price_per_hour),
    ):
        if value is not None and not 0 < value <= _LARGEST_RATE:
            raise BadValueError(f"{flag}: {value} is out of range", fix=f"{flag} is a number above 0")
    for flag, path in (
        ("--markdown", args.markdown), ("--html", args.html), ("--png", args.png), ("--write", args.write)
    ):  # fmt: skip
        if path == "-":
            raise BadValueError(f"{flag}: - is no file name", fix="name a file; --json alone goes to stdout")
    if args.png and not args.png.lower().endswith(".png"):
        raise BadValueError(f"--png: {args.png[-60:]!r} does not end in .png", fix="name it so, or use --html")
    given = args.trace is not None or args.prompt_lengths is not None
    for flag, value in (
        ("--arrival-rate", args.arrival_rate),
        ("--seconds-per-token", args.seconds_per_token),
        ("--prefill-tokens-per-s", args.prefill_tokens_per_s),
    ):
        if value is not None and not given:
            raise BadValueError(
                f"{flag} says how fast requests come or are served, but not how long they are",
                fix="add --trace FILE, or --prompt-lengths and --output-lengths",
            )
    if args.trace is not None and (args.prompt_lengths is not None or args.output_lengths is not None):
        raise BadValueError(
            "--trace and --prompt-lengths or --output-lengths say the same twice", fix="leave one of them out"
        )
    if args.trace is None and args.trace_format is not None:
        raise BadValueError("--trace-format without --trace", fix="add --trace FILE")


def _size(text: str | None, flag: str) -> Bytes | None:
    if text is None:
        return None
    from kvbudget.planner.sizes import memory_size

    return memory_size(text, flag)


def _length(text: str) -> int:
    return AUTO_LENGTH if text in ("auto", "-1") else parse_length(text, "--max-model-len")
