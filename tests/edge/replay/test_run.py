"""Open loop: requests leave on time, every end has its name, and the report tells what was unknown."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from kvbudget.edge.replay.endpoint import Patience
from kvbudget.edge.replay.run import ReplaySettings, replay
from kvbudget.errors import BadValueError
from kvbudget.simulate.load import TraceRequest
from kvbudget.units import Tokens

if TYPE_CHECKING:
    from tests.edge.replay.conftest import TinyEndpoint

Tiny = Callable[[], AbstractAsyncContextManager["TinyEndpoint"]]
Report = dict[str, Any]


def _trace(count: int, *, gap_ns: int = 0, prompt: int = 20, tenant: str = "default") -> list[TraceRequest]:
    return [TraceRequest(at * gap_ns, Tokens(prompt), Tokens(3), Tokens(3), tenant) for at in range(count)]


def _replay(
    tiny: Tiny,
    requests: list[TraceRequest],
    prepare: Callable[["TinyEndpoint"], object] = lambda _: None,
    during: Callable[["TinyEndpoint", asyncio.Event], Coroutine[Any, Any, None]] | None = None,
    **settings: Any,
) -> tuple[Report, "TinyEndpoint"]:
    async def run() -> tuple[Report, "TinyEndpoint"]:
        async with tiny() as endpoint:
            prepare(endpoint)
            stop = asyncio.Event()
            work = asyncio.create_task(replay(requests, ReplaySettings(url=endpoint.url, **settings), stop=stop))
            if during is not None:
                await during(endpoint, stop)
            return await work, endpoint

    return asyncio.run(run())


def _status(status: int, **headers: str) -> Callable[["TinyEndpoint"], None]:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status, headers=headers)

    def prepare(endpoint: "TinyEndpoint") -> None:
        endpoint.answer = answer

    return prepare


def test_all_requests_finish_with_the_lengths_of_the_trace(tiny: Tiny) -> None:
    report, endpoint = _replay(tiny, _trace(12), stream_share=0.5, seed=3)
    assert (report["requests"], report["finished"], report["failed"]) == (12, 12, 0)
    assert report["prompt_tokens"] == {"sent": 240, "compared": 12, "differing": 0}
    assert report["statuses"] == {"200": 12}
    assert 0 < sum(ask["stream"] for ask in endpoint.asks) < 12
    assert {(ask["model"], ask["max_tokens"], ask["ignore_eos"]) for ask in endpoint.asks} == {("tiny", 3, True)}
    assert report["ttft_s"]["p99"] > 0
    assert report["goodput_tokens_per_s"] * report["elapsed_s"] == pytest.approx(36)


def test_every_request_has_a_text_of_its_own(tiny: Tiny) -> None:
    _, endpoint = _replay(tiny, _trace(6), chat=False)
    assert len({ask["prompt"] for ask in endpoint.asks}) == 6


def test_arrivals_never_wait_for_answers(tiny: Tiny) -> None:
    release = asyncio.Event()

    def prepare(endpoint: "TinyEndpoint") -> None:
        async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            if len(endpoint.asks) == 5:
                release.set()
            await release.wait()  # nobody is answered before all five are here
            return await endpoint.finish(request, body)

        endpoint.answer = answer

    report, _ = _replay(tiny, _trace(5, gap_ns=1_000_000), prepare)
    assert report["finished"] == 5


def test_arrivals_keep_their_times(tiny: Tiny) -> None:
    before = time.monotonic()
    report, _ = _replay(tiny, _trace(4, gap_ns=50_000_000))
    assert time.monotonic() - before >= 0.15
    assert report["elapsed_s"] >= 0.15


@pytest.mark.parametrize(("status", "ending"), [(429, "refused"), (503, "refused"), (400, "refused"), (500, "failed")])
def test_statuses_are_refusals_or_failures(tiny: Tiny, status: int, ending: str) -> None:
    report, _ = _replay(tiny, _trace(2), _status(status))
    assert report[ending] == 2
    assert report["statuses"] == {str(status): 2}
    assert report["errors"] == ({} if ending == "refused" else {f"status {status}": 2})


def test_a_refusal_is_tried_again_after_the_pause_it_asks_for(tiny: Tiny) -> None:
    def prepare(endpoint: "TinyEndpoint") -> None:
        async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            if len(endpoint.asks) < 3:
                return web.Response(status=429, headers={"retry-after": "60", "retry-after-ms": "40"})
            return await endpoint.finish(request, body)

        endpoint.answer = answer

    report, endpoint = _replay(tiny, _trace(1), prepare, patience=Patience(30, retries=2))
    assert (report["finished"], report["retries"], len(endpoint.asks)) == (1, 2, 3)
    assert report["ttft_s"]["p50"] >= 0.08


@pytest.mark.parametrize(
    ("patience", "headers"),
    [(Patience(30), {}), (Patience(30, retries=5), {"x-should-retry": "false"})],
)
def test_nobody_retries_uninvited(tiny: Tiny, patience: Patience, headers: dict[str, str]) -> None:
    report, endpoint = _replay(tiny, _trace(1), _status(429, **headers), patience=patience)
    assert (report["refused"], len(endpoint.asks)) == (1, 1)


def test_a_client_gives_up_after_its_own_time_out(tiny: Tiny) -> None:
    def prepare(endpoint: "TinyEndpoint") -> None:
        endpoint.answer = endpoint.hang

    report, _ = _replay(tiny, _trace(2), prepare, patience=Patience(0.05))
    assert (report["timed_out"], report["finished"]) == (2, 0)


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n',
        b"data: {damaged\n\n",
        b'data: {"error": {}}\n\ndata: [DONE]\n\n',
    ],
)
def test_a_stream_that_breaks_off_is_a_failure(tiny: Tiny, data: bytes) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(data.replace(b'"error": {}', b'"error": {"message": "gone"}'))
        return stream

    def prepare(endpoint: "TinyEndpoint") -> None:
        endpoint.answer = answer

    report, _ = _replay(tiny, _trace(1), prepare)
    assert report["failed"] == 1
    assert len(report["errors"]) == 1


def test_stopping_gives_the_report_so_far(tiny: Tiny) -> None:
    def prepare(endpoint: "TinyEndpoint") -> None:
        endpoint.answer = endpoint.hang

    async def during(endpoint: "TinyEndpoint", stop: asyncio.Event) -> None:
        await endpoint.arrived.wait()
        stop.set()

    requests = [*_trace(1), replace(_trace(1)[0], arrival_ns=3600 * 10**9)]
    report, _ = _replay(tiny, requests, prepare, during)
    assert (report["requests"], report["interrupted"]) == (1, 1)
    assert any("stopped early: 1 of 2" in note for note in report["notes"])


def test_requests_over_the_concurrency_limit_are_counted_not_queued(tiny: Tiny) -> None:
    release = asyncio.Event()

    def prepare(endpoint: "TinyEndpoint") -> None:
        async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            await release.wait()
            return await endpoint.finish(request, body)

        endpoint.answer = answer

    async def during(endpoint: "TinyEndpoint", stop: asyncio.Event) -> None:
        await endpoint.arrived.wait()
        asyncio.get_running_loop().call_later(0.1, release.set)

    report, endpoint = _replay(tiny, _trace(7), prepare, during, concurrency_limit=2)
    assert (report["finished"], report["not_sent"], len(endpoint.asks)) == (2, 5, 2)
    assert report["generator"]["kept_up"] is False


def test_an_endpoint_that_cannot_count_is_said_to_be_approximated(tiny: Tiny) -> None:
    def prepare(endpoint: "TinyEndpoint") -> None:
        endpoint.tokenize_status = 404

    report, _ = _replay(tiny, _trace(2), prepare)
    assert any("approximated" in note for note in report["notes"])
    assert report["prompt_tokens"]["differing"] == 2


def test_preemptions_are_the_difference_over_the_run(tiny: Tiny) -> None:
    def text(preemptions: int) -> str:
        return f'vllm:num_preemptions_total{{engine="0"}} {preemptions}.0\nvllm:kv_cache_usage_perc 0.5\n'

    def prepare(endpoint: "TinyEndpoint") -> None:
        async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            endpoint.metrics = text(12)
            return await endpoint.finish(request, body)

        endpoint.metrics, endpoint.answer = text(7), answer

    report, _ = _replay(tiny, _trace(2), prepare)
    assert (report["preemptions"], report["pool_use_mean"]) == (5, 0.5)


def test_without_engine_metrics_preemptions_are_unknown_and_it_says_so(tiny: Tiny) -> None:
    report, _ = _replay(tiny, _trace(1))
    assert report["preemptions"] is report["pool_use_mean"] is None
    assert any("--metrics-url" in note for note in report["notes"])


def test_tenant_and_given_headers_are_sent(tiny: Tiny) -> None:
    _, endpoint = _replay(tiny, _trace(1, tenant="blue"), headers={"authorization": "Bearer k"})
    assert endpoint.headers[0]["x-kvbudget-tenant"] == "blue"
    assert endpoint.headers[0]["authorization"] == "Bearer k"


def test_requests_over_the_endpoints_window_are_noted(tiny: Tiny) -> None:
    report, _ = _replay(tiny, _trace(1, prompt=5000))
    assert any("--window 4096" in note for note in report["notes"])


def test_an_endpoint_without_models_needs_a_name(tiny: Tiny) -> None:
    def prepare(endpoint: "TinyEndpoint") -> None:
        endpoint.models = {"data": []}

    with pytest.raises(BadValueError, match="--model"):
        _replay(tiny, _trace(1), prepare)
    report, endpoint = _replay(tiny, _trace(1), prepare, model="given")
    assert report["finished"] == 1
    assert endpoint.asks[0]["model"] == "given"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "localhost:80"},
        {"stream_share": 1.5},
        {"concurrency_limit": 0},
        {"patience": Patience(0)},
        {"patience": Patience(1, -1)},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        ReplaySettings(**({"url": "http://127.0.0.1:1"} | wrong))
