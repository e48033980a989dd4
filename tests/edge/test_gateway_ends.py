import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from kvbudget.gate.config import PROGRESS_STRIDE

Play = Callable[..., None]
Stand = Any  # the class lives in conftest.py, which cannot be imported


def error_of(answer: httpx.Response) -> dict[str, str]:
    error: dict[str, str] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# The client leaves


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_let_go_at_the_engine_at_once(play: Play, stream: bool) -> None:
    async def scene(stand: Stand) -> None:
        _, writer = await stand.open_chat(stream=stream)
        await stand.until(lambda: len(stand.engine.requests) == 1 and stand.promised() > 0)
        writer.close()
        await stand.until(lambda: stand.engine.closed == 1 and stand.promised() == 0, within_s=1)
        assert stand.outcomes() == {"client_gone": 1}

    play(scene, {"hold": True})


def test_a_client_that_leaves_midway_is_let_go(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        reader, writer = await stand.open_chat(stream=True)
        await reader.readuntil(b'{"n":2}')
        writer.transport.abort()
        await stand.until(lambda: stand.engine.closed == 1 and stand.promised() == 0, within_s=1)

    play(scene, {"hold": True})


def test_a_client_that_leaves_the_queue_is_forgotten(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        _, writer = await stand.open_chat(max_tokens=400)
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        writer.close()
        await stand.until(lambda: len(stand.service.gate.queue) == 0, within_s=1)
        assert stand.outcomes() == {"withdrawn": 1}
        stand.engine.release.set()
        await first
        assert len(stand.engine.requests) == 1

    play(scene, {"count": 100, "hold": True})


def test_a_client_that_leaves_while_it_is_counted_never_arrives(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        _, writer = await stand.open_chat()
        await stand.until(lambda: len(stand.service.reception.counting) == 1)
        writer.close()
        await stand.until(lambda: stand.outcomes() == {"withdrawn": 1}, within_s=1)
        await stand.until(lambda: not stand.service.reception.counting and stand.engine.closed == 1, within_s=1)
        assert stand.engine.requests == []

    play(scene, {"hold_counting": True})


def test_a_reader_that_stalls_is_counted_at_its_peak_again(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        reader, writer = await stand.open_chat(stream=True)
        await stand.until(lambda: any(not r.paced for r in stand.service.gate.ledger))
        writer.transport.abort()
        await stand.until(lambda: stand.promised() == 0)
        del reader

    play(scene, {"chunks": 600_000, "hold": True})


# The engine fails


def test_an_engine_that_breaks_off_before_it_answers_is_502(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat()
        assert answer.status_code == 502
        assert error_of(answer)["code"] == "upstream_failed"
        assert (stand.promised(), stand.outcomes()) == (0, {"upstream_failed": 1})

    play(scene, {"die": "before head"})


def test_a_prompt_that_cannot_be_counted_is_charged_by_its_bound_at_most_the_whole_context(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(messages=[{"role": "user", "content": "x" * 2000}])
        assert answer.status_code == 200  # its bound is over the context of 512, but nobody holds more than that
        assert answer.headers["x-kvbudget-reserved-blocks"] == "32"
        assert stand.engine.requests[0]["max_tokens"] == 16

    play(scene, {"count": -1, "num_blocks": 200})


def test_a_bound_beyond_the_pool_is_no_reason_to_tell_a_client_that_it_never_fits(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(messages=[{"role": "user", "content": "x" * 2000}])
        assert (answer.status_code, error_of(answer)["code"]) == (503, "count_failed")
        assert int(answer.headers["retry-after"]) >= 1
        assert stand.refusals() == {"count_failed": 1}

    play(scene, {"count": -1, "num_blocks": 20})


@pytest.mark.parametrize(("engine_status", "status", "code"), [
    (503, 429, "rate_limit_exceeded"), (429, 429, "rate_limit_exceeded"), (408, 504, "upstream_failed"),
    (500, 500, "engine's own"), (404, 404, "engine's own"),
])  # fmt: skip
def test_an_engines_overload_is_said_in_a_form_that_clients_can_act_on(
    play: Play, engine_status: int, status: int, code: str
) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert ("retry-after" in answer.headers) is (status == 429)
        assert (stand.promised(), stand.outcomes()) == (0, {"upstream_refused": 1})
        assert stand.refusals() == ({"engine_busy": 1} if status == 429 else {})

    play(scene, {"refuse_with": engine_status})


def test_each_api_key_is_a_tenant_and_appears_nowhere(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        for key in ("sk-secret-1", "sk-secret-2", "sk-secret-1"):
            await stand.chat(headers={"authorization": f"Bearer {key}"})
        await stand.chat(headers={"authorization": "Bearer sk-secret-3", "x-kvbudget-tenant": "acme"})
        tenants = stand.service.reception.identities.tenants
        assert len(tenants) == 4  # a key that comes with a tenant is none
        assert {"default", "acme"} < tenants
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
            assert "secret" not in (await admin.get("/metrics")).text

    play(scene)


def test_a_deadline_that_passed_while_the_prompt_was_counted_is_kept(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        asked = asyncio.create_task(stand.chat(headers={"x-kvbudget-deadline-ms": "30"}))
        await stand.until(lambda: len(stand.service.reception.counting) == 1)
        await asyncio.sleep(0.05)
        stand.engine.release.set()
        assert (await asked).status_code == 429
        assert stand.outcomes() == {"expired": 1}
        assert stand.engine.requests == []

    play(scene, {"hold_counting": True})


def test_an_engine_that_dies_midway_gives_the_stream_a_proper_end(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(stream=True)
        events = answer.text.strip().split("\n\n")
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "upstream_failed"
        assert (stand.promised(), stand.outcomes()) == (0, {"upstream_failed": 1})

    play(scene, {"die": "midway"})


def test_a_dead_engine_is_503_with_a_time_until_it_is_back(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        port = int(stand.service.backend.url.rsplit(":", 1)[1])
        await stand.engine.stop()
        answers = [await stand.chat() for _ in range(2)]
        for answer in answers:
            assert (answer.status_code, error_of(answer)["code"]) == (503, "server_is_overloaded")
            assert int(answer.headers["retry-after"]) >= 1
        ready = httpx.AsyncClient(base_url=stand.service.admin_url)
        async with ready:
            assert (await ready.get("/ready")).status_code == 503
        stand.engine._server = await asyncio.start_server(stand.engine._serve, "127.0.0.1", port)
        await stand.until(lambda: stand.service.gate.backend_up)
        assert (await stand.chat()).status_code == 200

    play(scene)


def test_an_engine_that_is_sick_throws_out_who_waits(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        second = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        stand.engine.healthy = False
        assert (await second).status_code == 503
        stand.engine.release.set()
        assert (await first).status_code == 200

    play(scene, {"count": 100, "hold": True})


@pytest.mark.parametrize("metrics", [
    b"", b"garbage {\n", b'vllm:num_requests_running{engine="0"} +Inf\n', b'vllm:kv_cache_usage_perc{engine="0"} NaN\n',
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="9",kv_cache_size_tokens="5",'
    b'kv_cache_max_concurrency="5e-324"} 1.0\n',
])  # fmt: skip
def test_a_scrape_that_fails_takes_nothing_away_from_a_healthy_engine(play: Play, metrics: bytes) -> None:
    async def scene(stand: Stand) -> None:
        backend = stand.service.backend
        backend._interval_s = 0.02
        stand.engine.metrics, stand.engine.models_broken = metrics, True
        backend._look_now.set()
        looked_ns = backend.facts.looked_ns
        await stand.until(lambda: backend.facts.looked_ns > looked_ns)
        looked_ns = backend.facts.looked_ns
        await stand.until(lambda: backend.facts.looked_ns > looked_ns)
        gate = stand.service.gate
        assert (gate.backend_up, gate.ledger.usable_blocks, gate.max_context) == (True, 32, 512)
        assert (await stand.chat()).status_code == 200
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
            assert (await admin.get("/metrics")).status_code == (await admin.get("/v1/state")).status_code == 200
        stand.engine.metrics, stand.engine.num_blocks = None, 21
        await stand.until(lambda: gate.ledger.usable_blocks == 20)

    play(scene)


def test_a_pool_that_cannot_be_is_not_taken(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        assert "usable blocks" in stand.service.backend.facts.problem
        assert (await stand.chat()).status_code == 503

    play(scene, {"num_blocks": 1}, look_for_s=0.3)


def test_a_pool_that_changes_is_taken_over(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.engine.num_blocks = 3
        await stand.until(lambda: stand.service.gate.ledger.usable_blocks == 2)
        answer = await stand.chat(max_tokens=100)
        assert answer.status_code == 400

    play(scene)


def test_a_pool_of_several_groups_is_refused_by_name_instead_of_counted_wrongly(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
            told = (await admin.get("/ready")).json()["problem"]
        assert "several KV cache groups" in told
        assert "--pool-blocks" in told
        assert (await stand.chat()).status_code == 503

    # Two groups of 16-token blocks: 512 tokens take 64 blocks, not 32.
    labels = 'kv_cache_size_tokens="5120",kv_cache_max_concurrency="10.0"'
    play(scene, {"num_blocks": 640, "cache_labels": labels}, look_for_s=0.3)


def test_drift_between_our_count_and_the_engines_is_counted(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        await stand.chat()
        await stand.chat(stream=True)
        assert stand.service.gateway.metrics.token_drift == 10

    play(scene, {"count": 10, "usage_prompt_tokens": 15})


def test_progress_is_told_to_the_gate_as_it_comes(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        _, writer = await stand.open_chat(stream=True, max_tokens=200)
        chunks = 5 * PROGRESS_STRIDE
        await stand.until(lambda: any(r.seen_tokens >= chunks - PROGRESS_STRIDE for r in stand.service.gate.ledger))
        writer.close()

    play(scene, {"chunks": 5 * PROGRESS_STRIDE, "hold": True})


# We go


def test_draining_serves_who_is_in_and_refuses_who_comes(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat())
        await stand.until(lambda: len(stand.engine.requests) == 1)
        stand.service.gateway.start_draining()
        answer = await stand.chat()
        assert answer.status_code == 503
        stand.engine.release.set()
        assert (await first).status_code == 200
        assert await stand.service.drain(1.0)

    play(scene, {"hold": True})


@pytest.mark.parametrize("kind", ["counting", "passing"])
def test_draining_waits_for_what_is_counted_or_passes_by_too(play: Play, kind: str) -> None:
    async def scene(stand: Stand) -> None:
        reception = stand.service.reception
        if kind == "counting":
            asked = asyncio.create_task(stand.chat())
            await stand.until(lambda: len(reception.counting) == 1)
        else:
            asked = asyncio.create_task(stand.client.post("/tokenize", content=b"{}"))
            await stand.until(lambda: len(reception.passing) == 1)
        draining = asyncio.create_task(stand.service.drain(5.0))
        await asyncio.sleep(0.05)
        assert not draining.done()
        stand.engine.release.set()
        assert (await asked).status_code == (200 if kind == "passing" else 503)
        assert await draining

    play(scene, {"hold_counting": True})


def test_what_passes_by_and_does_not_end_in_time_is_told_so(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        asked = asyncio.create_task(stand.client.post("/tokenize", content=b"{}"))
        await stand.until(lambda: len(stand.service.reception.passing) == 1)
        assert not await stand.service.drain(0.05)
        assert (await asked).status_code == 503

    play(scene, {"hold_counting": True})


def test_what_does_not_end_in_time_is_cut_off_and_counted(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat())
        await stand.until(lambda: len(stand.engine.requests) == 1)
        assert not await stand.service.drain(0.05)
        assert stand.outcomes() == {"shut_down": 1}
        assert (await first).status_code == 503
        assert int((await first).headers["retry-after"]) >= 1

    play(scene, {"hold": True})


def test_state_and_metrics_tell_the_same(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(headers={"x-kvbudget-tenant": "acme"}))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
            state = (await admin.get("/v1/state")).json()
            metrics = (await admin.get("/metrics")).text
            assert (await admin.get("/ready")).json()["ready"] is True
        assert state["reserved_blocks_by_tenant"] == {"acme": 2}
        assert (state["pool"]["usable_blocks"], state["pool"]["held_blocks"]) == (32, 16)
        instance = stand.service.backend.name
        assert f'kvbudget_reserved_blocks{{instance="{instance}",tenant="acme"}} 2.0' in metrics
        assert f'kvbudget_pool_blocks{{instance="{instance}"}} 32.0' in metrics
        assert f'kvbudget_held_blocks{{instance="{instance}"}} 16.0' in metrics
        stand.engine.release.set()
        await first

    play(scene, {"count": 10, "hold": True})


@pytest.mark.parametrize("broken", ["usage", "log"])
def test_what_goes_wrong_at_the_end_of_a_relay_leaves_no_promise_behind(play: Any, tmp_path: Path, broken: str) -> None:
    happened: list[str] = []

    def fails(*_: object) -> None:
        happened.append(broken)
        raise RuntimeError("a bug")

    async def scene(stand: Any) -> None:
        gateway = stand.service.gateway
        if broken == "usage":
            gateway.compared = fails
        else:
            gateway.access_log = SimpleNamespace(ended=fails, refused=fails)
        for _ in range(3):
            assert (await stand.chat()).status_code == 200  # its bytes were complete before
        assert (stand.promised(), list(gateway.flows)) == (0, [])
        assert len(happened) == 3

    play(scene, serve={"access_log": str(tmp_path / "log")})
