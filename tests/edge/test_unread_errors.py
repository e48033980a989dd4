"""What never becomes a request is refused as the API that it was sent to refuses: in its form, with its headers."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvbudget.edge.http.limits import ServerLimits

Play = Callable[..., None]
Stand = Any  # the class lives in conftest.py, which cannot be imported

PATHS = [
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/messages/batches", "/generate", "/generate_stream", "/v1/embeddings", "/v1/models", "/no/such/path",
]  # fmt: skip
HEAD = b"POST %b HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n"
# (status, code, what is sent, whether the client's request id can be known by then)
FAULTS: dict[str, tuple[int, str, bytes, bool]] = {
    "announced too large": (413, "body_too_large", HEAD + b"content-length: 100001\r\n\r\n", True),
    "chunks too large": (
        413, "body_too_large", HEAD + b"transfer-encoding: chunked\r\n\r\n186a1\r\n", True,
    ),
    "a broken chunk": (400, "bad_chunk", HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", True),
    "a large head": (431, "header_too_large", HEAD + b"a: " + b"b" * 5000 + b"\r\n\r\n", True),
    "a large query": (431, "header_too_large", b"POST %b?a=" + b"b" * 5000, False),
    "two framings": (
        400, "bad_framing", HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n", True,
    ),
    "a length that is none": (400, "bad_framing", HEAD + b"content-length: 1e3\r\n\r\n", True),
    "two lengths": (400, "duplicate_header", HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\n", True),
    "no host": (400, "host_required", b"POST %b HTTP/1.1\r\n\r\n", False),
    "a bad host": (400, "bad_host", b"POST %b HTTP/1.1\r\nhost: a b\r\nx-request-id: mine\r\n\r\n", True),
    "a fragment": (400, "bad_target", b"POST %b#a HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n\r\n", True),
    "a header without colon": (400, "bad_request", HEAD + b"nonsense\r\n\r\n", True),
    "a blank in a name": (400, "bad_request", HEAD + b"content-length : 3\r\n\r\n", True),
    "a bare line end": (400, "bad_request", HEAD + b"a: b\n", True),
    "an expectation": (417, "expectation_failed", HEAD + b"expect: 200-ok\r\n\r\n", True),
    "an upgrade": (400, "upgrade_refused", HEAD + b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n", True),
    "an unknown method": (501, "method_not_implemented", HEAD.replace(b"POST", b"BREW") + b"\r\n", True),
    "HTTP/2": (505, "http_version_not_supported", HEAD.replace(b"1.1", b"2.0") + b"\r\n", True),
    "HTTP/0.9": (505, "http_version_not_supported", b"POST %b\r\n\r\n", False),
    "an address": (400, "bad_framing", HEAD.replace(b" %b", b" http://x%b") + b"content-length: x\r\n\r\n", True),
}  # fmt: skip
LIMITS = ServerLimits(header_bytes=4000, body_bytes=100_000)
SLOW = ServerLimits(head_s=0.05, body_s=0.05)


async def raw(stand: Stand, data: bytes) -> httpx.Response:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stand.service.url.rsplit(":", 1)[1]))
    writer.write(data)
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    return httpx.Response(int(first.split()[1]), headers=headers, content=body)


def judge(answer: httpx.Response, path: str, code: str) -> None:
    """Its form and headers are those of any refusal of this API."""
    told, headers = answer.json(), answer.headers
    assert headers["content-type"] == "application/json"
    assert headers["x-kvbudget-reserved-blocks"] == "0"
    assert len(headers.get_list("x-request-id")) == 1
    anthropic = path.startswith("/v1/messages")
    if anthropic:
        assert set(told) == {"type", "error", "request_id"}
        assert told["type"] == "error"
        assert set(told["error"]) == {"type", "message"}
        assert told["request_id"] == headers["request-id"] == headers["x-request-id"]
        large = answer.status_code == 413
        assert answer.status_code >= 500 or told["error"]["type"] == (
            "request_too_large" if large else "invalid_request_error"
        )
    elif path.startswith("/generate"):
        assert set(told) == {"error", "error_type"}
        assert answer.status_code >= 500 or told["error_type"] == "validation"
    else:
        assert set(told["error"]) == {"message", "type", "param", "code"}
        assert told["error"]["code"] == code
    assert ("request-id" in headers) is anthropic
    assert ("anthropic-ratelimit-tokens-limit" in headers) is anthropic


@pytest.mark.parametrize("path", PATHS)
def test_each_fault_is_told_in_the_form_of_the_api_with_the_headers_of_a_refusal(play: Play, path: str) -> None:
    async def scene(stand: Stand) -> None:
        for name, (status, code, data, identified) in FAULTS.items():
            answer = await raw(stand, data.replace(b"%b", path.encode(), 1))
            assert answer.status_code == status, name
            judge(answer, path, code)
            assert answer.headers["x-should-retry"] == "false"
            assert (answer.headers["x-request-id"] == "mine") is identified, name

    play(scene, serve={"server_limits": LIMITS})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rest", [b"", b"content-length: 9\r\n\r\n{"])
def test_who_is_too_slow_is_told_in_the_form_of_the_api(play: Play, path: str, rest: bytes) -> None:
    async def scene(stand: Stand) -> None:
        answer = await raw(stand, HEAD % path.encode() + rest)
        assert answer.status_code == 400
        judge(answer, path, "request_timeout")
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["x-request-id"] == "mine"

    play(scene, serve={"server_limits": SLOW})


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_finds_no_room_is_told_when_to_come_back(play: Play, path: str) -> None:
    async def scene(stand: Stand) -> None:
        port = int(stand.service.url.rsplit(":", 1)[1])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * 90_000)
        await stand.until(lambda: stand.service._data_plane.buffered_bytes > 80_000)
        answer = await raw(stand, HEAD % path.encode() + b"content-length: 99999\r\n\r\n")
        writer.close()
        assert answer.status_code == 503
        judge(answer, path, "server_is_overloaded")
        assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("true", "2")

    play(scene, serve={"server_limits": ServerLimits(body_bytes=100_000, buffered_bytes=1)})


@pytest.mark.parametrize("path", PATHS)
def test_a_bug_of_ours_is_told_in_the_form_of_the_api(play: Play, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stand: Stand) -> None:
        def broken(exchange: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(stand.service._data_plane, "app", broken)
        answer = await stand.client.post(path, json={}, headers={"x-request-id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
        judge(answer, path, "internal_error")

    play(scene)


def test_what_was_sent_nowhere_is_refused_as_openai_does(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        for data in (b"\x16\x03\x01\r\n\r\n", b"nonsense\r\n\r\n", b"\r\n" * 9, b"POST /v1/mess" + b"a" * 5000):
            answer = await raw(stand, data)
            assert answer.status_code in (400, 431, 501)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert answer.headers["x-should-retry"] == "false"

    play(scene, serve={"server_limits": LIMITS})


def test_an_answer_to_head_has_no_body(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await raw(stand, b"HEAD /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n")
        assert (answer.status_code, answer.content) == (400, b"")
        assert int(answer.headers["content-length"]) > 0

    play(scene)


@pytest.mark.parametrize("path", ["/v1/messages", "/generate", "/v1/messages/batches", "/no/such/path"])
def test_a_wrong_method_or_path_is_hopeless(play: Play, path: str) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.client.get(path)
        assert answer.status_code in (404, 405)
        assert answer.headers["x-should-retry"] == "false"
        told = answer.json()
        if path.startswith("/v1/messages"):
            assert told["request_id"] == answer.headers["request-id"]

    play(scene)
