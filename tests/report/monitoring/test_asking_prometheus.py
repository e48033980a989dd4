"""What the other tests here lean on: reading names and labels out of queries, and not passing without Prometheus."""

import os
import subprocess
from pathlib import Path

import pytest

from prometheus import Series, bare, filled_in, grouping_in, series_in, tool

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "install_prometheus.sh"


@pytest.mark.parametrize(
    ("promql", "found"),
    [
        ("vllm:num_requests_running", [Series("vllm:num_requests_running", frozenset())]),
        (
            'sum by (le) (rate(kvbudget_queue_seconds_bucket{gate=~"a|{b}", le!="1"}[5m])) > 0',
            [Series("kvbudget_queue_seconds_bucket", frozenset({"gate", "le"}))],
        ),
        (
            'up{job="kvbudget"} == 0 or kvbudget_backend_up',
            [Series("up", frozenset({"job"})), Series("kvbudget_backend_up", frozenset())],
        ),
        ("gate_instance:kvbudget_held:ratio > 0.95", []),
        ("instance_model:vllm_preemptions:rate5m", []),
    ],
)
def test_metrics_and_their_labels_are_found_in_a_query(promql: str, found: list[Series]) -> None:
    assert series_in(promql) == found


def test_labels_of_grouping_and_joining_are_found_in_a_query() -> None:
    assert grouping_in("max by (instance, le) (a) and on (gate) (sum by(job) (b))") == {"instance", "le", "gate", "job"}


def test_a_query_is_filled_in_as_grafana_does_with_everything_chosen() -> None:
    asked = 'rate(a{gate=~"$gate", instance=~"$instance"}[$__rate_interval])'
    assert filled_in(asked, "5s") == 'rate(a{gate=~".*", instance=~".*"}[5s])'
    assert filled_in(asked, "5s", {"gate": "g1"}) == 'rate(a{gate=~"g1", instance=~".*"}[5s])'


def test_a_zero_that_stands_in_for_nothing_is_taken_away() -> None:
    assert bare("sum(a) or vector(0)") == "sum(a)"
    assert bare("sum(a)") == "sum(a)"


def test_without_prometheus_a_test_fails_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBUDGET_PROMETHEUS", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match=r"install_prometheus\.sh"):
        tool("promtool")


def installed(*arguments: str, prometheus: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KVBUDGET_PROMETHEUS": prometheus}
    command = [str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_script_takes_what_is_there(tmp_path: Path) -> None:
    there = str(tool("promtool").parent)
    assert installed(str(tmp_path / "unused"), prometheus=there).returncode == 0
    assert installed(there).returncode == 0
    assert not (tmp_path / "unused").exists()


def test_the_script_says_what_to_do_when_a_given_folder_holds_nothing(tmp_path: Path) -> None:
    done = installed(prometheus=str(tmp_path))
    assert done.returncode == 1
    assert "next: set KVBUDGET_PROMETHEUS" in done.stderr
    assert installed("--nonsense").returncode == 2
