"""Decides how a command line becomes a reviewed budget, and a budget a command line again: shared by three commands."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from kvbudget import __version__
from kvbudget.cli.planning.extras import workload_facts
from kvbudget.edge.budget.file import config_fingerprint, read_budget, write_budget
from kvbudget.edge.budget.lock import changing
from kvbudget.errors import BadConfigError, BadValueError
from kvbudget.planner.budget.record import (
    DEFAULT_RETREAT,
    Document,
    Inputs,
    arguments_of,
    budget_of,
    carried_over,
    request_inputs,
    section,
)
from kvbudget.planner.request import Plan

if TYPE_CHECKING:
    from kvbudget.cli.plan import Planned

_LONGEST_PATH = 4096  # a whole command may stand where a file could


def keep_plan(
    path: str,
    args: argparse.Namespace,
    plan: Plan,
    config: object,
    *,
    margin: str = "",
    retreat: Sequence[str] = DEFAULT_RETREAT,
    workload: Mapping[str, object] | None = None,
) -> None:
    """`kvbudget plan --write PATH`: the budget of `plan`, with what people wrote into an older one at `path`.

    `args` is the parsed command line of `plan`, `config` the parsed config.json; `margin` as in --margin; `workload`
    what a trace told (numbers and names). Raises InputError for an older file that is damaged, or no place to write.
    """
    document = budget_of(
        plan,
        request_inputs(args.model or "", _given(args)),
        written=today(),
        written_by=__version__,
        config_sha256=config_fingerprint(config),
        margin=margin,
        retreat=retreat,
        workload=workload,
    )
    with changing(path):
        if os.path.isfile(path):
            old = read_budget(path)
            if retreat is DEFAULT_RETREAT and "retreat" in section(old, "targets"):
                section(document, "targets").pop("retreat", None)
            document = carried_over(document, old)
        write_budget(path, document)


def present_budget(reviewed: Document, path: str, model: str | None = None) -> Document:
    """The budget of the plan made again from the inputs of `reviewed`, the file at `path`. Raises InputError."""
    parsed = _inputs_of(reviewed, path, model)
    found = _planned(parsed)
    inputs = section(reviewed, "inputs")
    return budget_of(
        found.plan,
        Inputs(str(inputs.get("model")), section(inputs, "flags")),  # type: ignore[arg-type] # TOML's plain values
        written=today(),
        written_by=__version__,
        config_sha256=config_fingerprint(found.inputs.checkpoint.config),
        workload=workload_facts(found.extras, parsed),
    )


def planned_again(reviewed: Document, path: str, model: str | None = None) -> Plan:
    """The plan made again from the inputs of `reviewed`, the file at `path`. Raises InputError."""
    return _planned(_inputs_of(reviewed, path, model)).plan


def _planned(parsed: argparse.Namespace) -> "Planned":
    from kvbudget.cli import plan as plan_command

    return plan_command.planned(parsed)


def _inputs_of(reviewed: Document, path: str, model: str | None) -> argparse.Namespace:
    """The command line of `plan` that a budget keeps."""
    from kvbudget.cli.main import parser_of

    named, *flags = arguments_of(reviewed)
    parser = parser_of("plan")
    parser.error = _refuse(path)  # type: ignore[method-assign, assignment]
    parsed: argparse.Namespace = parser.parse_args(flags)
    parsed.model = model if model is not None else model_of(named, path)
    _find_files(parsed, path)
    if not parsed.model and parsed.command_line is None:
        raise BadConfigError(f"{path[-200:]}: [inputs] names no model", fix="write it anew: kvbudget plan ... --write")
    return parsed


def today() -> str:
    """The date, as in budgets: 2026-11-29 (UTC)."""
    return datetime.now(UTC).date().isoformat()


def _find_files(parsed: argparse.Namespace, path: str) -> None:
    """Files that the flags name, as the model is found. Raises BadValueError for one that is neither here nor there."""
    for name in ("command_line", "trace", "receipts"):
        given = getattr(parsed, name)
        found = _found(given or "", path) or None
        if given and name != "command_line" and not os.path.exists(str(found)):  # which may be the command itself
            raise BadValueError(
                f"{path[-200:]}: [inputs.flags] {name} {given[:200]!r} is neither here nor beside the budget",
                fix=f"put it there, or write the budget anew: kvbudget plan ... --{name} FILE --write",
            )
        setattr(parsed, name, found)
    if parsed.speculative_config is None:
        return
    try:
        config = json.loads(parsed.speculative_config)
    except (ValueError, RecursionError):
        return  # the plan says what is wrong with it
    if isinstance(config, dict) and isinstance(config.get("model"), str):
        parsed.speculative_config = json.dumps(config | {"model": _found(config["model"], path)})


def _found(given: str, path: str) -> str:
    """A relative path counts from here, and where it is not, from the budget's own folder."""
    if not given or len(given) > _LONGEST_PATH or os.path.exists(given):
        return given
    beside = os.path.join(os.path.dirname(os.path.abspath(path)), given)
    return beside if os.path.exists(beside) else given


def model_of(named: str, path: str) -> str:
    """Where the model of the budget at `path` lies, by the name that it has there; a hub id stays as it is.

    As for every file, here comes before the budget's own folder, but a folder that holds no model hides none. `.` is
    the budget's own folder first: that is what who wrote the two into one folder meant.
    """
    if not named or len(named) > _LONGEST_PATH or os.path.isabs(named):
        return named
    beside = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(path)), named))
    places = (beside, named) if os.path.normpath(named) == os.curdir else (named, beside)
    return next((place for place in places if _is_model(place)), _found(named, path))


def _is_model(place: str) -> bool:
    return os.path.isfile(place) or os.path.isfile(os.path.join(place, "config.json"))


def _refuse(path: str) -> Callable[[str], NoReturn]:
    def error(message: str) -> NoReturn:
        raise BadConfigError(f"{path[-200:]}: [inputs]: {message}", fix="correct it, or write it anew")

    return error


def _given(args: argparse.Namespace) -> dict[str, object]:
    """What is not the command's default."""
    from kvbudget.cli.main import parser_of

    parser = parser_of("plan")
    return {name: value for name, value in vars(args).items() if value != parser.get_default(name)}
