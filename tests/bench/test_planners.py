"""The comparison of planners: the models are planned right, and verdicts and totals are counted right."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvbudget.model.read import model_from_config

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "planners"


def load(name: str) -> ModuleType:
    """A file of the benchmark as a module; `peers` is imported by its own name there."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def peers() -> Iterator[ModuleType]:
    try:
        yield load("peers")
    finally:
        del sys.modules["peers"]


@pytest.fixture(scope="module")
def bench(peers: ModuleType) -> Iterator[ModuleType]:
    try:
        yield load("run")
    finally:
        del sys.modules["run"]


def test_every_model_is_planned_right_from_its_config_alone(bench: ModuleType) -> None:
    assert len(bench.CASES) == 18
    wrong = {case.name: verdict for case in bench.CASES if (verdict := bench.verdict(case, bench.ours(case))) != "ok"}
    assert not wrong


def test_every_config_is_of_a_case_and_small(bench: ModuleType) -> None:
    assert {path.stem for path in bench.CONFIGS.glob("*.json")} == {case.name for case in bench.CASES}
    for case in bench.CASES:
        assert case.config.stat().st_size < 8_000
        model_from_config(json.loads(case.config.read_text()), case.name)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ({"bytes": 1024 * 2**20}, "ok"),
        ({"bytes": 1.015 * 1024 * 2**20}, "ok"),
        ({"bytes": 2048 * 2**20}, "+100%"),
        ({"bytes": 686 * 2**20}, "-33%"),
        ({"bytes": 20 * 1024 * 2**20}, "x20.0"),
        ({"refuses": "model_type 'x'"}, "refuses"),
        ({"error": "KeyError"}, "error"),
    ],
)
def test_an_answer_is_right_within_two_per_cent(bench: ModuleType, answer: dict[str, Any], verdict: str) -> None:
    assert bench.verdict(bench.Case("m", (1024.0,)), answer) == verdict


def test_the_nearest_of_several_right_answers_counts(bench: ModuleType) -> None:
    case = bench.Case("m", (758.3, 1190.3))
    assert bench.verdict(case, {"bytes": 1190.3 * 2**20}) == "ok"
    assert bench.verdict(case, {"bytes": 3776 * 2**20}) == "+217%"


def test_totals_are_right_over_under_and_none(bench: ModuleType) -> None:
    assert bench.totals(["ok", "ok", "+5%", "x12.0", "-3%", "refuses", "error"]) == "**2/2/1/2**"


def test_a_planner_that_ends_early_has_errors_for_the_rest(
    bench: ModuleType, peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "ask.py"
    stand_in.write_text("""print('{"bytes": 1073741824}', flush=True); raise SystemExit(3)""")
    monkeypatch.setattr(bench, "ASK", stand_in)
    monkeypatch.setattr(bench, "python_of", lambda peer: Path(sys.executable))
    answers = bench.asked(peers.PEERS[0])
    assert answers[0] == {"bytes": 1073741824}
    assert answers[1:] == [{"error": "no answer"}] * 17


def test_a_planner_that_is_not_there_is_an_error_and_not_a_crash() -> None:
    question = json.dumps([{"config": str(FOLDER / "configs" / "llama31-8b.json"), "tokens": 8192}])
    done = subprocess.run(
        [sys.executable, FOLDER / "ask.py", "kvfit"],
        input=question,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "ModuleNotFoundError" in json.loads(done.stdout)["error"]


def test_every_planner_has_a_question_and_a_pinned_version(peers: ModuleType) -> None:
    source = (FOLDER / "ask.py").read_text()
    for peer in peers.PEERS:
        assert f'"{peer.name}"' in source
        assert peer.version[0].isdigit()
