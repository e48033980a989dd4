"""Field reports are replayed to the printed digit, and one that does not come out is not passed over."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "check_cases.py"
# Public start-up log, llm-d-planner accuracy report: Llama-3.1-8B on H100, vLLM 0.19.
REPORT: dict[str, Any] = {
    "id": "P70a",
    "engine": "vllm",
    "engine_version": "0.19.0",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "config": {
        "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "hardware": {"gpu": "H100-80GB", "count": 1, "total_gib": 79.19},
    "flags": {"gpu_memory_utilization": 0.95, "max_model_len": 8192},
    "observed": {"avail_gib": 58.11, "kv_tokens": 476016, "num_gpu_blocks": 29751, "max_concurrency_8192": 58.11},
}  # fmt: skip


def check(path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KVBUDGET_CASES": str(path)}
    return subprocess.run(
        [sys.executable, SCRIPT, *flags], capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "reports.json"
    path.write_text(json.dumps([REPORT | changes]))
    return path


def test_without_reports_there_is_nothing_to_do(tmp_path: Path) -> None:
    done = check(tmp_path / "absent.json")
    assert done.returncode == 0, done.stderr
    assert "nothing to check" in done.stdout


def test_a_report_comes_out_to_the_printed_digit(tmp_path: Path) -> None:
    done = check(written(tmp_path), "--figures")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens: 476,016, observed 476,016 (exact)" in done.stdout
    assert "concurrency: 58.11, observed 58.11 (exact)" in done.stdout
    assert "blocks: 29,749..29,754, observed 29,751 (within print)" in done.stdout


@pytest.mark.parametrize(
    ("figure", "value"), [("kv_tokens", 476032), ("num_gpu_blocks", 29748), ("max_concurrency_8192", 58.12)]
)
def test_a_figure_that_does_not_come_out_is_wrong(tmp_path: Path, figure: str, value: float) -> None:
    done = check(written(tmp_path, observed=REPORT["observed"] | {figure: value}))
    assert done.returncode == 1, done.stdout
    assert "WRONG" in done.stdout


def test_a_report_without_a_replay_is_named_and_fails(tmp_path: Path) -> None:
    done = check(written(tmp_path, id="P999"))
    assert done.returncode == 1
    assert "no replay is written" in done.stdout


def test_an_engine_that_is_not_known_is_not_yet(tmp_path: Path) -> None:
    done = check(written(tmp_path, engine_version="0.99"))
    assert done.returncode == 1
    assert "not yet" in done.stdout


# Figures of our own, in the form of the diagnosis reports.
DIAGNOSED: dict[str, Any] = {
    "id": "D05",
    "kind": "diagnose",
    "engine": "vllm",
    "engine_version": "0.19",
    "flags": {},
    "right_answer": "far more clients than fit: lower concurrency first",
    "observed": {"run": 50, "wait": 90, "kv_pct": 99, "kv_tokens": 60_000, "preemptions": 70},
}


def test_a_report_of_an_engine_in_trouble_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "diagnose.json"
    path.write_text(json.dumps([DIAGNOSED]))
    done = check(path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "D05" in done.stdout
    assert "right" in done.stdout
    assert "1 diagnoses: 1 right, 0 wrong" in done.stdout


def test_a_report_that_is_found_to_be_something_else_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "diagnose.json"
    path.write_text(json.dumps([DIAGNOSED | {"observed": DIAGNOSED["observed"] | {"kv_pct": 40, "preemptions": 0}}]))
    done = check(path)
    assert done.returncode == 1
    assert "wanted pool_full" in done.stdout


def test_it_is_judged_by_the_report_s_own_answer(tmp_path: Path) -> None:
    path = tmp_path / "diagnose.json"
    path.write_text(json.dumps([DIAGNOSED | {"right_answer": "BUDGET full, the pool is not"}]))
    done = check(path)
    assert done.returncode == 1
    assert "wanted budget_full" in done.stdout
    path.write_text(json.dumps([DIAGNOSED | {"right_answer": "something else"}]))
    done = check(path)
    assert done.returncode == 1
    assert "names no known cause" in done.stdout


def test_a_folder_of_reports_is_taken_as_well_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "diagnose.json").write_text(json.dumps([DIAGNOSED]))
    (tmp_path / "planner.json").write_text(json.dumps([REPORT]))
    (tmp_path / "gate.json").write_text(json.dumps([{"id": "G01", "kind": "gate"}]))
    done = check(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 diagnoses: 1 right, 0 wrong" in done.stdout
    assert "1 reports: 1 " in done.stdout
    assert "G01" in done.stdout
    (tmp_path / "gate.json").write_text(json.dumps([{"id": "G99", "kind": "gate"}]))
    done = check(tmp_path)
    assert done.returncode == 1
    assert "G99" in done.stdout


def test_a_report_without_a_replay_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "diagnose.json"
    path.write_text(json.dumps([DIAGNOSED | {"id": "D99"}]))
    done = check(path)
    assert done.returncode == 1
    assert "no replay is written" in done.stdout
