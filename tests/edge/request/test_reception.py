"""What the gate does with each API's path before and beside admission."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Play = Callable[..., None]
Stand = Any  # the class lives in conftest.py, which cannot be imported

HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 8},
    "/generate": {"inputs": "hi"},
    "/generate_stream": {"inputs": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/pooling": {"input": "hi"},
    "/classify": {"input": "hi"},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
}


def message_of(answer: httpx.Response) -> str:
    """The words of an error, whichever form it has."""
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


# Methods


@pytest.mark.parametrize("path", BODIES)
def test_other_methods_are_told_what_is_allowed_in_the_form_of_the_api(play: Play, path: str) -> None:
    async def scene(stand: Stand) -> None:
        options = await stand.client.options(path)
        assert (options.status_code, options.headers["allow"], options.content) == (204, "POST, OPTIONS", b"")
        get = await stand.client.get(path)
        assert (get.status_code, get.headers["allow"]) == (405, "POST, OPTIONS")
        assert "use POST" in message_of(get)
        head = await stand.client.head(path)
        assert (head.status_code, head.content) == (405, b"")
        assert stand.engine.requests == []

    play(scene)


def test_a_browsers_preflight_is_the_engines_to_answer(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        asked = {"access-control-request-method": "POST", "origin": "http://x"}
        answer = await stand.client.options("/v1/embeddings", headers=asked)
        assert answer.json()["path"] == "/v1/embeddings"

    play(scene)


# Admission, in each API's own words


@pytest.mark.parametrize("path", BODIES)
def test_every_api_is_charged_and_forwarded_with_its_cap(play: Play, path: str) -> None:
    async def scene(stand: Stand) -> None:
        body = {**BODIES[path], "stream": False} if path != "/generate_stream" else BODIES[path]
        answer = await stand.client.post(path, json=body)
        assert answer.status_code == 200
        assert int(answer.headers["x-kvbudget-reserved-blocks"]) >= 1

    play(scene, {"count": 10})


def test_a_cap_that_is_written_in_is_no_less_than_the_tokens_that_are_wanted_at_least(play: Play) -> None:
    """An engine refuses min_tokens over max_tokens, and the client named no max_tokens that could be."""

    async def scene(stand: Stand) -> None:
        path = "/v1/chat/completions"
        for least, cap in ((200, 200), (10, 64), (64, 64), (None, 64), (10**15, 502), (True, 64), (-5, 64), ("9", 64)):
            answer = await stand.client.post(path, json={**BODIES[path], "min_tokens": least})
            assert (answer.status_code, stand.engine.requests[-1]["max_tokens"]) == (200, cap), least
        await stand.client.post(path, json={**BODIES[path], "min_tokens": 200, "max_tokens": 100})
        assert stand.engine.requests[-1]["max_tokens"] == 100  # what a client contradicts itself in is not ours

    play(scene, {"count": 10})


@pytest.mark.parametrize("path", BODIES)
def test_every_api_says_in_its_own_form_that_a_prompt_is_too_long(play: Play, path: str) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.client.post(path, json=BODIES[path])
        if path in ("/v1/score", "/v1/rerank"):
            assert answer.status_code == 200  # a bound, worth no more than the window: the engine decides
            return
        assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
        assert "maximum context length is 512 tokens" in message_of(answer)
        assert "600" in message_of(answer)
        assert stand.refusals() == {"context_exceeded": 1}

    play(scene, {"count": 600})


def test_the_cap_is_called_what_the_api_calls_it(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        for path, name, body in (
            ("/v1/responses", "max_output_tokens", {"input": "hi", "max_output_tokens": 400}),
            ("/generate", "parameters.max_new_tokens", {"inputs": "hi", "parameters": {"max_new_tokens": 400}}),
        ):
            answer = await stand.client.post(path, json=body)
            assert answer.status_code == 400
            assert f"largest {name} that fits" in message_of(answer)

    play(scene, {"count": 10, "num_blocks": 17})


@pytest.mark.parametrize("path", BODIES)
def test_every_api_is_refused_in_its_own_form_while_there_is_no_room(play: Play, path: str) -> None:
    async def scene(stand: Stand) -> None:
        holder = asyncio.ensure_future(stand.chat(max_tokens=500))
        await stand.until(lambda: stand.promised() > 30)
        answer = await stand.client.post(path, json=BODIES[path])
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert answer.headers["x-should-retry"] == "true"
        told = answer.json()
        if path == "/v1/messages":
            assert (told["type"], told["error"]["type"]) == ("error", "rate_limit_error")
            assert told["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
        elif path.startswith("/generate"):
            assert told["error_type"] == "overloaded"
        else:
            assert told["error"]["code"] == "rate_limit_exceeded"
        stand.engine.release.set()
        await holder

    play(scene, {"count": 10, "hold": True}, queue_requests=0)


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/v1/chat/completions", b'data: {"error": {"message"'),
        ("/v1/responses", b'event: error\ndata: {"type":"error","code":"upstream_failed"'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"api_error"'),
        ("/generate_stream", b'data:{"error":"'),
    ],
)
def test_a_stream_that_breaks_ends_with_an_error_of_its_api(play: Play, path: str, form: bytes) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.client.post(path, json={**BODIES[path], "stream": True})
        assert answer.status_code == 200
        last = answer.content.rstrip(b"\n").rsplit(b"\n\n", 1)[1]
        assert last.startswith(form), last
        await stand.until(lambda: stand.outcomes() == {"upstream_failed": 1})

    play(scene, {"count": 10, "die": "midway"})


def test_an_earlier_response_is_charged_the_whole_window(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        body = {"input": "go on", "previous_response_id": "resp_1", "max_output_tokens": 12}
        answer = await stand.client.post("/v1/responses", json=body)
        assert answer.headers["x-kvbudget-reserved-blocks"] == "32"  # 512 tokens
        assert answer.headers["x-kvbudget-prompt-tokens"] == "500"  # what was charged, as no count was to be had

    play(scene, {"count": 10})


def test_trace_context_reaches_the_engine_as_it_came_and_none_is_invented(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}
        await stand.chat(headers=trace)
        await stand.chat()
        first, second = stand.engine.heads
        assert {name: first[name] for name in trace} == trace
        assert not trace.keys() & second.keys()

    play(scene)


# Beam search


def test_beams_are_sequences_and_need_a_prefix_cache(play: Play) -> None:
    async def served(stand: Stand) -> None:
        answer = await stand.chat(use_beam_search=True, n=4)
        assert answer.headers["x-kvbudget-reserved-blocks"] == "8"
        too_wide = await stand.chat(use_beam_search=True, n=17, max_tokens=20)
        assert too_wide.status_code == 400
        assert "sequences" in message_of(too_wide)

    async def refused(stand: Stand) -> None:
        answer = await stand.chat(use_beam_search=True, n=2)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "beam_search_refused")
        assert "--enable-prefix-caching" in message_of(answer)
        assert (await stand.chat(n=2)).status_code == 200

    labels = 'kv_cache_size_tokens="None",enable_prefix_caching="%s"'
    play(served, {"count": 10, "cache_labels": labels % "True"})
    play(refused, {"count": 10, "cache_labels": labels % "False"})


# Tokens counted for their own sake


def test_count_tokens_is_answered_by_the_gate_with_what_it_would_charge(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.client.post("/v1/messages/count_tokens", json={"model": "m", "messages": HI})
        assert (answer.status_code, answer.json()) == (200, {"input_tokens": 42})
        assert answer.headers["x-kvbudget-count"] == "exact"
        assert stand.engine.requests == []
        assert stand.outcomes() == {}

    play(scene, {"count": 42})


def test_a_count_that_fails_is_bounded_and_says_so(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.client.post("/v1/messages/count_tokens", json={"messages": HI})
        assert answer.status_code == 200
        assert answer.json()["input_tokens"] > 2
        assert answer.headers["x-kvbudget-count"] == "bound"

    play(scene, {"count": -1})


def test_a_body_that_cannot_be_counted_is_refused_as_anthropic_does(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        for content in (b"{", b'{"messages":[]}', json.dumps({"messages": HI, "system": 5}).encode()):
            answer = await stand.client.post("/v1/messages/count_tokens", content=content)
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (await stand.client.get("/v1/messages/count_tokens")).status_code == 200  # the engine's to answer

    play(scene)


def test_a_client_that_leaves_while_it_is_counted_for_leaves_nothing_behind(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        counts = stand.service.reception.token_counts
        asking = asyncio.ensure_future(stand.client.post("/v1/messages/count_tokens", json={"messages": HI}))
        await stand.until(lambda: bool(counts.under_way))
        asking.cancel()
        await stand.until(lambda: not counts.under_way)

    play(scene, {"hold_counting": True})


def test_a_gate_that_stops_tells_those_who_are_counted_for(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        counts = stand.service.reception.token_counts
        asking = asyncio.ensure_future(stand.client.post("/v1/messages/count_tokens", json={"messages": HI}))
        await stand.until(lambda: bool(counts.under_way))
        counts.stop()
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")

    play(scene, {"hold_counting": True})


# What is seen of an answer


@pytest.mark.parametrize(("path", "lead"), [("/v1/chat/completions", 0), ("/v1/messages", 2), ("/v1/responses", 4)])
def test_what_comes_before_the_first_token_is_no_progress(play: Play, path: str, lead: int) -> None:
    async def scene(stand: Stand) -> None:
        body = {**BODIES[path], "stream": True}
        asking = asyncio.ensure_future(stand.client.post(path, json=body))
        await stand.until(lambda: bool(stand.engine.requests))
        flow = next(iter(stand.service.gateway.flows))
        await stand.until(lambda: flow.seen_events == 3 - lead)
        (living,) = stand.service.gate.ledger
        assert living.seen_tokens == max(0, 3 - lead)
        stand.engine.release.set()
        await asking

    play(scene, {"count": 10, "chunks": 3, "hold": True})


def test_each_api_key_of_anthropic_is_a_tenant_too(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        for key in ("sk-1", "sk-2", "sk-1"):
            await stand.client.post("/v1/messages", json=BODIES["/v1/messages"], headers={"x-api-key": key})
        assert len(stand.service.reception.identities.tenants) == 3

    play(scene)


def test_a_compressed_body_is_refused_as_the_engine_might_undo_it_and_run_another_one(play: Any) -> None:
    async def scene(stand: Any) -> None:
        for coding, status in (("gzip", 415), ("br", 415), ("deflate, identity", 415), ("Identity", 200), ("", 200)):
            for _ in range(2):  # read, and recognised
                answer = await stand.chat(headers={"content-encoding": coding})
                assert answer.status_code == status, coding
        assert (await stand.chat(headers={"content-encoding": "gzip"})).json()["error"]["code"] == (
            "unsupported_content_encoding"
        )
        assert len(stand.engine.requests) == 4

    play(scene)
