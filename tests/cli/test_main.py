"""Which command runs, and what is said without one."""

import gc
import json
import os
import subprocess
import sys

import pytest

from kvbudget.cli.main import COMMANDS, main, parser_of


def test_every_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        text = capsys.readouterr().out
        assert caught.value.code == 0
        assert f"usage: kvbudget {name}" in text
        assert "exampl" in text, name


def test_the_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert all(f"    {name} " in text for name in COMMANDS)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["diagnose", "/nowhere/metrics", "--json"], "bad_value"),
        (["forecast", "--series", "/nowhere.csv", "--capacity-tokens", "1k", "--json"], "bad_value"),
        (["plan", "/nowhere/model", "--json"], "bad_value"),
        (["check", "/nowhere.toml", "--json"], "bad_config"),
        (["simulate", "--trace", "/nowhere.jsonl", "--num-blocks", "65", "--json"], "bad_value"),
        (["plan", "model", "--json", "--max-model", "8k"], "usage"),
        (["plan", "model", "--json", "--gpu=--"], "usage"),
        (["diagnose", "--json"], "usage"),
        (["plane", "--json"], "usage"),
    ],
)
def test_with_json_exit_2_is_one_document_too(words: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        exit_code: object = main(words)
    except SystemExit as caught:
        exit_code = caught.code
    said = capsys.readouterr()
    assert exit_code == 2
    document = json.loads(said.out)
    assert document["schema"] == "kvbudget.error/1"
    error = document["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["message"] in said.err
    assert error["fix"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "COMMAND"),
        (["plane"], "there is no command 'plane'; did you mean plan?"),
        (["--help-me", "plan"], "COMMAND comes first"),
        (["plan", "model", "--gpu=--"], "argument --gpu: expected one argument"),
        (["plan", "model", "--gpus", "9" * 5000], "is not a whole number"),
        (["plan", "model", "--price-per-hour", "dear"], "'dear' is not a number"),
        (["gpus", "--nonsense"], "kvbudget gpus: error: unrecognized arguments: --nonsense"),
        (["plan", "model", "--tp", "2"], "unrecognized arguments: --tp 2; did you mean -tp?"),
        (["plan", "model", "--max-model-length=8k"], "did you mean --max-model-len?"),
        (["plan", "model", "-json"], "did you mean --json?"),
        (["plan", "model", "--max-model", "8k"], "unrecognized arguments: --max-model"),  # no part of a name
        (["plan", "model", "--markdown", ""], "argument --markdown: is empty"),
        (["plan", "model", "--write="], "argument --write: is empty"),
        (["check", "--model", ""], "argument --model: is empty"),
        (["plan", "model", "--" + "x" * 3000], "unrecognized arguments"),
    ],
)
def test_a_usage_error_exits_2_and_says_what_is_wrong(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    captured = capsys.readouterr()
    assert (caught.value.code, captured.out) == (2, "")
    assert said in captured.err
    assert len(captured.err) < 600


def test_a_parser_knows_its_command() -> None:
    parsed = parser_of("gpus").parse_args(["h100"])
    assert (parsed.command, parsed.name) == ("gpus", "h100")


def test_garbage_is_collected_again_while_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kvbudget", "gpus", "voodoo"])
    assert main() == 2
    assert gc.isenabled()


def test_messages_are_in_one_language_whatever_the_locale() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvbudget", "plan", "--nonsense"],
        env=os.environ | {"LANGUAGE": "de", "LC_ALL": "C.UTF-8"}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "usage: kvbudget plan" in done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["plan", "--help"], ["gpus"], ["gpus", "--json"], ["models"]]
)
@pytest.mark.parametrize("where", [">&-", ">/dev/full"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_nobody_got_is_an_error(words: list[str], where: str, unbuffered: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {where}', "sh", sys.executable, "-m", "kvbudget", *words],
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "stdout: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_stderr_puts_no_error_into_the_output() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "kvbudget", "plan", "--nonsense"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")


def test_an_error_shows_nothing_that_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "\x1b[31mno.toml"]) == 2
    assert main(["receipt", "\x1b[31mno.log"]) == 2
    assert capsys.readouterr().err.replace("\n", "").isprintable()
