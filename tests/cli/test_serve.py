"""`kvbudget serve` as a process: ready line, drain, signals, refusals of its flags."""

import argparse
import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli.main import main, parser_of
from kvbudget.cli.serve import _reload, log_to_stderr
from kvbudget.cli.serving.ready_line import page_of
from kvbudget.cli.serving.settings import settings_from
from kvbudget.errors import BadConfigError, BadValueError, InputError
from kvbudget.gate.policies import Policy
from kvbudget.gate.tenants.settings import ALL_OTHERS, ClassLimits, TenantLimits
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Tokens
from ledger_servers import free_port, running
from otlp_receiver import Receiver, Span

SERVE = [sys.executable, "-m", "kvbudget", "serve", "--port", "0", "--admin-port", "0"]


@contextmanager
def serving(*flags: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A running gate and the first line that it prints."""
    process = subprocess.Popen([*SERVE, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def catches_sigterm(pid: int) -> None:
    """Wait until it does: how long an interpreter takes to come so far is the machine's matter."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        (caught,) = (
            line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line
        )
        if int(caught, 16) & 1 << (signal.SIGTERM - 1):
            return
        time.sleep(0.02)
    raise AssertionError("it does not catch SIGTERM")


@pytest.mark.parametrize(
    ("admin", "page"),
    [
        ("http://127.0.0.1:8801", "http://127.0.0.1:8801/"),
        ("http://0.0.0.0:8801", "http://127.0.0.1:8801/"),
        ("http://[::]:8801", "http://[::1]:8801/"),
    ],
)
def test_the_page_s_address_is_one_that_a_browser_can_open(admin: str, page: str) -> None:
    assert page_of(admin) == page


def settings(*flags: str) -> Any:
    parser: argparse.ArgumentParser = parser_of("serve")
    return settings_from(parser.parse_args(flags))


def test_it_says_when_it_is_ready_serves_and_drains_on_sigterm() -> None:
    with serving("--embedded-engine", "--json") as (process, line):
        ready = json.loads(line)
        assert ready["ready"] is True
        assert ready["backend_up"] is True
        body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}).encode()
        request = urllib.request.Request(ready["gate"] + "/v1/chat/completions", body)
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
        with urllib.request.urlopen(ready["admin"] + "/v1/state", timeout=20) as answer:
            assert json.load(answer)["pool"]["usable_blocks"] == ready["usable_blocks"]
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_the_embedded_engine_takes_the_settings_that_the_gate_is_told_of_an_engine() -> None:
    flags = ("--embedded-engine", "--max-num-seqs", "16", "--max-num-batched-tokens", "512", "--json")
    with serving(*flags) as (process, line):
        ready = json.loads(line)
        assert ready["max_num_seqs"] == 16
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_spans_reach_a_collector_before_the_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trace() -> list[Span]:
        receiver = Receiver()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", await receiver.start())
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        await asyncio.to_thread(ask_once)
        await receiver.stop()
        return receiver.spans

    def ask_once() -> None:
        with serving("--embedded-engine", "--json") as (process, line):
            body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}).encode()
            request = urllib.request.Request(json.loads(line)["gate"] + "/v1/chat/completions", body)
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0

    spans = asyncio.run(trace())
    assert [span.name for span in spans if span.kind == 2] == ["POST /v1/chat/completions"]
    assert {span.resource["service.name"] for span in spans} == {"mine"}


def test_a_log_on_stderr_has_no_line_that_somebody_else_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    forged = "x\r\n2026-01-01 00:00:00,000 INFO kvbudget: all is well\x1b[2J\x9b\u2028b"
    try:
        log_to_stderr("worker 1: ")
        log = logging.getLogger("kvbudget.test")
        log.warning("of a client: %s", forged)
        try:
            raise ValueError(forged)
        except ValueError:
            log.exception("failed on %s", forged)
    finally:
        root.handlers = before
    told = capsys.readouterr().err
    assert told.replace("\n", "").isprintable()
    begins = [line for line in told.splitlines() if not line.startswith(" ")]
    assert [re.sub(r"^[\d :,-]+", "", line)[:42] for line in begins] == [
        "WARNING kvbudget.test: worker 1: of a clie", "ERROR kvbudget.test: worker 1: failed on x?"[:42],
    ]  # fmt: skip
    assert "Traceback" in told


def test_people_are_told_a_curl_to_try() -> None:
    with serving("--embedded-engine") as (process, line):
        assert "ready" in line
        assert process.stdout is not None
        rest = "".join(process.stdout.readline() for _ in range(4))
        assert "curl http://127.0.0.1:" in rest
        admin = line.rpartition("admin ")[2].strip()
        assert f"  pages:  {admin}/ in a browser\n" in rest
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def readiness(admin: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{admin}/ready", timeout=20) as answer:
            return answer.status, json.load(answer)["problem"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["problem"]


def lines_until(process: subprocess.Popen[str], start: str) -> list[str]:
    assert process.stdout is not None
    lines = [""]
    while not lines[-1].startswith(start):
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    return lines[1:]


@pytest.mark.parametrize("more", [(), ("--workers", "2")])
def test_a_new_shared_ledger_is_waited_for_before_it_says_that_it_is_ready(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    with running("redis", tmp_path) as server:
        flags = ("--embedded-engine", "--ledger", server.url, "--lease-seconds", "3", *more)
        with serving(*flags) as (process, line):
            assert line.startswith("kvbudget waits for its shared ledger: gate http://127.0.0.1:")
            rest = lines_until(process, "  pages:")
            admin = rest[-1].split()[1].rstrip("/")
            status, problem = readiness(admin)
            assert status == 503
            assert any(problem in told for told in rest), rest
            (told,) = lines_until(process, "kvbudget")
            assert told.startswith("kvbudget is ready: gate http://127.0.0.1:")
            assert readiness(admin) == (200, "")
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert process.stdout is not None
            assert "kvbudget" not in process.stdout.read()


def test_programs_get_one_document_that_says_what_is_waited_for(tmp_path: Path) -> None:
    with running("redis", tmp_path) as server:
        flags = ("--embedded-engine", "--ledger", server.url, "--lease-seconds", "2", "--json")
        with serving(*flags) as (process, line):
            ready = json.loads(line)
            assert (ready["ready"], ready["backend_up"]) == (False, True)
            assert "it is new or lost its memory" in ready["problem"]
            while readiness(ready["admin"])[0] != 200:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert process.stdout is not None
            assert process.stdout.read() == ""


def test_an_engine_that_comes_later_is_told_of() -> None:
    port = free_port()
    with serving("--backend", f"http://127.0.0.1:{port}") as (process, line):
        assert line.startswith("kvbudget waits for its engine: gate http://127.0.0.1:")
        assert "NOT UP YET (cannot connect" in lines_until(process, "  engine:")[-1]
        lines_until(process, "  pages:")
        command = [sys.executable, "-m", "kvbudget", "engine", "--port", str(port)]
        engine = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            assert lines_until(process, "kvbudget")[-1].startswith("kvbudget is ready: gate http://127.0.0.1:")
        finally:
            engine.terminate()
            engine.wait(20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_an_engine_that_is_not_there_yet_is_said_and_waited_for() -> None:
    with serving("--backend", "http://127.0.0.1:9", "--json") as (process, line):
        ready = json.loads(line)
        assert ready["ready"] is False
        assert ready["backend_up"] is False
        assert "cannot connect" in ready["problem"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_it_can_be_stopped_while_it_looks_for_its_engine() -> None:
    process = subprocess.Popen([*SERVE, "--backend", "http://127.0.0.1:9", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        catches_sigterm(process.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_a_port_in_use_is_a_clear_error() -> None:
    with serving("--embedded-engine", "--json") as (_, line):
        port = json.loads(line)["gate"].rsplit(":", 1)[1]
        second = [sys.executable, "-m", "kvbudget", "serve", "--embedded-engine", "--port", port, "--admin-port", "0"]
        ended = subprocess.run(second, capture_output=True, text=True, timeout=30, env=os.environ)
        assert ended.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--backend", "http://a:1", "--embedded-engine"),
        ("--backend", "http://a:1", "--backend", "http://a:1"),
        ("--backend", "a:1"),
        ("--backend", "http://a:99999"),
        ("--backend", "http://a:1/v1"),
        ("--backend", "http://u:p@a:1"),
        ("--backend", "http://a:1", "--policy", "clairvoyant"),
        ("--backend", "http://a:1", "--prefix-credit", "always"),
        ("--backend", "http://a:1", "--ledger", "http://127.0.0.1/0"),
        ("--backend", "http://a:1", "--ledger-lost", "open"),
        ("--backend", "http://a:1", "--lease-seconds", "0.2"),
        ("--backend", "http://a:1", "--pool-blocks", "0"),
        ("--backend", "http://a:1", "--queue-seconds", "-1"),
        ("--backend", "http://a:1", "--queue-seconds", "nan"),
        ("--backend", "http://a:1", "--queue-seconds", "inf"),
        ("--backend", "http://a:1", "--slo-ttft", "0"),
        ("--backend", "http://a:1", "--slo-ttft", "nan"),
        ("--backend", "http://a:1", "--max-context", "0"),
        ("--backend", "http://a:1", "--max-context", "many"),
        ("--backend", "http://a:1", "--overload-status", "408"),
        ("--backend", "http://a:1", "--max-body", "big"),
        ("--backend", "http://a:1", "--otlp-endpoint", "a:4318"),
    ],
)
def test_flags_that_cannot_work_are_refused_with_what_to_do(flags: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        settings(*flags)
    assert caught.value.fix


def test_a_port_that_is_none_is_refused_instead_of_taken_modulo(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (("--port", "99999", "--admin-port", "0"), ("--port", "0", "--admin-port", "-5")):
        assert main(["serve", "--embedded-engine", *flags]) == 2
        assert "cannot listen on port" in capsys.readouterr().err


def test_help_needs_no_library_of_the_gate() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = sys.modules['uvloop'] = None\n"
        "from kvbudget.cli.main import main; sys.exit(main())"
    )
    told = subprocess.run([sys.executable, "-c", code, "serve", "--help"], capture_output=True, text=True, timeout=30)
    assert told.returncode == 0, told.stderr
    assert "--backend" in told.stdout
    run = subprocess.run(
        [sys.executable, "-c", code, "serve", "--embedded-engine"], capture_output=True, text=True, timeout=30
    )
    assert run.returncode != 0
    assert "pip install" in run.stderr
    assert "Traceback" not in run.stderr


def test_flags_become_settings() -> None:
    flags = "--policy worst-case --max-context 8k --margin-blocks 5 --queue-seconds 1.5 --max-num-seqs 10"
    got = settings("--backend", "http://[::1]:8000/", "--max-num-batched-tokens", "100", *flags.split())
    assert got.backend_url == "http://[::1]:8000"
    assert (got.gate.policy, got.gate.max_context, got.gate.margin_blocks) == (Policy.WORST_CASE, 8192, 5)
    assert (got.gate.queue_ns, got.gate.prefill_tokens_per_step) == (1_500_000_000, 90)
    assert got.gate.worthwhile_wait_ns == 4 * 10**9  # for a first token within 5 s


def test_lengths_are_learned_and_prompts_credited_by_the_engine_s_word_unless_told_otherwise() -> None:
    got = settings("--backend", "http://a:1")
    assert (got.gate.policy, got.gate.sharing, got.prefix_cache_assumed) == (Policy.LEARNED, Sharing.COMPUTED, False)
    assert (got.learned_state, got.gate.tenants, got.gate.classes) == (None, {}, {})
    for name in Sharing:
        told = settings("--backend", "http://a:1", "--prefix-credit", name, "--learned-state", "f.json")
        assert (told.gate.sharing, told.prefix_cache_assumed, told.learned_state) == (name, True, "f.json")


def test_tenants_and_classes_come_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text(
        GATE.format(gate='policy = "trajectory"\n[gate.tenants.acme]\nweight = 2\nmax_blocks = 50\n'
                         '[gate.tenants."*"]\ntokens_per_minute = 1000\n'
                         "[gate.classes.-5]\nreserved_blocks = 20\nreserved_slots = 2")
    )  # fmt: skip
    got = settings("--backend", "http://a:1", "--config", str(path))
    assert got.gate.policy is Policy.TRAJECTORY
    assert got.gate.tenants == {
        "acme": TenantLimits(2.0, Blocks(50)), ALL_OTHERS: TenantLimits(tokens_per_minute=Tokens(1000)),
    }  # fmt: skip
    assert got.gate.classes == {-5: ClassLimits(20, 2)}


def test_what_is_learned_is_kept_and_a_bad_file_does_not_keep_it_from_serving(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    path.write_text("{")
    with serving("--embedded-engine", "--json", "--learned-state", str(path)) as (process, line):
        gate = json.loads(line)["gate"]
        assert json.loads(line)["policy"] == "learned"
        body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}).encode()
        with urllib.request.urlopen(urllib.request.Request(gate + "/v1/chat/completions", body), timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "the policy learns anew" in process.stderr.read()
    assert json.loads(path.read_text())["schema"] == "kvbudget.learned/1"
    assert (tmp_path / "learned.json.bad").read_text() == "{"


def test_a_state_file_that_can_be_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--learned-state", str(tmp_path / "missing" / "f"), "--port", "0", "--admin-port", "0")
    assert main(["serve", "--embedded-engine", *flags]) == 2
    assert "--learned-state" in capsys.readouterr().err


def test_a_tokenizer_that_is_not_there_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["serve", "--backend", "http://127.0.0.1:9", "--tokenizer", "/no/such/folder", "--port", "0"])
    assert code == 2
    assert "/no/such/folder" in capsys.readouterr().err


GATE = """\
schema = "kvbudget.budget/1"
[pool]
usable_blocks = 200
[gate]
{gate}
"""


HYBRID = """
[[kv.groups]]
kind = "full"
layers = 10
block_size = 32
page_size_bytes = 64
[[kv.groups]]
kind = "mamba"
layers = 30
block_size = 32
page_size_bytes = 64
fixed_blocks = 2
"""


def test_the_groups_of_a_hybrid_s_budget_are_those_that_requests_are_charged_by(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text(GATE.format(gate="pool_blocks = 200" + HYBRID))
    got = settings("--backend", "http://a:1", "--config", str(path))
    assert got.layout.blocks_for(64) == 2 + 2
    with pytest.raises(InputError, match="2 groups of caches, which one block size does not"):
        settings("--backend", "http://a:1", "--config", str(path), "--block-size", "16")
    path.write_text(GATE.format(gate="pool_blocks = 200" + HYBRID.partition('[[kv.groups]]\nkind = "mamba')[0]))
    assert settings("--backend", "http://a:1", "--config", str(path)).layout.blocks_for(64) == 2
    assert settings("--backend", "http://a:1", "--config", str(path), "--block-size", "16").layout is None


def test_every_flag_of_the_gate_can_stand_in_the_file_and_no_other() -> None:
    from kvbudget.planner.budget.schema import GATE as KNOWN

    parser: argparse.ArgumentParser = parser_of("serve")
    flags = {action.dest for action in parser._actions} - {"help", "config"}
    assert set(KNOWN) == flags | {"margin"}


def test_what_a_file_tells_is_logged_without_signs_that_steer_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text(GATE.format(gate='pool_blocks = 200\n["\\u001b[31mEVIL"]\na = 1'))
    with serving("--embedded-engine", "--json", "--config", str(path)) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    assert "it is not read: ?[31mEVIL" in said
    assert "\x1b" not in said


def test_the_budget_file_sets_what_no_flag_sets(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text(
        GATE.format(gate='backend = "http://a:1"\npool_blocks = 200\nblock_size = 16\nmargin = "5%"\n'
                         'queue_seconds = 2\nslo_ttft = 30\nmax_context = 4096\npolicy = "worst-case"\nport = 9000')
    )  # fmt: skip
    got = settings("--config", str(path), "--port", "0")
    assert (got.backend_url, got.pool_blocks, got.block_size, got.port) == ("http://a:1", 200, 16, 0)
    assert (got.gate.margin_blocks, got.gate.max_context, got.gate.queue_ns) == (10, 4096, 2 * 10**9)
    assert got.gate.worthwhile_wait_ns == 24 * 10**9
    assert got.gate.policy is Policy.WORST_CASE
    assert got.gate.max_num_seqs == 256  # in neither: the default
    assert settings("--config", str(path), "--max-num-seqs", "256", "--margin-blocks", "0").gate.margin_blocks == 0
    assert settings("--config", str(path), "--backend", "http://b:2").backend_url == "http://b:2"


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        ("speed = 3", "kvbudget.toml:5: gate.speed is not known there"),
        ("tenant = 3", "gate.tenant is not known there; did you mean tenants"),
        ("tenants = 3", "gate.tenants must be one table"),
        ("[gate.tenants.acme]\nweight = 0", "gate.tenants.acme.weight is 0, not a number from 0.001"),
        ("[gate.tenants.acme]\nweight = true", "gate.tenants.acme.weight is true"),
        ("[gate.tenants.acme]\nmax_block = 3", "gate.tenants.acme.max_block is not known there; did you mean max_bl"),
        ("[gate.tenants.acme]\ntokens_per_minute = 0.5", "gate.tenants.acme.tokens_per_minute is 0.5, not a whole"),
        ('[gate.tenants."a b"]\nweight = 1', "gate.tenants.a b is no name of a tenant"),
        ("[gate.classes.urgent]\nreserved_blocks = 1", "gate.classes.urgent is no priority from -100 to 100"),
        ("[gate.classes.-101]\nreserved_blocks = 1", "gate.classes.-101 is no priority"),
        ("[gate.classes.007]\nreserved_blocks = 1", "gate.classes.007 is no priority"),
        ("[gate.classes.-1]\nreserved_blocks = -1", "gate.classes.-1.reserved_blocks is -1"),
        (
            "pool_blocks = 9\n[gate.classes.-1]\nreserved_blocks = 6\n[gate.classes.0]\nreserved_blocks = 4",
            "gate.classes keep 10 reserved_blocks in all, more than gate.pool_blocks = 9",
        ),
        ('prefix_credit = "always"', "gate.prefix_credit is 'always', not one of auto, off"),
        ('queue_seconds = "soon"', "gate.queue_seconds is 'soon', not a number from 0"),
        ("pool_blocks = 0", "gate.pool_blocks is 0, not a whole number from 1"),
        ('config = "x"', "gate.config is not known there"),
        ('margin = "most"', "gate.margin"),
        ("[gate.more]\na = 1", "gate.more is not known there"),
        ("= 3", "no valid TOML"),
        ("overload_status = 500", "--overload-status: 500"),
        ("[[kv.group]]\nlayers = 1", "kv.group is not known there; did you mean groups"),
        ("block_size = 16" + HYBRID, "gate.block_size cannot stand beside"),
        (HYBRID.replace("mamba", "mambo"), "kv.groups[1].kind is 'mambo'"),
        (HYBRID.replace("fixed_blocks = 2", "fixed_blocks = 2.0"), "kv.groups[1].fixed_blocks is 2.0"),
        (HYBRID.replace("block_size = 32", "block_size = 2_000_000"), "a block of 2,000,000 tokens"),
    ],
)
def test_a_file_that_cannot_work_is_refused_with_what_to_do(tmp_path: Path, gate: str, told: str) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text(GATE.format(gate=gate))
    with pytest.raises(InputError, match=re.escape(told)) as caught:
        settings("--backend", "http://a:1", "--config", str(path))
    assert caught.value.fix


def test_sighup_takes_the_file_over_and_keeps_the_old_one_where_the_new_one_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text(GATE.format(gate="margin_blocks = 1"))
    with serving("--embedded-engine", "--json", "--config", str(path)) as (process, line):
        admin = json.loads(line)["admin"]

        def after_sighup(gate: str, told: str) -> int:
            path.write_text(GATE.format(gate=gate))
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            while told not in (said := process.stderr.readline()):
                assert said, "it ended"
            with urllib.request.urlopen(admin + "/v1/state", timeout=20) as answer:
                margin: int = json.load(answer)["pool"]["margin_blocks"]
            return margin

        assert after_sighup("margin_blocks = 7", "taken: margin_blocks") == 7
        assert after_sighup("margin_blocks = 7\n[gate.tenants.acme]\nmax_blocks = 9", "taken: tenants") == 7
        assert after_sighup("[gate.tenants.acme]\nmax_blocks = 0", "gate.tenants.acme.max_blocks is 0") == 7
        assert after_sighup("margin_blocks = many", "the old settings stay") == 7
        assert after_sighup("margin_blocks = -1", "the old settings stay") == 7
        assert after_sighup("[[gate]]\nmargin_blocks = 3", "the old settings stay") == 7
        assert after_sighup(HYBRID.replace("mamba", "mambo"), "kv.groups[1].kind is 'mambo'") == 7
        assert after_sighup('margin_blocks = 9\ntokenizer = "bound"', "need a restart, the old ones stay: tok") == 9
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize("backend", ["localhost:8000", "10.0.0.7:8000"])
def test_a_backend_without_a_scheme_is_told_how_to_write_it(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    from kvbudget.cli.main import main

    assert main(["serve", "--backend", backend, "--pool-blocks", "100", "--tokenizer", "bound"]) == 2
    assert f"the scheme is missing; write http://{backend}" in capsys.readouterr().err


def test_a_sighup_that_comes_while_the_gate_starts_is_kept_for_later() -> None:
    again = asyncio.Event()
    _reload(None, lambda settings: settings, argparse.Namespace(), again)
    assert not again.is_set()  # no file, nothing to read
    _reload(None, lambda settings: settings, argparse.Namespace(config="kvbudget.toml"), again)
    assert again.is_set()


def test_the_engines_key_comes_from_a_file_or_the_environment_and_is_never_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--backend", "http://127.0.0.1:9")
    assert settings(*flags).backend_api_key is None
    monkeypatch.setenv("KVBUDGET_BACKEND_API_KEY", "from-env")
    assert settings(*flags).backend_api_key == "from-env"
    key = tmp_path / "key"
    key.write_text("from-file\n")
    told = settings(*flags, "--backend-api-key-file", str(key))
    assert told.backend_api_key == "from-file"
    assert "from-file" not in repr(told)
    for wrong in ("", " ", "Bearer se-cret", "se-cret\nX-Evil: 1", "se-cr\u00e9t", "se-cret\0", "x" * 5000):
        key.write_text(wrong)
        with pytest.raises(BadValueError, match="is no API key") as refused:
            settings(*flags, "--backend-api-key-file", str(key))
        assert "se-cr" not in f"{refused.value} {refused.value.fix}"
    with pytest.raises(BadConfigError):
        settings(*flags, "--backend-api-key-file", str(tmp_path / "none"))
    monkeypatch.setenv("KVBUDGET_BACKEND_API_KEY", "se cret")
    with pytest.raises(BadValueError, match="KVBUDGET_BACKEND_API_KEY is no API key"):
        settings(*flags)


def test_balancers_are_addresses_and_not_beside_tls() -> None:
    flags = ("--backend", "http://127.0.0.1:9")
    assert settings(*flags).proxy_protocol == ()
    told = settings(*flags, "--proxy-protocol", "10.0.0.0/8, ::1,unix")
    assert told.proxy_protocol == ("10.0.0.0/8", "::1", "unix")
    for wrong in ("balancer", "10.0.0.1/8", "10.0.0.0/8,"):
        with pytest.raises(BadValueError, match="--proxy-protocol"):
            settings(*flags, "--proxy-protocol", wrong)
    with pytest.raises(BadValueError, match="TLS handshake"):
        settings(*flags, "--proxy-protocol", "10.0.0.0/8", "--tls-cert", "c.pem")
