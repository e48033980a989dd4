"""Decides which of an engine's options each argument is, and what belongs to it as its value."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvbudget.engines.commands.command import SAY_WITH_FLAGS, UNRESOLVED, Note, shown
from kvbudget.engines.commands.values import Parser, json_value

# How many arguments follow an option, in argparse's terms.
SWITCH, TOGGLE, ONE, OPTIONAL, MANY = "switch", "toggle", "one", "optional", "many"
_ON, _OFF = "true", "false"
# More names than this with one beginning are not of one option.
_MOST_ALIKE = 8


class Option(NamedTuple):
    """One option. `effect`: the field that it sets, "" for none. `why`: it touches the budget, and is not modelled.

    `harmless` are values of an unmodelled option that change nothing. A TOGGLE can be written --no-NAME too.
    """

    name: str
    arity: str
    effect: str = ""
    parse: Parser | None = None
    why: str = ""
    harmless: tuple[str, ...] = ()


Table = Mapping[str, Option]


class Use(NamedTuple):
    """One option as it was used; `value` is "true" or "false" for one that takes none."""

    option: Option
    written: str
    value: str


class Scanned(NamedTuple):
    """A whole argument list. `dotted`: parts of JSON options given key by key, whole objects by option name."""

    uses: tuple[Use, ...]
    positionals: tuple[str, ...]
    dotted: Mapping[str, Mapping[str, object]]
    unknown: tuple[str, ...]
    notes: tuple[Note, ...]


class Syntax(NamedTuple):
    """How an engine's parser reads arguments. `equals`: --flag=value; `dotted`: --flag.key value, for JSON options.

    `prefixes`: all long names in order, when their unique beginnings will do (argparse); else ().
    """

    equals: bool = True
    prefixes: tuple[str, ...] = ()
    dotted: bool = False


def options(
    fields: Mapping[str, tuple[str, str, Parser]],
    unmodelled: Iterable[tuple[str, str, str]],
    no_effect: Mapping[str, str],
    harmless: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Option]:
    """The table of an engine, by every spelling.

    `fields`: spellings -> (arity, field, parser). `unmodelled`: (arity, spellings, why). `no_effect`: arity ->
    spellings of many options; "/" joins the spellings of one. The first spelling names the option.
    """
    table: dict[str, Option] = {}
    for spellings, (arity, effect, parse) in fields.items():
        names = spellings.split()
        table.update(dict.fromkeys(names, Option(names[0], arity, effect, parse)))
    for arity, spellings, why in unmodelled:
        names = spellings.split()
        option = Option(names[0], arity, why=why, harmless=(harmless or {}).get(names[0], ()))
        table.update(dict.fromkeys(names, option))
    for arity, spellings in no_effect.items():
        for several in spellings.split():
            names = several.split("/")
            table.update(dict.fromkeys(names, Option(names[0], arity)))
    return table


def long_names(table: Table) -> tuple[str, ...]:
    """The names that a unique beginning can stand for, in order."""
    return tuple(sorted(name for name in table if name.startswith("--")))


def scan(arguments: Sequence[str], table: Table, syntax: Syntax) -> Scanned:
    """Sort `arguments` into options, positionals and what is unknown. Never raises: a value is judged later."""
    uses: list[Use] = []
    positionals: list[str] = []
    dotted: dict[str, dict[str, object]] = {}
    unknown: list[str] = []
    notes: list[Note] = []
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        if not _is_flag(argument):
            if argument.startswith(UNRESOLVED) and positionals:
                notes.append(Note(f"arguments in {shown(argument)} are not said", SAY_WITH_FLAGS))
            else:
                positionals.append(argument)
            continue
        flag, equals, inline = argument.partition("=") if syntax.equals else (argument, "", "")
        key = ""
        if syntax.dotted and "." in flag:
            flag, _, key = flag.partition(".")
        option, negated = _lookup(flag, table, syntax)
        if option is None:
            values, index = ([], index) if equals else _following(arguments, index, MANY if key else OPTIONAL)
            unknown.append(shown(" ".join([argument, *values])))
            continue
        if key:
            values, index = ([inline], index) if equals else _following(arguments, index, ONE)
            _set_dotted(dotted.setdefault(option.name, {}), key, values[0] if values else "")
            continue
        if equals:
            uses.append(Use(option, flag, _inverted(inline) if negated else inline))
            continue
        values, index = _following(arguments, index, option.arity)
        if option.arity == ONE and not values:
            notes.append(Note(f"{flag} has no value", "give it one: the engine refuses to start without"))
            continue
        if option.arity in (SWITCH, TOGGLE) or not values:
            uses.append(Use(option, flag, _OFF if negated else _ON))
        else:
            uses.append(Use(option, flag, " ".join(values)))
    return Scanned(tuple(uses), tuple(positionals), dotted, tuple(unknown), tuple(notes))


def _is_flag(argument: str) -> bool:
    return len(argument) > 1 and argument[0] == "-" and not _is_number(argument)


def _is_number(argument: str) -> bool:
    return argument[1:2].isdigit() or (argument[1:2] == "." and argument[2:3].isdigit())


def _lookup(flag: str, table: Table, syntax: Syntax) -> tuple[Option | None, bool]:
    """(the option, whether it was written with --no-). Underscores are dashes: vLLM and llama.cpp both take them."""
    name = "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag
    if name in table:
        return table[name], False
    if name.startswith("--no-"):
        option = table.get("--" + name[5:])
        if option is not None and option.arity == TOGGLE:
            return option, True
    if syntax.prefixes and name.startswith("--") and len(name) > 3:
        first = bisect_left(syntax.prefixes, name)
        found = {table[other].name for other in syntax.prefixes[first : first + _MOST_ALIKE] if other.startswith(name)}
        if len(found) == 1:
            return table[found.pop()], False
    return None, False


def _following(arguments: Sequence[str], index: int, arity: str) -> tuple[list[str], int]:
    """The values from `index` on, and where the next argument is. An option's only value may begin with a dash."""
    if arity in (SWITCH, TOGGLE):
        return [], index
    end = index
    most = len(arguments) if arity == MANY else min(len(arguments), index + 1)
    while end < most and not _is_flag(arguments[end]):
        end += 1
    return list(arguments[index:end]), end


def _set_dotted(target: dict[str, object], key: str, value: str) -> None:
    """vLLM 0.32 utils/argparse_utils.py: --option.key.inner value, and --option.key+ item."""
    appended = key.endswith("+")
    path = key.rstrip("+").split(".")[:8]
    for step in path[:-1]:
        inner = target.setdefault(step, {})
        if not isinstance(inner, dict):
            inner = target[step] = {}
        target = inner
    if appended:
        before = target.get(path[-1])
        target[path[-1]] = [*(before if isinstance(before, list) else []), *value.split(",")]
    else:
        target[path[-1]] = json_value(value)


def _inverted(value: str) -> str:
    return _OFF if value.lower() == _ON else _ON
