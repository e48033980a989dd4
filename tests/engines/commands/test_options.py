"""Arguments are sorted as the engines' own parsers sort them."""

import pytest

from kvbudget.engines.commands.options import MANY, ONE, OPTIONAL, SWITCH, TOGGLE, Syntax, long_names, options, scan
from kvbudget.engines.commands.values import text

TABLE = options(
    {"--length -l": (ONE, "length", text), "--names": (MANY, "names", text), "--json": (ONE, "json", text)},
    [(ONE, "--offload", "moves weights"), (TOGGLE, "--cache", "switches the cache")],
    {SWITCH: "--quiet/-q", OPTIONAL: "--token", ONE: "--port --portal"},
)
SYNTAX = Syntax(equals=True, prefixes=long_names(TABLE), dotted=True)


def uses(*arguments: str) -> list[tuple[str, str]]:
    return [(use.option.name, use.value) for use in scan(arguments, TABLE, SYNTAX).uses]


def test_a_value_follows_or_stands_behind_an_equals_sign() -> None:
    assert uses("--length", "5", "--length=6", "-l", "7", "-l=8") == [("--length", n) for n in "5678"]


def test_underscores_are_dashes() -> None:
    table = options({"--max-len": (ONE, "x", text)}, [], {})
    assert scan(["--max_len", "3"], table, Syntax()).uses[0].value == "3"


def test_a_unique_beginning_will_do_and_a_shared_one_is_unknown() -> None:
    assert uses("--len", "5") == [("--length", "5")]
    assert scan(["--por", "1"], TABLE, SYNTAX).unknown == ("--por 1",)
    assert uses("--port", "1") == [("--port", "1")]  # a whole name wins over a longer one


def test_negative_numbers_are_values_and_flags_are_not() -> None:
    assert uses("--length", "-1", "--quiet") == [("--length", "-1"), ("--quiet", "true")]
    scanned = scan(["--length", "--quiet"], TABLE, SYNTAX)
    assert scanned.notes == ("--length has no value",)
    assert [use.option.name for use in scanned.uses] == ["--quiet"]


def test_lists_end_where_the_next_flag_begins() -> None:
    assert uses("--names", "a", "b", "-q") == [("--names", "a b"), ("--quiet", "true")]


def test_a_toggle_can_be_switched_off() -> None:
    assert uses("--cache", "--no-cache", "--cache=false", "--no-cache=true") == [
        ("--cache", "true"), ("--cache", "false"), ("--cache", "false"), ("--cache", "false"),
    ]  # fmt: skip
    assert scan(["--no-quiet"], TABLE, SYNTAX).unknown == ("--no-quiet",)


def test_an_optional_value_may_be_left_out() -> None:
    assert uses("--token", "--quiet", "--token", "abc") == [
        ("--token", "true"), ("--quiet", "true"), ("--token", "abc"),
    ]  # fmt: skip


def test_an_unknown_flag_is_named_with_its_value_which_is_no_positional() -> None:
    scanned = scan(["model", "--new", "3", "--other=4", "--third"], TABLE, SYNTAX)
    assert (scanned.positionals, scanned.unknown) == (("model",), ("--new 3", "--other=4", "--third"))


def test_dotted_keys_become_one_object() -> None:
    scanned = scan(["--json.a.b", "1", "--json.c=x", "--json.d+", "p,q", "--json.d+=r"], TABLE, SYNTAX)
    assert scanned.dotted == {"--json": {"a": {"b": 1}, "c": "x", "d": ["p", "q", "r"]}}
    assert scan(["--x.y", "1"], TABLE, SYNTAX).unknown == ("--x.y 1",)


@pytest.mark.parametrize("arguments", [["-"], ["--"], ["=", "-="], ["--=3"], ["--.a", "b"], ["--json.", "1"], [""]])
def test_crooked_arguments_are_no_error(arguments: list[str]) -> None:
    scan(arguments, TABLE, SYNTAX)
