"""`kvbudget replay` as a person calls it, against the embedded engine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbudget.cli.main import main

ROWS = "".join(f"2023-11-16 18:15:46.{at:03d}0000,{30 + at},{4 + at}\n" for at in range(20))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + ROWS)
    return path


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    command = [sys.executable, "-m", "kvbudget", "engine", "--port", "0", "--step-cost", "0.001", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_json_is_one_document_with_exact_lengths(
    trace: Path, engine_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--trace", str(trace), "--url", engine_url, "--stream-share", "0.5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["finished"] == report["requests"] == 20
    assert report["prompt_tokens"]["differing"] == 0
    assert report["preemptions"] == 0
    assert report["goodput_tokens_per_s"] * report["elapsed_s"] == pytest.approx(sum(range(4, 24)))


def test_people_get_a_table(trace: Path, engine_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--trace", str(trace), "--url", engine_url, "--max-requests", "3"]) == 0
    out = capsys.readouterr().out
    assert "3 of 3 as the trace says" in out
    assert "goodput" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_gives_the_report_so_far_and_exit_130(
    tmp_path: Path, engine_url: str, number: signal.Signals
) -> None:
    path = tmp_path / "long.jsonl"
    rows = [{"arrival_s": at, "prompt_tokens": 20, "output_tokens": 2} for at in (0, 3600)]
    path.write_text("\n".join(map(json.dumps, rows)))
    command = [sys.executable, "-m", "kvbudget", "replay", "--trace", str(path), "--url", engine_url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("sending"):
                    break
            os.kill(process.pid, number)
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    report = json.loads(out)
    assert report["requests"] <= 1
    assert "stopped early" in report["notes"][-1]
    assert process.returncode == 130


def test_the_lines_that_the_how_to_pastes_are_a_trace(tmp_path: Path, engine_url: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "replay.md").read_text()
    rows = re.findall(r"^ *(\{\"arrival_s\".*\})$", text, re.M)
    assert len(rows) == 3
    path = tmp_path / "three.jsonl"
    path.write_text("\n".join(rows))
    assert main(["replay", "--trace", str(path), "--url", engine_url, "--rate-scale", "10"]) == 0


def test_one_request_is_not_one_requests(trace: Path, engine_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--trace", str(trace), "--url", engine_url, "--max-requests", "1"]) == 0
    captured = capsys.readouterr()
    assert "1 request in" in captured.out
    assert "1 requests" not in captured.out + captured.err
    assert "of 1 length " in captured.err


def test_a_full_disk_is_exit_2(trace: Path, engine_url: str) -> None:
    command = [sys.executable, "-m", "kvbudget", "replay", "--trace", str(trace), "--url", engine_url, "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "kvbudget replay: bad_value: stdout: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--trace", "/nonexistent"], "No such file"),
        (["--rate-scale", "0"], "rate_scale"),
        (["--slo-ttft", "-1"], "slo_ttft"),
        (["--slo-ttft", "inf"], "slo_ttft"),
        (["--slo-gap", "inf"], "slo_gap"),
        (["--stream-share", "2"], "stream_share"),
        (["--header", "nonsense"], "NAME: VALUE"),
        (["--url", "ftp://x"], "http://HOST:PORT"),
        (["--concurrency-limit", "0"], "concurrency_limit"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    trace: Path, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["replay", "--trace", str(trace), "--url", "http://127.0.0.1:9", *flags]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_an_endpoint_that_is_not_there_is_exit_2(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        assert main(["replay", "--trace", str(trace), "--url", url]) == 2
    assert "cannot be reached" in capsys.readouterr().err
