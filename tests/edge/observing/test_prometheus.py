"""A Prometheus server, here a small one that knows the two paths of its API that are asked for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from kvbudget.edge.observing.observe import Observer
from kvbudget.errors import InputError

if TYPE_CHECKING:
    from tests.edge.observing.conftest import Clock, Pages

Series = dict[tuple[tuple[str, str], ...], Mapping[float, float]]


def serve(pages: "Pages", series: Series, base: str = "") -> list[dict[str, str]]:
    queries: list[dict[str, str]] = []

    def query_range(query: dict[str, str]) -> Any:
        queries.append(query)
        wanted_starts = "process_start" in query["query"]
        start, end, step = (float(query[name]) for name in ("start", "end", "step"))
        grid = [start + index * step for index in range(int((end - start) / step) + 1)]
        result = []
        for labels, values in series.items():
            metric = dict(labels)
            if metric["__name__"].startswith("process_start") != wanted_starts:
                continue
            if wanted_starts:
                del metric["__name__"]  # operators drop it
            points = []
            for at_s in grid:
                told = [value for moment, value in values.items() if moment <= at_s]
                if told:
                    points.append([at_s, str(told[-1])])
            result.append({"metric": metric, "values": points})
        return {"status": "success", "data": {"resultType": "matrix", "result": result}}

    pages.answers[f"{base}/api/v1/status/buildinfo"] = lambda _: {"status": "success", "data": {"version": "3.0"}}
    pages.answers[f"{base}/api/v1/query_range"] = query_range
    return queries


def labelled(name: str, instance: str, **more: str) -> tuple[tuple[str, str], ...]:
    return tuple({"__name__": name, "job": "vllm", "instance": instance, **more}.items())


def engine(instance: str, preemptions: Mapping[float, float], started: Mapping[float, float]) -> Series:
    told = {"engine": "0", "model_name": "m"}
    return {
        labelled("vllm:kv_cache_usage_perc", instance, **told): {0: 0.1, 900: 0.9},
        labelled("vllm:num_requests_running", instance, **told): {0: 4.0},
        labelled("vllm:num_preemptions_total", instance, **told): preemptions,
        labelled("process_start_time_seconds", instance): started,
    }


def observer(pages: "Pages", clock: "Clock", window_s: float | None = 120.0, base: str = "", **key: str) -> Observer:
    return Observer([f"{pages.url}{base}"], window_s, key, clock=clock, sleep=clock.sleep, wall_clock=clock)


@pytest.mark.parametrize("path", ["", "/", "/graph", "/query"])
def test_each_instance_is_a_window_and_restarts_are_seen(pages: "Pages", clock: "Clock", path: str) -> None:
    one = engine("10.0.0.7:8000", {0: 100, 900: 130, 960: 145}, {0: 5.0})
    two = engine("10.0.0.8:8000", {0: 100, 930: 3, 990: 9}, {0: 5.0, 930: 929.0})
    queries = serve(pages, {**one, **two})
    first, second = observer(pages, clock, base=path).observe().engines
    assert (first.where, second.where) == ("instance=10.0.0.7:8000", "instance=10.0.0.8:8000")
    assert (first.window_s, first.counts.preemptions, first.restarted) == (120, 45, False)
    assert (second.counts.preemptions, second.restarted) == (9, True)
    assert (len(first.looks), first.looks[0].usage, first.last.usage) == (13, 0.1, 0.9)
    assert (float(queries[0]["end"]) - float(queries[0]["start"]), float(queries[0]["step"])) == (120, 10)
    assert "vllm[:_].*" in queries[0]["query"]


def test_a_server_behind_a_path_and_a_key_is_found(pages: "Pages", clock: "Clock") -> None:
    queries = serve(pages, engine("a", {0: 1}, {0: 5.0}), "/prometheus")
    (window,) = observer(pages, clock, None, "/prometheus", KVBUDGET_SOURCE_TOKEN="abc").observe().engines
    assert (window.where, window.window_s) == ("", 600)
    assert {key for _, key in pages.asked} == {"Bearer abc"}
    assert float(queries[0]["step"]) == 50


def test_what_a_server_has_nothing_of_or_refuses_is_said(pages: "Pages", clock: "Clock") -> None:
    serve(pages, {})
    with pytest.raises(InputError, match="no series of an engine"):
        observer(pages, clock).observe()
    pages.answers["/api/v1/query_range"] = lambda _: 422
    with pytest.raises(InputError, match="answered 422"):
        observer(pages, clock).observe()
    pages.answers["/api/v1/query_range"] = lambda _: {"status": "success", "data": {}}
    with pytest.raises(InputError, match="no result"):
        observer(pages, clock).observe()
    damaged = [{"metric": {}, "values": [["x"], [1, "y"]]}, {"metric": 5}, 7, {"values": []}]
    pages.answers["/api/v1/query_range"] = lambda _: {"status": "success", "data": {"result": damaged}}
    with pytest.raises(InputError, match="no series"):
        observer(pages, clock).observe()


def test_the_gate_s_own_instances_are_known_under_the_names_that_a_server_gives_them(
    pages: "Pages", clock: "Clock"
) -> None:
    series: Series = {
        labelled("kvbudget_pool_blocks", "gate:8801", exported_instance="a"): {0: 64.0},
        labelled("kvbudget_pool_blocks", "gate:8801", exported_instance="b"): {0: 32.0},
        labelled("kvbudget_requests_total", "gate:8801", outcome="completed"): {0: 5.0, 950: 25.0},
        labelled("kvbudget_queue_requests", "gate:8801"): {0: 3.0},
    }
    serve(pages, series)
    observation = observer(pages, clock).observe()
    assert [(gate.instance, gate.pool_blocks, gate.queue_requests) for gate in observation.gates] == [
        ("a", 64, 3),
        ("b", 32, 3),
    ]
    assert observation.gates[0].outcomes == {"completed": 20}
