import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli.main import main


@contextmanager
def program(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, ended by its pid whatever happens."""
    command = [sys.executable, "-m", "kvbudget", "engine", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_tells_its_address_answers_and_ends_cleanly_on_a_signal(number: signal.Signals) -> None:
    with program("--json", "--num-blocks", "65", "--block-size", "32", "--max-model-len", "1k") as process:
        line = ready(process)
        assert (line["usable_blocks"], line["max_model_len"]) == (64, 1024)
        with urllib.request.urlopen(line["url"] + "/v1/models", timeout=10) as answer:
            assert json.load(answer)["data"][0]["max_model_len"] == 1024
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out, err) == (0, "", "")


def test_a_pool_too_small_for_the_window_is_a_finding_in_the_engines_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--num-blocks", "128", "--max-model-len", "2048"]) == 1
    error = capsys.readouterr().err
    assert "the estimated maximum model length is 2032" in error
    assert "model's max seq len (2048)" in error


@pytest.mark.parametrize(
    "flags",
    [
        ["--port", "99999"],
        ["--block-size", "0"],
        ["--max-model-len", "long"],
        ["--step-cost", "-1"],
        ["--host", "256.1.1.1"],
    ],
)
def test_a_bad_flag_is_a_usage_error_without_a_traceback(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--port", "0", *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("kvbudget engine: bad_value: ")
    assert "Traceback" not in error


def test_a_ready_line_that_cannot_be_written_is_exit_2() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvbudget", "engine", "--port", "0"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("kvbudget engine: bad_value: stdout: ")
