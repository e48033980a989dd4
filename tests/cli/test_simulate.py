"""`kvbudget simulate` as people and programs call it: the contract's document, exit codes, sweeps and reports."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli.main import main

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02d}.6805900,{300 + 40 * second},{20 + second}\n" for second in range(60)
)
MOONCAKE = "".join(
    json.dumps({"timestamp": 3000 * (n // 4), "input_length": 900, "output_length": 30, "hash_ids": [0, n // 2]}) + "\n"
    for n in range(24)
)
CONTRACT = {
    "requests", "finished", "refused", "timed_out", "preemptions", "recomputed_tokens", "goodput_tokens_per_s",
    "slo_fraction", "ttft_s", "gap_s", "pool_use_mean", "oracle_ratio",
}  # fmt: skip


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["simulate", *map(str, words), "--json"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    parsed: dict[str, Any] = json.loads(out)
    return parsed


def failure(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    try:
        code = main(["simulate", *map(str, words)])
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("policy", ["none", "worst-case", "trajectory", "learned", "oracle", "max-num-queued-reqs=8"])
def test_json_is_one_document_with_the_contracts_fields(
    azure: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    run = document(
        capsys, "--trace", azure, "--trace-format", "azure", "--policy", policy, "--num-blocks", 1025,
        "--block-size", 16, "--rate-scale", 2, "--max-tokens", 256, "--slo-ttft", 5, "--slo-gap", 1,
    )  # fmt: skip
    assert set(run) >= CONTRACT
    assert (run["policy"], run["requests"]) == (policy, 60)
    assert run["finished"] + run["refused"] + run["timed_out"] == 60
    assert 0 < run["oracle_ratio"] <= 1.2
    assert set(run["ttft_s"]) >= {"p50", "p99"}
    assert "p99" in run["gap_s"]


def test_several_policies_are_runs_in_their_order(azure: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = document(capsys, "--trace", azure, "--num-blocks", 513, "--policy", "none,worst-case,watermark=0.05")
    assert [run["policy"] for run in whole["runs"]] == ["none", "worst-case", "watermark=0.05"]


def test_mooncakes_bins_are_spread_and_its_prefixes_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE)
    words = ("--trace", path, "--num-blocks", 2049, "--policy", "none")
    as_recorded, spread = document(capsys, *words), document(capsys, *words, "--dequantise")
    assert as_recorded["cached_tokens"] >= 23 * 512
    assert spread["ttft_s"]["p99"] < as_recorded["ttft_s"]["p99"]  # bursts of four that never were
    assert document(capsys, *words, "--no-enable-prefix-caching")["cached_tokens"] == 0


def test_the_same_flags_give_the_same_bytes_with_any_number_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--scenario", "retrying", "--max-requests", "40", "--policy", "none,learned", "--json",
             "--sweep", "rate-scale=1,2", "--seed", "3"]  # fmt: skip
    said = []
    for jobs in ("1", "2"):
        assert main([*words, "--jobs", jobs]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    runs = json.loads(said[0])["runs"]
    assert [(run["sweep"]["rate-scale"], run["policy"]) for run in runs] == [
        (1.0, "none"), (1.0, "learned"), (2.0, "none"), (2.0, "learned"),
    ]  # fmt: skip


def test_every_combination_of_swept_values_is_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    whole = document(
        capsys, "--scenario", "steady", "--max-requests", 10, "--policy", "none",
        "--sweep", "num-blocks=1025,2049", "--sweep", "seed=1,2,3", "--jobs", 1,
    )  # fmt: skip
    assert len(whole["runs"]) == 6
    assert len({run["elapsed_s"] for run in whole["runs"]}) == 3  # the pool is large enough either way


def test_several_gates_may_share_one_engine(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--scenario", "steady", "--max-requests", 20, "--gates", 3, "--ledger-rtt", 2.5, "--policy", "worst-case")
    found = document(capsys, *words)
    assert found["finished"] == 20
    assert (found["gate"]["gates"], found["gate"]["ledger_rtt_s"]) == (3, 0.0025)
    assert "instances" in failure(capsys, *words, "--instances", 2)


def test_people_get_a_table_and_notes_where_a_gate_does_not_help(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--scenario", "steady", "--max-requests", "150", "--policy", "none,worst-case", "--jobs", "1"]
    assert main(["simulate", *words]) == 0
    out = capsys.readouterr().out
    assert "worst-case" in out
    assert "does not help here" in out


def test_reports_are_written_and_hold_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    markdown, html = tmp_path / "r.md", tmp_path / "r.html"
    document(
        capsys, "--scenario", "steady", "--max-requests", 20, "--policy", "none,worst-case",
        "--sweep", "rate-scale=1,2", "--jobs", 1, "--markdown", markdown, "--html", html,
    )  # fmt: skip
    text = markdown.read_text()
    assert text.startswith("# Simulated admission: steady\n")
    assert sum(line.startswith(("| 1.0 |", "| 2.0 |")) for line in text.splitlines()) == 2 * 4  # two tables
    assert "command: kvbudget simulate --scenario steady" in text
    assert html.read_text().count("<svg") == 2


def test_a_budget_file_brings_the_pool_and_flags_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = Path(__file__).parents[2] / "docs/examples/llama-3.1-8b", tmp_path / "kvbudget.toml"
    plan = ["plan", str(model), "--kv-cache-memory-bytes", "2GiB", "--max-model-len", "8k", "--json"]
    assert main([*plan, "--write", str(path)]) == 0
    capsys.readouterr()
    words = ("--scenario", "steady", "--max-requests", 20, "--rate-scale", 4, "--policy", "none", "--config", path)
    small = document(capsys, *words)
    large = document(capsys, *words, "--num-blocks", 20_000)
    assert small["pool_use_mean"] > 10 * large["pool_use_mean"]
    path.write_text(path.read_text().replace("pool_blocks = ", "pool_blocks = 'many' #"))
    assert "pool_blocks" in failure(capsys, *words)


TENANTS = """schema = "kvbudget.budget/1"

[gate]
pool_blocks = 300
slo_ttft = 2
prefix_credit = "off"

[gate.tenants.flood]
max_blocks = 20

[gate.tenants."*"]
weight = 2

[gate.classes.-10]
reserved_blocks = 60
"""


def test_tenants_and_classes_of_a_budget_file_act_as_behind_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, trace = tmp_path / "kvbudget.toml", tmp_path / "trace.jsonl"
    path.write_text(TENANTS)
    rows = [
        {"arrival_s": n / 20, "prompt_tokens": 200, "output_tokens": 60, "max_tokens": 400,
         "tenant": "flood" if n % 2 else "quiet", "priority": -10 if n % 4 == 0 else 0}
        for n in range(200)
    ]  # fmt: skip
    trace.write_text("\n".join(map(json.dumps, rows)))
    words = ("--trace", trace, "--num-blocks", 301, "--policy", "learned")
    with_file = document(capsys, *words, "--config", path)
    without = document(capsys, *words)
    assert not {"tenant_blocks", "tenant_too_large"} & set(without["refusals"])
    assert with_file["tenants"]["flood"]["finished"] == 0  # 38 blocks each, and no more than 20 may be reserved
    assert with_file["tenants"]["flood"]["refusals"] == {"tenant_too_large": 100}
    assert with_file["tenants"]["quiet"]["finished"] == 100
    assert list(with_file["classes"]) == ["-10", "0"]
    assert (with_file["slo"]["ttft_s"], without["slo"]["ttft_s"]) == (2, 5)
    assert with_file["gate"]["tenants"] == ["*", "flood"]
    assert (
        with_file["command"] == f"kvbudget simulate --trace {trace} --config {path} --num-blocks 301 --policy learned"
    )


def test_at_eighty_columns_policies_and_swept_values_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    policy = "max-num-queued-tokens=20000+watermark=0.05"
    words = ["--scenario", "steady", "--max-requests", "20", "--policy", f"none,{policy}", "--jobs", "1"]
    assert main(["simulate", *words, "--sweep", "max-num-seqs=64,128"]) == 0
    out = capsys.readouterr().out
    assert sum(f" {seqs} " in line and f" {policy} " in line for seqs in (64, 128) for line in out.splitlines()) == 2
    assert max(map(len, out.splitlines())) <= 80
    assert "gap: between" not in out


def test_tenants_and_reasons_are_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--scenario", "tenant-flood", "--max-requests", "200", "--num-blocks", "1025"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("load: tenant-flood, ")
    assert "1,024 blocks of 16 tokens" in out
    for said in ("Refusals", "tenant_share", "Tenants", "tenant-1", "flood"):
        assert said in out


def test_a_run_in_which_nothing_finishes_is_a_finding(azure: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["simulate", "--trace", str(azure), "--num-blocks", "3", "--policy", "none", "--json"])
    assert code == 1
    assert json.loads(capsys.readouterr().out)["finished"] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "either --trace FILE or --scenario NAME"),
        (["--scenario", "steady", "--trace", "x"], "either --trace"),
        (["--scenario", "busy"], "use one of steady"),
        (["--trace", "{azure}"], "num-blocks"),
        (["--trace", "nowhere.csv", "--num-blocks", "100"], "nowhere.csv"),
        (["--trace", "{empty}", "--num-blocks", "100", "--trace-format", "azure"], "no requests in it"),
        (["--scenario", "steady", "--policy", "best"], "use none, worst-case"),
        (["--scenario", "steady", "--num-blocks", "0"], "num-blocks"),
        (["--scenario", "steady", "--num-blocks", "10", "--max-model-len", "8k"], "max seq len"),
        (["--scenario", "steady", "--rate-scale", "0"], "rate_scale"),
        (["--scenario", "steady", "--slo-ttft", "nan"], "slo-ttft"),
        (["--scenario", "steady", "--instances", "1000"], "instances"),
        (["--scenario", "steady", "--step-cost", "speed:1"], "step-cost"),
        (["--scenario", "steady", "--watermark", "2"], "watermark"),
        (["--scenario", "steady", "--sweep", "policy=none"], "use --policy none"),
        (["--scenario", "steady", "--sweep", "pace=2"], "NAME is one of"),
        (["--scenario", "steady", "--policy", "max-num-queued-reqs"], "needs a value; write max-num-queued-reqs=64"),
        (["--scenario", "steady", "--sweep", "num-blocks=1,x"], "num-blocks=x"),
        (["--scenario", "steady", "--sweep", "seed=" + ",".join(map(str, range(1500)))], "at most 2000"),
        (["--scenario", "steady", "--jobs", "0"], "jobs"),
        (["--scenario", "steady", "--max-num-queued-reqs", "-1"], "max-num-queued-reqs"),
    ],
)
def test_bad_usage_is_said_in_a_line_and_exit_2(
    azure: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    assert told in failure(capsys, *[word.format(azure=azure, empty=empty) for word in words])


def test_with_json_nothing_heavy_is_imported() -> None:
    """A sweep in a script should start at once: no tables, charts, numbers or HTTP."""
    code = (
        "import sys; from kvbudget.cli.main import main; "
        "main(['simulate', '--scenario', 'steady', '--max-requests', '3', '--json']); "
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = (
        "rich", "numpy", "altair", "pandas", "yaml", "asyncio", "httptools", "orjson", "jiter", "prometheus_client",
        "multiprocessing", "concurrent", "tokenizers", "jinja2", "starlette",
    )  # fmt: skip
    assert not [name for name in heavy if f"'{name}'" in done.stderr]
