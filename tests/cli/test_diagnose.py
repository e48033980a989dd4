"""`kvbudget diagnose` from files, URLs and pipes: one document, one exit code, text that fits a terminal."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli.main import main
from snapshots import vllm

FULL = {"usage": 0.99, "running": 40, "waiting": 25, "preemptions": 10}
MODEL = str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "llama-3.1-8b")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def of(*words: str) -> tuple[int, str, str]:
        try:
            code = main(["diagnose", *words])
        except SystemExit as end:
            code = int(end.code or 0)
        told = capsys.readouterr()
        return code, told.out, told.err

    return of


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., tuple[str, str]]:
    def of(a: dict[str, Any], b: dict[str, Any]) -> tuple[str, str]:
        older, newer = tmp_path / "older.prom", tmp_path / "newer.prom"
        older.write_text(vllm(a))
        newer.write_text(vllm({**a, **b}))
        return str(older), str(newer)

    return of


@contextmanager
def serving(*texts: str) -> Iterator[str]:
    """One text a scrape, the last one for ever; an empty one is a 500."""
    left = list(texts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            text = left.pop(0) if len(left) > 1 else left[0]
            if not text:
                self.send_error(500)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_finding_is_one_document_and_exit_1(run: Run, pair: Callable[..., tuple[str, str]]) -> None:
    code, out, _ = run(*pair(FULL, {"preemptions": 100}), "--json")
    told = json.loads(out)
    assert code == 1
    assert (told["schema"], told["verdict"]) == ("kvbudget.diagnose/1", "pool_full")
    first = told["findings"][0]
    assert {"code", "severity", "evidence", "actions", "confidence", "refuted_by"} <= set(first)
    assert first["evidence"]["preemptions"] == 90
    assert all(set(action) == {"what", "cost", "expected"} for action in first["actions"])


def test_a_healthy_engine_is_exit_0(run: Run, pair: Callable[..., tuple[str, str]]) -> None:
    code, out, _ = run(*pair({"usage": 0.4}, {"generated": 510_000}), "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "healthy")


def test_what_tells_of_no_engine_is_too_little_and_not_a_wrong_call(run: Run, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.prom"
    foreign.write_text("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 4\n")
    code, out, _ = run(str(foreign), "--json")
    told = json.loads(out)
    assert (code, told["verdict"]) == (1, "insufficient_data")
    assert told["findings"][0]["collect"]
    assert told["problems"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/nowhere/a.prom"], "cannot be read"),
        (["a.prom", "--window", "0"], "out of range"),
        (["a.prom", "--window", "nan"], "out of range"),
        (["a.prom", "--max-num-seqs", "0"], "no limit"),
        (["a.prom", "--every", "5"], "--watch alone"),
        (["a.prom", "--watch"], "is no URL"),
        (["a.prom", "--budget", "b", "--plan", "c"], "leave one away"),
        ([], "SOURCE"),
    ],
)
def test_a_wrong_call_is_exit_2_and_says_what_to_do(run: Run, words: list[str], said: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_text_fits_eighty_columns_and_names_what_to_do_first(run: Run, pair: Callable[..., tuple[str, str]]) -> None:
    code, out, _ = run(*pair(FULL, {"preemptions": 100}), "--window", "30")
    lines = out.splitlines()
    assert code == 1
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("pool_full: the KV pool is full: 99.0 % in use")
    assert any(line.startswith("  free     let at most about 38 run at once") for line in lines)
    assert "it would be refuted by" in lines


def test_a_limit_that_is_told_makes_the_verdict_certain(run: Run, pair: Callable[..., tuple[str, str]]) -> None:
    files = pair({"usage": 0.4, "running": 48, "waiting": 9}, {"waiting": 12})
    for words, sure in (([], "low"), (["--max-num-seqs", "48"], "high")):
        _, out, _ = run(*files, "--json", *words)
        told = json.loads(out)
        assert (told["verdict"], told["findings"][0]["confidence"]) == ("seqs_full", sure)


def test_a_live_engine_is_scraped_twice(run: Run) -> None:
    with serving(vllm(FULL), vllm({**FULL, "preemptions": 60})) as url:
        code, out, _ = run(url, "--window", "0.2", "--json")
    told = json.loads(out)
    assert (code, told["verdict"]) == (1, "pool_full")
    assert told["findings"][0]["evidence"]["preemptions"] == 50
    assert told["findings"][0]["evidence"]["window_s"] >= 0.2


def expected_of(out: str, words: str) -> str:
    findings = json.loads(out)["findings"]
    return next(str(one["expected"]) for one in findings[0]["actions"] if words in one["what"])


def test_with_a_plan_every_action_says_what_the_planner_computes(
    run: Run, pair: Callable[..., tuple[str, str]]
) -> None:
    files = pair({**FULL, "blocks": 1_990}, {"preemptions": 100})
    _, out, _ = run(*files, "--json", "--plan", f"{MODEL} --gpu l4 --max-model-len 8k --max-num-seqs 64")
    assert expected_of(out, "8-bit KV cache").startswith("planned: pool 31,840 -> 63,696 tokens")
    assert "--max-num-seqs 38" in expected_of(out, "let at most")
    assert "1 -> 2 GPUs" in expected_of(out, "twice the cards")


@pytest.mark.parametrize(("blocks", "noted"), [(1_990, False), (1_900, False), (1_800, True), (4_000, True)])
def test_a_plan_of_another_pool_than_the_observed_one_is_noted(
    run: Run, pair: Callable[..., tuple[str, str]], blocks: int, noted: bool
) -> None:
    files = pair({**FULL, "blocks": blocks}, {"preemptions": 100})
    _, out, _ = run(*files, "--json", "--plan", f"{MODEL} --gpu l4 --max-model-len 8k --max-num-seqs 64")
    notes = [note for note in json.loads(out)["notes"] if "31,840 tokens" in note]
    assert len(notes) == noted
    assert all(f"{(blocks - 1) * 16:,}" in note or f"{blocks * 16:,}" in note for note in notes)


def test_a_budget_gives_the_same_as_its_plan_and_the_limit(
    run: Run, pair: Callable[..., tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = str(tmp_path / "kvbudget.toml")
    flags = ["--gpu", "l4", "--max-model-len", "8k", "--max-num-seqs", "48"]
    assert main(["plan", MODEL, *flags, "--json", "--write", budget]) == 0
    capsys.readouterr()
    files = pair({"usage": 0.4, "running": 48, "waiting": 9}, {"waiting": 12})
    _, out, _ = run(*files, "--json", "--budget", budget)
    told = json.loads(out)
    assert (told["verdict"], told["findings"][0]["confidence"]) == ("seqs_full", "high")
    assert "planned" in expected_of(out, "one more replica")


@pytest.mark.parametrize("text", ["", "--gpu", "nothing --gpu h100", "'"])
def test_a_plan_that_cannot_be_made_is_exit_2(run: Run, pair: Callable[..., tuple[str, str]], text: str) -> None:
    code, out, err = run(*pair(FULL, {}), "--plan", text)
    assert (code, out) == (2, "")
    assert "kvbudget diagnose: " in err


def test_neither_form_draws_in_what_only_the_live_screen_needs(pair: Callable[..., tuple[str, str]]) -> None:
    older, newer = pair(FULL, {"preemptions": 100})
    for words in ([], ["--json"]):
        program = (
            f"import sys; from kvbudget.cli.main import main; main(['diagnose', {older!r}, {newer!r}, *{words}]);"
            "heavy = ('rich', 'prometheus_client', 'starlette');"
            "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == "[]\n"


def test_the_help_names_every_exit_code_and_shows_examples(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "0 healthy; 1 a finding" in out
    assert "--watch" in out
