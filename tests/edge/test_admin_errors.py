"""Every error of the admin port has the contract's form, whoever answers it."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvbudget.edge.web.answering import ADMIN_CODES

Play = Callable[..., None]
MEMBERS = {"message", "type", "param", "code"}
REFUSED: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("GET", "/no/such/path", {}, 404, "not_found"),
    ("GET", "/static/no-such.js", {}, 404, "not_found"),
    ("GET", "/api/export/plan.exe", {}, 404, "not_found"),
    ("POST", "/v1/instances/nobody/drain", {"json": {}}, 404, "not_found"),
    ("DELETE", "/v1/state", {"headers": {"content-type": "application/json"}}, 405, "method_not_allowed"),
    ("POST", "/v1/state", {"json": {}}, 405, "method_not_allowed"),
    ("GET", "/v1/mode", {}, 405, "method_not_allowed"),
    ("POST", "/v1/mode", {"json": {"shadow": 1}}, 400, "bad_value"),
    ("POST", "/v1/mode", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "bad_value"),
    ("POST", "/v1/mode", {"content": b'{"shadow": true}'}, 403, "forbidden"),
    ("POST", "/v1/reload", {"json": {}}, 400, "bad_value"),
    ("GET", "/api/plan?layers=0", {}, 400, "bad_value"),
    ("POST", "/api/plan", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "bad_config"),
    ("POST", "/api/whatif", {"json": {}}, 400, "bad_value"),
    ("POST", "/api/simulate", {"json": []}, 400, "bad_value"),
]


def in_form(answer: httpx.Response) -> dict[str, Any]:
    """Its error, once it was found to be one of the contract."""
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    error: dict[str, Any] = document["error"]
    assert error.keys() >= MEMBERS, error
    assert all(isinstance(error[name], str) and error[name] for name in ("message", "type", "code")), error
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] in ADMIN_CODES
    return error


def test_every_error_of_the_admin_port_is_in_the_form_of_the_contract(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
            for method, path, more, status, code in REFUSED:
                answer = await admin.request(method, path, **more)
                assert (answer.status_code, in_form(answer)["code"]) == (status, code), (method, path)
            assert (await admin.request("DELETE", "/v1/state", json={})).headers["allow"] == "GET, HEAD"
            wrong = in_form(await admin.get("/api/plan?layers=0"))
            assert wrong["message"].startswith("layers: '0' is out of range")
            assert wrong["fix"] == "a whole number from 1 to 512"
            unknown = in_form(await admin.post("/v1/instances/nobody/drain", json={}))
            assert unknown["param"] == "name"

    play(scene)


def test_what_is_no_http_is_told_in_the_same_form(play: Play) -> None:
    async def scene(stand: Any) -> None:
        port = int(stand.service.admin_url.rsplit(":", 1)[1])
        for said in (
            b"nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\na\x00: b\r\n\r\n",
            b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
            writer.close()
            first, *lines = head.decode().split("\r\n")
            assert first == "HTTP/1.1 400 Bad Request"
            headers = dict(line.split(": ", 1) for line in lines)
            assert (headers["connection"], int(headers["content-length"])) == ("close", len(body))
            assert in_form(httpx.Response(400, headers=headers, content=body))["code"] == "bad_input"

    play(scene)


def test_who_may_not_is_told_in_the_same_form(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
            for method, path, status, code in [
                ("GET", "/v1/state", 401, "unauthorized"),
                ("GET", "/no/such/path", 401, "unauthorized"),
                ("DELETE", "/login", 405, "method_not_allowed"),
                ("POST", "/login", 403, "forbidden"),
            ]:
                answer = await admin.request(method, path)
                assert (answer.status_code, in_form(answer)["code"]) == (status, code), (method, path)
            for _ in range(5):
                wrong = await admin.post("/login", json={"token": "guess"})
                assert (wrong.status_code, in_form(wrong)["code"]) == (403, "forbidden")
            limited = await admin.post("/login", json={"token": "guess"})
            assert (limited.status_code, in_form(limited)["code"]) == (429, "rate_limit_exceeded")
            await admin.post("/login", json={"token": "guess"})

    play(scene, serve={"admin_token": "s3cret"})


def test_a_bug_of_ours_is_told_in_the_same_form(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
            monkeypatch.setattr("kvbudget.edge.control.admin.state_of", broken)
            answer = await admin.get("/v1/state")
            assert (answer.status_code, in_form(answer)["code"]) == (500, "internal_error")

    play(scene)


def test_who_watches_too_many_is_told_in_the_same_form(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbudget.edge.web.live._MOST_WATCHERS", 0)

    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
            answer = await admin.get("/api/live/stream")
            assert (answer.status_code, in_form(answer)["code"]) == (503, "too_many_watchers")
            assert answer.headers["retry-after"] == "10"

    play(scene)
