"""Decides which engine's options are read, by its name in --engine."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvbudget.engines.commands import llamacpp, sglang, tgi, trtllm, vllm, vllm_releases
from kvbudget.engines.commands.command import Change, Note
from kvbudget.engines.commands.options import Syntax, Table
from kvbudget.engines.commands.values import Parser

_NOTHING: Mapping[str, str] = {}


def _taken(_flag: str, _version: str) -> Change | None:
    return None


def _read(_variable: str, _value: str, _version: str) -> bool:
    return False


class Dialect(NamedTuple):
    """How one engine is spoken to.

    `variables`: those that touch the budget, and how; `from_environment`: those that stand for an option;
    `from_variables`: those that are a field of their own. `settle` puts together what several options say, in place.
    `default_model`: when none is named. `refused_by`: why a version does not take a flag of the table; `unread`:
    whether a variable with this value changes nothing in a version.
    """

    name: str
    table: Table
    syntax: Syntax
    settle: Callable[[dict[str, object], list[Note]], None]
    variables: Mapping[str, str]
    from_environment: Mapping[str, str] = _NOTHING
    default_model: str = ""
    from_variables: Mapping[str, tuple[str, Parser]] = {}
    refused_by: Callable[[str, str], Change | None] = _taken
    unread: Callable[[str, str, str], bool] = _read


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            vllm.NAME,
            vllm.TABLE,
            vllm.SYNTAX,
            vllm.settle,
            vllm.VARIABLES,
            default_model=vllm.DEFAULT_MODEL,
            from_variables=vllm.FROM_VARIABLES,
            refused_by=vllm_releases.refused_by,
            unread=vllm_releases.unread,
        ),
        Dialect(
            sglang.NAME,
            sglang.TABLE,
            sglang.SYNTAX,
            sglang.settle,
            sglang.VARIABLES,
            refused_by=sglang.refused_by,
        ),
        Dialect(tgi.NAME, tgi.TABLE, tgi.SYNTAX, tgi.settle, tgi.VARIABLES, tgi.FROM_ENVIRONMENT, tgi.DEFAULT_MODEL),
        Dialect(trtllm.NAME, trtllm.TABLE, trtllm.SYNTAX, trtllm.settle, trtllm.VARIABLES),
        Dialect(
            llamacpp.NAME,
            llamacpp.TABLE,
            llamacpp.SYNTAX,
            llamacpp.settle,
            llamacpp.VARIABLES,
            llamacpp.FROM_ENVIRONMENT,
        ),
    )
}
