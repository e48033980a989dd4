"""Decides which engine's options are read, by its name in --engine."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvbudget.engines.commands import llamacpp, sglang, tgi, trtllm, vllm
from kvbudget.engines.commands.options import Syntax, Table
from kvbudget.engines.commands.values import Parser

_NOTHING: Mapping[str, str] = {}


class Dialect(NamedTuple):
    """How one engine is spoken to.

    `variables`: those that touch the budget, and how; `from_environment`: those that stand for an option;
    `from_variables`: those that are a field of their own. `settle` puts together what several options say, in place.
    `default_model`: when none is named.
    """

    name: str
    table: Table
    syntax: Syntax
    settle: Callable[[dict[str, object], list[str]], None]
    variables: Mapping[str, str]
    from_environment: Mapping[str, str] = _NOTHING
    default_model: str = ""
    from_variables: Mapping[str, tuple[str, Parser]] = {}


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
        ),
        Dialect(sglang.NAME, sglang.TABLE, sglang.SYNTAX, sglang.settle, sglang.VARIABLES),
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
