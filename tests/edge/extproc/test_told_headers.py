"""Behind Envoy as without it: every refusal tells that nothing is promised, the time in the queue, the room."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from extproc_peer import chat_body, headers_set, request_body, request_headers
from kvbudget.edge.extproc.service import Timeouts
from kvbudget.edge.extproc.wire import BodyMode
from kvbudget.edge.http.limits import ServerLimits

Play = Callable[..., None]
POOL_TOKENS = 32 * 16


def refused(answer: Any, status: int, most_ms: int = 0) -> int:
    """The ms in the queue, once every header was found."""
    headers = headers_set(answer)
    assert answer.immediate_response.status.code == status
    assert headers["x-request-id"]
    assert headers["x-kvbudget-reserved-blocks"] == "0"
    assert headers["x-ratelimit-limit-tokens"] == str(POOL_TOKENS)
    assert 0 <= int(headers["x-ratelimit-remaining-tokens"]) <= POOL_TOKENS
    reset_s = float(headers["x-ratelimit-reset-tokens"].removesuffix("s"))
    if status in (429, 503):
        assert abs(reset_s * 1000 - int(headers["retry-after-ms"])) <= 2
    else:
        assert reset_s == 0
    waited_ms = int(headers["x-kvbudget-queue-ms"])
    assert 0 <= waited_ms <= most_ms
    return waited_ms


def test_every_refusal_tells_them(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peers = [stage.plane.stream() for _ in range(6)]
        never, broken, holder, full, drained, large = peers
        words = [{"role": "user", "content": "word " * 600}]
        refused(await never.asked(chat_body(messages=words)), 400)
        answer = await broken.asked(b"{", headers={"x-request-id": "mine"})
        refused(answer, 400)
        assert headers_set(answer)["x-request-id"] == "mine"
        await holder.asked(chat_body(max_tokens=400))
        refused(await full.asked(chat_body(max_tokens=400)), 429)
        await large.say(request_headers(headers={"x-request-id": "large"}, request_mode=BodyMode.FULL_DUPLEX))
        for _ in range(5):
            await large.say(request_body(b"x" * 60_000, ends=False))
        answer = await large.hear()
        refused(answer, 413)
        assert headers_set(answer)["x-request-id"] == "large"
        stage.service.gateway.start_draining()
        refused(await drained.asked(chat_body()), 503)
        for peer in peers:
            await peer.hang_up()
        await stage.empty()

    stage(scene, serve={"tokenizer": "engine"}, limits=ServerLimits(body_bytes=200_000), queue_requests=0)


def test_an_error_before_the_body_is_whole_has_the_form_of_its_api(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        for path in ("/v1/messages", "/generate", "/v1/completions"):
            large = stage.plane.stream()
            await large.say(request_headers(path, request_mode=BodyMode.FULL_DUPLEX))
            await large.say(request_body(b"x" * 60_000, ends=False))
            answer = await large.hear()
            refused(answer, 413)
            told, headers = json.loads(answer.immediate_response.body), headers_set(answer)
            assert headers["x-should-retry"] == "false"
            if path == "/v1/messages":
                assert told["error"]["type"] == "request_too_large"
                assert told["request_id"] == headers["request-id"] == headers["x-request-id"]
            else:
                assert ("error_type" in told) is (path == "/generate")
                assert "request-id" not in headers
            await large.hang_up()
        await stage.empty()

    stage(scene, limits=ServerLimits(body_bytes=50_000))


def test_who_envoy_waits_for_no_longer_is_told_how_long_that_was(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        holder, waiting, late = [stage.plane.stream() for _ in range(3)]
        await holder.asked(chat_body(max_tokens=400))
        asked = asyncio.create_task(waiting.asked(chat_body(max_tokens=400)))
        assert refused(await asked, 429, most_ms=5000) >= 400
        deadline = {"x-kvbudget-deadline-ms": "120"}
        assert refused(await late.asked(chat_body(max_tokens=400), headers=deadline), 429, most_ms=5000) >= 100
        for peer in (holder, waiting, late):
            await peer.hang_up()
        await stage.empty()

    stage(scene, timeouts=Timeouts(1.0))
