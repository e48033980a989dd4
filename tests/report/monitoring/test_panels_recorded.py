"""Recordings are put into a real Prometheus: no panel of the engines' dashboards is empty on a fresh import.

That of vLLM is of a real one (tests/engine/test_dashboards.py wrote it). That of SGLang is made, as it does not run
without a card: names and labels are those of its `srt/observability/metrics_collector.py` on main in 2026.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbudget.report.monitoring.files import GROUPS
from kvbudget.report.monitoring.panel import Dashboard
from kvbudget.report.monitoring.sglang_panels import SGLANG_BOARD
from kvbudget.report.monitoring.vllm_panels import VLLM_BOARD
from prometheus import empty_panels, grouping_in, promtool, running_prometheus, series_in

DATA = Path(__file__).parent / "data"
BOARDS = {"vllm": VLLM_BOARD, "sglang": SGLANG_BOARD}
BEGUN_S = 1_750_000_000
STEP_S, LOOKS = 2, 12
FROM_PROMETHEUS = {"instance", "job"}
REMOVED = "vllm:gpu_cache_usage_perc"
Recording = dict[str, list[str]]


def recorded(engine: str) -> Recording:
    """Values by series; `_` where there was none yet."""
    if engine == "sglang":
        return dict(made_sglang())
    lines = (DATA / "vllm-0.32.series").read_text().splitlines()
    return {line.split("\t")[0]: line.split("\t")[1].split() for line in lines if not line.startswith("#")}


def made_sglang() -> Iterator[tuple[str, list[str]]]:
    """Two data-parallel ranks of two tensor-parallel ones each; the front end counts for all."""
    gauges = {
        "token_usage": 0.8, "full_token_usage": 0.8, "swa_token_usage": 0.3, "mamba_usage": 0, "num_running_reqs": 20,
        "num_queue_reqs": 3, "num_grammar_queue_reqs": 1, "kv_used_tokens": 80_000, "kv_evictable_tokens": 10_000,
        "kv_available_tokens": 10_000, "max_total_num_tokens": 100_000, "cache_hit_rate": 0.4, "new_token_ratio": 0.6,
    }  # fmt: skip
    ranks = [
        f'model_name="m",engine_type="unified",tp_rank="{tp}",pp_rank="0",moe_ep_rank="0",dp_rank="{dp}"'
        for tp in range(2)
        for dp in range(2)
    ]
    front = 'model_name="m",engine_type="unified"'
    for labels in ranks:
        for name, value in gauges.items():
            yield f"sglang:{name}{{{labels}}}", [f"{value * (1 + 0.01 * look):g}" for look in range(LOOKS)]
        for name in ("num_retracted_requests", "num_retracted_input_tokens", "num_retracted_output_tokens"):
            yield f"sglang:{name}_total{{{labels}}}", _growing(1)
        for bound, grows in (("0.1", 5), ("1.0", 9), ("+Inf", 10)):
            yield f'sglang:queue_time_seconds_bucket{{{labels},le="{bound}"}}', _growing(grows)
    for name, grows in (("prompt_tokens", 4000), ("generation_tokens", 900), ("num_requests", 10)):
        yield f'sglang:{name}_total{{{front},is_streaming="true"}}', _growing(grows)
    yield f"sglang:num_aborted_requests_total{{{front}}}", _growing(1)
    for bound, grows in (("0.1", 5), ("1.0", 9), ("+Inf", 10)):
        yield f'sglang:time_to_first_token_seconds_bucket{{{front},is_streaming="true",le="{bound}"}}', _growing(grows)
        yield f'sglang:inter_token_latency_seconds_bucket{{{front},le="{bound}"}}', _growing(90 * grows)


def _growing(by: int) -> list[str]:
    return [str(by * look) for look in range(LOOKS)]


def openmetrics(series: Recording) -> str:
    """As promtool takes it, with what a scrape adds."""
    lines = []
    for name, values in series.items():
        scraped = name.replace("{", '{instance="e1:8000",job="engine",', 1)
        lines += [f"{scraped} {value} {BEGUN_S + i * STEP_S}" for i, value in enumerate(values) if value != "_"]
    return "\n".join([*lines, "# EOF", ""])


@pytest.mark.timeout(120)
def test_no_panel_of_the_engines_is_empty_on_recorded_data(tmp_path: Path) -> None:
    for engine in BOARDS:
        (tmp_path / engine).write_text(openmetrics(recorded(engine)))
        made = promtool("tsdb", "create-blocks-from", "openmetrics", engine, "data", folder=tmp_path)
        assert made.returncode == 0, made.stderr
    with running_prometheus(tmp_path, {"scrape_configs": []}) as prometheus:
        for engine, board in BOARDS.items():
            at_s = BEGUN_S + (LOOKS - 1) * STEP_S
            empty = empty_panels(prometheus, board, "16s", at_s=at_s)
            assert empty == [], engine


@pytest.mark.parametrize("engine", BOARDS)
def test_every_name_and_label_is_one_that_was_recorded(engine: str) -> None:
    exported: dict[str, set[str]] = {}
    for series in recorded(engine):
        metric, _, labels = series.partition("{")
        exported.setdefault(metric, set()).update(pair.split("=")[0] for pair in labels.rstrip("}").split('",'))
    prefix = f"{engine}:"
    wrong: list[tuple[str, object]] = []
    for promql in [*_of(BOARDS[engine]), *_rules()]:
        wanted = [series for series in series_in(promql) if series.name.startswith(prefix)]
        if not wanted or REMOVED in promql:
            continue
        wrong += [(promql, one) for one in wanted if not one.labels <= exported.get(one.name, set()) | FROM_PROMETHEUS]
        known = FROM_PROMETHEUS.union(*[exported.get(one.name, set()) for one in wanted])
        wrong += [(promql, label) for label in grouping_in(promql) - known]
        wrong += [(promql, one.name) for one in wanted if one.name not in exported]
    assert wrong == []


def _of(board: Dashboard) -> list[str]:
    return [query.promql for panel in board.panels for query in panel.queries]


def _rules() -> list[str]:
    return [rule.promql for group in GROUPS for rule in group.rules]
