"""What each answer of the gate tells in its headers: whose it is, what is promised, its time in the queue, the room."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvbudget.edge.http.limits import ServerLimits

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
}
POOL_TOKENS = 32 * 16  # the scripted engine's, the null block aside
RESET = re.compile(r"\d+\.\d{3}s")


def told(answer: httpx.Response) -> tuple[int, int, int, float]:
    """(reserved blocks, queue ms, remaining tokens, reset s), once every header was found."""
    headers = answer.headers
    assert headers["x-request-id"]
    assert headers["x-ratelimit-limit-tokens"] == str(POOL_TOKENS)
    remaining, reset = int(headers["x-ratelimit-remaining-tokens"]), headers["x-ratelimit-reset-tokens"]
    assert 0 <= remaining <= POOL_TOKENS
    assert RESET.fullmatch(reset)
    if answer.request.url.path == "/v1/messages":
        assert headers["request-id"] == headers["x-request-id"]
        assert headers["anthropic-ratelimit-tokens-limit"] == str(POOL_TOKENS)
        assert headers["anthropic-ratelimit-tokens-remaining"] == str(remaining)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", headers["anthropic-ratelimit-tokens-reset"])
    queue_ms = int(headers["x-kvbudget-queue-ms"])
    return int(headers["x-kvbudget-reserved-blocks"]), queue_ms, remaining, float(reset[:-1])


def refused(answer: httpx.Response) -> tuple[int, int]:
    """(status, remaining tokens) of a refusal: nothing is promised, and the wait is told alike everywhere."""
    reserved, queue_ms, remaining, reset_s = told(answer)
    assert (reserved, queue_ms) == (0, 0)
    if answer.status_code in (429, 503):
        assert reset_s == pytest.approx(int(answer.headers["retry-after-ms"]) / 1000, abs=0.002)
        assert int(answer.headers["retry-after"]) >= reset_s
    else:
        assert reset_s == 0
    return answer.status_code, remaining


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_admitted_answer_tells_them_whole_or_as_a_stream(play: Play, path: str, stream: bool) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.client.post(
            path, json={**BODIES[path], "stream": stream}, headers={"x-request-id": "mine"}
        )
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
        reserved, _, remaining, _ = told(answer)
        assert 0 < reserved <= 32
        assert remaining == POOL_TOKENS - reserved * 16

    play(scene, {"count": 10})


@pytest.mark.parametrize("path", BODIES)
def test_a_refusal_tells_them_in_every_api(play: Play, path: str) -> None:
    async def scene(stand: Stand) -> None:
        body, client = BODIES[path], stand.client
        json = {"content-type": "application/json"}
        assert refused(await client.post(path, content=b"{", headers=json)) == (400, POOL_TOKENS)
        assert refused(await client.post(path, json=[body])) == (400, POOL_TOKENS)
        assert refused(await client.post(path, json=body, headers={"x-kvbudget-priority": "high"}))[0] == 400
        assert refused(await client.get(path)) == (405, POOL_TOKENS)
        holder = asyncio.ensure_future(stand.chat(max_tokens=480))
        await stand.until(lambda: stand.promised() > 28)
        status, remaining = refused(await client.post(path, json=body))
        assert (status, remaining) == (429, POOL_TOKENS - stand.promised() * 16)
        stand.engine.release.set()
        await holder
        stand.engine.count = 5000
        long = dict.fromkeys(body, "word " * 3000) if "messages" not in body else {
            **body, "messages": [{"role": "user", "content": "word " * 3000}]
        }  # fmt: skip
        assert refused(await client.post(path, json=long)) == (400, POOL_TOKENS)
        stand.service.gateway.start_draining()
        assert refused(await client.post(path, json=body)) == (503, POOL_TOKENS)

    play(scene, {"count": 10, "hold": True}, queue_requests=0)


def test_who_waited_in_vain_is_told_how_long(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        holder = asyncio.ensure_future(stand.chat(max_tokens=480))
        await stand.until(lambda: stand.promised() > 28)
        answer = await stand.chat(headers={"x-kvbudget-deadline-ms": "120"})
        reserved, queue_ms, _, _ = told(answer)
        assert (answer.status_code, reserved) == (429, 0)
        assert 100 <= queue_ms < 5000
        waits = asyncio.ensure_future(stand.chat())
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        await asyncio.sleep(0.05)
        drained = asyncio.ensure_future(stand.service.drain(0.0))
        answer = await waits
        reserved, queue_ms, _, _ = told(answer)
        assert (answer.status_code, reserved) == (503, 0)
        assert 40 <= queue_ms < 5000
        await asyncio.gather(holder, drained, return_exceptions=True)

    play(scene, {"count": 10, "hold": True})


def test_what_the_engine_refuses_or_breaks_off_tells_them(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.engine.refuse_with = 408
        assert refused(await stand.chat())[0] == 504
        stand.engine.refuse_with = None
        await stand.engine.stop()
        assert refused(await stand.chat()) == (503, POOL_TOKENS)
        assert refused(await stand.client.get("/no/such/path")) == (404, POOL_TOKENS)

    play(scene, {"count": 10})


def test_what_never_becomes_a_request_tells_them(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        for bad in (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"\x16\x03\x01\r\n\r\n",
        ):
            answer = await _raw(stand, bad)
            assert answer.status_code == 400
            refused(answer)
        named = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n"
        broken = await _raw(stand, named + b"transfer-encoding: chunked\r\n\r\nzz\r\n")
        assert broken.headers["x-request-id"] == "mine"
        large = await _raw(stand, named + b"content-length: 1000000000\r\n\r\n")
        assert (large.status_code, large.headers["x-request-id"]) == (413, "mine")
        assert (await stand.client.get("/health")).headers["x-request-id"]

    play(scene)


def test_a_gate_that_is_full_of_connections_tells_when_to_come_back(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        port = int(stand.service.url.rsplit(":", 1)[1])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        answer = await _raw(stand, b"")
        for _, writer in held:
            writer.close()
        assert refused(answer) == (503, POOL_TOKENS)
        assert answer.headers["retry-after"] in ("1", "2")

    play(scene, serve={"server_limits": ServerLimits(connections=2)})


async def _raw(stand: Stand, data: bytes) -> httpx.Response:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stand.service.url.rsplit(":", 1)[1]))
    writer.write(data)
    head, _, body = (await asyncio.wait_for(reader.read(65536), 10)).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return httpx.Response(
        int(first.split()[1]), headers=headers, content=body, request=httpx.Request("POST", "http://x/")
    )
