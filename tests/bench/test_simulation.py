"""The speed benchmark measures what it says, and peers that are not there do not stop it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "simulation"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """bench/simulation/run.py, which is no package."""
    spec = importlib.util.spec_from_file_location("bench_simulation", BENCH / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_made_loads_have_the_traces_sizes_and_prefixes(bench: ModuleType) -> None:
    azure, mooncake = bench.azure_load(None), bench.mooncake_load(None)
    assert (len(azure), len(mooncake)) == (19_366, 12_031)
    assert 900 < sum(one.prompt_tokens for one in azure) / len(azure) < 1500
    assert 9_000 < sum(one.prompt_tokens for one in mooncake) / len(mooncake) < 15_000
    assert all(len(one.hash_ids) == -(-one.prompt_tokens // 512) for one in mooncake)
    assert len({one.hash_ids[1] for one in mooncake if len(one.hash_ids) > 1}) < 0.9 * len(mooncake)


def test_a_short_round_prints_a_row_for_each_policy(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["run.py", "--ours", "--requests", "40", "--rounds", "1", "--policies", "none,learned"]
    )
    assert bench.main() == 0
    out = capsys.readouterr().out
    assert out.count("| **kvbudget** `") == 2
    assert "azure, 40 requests" in out


def test_a_peer_that_fails_is_told_in_a_cell(bench: ModuleType, tmp_path: Path) -> None:
    peer = bench.Peer("none such", "none-such", "no_script.py", "-")
    assert bench.ask(peer, Path(sys.executable), tmp_path / "load.csv", 3).startswith("does not run (")
