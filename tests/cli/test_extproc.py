"""`kvbudget extproc` as a process: ready line, flags, signals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from kvbudget.cli.extproc import _kind
from kvbudget.cli.main import main, parser_of
from kvbudget.edge.extproc.wire import HealthCheckRequest, HealthCheckResponse
from kvbudget.edge.service import ServiceSettings
from kvbudget.errors import BadValueError
from kvbudget.gate.gate import GateConfig

EXTPROC = [sys.executable, "-m", "kvbudget", "extproc", "--grpc-port", "0", "--admin-port", "0"]


@contextmanager
def processing(*flags: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A running gate and the first line that it prints."""
    process = subprocess.Popen([*EXTPROC, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def health(target: str, service: str) -> int:
    with grpc.insecure_channel(target) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        status: int = check(HealthCheckRequest(service=service), timeout=30).status
        return status


def test_it_says_where_it_listens_answers_health_checks_and_ends_at_sigterm() -> None:
    with processing("--embedded-engine", "--json") as (process, line):
        ready = json.loads(line)
        assert ready["ready"] is True
        assert ready["gate"].startswith("127.0.0.1:")
        assert [health(ready["gate"], name) for name in ("liveness", "readiness")] == [1, 1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_for_people_it_says_what_envoy_needs_to_know() -> None:
    with processing("--embedded-engine") as (process, line):
        assert line.startswith("kvbudget is ready: external processor 127.0.0.1:")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 0


def test_without_an_engine_it_lives_but_is_not_ready() -> None:
    with processing("--backend", "http://127.0.0.1:1", "--pool-blocks", "9", "--block-size", "16", "--json") as (
        _,
        line,
    ):
        ready = json.loads(line)
        assert [health(ready["gate"], name) for name in ("liveness", "readiness")] == [1, 2]


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with processing("--embedded-engine", "--json") as (_, line):
        port = json.loads(line)["gate"].rpartition(":")[2]
        code = main(["extproc", "--backend", "http://127.0.0.1:1", "--grpc-port", port, "--admin-port", "0"])
    assert code == 2
    assert "--grpc-port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--backend", "unix:/run/vllm.sock"], "no endpoint for Envoy"),
        (["--backend", "http://10.0.0.7:8000/vllm"], "leave path"),
        (["--backend", "http://10.0.0.7:8000", "--message-timeout", "0"], "--message-timeout"),
        (["--backend", "http://10.0.0.7:8000", "--max-message-timeout", "nan"], "--max-message-timeout"),
        (["--backend", "http://10.0.0.7:8000", "--grpc-port", "70000"], "port 70000"),
        ([], "--backend"),
    ],
)
def test_what_cannot_be_is_refused(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extproc", *flags]) == 2
    assert told in capsys.readouterr().err


def test_the_flags_of_another_data_plane_are_not_there() -> None:
    for flag in ("--port", "--proxy-protocol"):
        with pytest.raises(SystemExit):
            parser_of("extproc").parse_args([flag, "1"])


@pytest.mark.parametrize(
    ("flags", "queue_s"),
    [
        (["--message-timeout", "10"], 9.5),
        (["--message-timeout", "0.2"], 0.1),
        (["--message-timeout", "0.2", "--max-message-timeout", "10"], 9.5),
        ([], 30.0),
    ],
)
def test_the_queue_is_no_longer_than_envoy_s_patience(flags: list[str], queue_s: float) -> None:
    args = parser_of("extproc").parse_args(flags)
    settings = ServiceSettings("http://127.0.0.1:1", gate=GateConfig(queue_ns=30 * 10**9))
    prepared = _kind(args).prepare(settings)
    assert prepared.gate.queue_ns == pytest.approx(queue_s * 1e9)
    assert prepared.port == 9002


def test_timeouts_are_given_as_seconds() -> None:
    with pytest.raises(BadValueError):
        _kind(parser_of("extproc").parse_args(["--message-timeout", "-1"]))
