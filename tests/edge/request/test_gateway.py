import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Play = Callable[..., None]
Stand = Any  # the class lives in conftest.py, which cannot be imported


def error_of(answer: httpx.Response) -> dict[str, str]:
    error: dict[str, str] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# Served


def test_an_admitted_answer_carries_what_was_promised(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(headers={"x-request-id": "mine"})
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["x-kvbudget-reserved-blocks"] == "2"
        assert answer.headers["x-kvbudget-prompt-tokens"] == "10"
        assert answer.headers["x-kvbudget-queue-ms"] == "0"
        assert answer.headers["x-ratelimit-limit-tokens"] == str(32 * 16)
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(30 * 16)
        assert stand.engine.heads[0]["x-request-id"] == "mine"
        assert stand.outcomes() == {"finished": 1}

    play(scene, {"count": 10})


def test_headers_to_the_gate_are_not_the_engines_business_but_the_clients_others_are(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        await stand.chat(headers={"x-kvbudget-tenant": "acme", "authorization": "Bearer k", "x-own": "1"})
        head = stand.engine.heads[0]
        assert (head["authorization"], head["x-own"]) == ("Bearer k", "1")
        assert not any(name.startswith("x-kvbudget") for name in head)

    play(scene)


def test_a_missing_limit_is_written_into_the_forwarded_body_and_one_too_large_is_clamped(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        await stand.chat(max_tokens=None)
        await stand.chat(max_tokens=100_000)
        assert [ask["max_tokens"] for ask in stand.engine.requests] == [64, 502]

    play(scene, {"count": 10})


def test_n_multiplies_the_promise(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(n=3)
        assert answer.headers["x-kvbudget-reserved-blocks"] == "6"

    play(scene, {"count": 10})


def test_a_stream_passes_byte_for_byte(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        through = await stand.chat(stream=True)
        straight = httpx.AsyncClient(base_url=stand.service.backend.url)
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, "stream": True}
        async with straight:
            direct = await straight.post("/v1/chat/completions", json=body)
        assert through.content == direct.content
        assert through.content.endswith(b"data: [DONE]\n\n")

    play(scene, {"count": 10, "usage_prompt_tokens": 10, "chunks": 50})


def test_what_holds_no_kv_passes_without_a_promise(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.client.post("/v1/audio/speech", content=b'{"input":"x"}')
        assert answer.json() == {"path": "/v1/audio/speech", "body": '{"input":"x"}'}
        assert (await stand.client.get("/v1/missing")).status_code == 404
        assert (await stand.client.get("/v1/models")).json()["data"][0]["id"] == "m"
        assert stand.outcomes() == {}

    play(scene)


# Refused


def test_over_the_context_is_400_with_vllms_sentence(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat()
        error = error_of(answer)
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "This model's maximum context length is 512 tokens" in error["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert "x-request-id" in answer.headers
        assert stand.engine.requests == []
        assert stand.refusals() == {"context_exceeded": 1}

    play(scene, {"count": 600})


def test_more_than_the_pool_is_400_with_the_largest_that_fits(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(max_tokens=300)
        error = error_of(answer)
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "is 60" in error["message"]
        assert (await stand.chat(max_tokens=60)).status_code == 200

    play(scene, {"count": 100, "num_blocks": 11})


def test_no_room_now_is_429_with_an_honest_time(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        answer = await stand.chat(max_tokens=400)
        assert (answer.status_code, error_of(answer)["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert int(answer.headers["retry-after-ms"]) <= 1000 * int(answer.headers["retry-after"])
        stand.engine.release.set()
        assert (await first).status_code == 200

    play(scene, {"count": 100, "hold": True}, queue_requests=0)


def test_who_waits_is_served_when_room_comes_back_and_told_how_long_it_waited(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        second = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        await asyncio.sleep(0.05)
        stand.engine.release.set()
        assert (await first).status_code == (await second).status_code == 200
        assert int((await second).headers["x-kvbudget-queue-ms"]) >= 45

    play(scene, {"count": 100, "hold": True})


def test_a_deadline_in_the_queue_is_kept(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        answer = await stand.chat(max_tokens=400, headers={"x-kvbudget-deadline-ms": "60"})
        assert answer.status_code == 429
        assert stand.outcomes() == {"expired": 1}
        stand.engine.release.set()
        await first

    play(scene, {"count": 100, "hold": True})


def test_a_more_urgent_request_goes_first(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        bulk = asyncio.create_task(stand.chat(max_tokens=401, headers={"x-kvbudget-priority": "9"}))
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        urgent = asyncio.create_task(stand.chat(max_tokens=402, headers={"x-kvbudget-priority": "-1"}))
        await stand.until(lambda: len(stand.service.gate.queue) == 2)
        stand.engine.release.set()
        await asyncio.gather(first, bulk, urgent)
        assert [ask["max_tokens"] for ask in stand.engine.requests] == [400, 402, 401]

    play(scene, {"count": 100, "hold": True})


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {}),
        (b"[]", {}),
        (b'{"messages": 5}', {}),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}', {}),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 0}', {}),
        (b'{"messages": [{"role": "user", "content": "x"}]}', {"x-kvbudget-tenant": "a b"}),
        (b'{"messages": [{"role": "user", "content": "x"}]}', {"x-kvbudget-priority": "high"}),
        (b'{"messages": [{"role": "user", "content": "x"}]}', {"x-kvbudget-deadline-ms": "0"}),
    ],
)
def test_what_cannot_be_understood_is_400_and_never_reaches_the_engine(
    play: Play, body: bytes, headers: dict[str, str]
) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.client.post("/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == 400
        assert isinstance(error_of(answer)["code"], str)
        assert stand.engine.requests == []
        assert stand.refusals() == {"bad_request": 1}

    play(scene)


def test_unknown_paths_and_methods_are_refused_in_the_same_form(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        for method, path, status in (
            ("GET", "/admin", 404),
            ("GET", "/v1/chat/completions", 405),
            ("POST", "/v1/chat/completions/batch", 404),
        ):
            answer = await stand.client.request(method, path)
            assert answer.status_code == status
            error_of(answer)
        assert (await stand.client.get("/health")).json() == {"status": "ok"}

    play(scene)


def test_of_a_large_body_no_objects_are_kept_while_it_waits(play: Any) -> None:
    async def scene(stand: Any) -> None:
        asking = asyncio.create_task(stand.chat(metadata=[{"a": []}] * 20_000))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        (flow,) = stand.service.gateway.flows
        assert len(flow.ask.raw) > 150_000
        assert len(repr(flow.ask._replace(raw=b""))) < 1000
        stand.engine.release.set()
        assert (await asking).status_code == 200
        assert stand.engine.requests[0]["metadata"] == [{"a": []}] * 20_000

    play(scene, {"hold": True, "count": 10})
