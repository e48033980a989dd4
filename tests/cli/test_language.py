"""Help in Chinese: whole, only where it is asked for, and nothing but help."""

import argparse
import string

import pytest

from kvbudget.cli.language import is_chinese, words
from kvbudget.cli.main import COMMANDS, main, parser_of


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
    used: set[str] = set(COMMANDS.values())
    for name in COMMANDS:
        parser = parser_of(name)
        used |= {group.title for group in parser._action_groups if group.title}
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


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_chinese_where_it_is_asked_for(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVBUDGET_LANG", "zh")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = "".join(capsys.readouterr().out.split())
    assert "".join(words()[COMMANDS[command]].split()) in shown
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
    assert words()[COMMANDS["gpus"]][:12] in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["plan", "--no-such-flag"])
    assert "unrecognized arguments" in capsys.readouterr().err
