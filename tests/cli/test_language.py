"""Help in Chinese: whole, only where it is asked for, and nothing but help."""

import argparse
import re
import string
import unicodedata

import pytest

from kvbudget.cli.language import Piece, is_chinese, pieces_of, words, wrapped
from kvbudget.cli.main import ABOUT, COMMANDS, HOW, main, parser_of


@pytest.mark.parametrize(
    ("environment", "chinese"),
    [
        ({}, False), ({"LANG": "zh_CN.UTF-8"}, True), ({"LANG": "en_US.UTF-8"}, False),
        ({"LC_ALL": "C", "LANG": "zh"}, False), ({"KVBUDGET_LANG": "zh"}, True),
        ({"KVBUDGET_LANG": "en", "LANG": "zh_CN.UTF-8"}, False), ({"KVBUDGET_LANG": "", "LANG": "zh_TW"}, True),
        ({"LC_MESSAGES": "zh_CN", "LANG": "de_DE"}, True),
    ],
)  # fmt: skip
def test_the_first_variable_that_is_set_decides(environment: dict[str, str], chinese: bool) -> None:
    assert is_chinese(environment) is chinese


def test_every_text_of_every_command_is_known_and_none_is_left_over() -> None:
    used: set[str] = {*COMMANDS.values(), ABOUT, HOW, "show program's version number and exit"}
    for name in COMMANDS:
        parser = parser_of(name)
        used |= {parser.usage} if parser.usage else set()
        used |= {group.title for group in parser._action_groups if group.title}
        used |= {piece.said for piece in pieces_of(parser.epilog or "") if piece.said}
        used |= {action.help for action in parser._actions if action.help and action.help is not argparse.SUPPRESS}
    known = words()
    assert used - known.keys() == set(), "put these into src/kvbudget/cli/help_zh.json"
    assert known.keys() - used == set(), "these are no help text any more"


def test_what_is_filled_in_is_filled_in_there_as_well() -> None:
    for english, chinese in words().items():
        assert chinese.count("%(default)s") == english.count("%(default)s")
        assert chinese.count("%%") == english.count("%%")
        assert not set("，。：；（）") & set(english)
        assert chinese.strip(string.whitespace) == chinese


@pytest.mark.parametrize("columns", [20, 38, 72])
def test_no_latin_word_is_broken_and_no_line_begins_with_a_stop(columns: int) -> None:
    for text in words().values():
        lines = wrapped(text, columns)
        assert "".join("".join(lines).split()) == "".join(text.split())
        for word in re.findall(r"[!-~]+", text):
            assert any(word in line for line in lines), (word, lines)
        assert not any(line[:1] in "，。、；：）" for line in lines)
        for line in lines:
            wide = sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in line)
            assert wide <= columns or len(re.findall(r"[!-~]+", line)) == 1, line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_chinese_where_it_is_asked_for(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVBUDGET_LANG", "zh")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = "".join(capsys.readouterr().out.split())
    assert "".join(words()[COMMANDS[command]].split()) in shown
    for kept, said, prose in pieces_of(parser_of(command).epilog or ""):
        told = words()[said] if said else ""
        assert "".join(("" if prose else kept + told).split()) in shown, "commands stay as they are typed"
        assert "".join(told.split()) in shown
    monkeypatch.setenv("KVBUDGET_LANG", "en")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "show this help message and exit" in capsys.readouterr().out


def test_the_list_of_commands_is_chinese_too_and_errors_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVBUDGET_LANG", "zh")
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert words()[COMMANDS["gpus"]][:12] in shown
    known = re.findall(r"[A-Za-z]+", " ".join(words().values()))
    left = set(re.findall(r"\b[A-Za-z][a-z]{3,}\b", shown)) - {*COMMANDS, *known}
    assert left - {"kvbudget", "help", "version"} == set()
    assert all(re.search(rf"^    {name} +\S", shown, re.M) for name in COMMANDS)
    assert {words()[ABOUT], words()[HOW], "位置参数:", "选项:"} <= {line.strip() for line in shown.splitlines()}
    assert shown.startswith("用法：kvbudget")
    with pytest.raises(SystemExit):
        main(["plan", "--no-such-flag"])
    assert "unrecognized arguments" in capsys.readouterr().err


def test_an_epilog_is_commands_that_stay_and_what_is_said_of_them() -> None:
    epilog = """\
Begins so.

examples:
  kvbudget plan --a            # of a comment
  kvbudget plan --b \\
      --goes-on
      said of it
  curl -H 'x: #1'

Prose of two
lines; here.
exit: 0"""
    assert pieces_of(epilog) == [
        Piece("", "Begins so.", True), Piece(""), Piece("", "examples:", True),
        Piece("  kvbudget plan --a            # ", "of a comment"), Piece("  kvbudget plan --b \\"),
        Piece("      --goes-on"), Piece("      ", "said of it"), Piece("  curl -H 'x: #1'"), Piece(""),
        Piece("", "Prose of two lines; here.", True), Piece("", "exit: 0", True),
    ]  # fmt: skip
