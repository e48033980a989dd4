"""Shell texts are expanded as a shell would, as far as the text itself says; nothing is run."""

import os
import subprocess
from pathlib import Path

import pytest

from kvbudget.engines.commands.command import UNRESOLVED
from kvbudget.engines.commands.shell import processes_in, split_words
from kvbudget.errors import BadValueError


def last(text: str) -> list[str]:
    return list(processes_in(text)[-1].argv)


def test_variables_of_the_text_are_expanded_where_they_are_used() -> None:
    assert last("M=org/model\nL=8192\nrun $M --len=${L} '$M' \"$M\"") == [
        "run",
        "org/model",
        "--len=8192",
        "$M",
        "org/model",
    ]


def test_unquoted_values_are_split_and_quoted_ones_are_not() -> None:
    assert last('E="--a 1  --b"\nrun $E "$E" x$E') == ["run", "--a", "1", "--b", "--a 1  --b", "x--a", "1", "--b"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("${X:-a}", "a"),
        ("${X-a}", "a"),
        ("${EMPTY:-a}", "a"),
        ("${EMPTY-a}", ""),
        ("${SET:-a}", "s"),
        ("${SET:+b}", "b"),
        ("${X:+b}", ""),
        ("${X:-${Y:-${SET}}}", "s"),
        ("${X:-a b}", "a b"),
        ("${X:=c}", "c"),
    ],
)
def test_defaults_are_taken_as_a_shell_takes_them(expression: str, value: str) -> None:
    assert last(f'SET=s\nEMPTY=\nrun "{expression}"') == ["run", value]


def test_a_default_that_is_assigned_stays() -> None:
    assert last(': "${TP:=4}"\nrun $TP') == ["run", "4"]


def test_arrays_keep_their_words_apart() -> None:
    text = 'A=(--a "b c"\n  --d)\nA+=(--e)\nrun "${A[@]}" x "${NONE[@]}"'
    process = processes_in(text)[-1]
    assert process.argv == ("run", "--a", "b c", "--d", "--e", "x")
    assert process.notes == ("array NONE is not defined in the text",)


def test_what_nobody_said_is_marked_and_never_taken_from_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBUDGET_TEST_SECRET", "secret")
    assert last('run "$KVBUDGET_TEST_SECRET" $(whoami) `id` ${#A}') == [
        "run",
        f"{UNRESOLVED}$KVBUDGET_TEST_SECRET",
        f"{UNRESOLVED}$(whoami)",
        f"{UNRESOLVED}`id`",
        f"{UNRESOLVED}${{#A}}",
    ]


def test_the_scripts_own_arguments_are_none() -> None:
    process = processes_in('run a "$@" $* b')[-1]
    assert process.argv == ("run", "a", "b")
    assert "own arguments" in process.notes[0]


def test_the_environment_is_what_is_exported_and_what_stands_before_the_command() -> None:
    text = "A=1\nexport B=2 C\nC=3\ndeclare -x D=4\nunset B\nE=5 run\nnext"
    first, second = processes_in(text)
    assert first.environment == {"C": "3", "D": "4", "E": "5"}
    assert second.environment == {"C": "3", "D": "4"}


def test_keywords_and_functions_are_looked_through() -> None:
    text = "serve() {\n  if true; then A=1 exec run --x; fi\n}\nfor i in 1 2; do other $i; done"
    assert [process.argv[0] for process in processes_in(text)] == ["serve", "true", "exec", "for", "other"]


def test_a_sourced_file_is_named_when_something_is_missing() -> None:
    process = processes_in("source ./env.sh\nrun $MODEL")[-1]
    assert process.notes == ("./env.sh, which the text sources, is not read",)


def test_windows_line_ends_are_line_ends() -> None:
    assert last("A=1\r\nrun \\\r\n  $A\r\n") == ["run", "1"]


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxx\n" + "A=$A$A\n" * 60 + "run $A",
        "A=(a b)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 40 + "run",
        "A=x\n" + "export A=$A$A$A\n" * 60,
    ],
)
def test_variables_that_grow_without_bound_are_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="grow without bound"):
        processes_in(text)


def test_nothing_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    processes_in(f"touch {target}; $(touch {target}) `touch {target}` > {target}; eval 'touch {target}'")
    assert not target.exists()


SCRIPTS = [
    "A='x  y'; B=${A:-z}; show $A \"$A\" '$A' ${B}c",
    'A=(1 "2 3"); A+=(4); show "${A[@]}" ${A[@]}',
    'A=; show ${A:-d e} "${A:-d e}" ${A-f} ${A:+g} end',
    "show \"a\\\"b\" 'c\"d' e\\ f $'g\\th' \"\" ''",
    'T=--t; E="--a 1 --b=2"; show $T $E "$T$E" x"$T"y',
    "show a \\\n  b # c\nshow d",
    'show "${U:-"q r"}" ${U:-"s t"} u"${U:=v}"w $U',
    'export P=1; Q=$P$P; show "$Q" {a} a=b --c=$P',
    'show "$@" end "$*x"',
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_bash_makes_the_same_arguments(script: str) -> None:
    """Against bash itself; `show` prints every argument in brackets."""
    shown = 'show() { for one in "$@"; do printf "<%s>\\n" "$one"; done; }\n'
    told = subprocess.run(
        ["bash", "-c", shown + script],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env={"PATH": os.environ["PATH"]},
    ).stdout
    shows = [process.argv for process in processes_in(script) if process.argv[0] == "show"]
    ours = [argument for argv in shows for argument in argv[1:]]
    assert "".join(f"<{argument}>\n" for argument in ours) == told


def test_words_for_no_shell_keep_operators_and_dollars() -> None:
    text = """a "b $C" 'd e' f\\ g \\\n h ; "i\\"j" ''"""
    assert split_words(text) == ("a", "b $C", "d e", "f g", "h", ";", 'i"j', "")
    with pytest.raises(BadValueError, match="never closed"):
        split_words("a 'b")
