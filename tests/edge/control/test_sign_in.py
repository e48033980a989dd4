"""Signing in at the admin port in a browser: the token once, then a cookie; nothing that another site could use."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from kvbudget.edge.control import sessions as admin_sessions
from kvbudget.edge.control.sessions import LONGEST_NS, MOST_SESSIONS, Sessions, Tries
from kvbudget.edge.control.sign_in import SignIn, from_own_page

Play = Callable[..., None]
SECOND = 10**9
HTML = {"accept": "text/html,application/xhtml+xml"}
TOKEN = {"admin_token": "s3cret"}


def signed(client: httpx.AsyncClient, url: str, **headers: str) -> Any:
    return client.post(f"{url}/login", json={"token": "s3cret"}, headers=headers)


def test_a_page_leads_to_where_to_sign_in_and_back_and_programs_are_told_as_before(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as browser:
            asked = await browser.get("/ledger?context=8k&kv_heads=4", headers=HTML)
            assert asked.status_code == 303
            assert asked.headers["location"] == "/login?next=%2Fledger%3Fcontext%3D8k%26kv_heads%3D4"
            page = await browser.get(asked.headers["location"])
            assert "Sign in" in page.text
            assert "form-action 'none'" in page.headers["content-security-policy"]
            assert (await browser.get("/static/login.js")).status_code == 200
            for path in ("/v1/state", "/api/live", "/metrics", "/api/pages"):
                told = await browser.get(path)
                assert (told.status_code, told.headers["www-authenticate"]) == (401, "Bearer")
            assert (await browser.post("/api/plan", json={}, headers=HTML)).status_code == 401
            assert (await browser.get("/api/session")).json() == {"signed_in": False}

    play(scene, serve=TOKEN)


def test_the_token_is_typed_once_and_the_cookie_stands_for_it_until_who_has_it_leaves(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as browser:
            answer = await signed(browser, "")
            cookie = answer.headers["set-cookie"]
            port = stand.service.admin_url.rsplit(":", 1)[1]
            assert cookie.startswith(f"kvbudget_session_{port}=")
            assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"} <= set(cookie.split("; "))
            assert "Secure" not in cookie
            assert "s3cret" not in cookie
            assert (await browser.get("/live", headers=HTML)).status_code == 200
            assert (await browser.get("/v1/state")).status_code == 200
            assert (await browser.get("/api/pages")).json()["session"] is True
            assert (await browser.get("/api/session")).json() == {"signed_in": True}
            kept = dict(browser.cookies)
            left = await browser.post("/logout", json={})
            assert (left.status_code, "Max-Age=0" in left.headers["set-cookie"]) == (200, True)
            stolen = {"cookie": "; ".join(f"{name}={value}" for name, value in kept.items())}
            assert (await browser.get("/v1/state", headers=stolen)).status_code == 401

    play(scene, serve=TOKEN)


class Reading:
    """Somebody who reads the stream of the live page, by a cookie or a header."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.looks = 0
        self.whole = False  # it ended as an answer does
        self._url = url
        self._headers = headers
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with (
            httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=30) as client,
            client.stream("GET", "/api/live/stream") as answer,
        ):
            async for line in answer.aiter_lines():
                self.looks += line == "event: now"
            self.whole = True

    async def began(self) -> None:
        async with asyncio.timeout(10):
            while not self.looks:
                await asyncio.sleep(0.005)


async def cookie_of(url: str) -> dict[str, str]:
    async with httpx.AsyncClient(base_url=url) as browser:
        await signed(browser, "")
        return {"cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}


def test_whoever_signs_out_reads_no_stream_any_more_and_nobody_else_is_cut(play: Play, caplog: Any) -> None:
    async def scene(stand: Any) -> None:
        url = stand.service.admin_url
        own, another = await cookie_of(url), await cookie_of(url)
        reading = [Reading(url, headers) for headers in (own, own, another, {"authorization": "Bearer s3cret"})]
        for one in reading:
            await one.began()
        async with httpx.AsyncClient(base_url=url, headers=own) as browser:
            assert (await browser.get("/v1/state")).status_code == 200
            assert (await browser.post("/logout", json={})).status_code == 200
        async with asyncio.timeout(5):
            await asyncio.gather(reading[0].task, reading[1].task)
        assert [one.whole for one in reading] == [True, True, False, False]
        seen = reading[2].looks, reading[3].looks
        await stand.until(lambda: reading[2].looks > seen[0] and reading[3].looks > seen[1])
        for one in reading[2:]:
            one.task.cancel()
        await asyncio.gather(*[one.task for one in reading], return_exceptions=True)

    play(scene, serve=TOKEN)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_stream_ends_with_the_session_also_when_its_time_is_over(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stand: Any) -> None:
        url = stand.service.admin_url
        monkeypatch.setattr(admin_sessions, "LONGEST_NS", SECOND)
        reading = Reading(url, await cookie_of(url))
        async with asyncio.timeout(10):
            await reading.task
        assert reading.looks
        assert reading.whole

    play(scene, serve=TOKEN)


def test_whoever_is_one_session_too_many_ends_the_first_and_what_it_reads() -> None:
    now, ended = [0], []
    sessions = Sessions(lambda: now[0])
    first = sessions.begin()
    sessions.watch(first, lambda: ended.append("first"))
    gone: list[str] = []
    leave = lambda: gone.append("left")  # noqa: E731
    sessions.watch(first, leave)
    sessions.unwatch(first, leave)
    for _ in range(MOST_SESSIONS):
        last = sessions.begin()
    assert (ended, gone) == (["first"], [])
    sessions.watch(first, lambda: ended.append("too late"))  # it is over already
    assert ended == ["first", "too late"]
    assert sessions.left_ns(first) == 0
    assert sessions.left_ns(last) == LONGEST_NS
    sessions.unwatch(first, leave)
    sessions.watch(last, lambda: ended.append("last"))
    now[0] = LONGEST_NS
    assert not sessions.holds(last)
    assert ended[-1] == "last"


def test_behind_an_encrypting_proxy_the_cookie_travels_encrypted_only(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as browser:
            answer = await signed(browser, "", **{"x-forwarded-proto": "https"})
            assert "Secure" in answer.headers["set-cookie"].split("; ")

    play(scene, serve=TOKEN)


def test_with_the_cookie_alone_changes_come_from_our_own_pages_alone(play: Play) -> None:
    async def scene(stand: Any) -> None:
        url = stand.service.admin_url
        host = url.removeprefix("http://")
        async with httpx.AsyncClient(base_url=url) as browser:
            await signed(browser, "")
            for headers in (
                {}, {"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
                {"origin": url, "content-type": "text/plain"}, {"origin": f"http://{host}0"},
                {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"},
            ):  # fmt: skip
                refused = await browser.post(
                    "/v1/mode", content=b'{"shadow": true}', headers={"content-type": "application/json", **headers}
                )
                assert refused.status_code == 403, headers
            assert not stand.service.gateway.shadow
            for headers in ({"origin": url}, {"sec-fetch-site": "same-origin"}):
                assert (await browser.post("/v1/mode", json={"shadow": False}, headers=headers)).status_code == 200
            right = {"authorization": "Bearer s3cret", "origin": "https://grafana.example"}
            assert (await browser.post("/v1/mode", json={"shadow": False}, headers=right)).status_code == 200

    play(scene, serve=TOKEN)


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({}, b'{"token": "s3cre"}', 403), ({}, b"[]", 403), ({}, b'{"token": 7}', 403), ({}, b"{", 403),
        ({}, b'{"token": "%s"}' % (b"x" * 5000), 403),
        ({"origin": "https://evil.example"}, b'{"token": "s3cret"}', 403),
        ({"content-type": "text/plain"}, b'{"token": "s3cret"}', 403), ({}, b'{"token": " s3cret "}', 200),
    ],
)  # fmt: skip
def test_only_the_token_opens_and_only_from_our_own_page(
    play: Play, headers: dict[str, str], content: bytes, status: int
) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as browser:
            as_json = {"content-type": "application/json"}
            answer = await browser.post("/login", content=content, headers={**as_json, **headers})
            assert answer.status_code == status
            assert ("set-cookie" in answer.headers) is (status == 200)
            assert (await browser.get("/v1/state")).status_code == (200 if status == 200 else 401)
            assert (await browser.put("/logout")).status_code == 405
            assert (await browser.get("/logout", headers=HTML)).status_code == 405

    play(scene, serve=TOKEN)


def test_guessing_is_slow_and_the_right_token_waits_as_well(play: Play) -> None:
    async def scene(stand: Any) -> None:
        url = stand.service.admin_url
        async with httpx.AsyncClient(base_url=url) as browser:
            for _ in range(admin_sessions.PEER_TRIES):
                assert (await browser.post("/login", json={"token": "no"})).status_code == 403
            limited = await signed(browser, "")
            assert limited.status_code == 429
            assert 1 <= int(limited.headers["retry-after"]) <= 10
            right = {"authorization": "Bearer s3cret"}
            assert (await browser.get("/v1/state", headers=right)).status_code == 200

    play(scene, serve=TOKEN)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_program_that_guesses_is_slowed_down_and_one_that_knows_never_is(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as program:
            for number in range(admin_sessions.PEER_TRIES):
                wrong = await program.get("/v1/state", headers=bearer(f"guess-{number}"))
                assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer")
                assert (await program.get("/v1/state", headers=bearer("s3cret"))).status_code == 200
            for path in ("/v1/state", "/metrics", "/live"):
                limited = await program.get(path, headers={**bearer("another"), **HTML})
                assert limited.status_code == 429
                assert 1 <= int(limited.headers["retry-after"]) <= 10
                assert "too many wrong tokens" in limited.json()["error"]["message"]
            assert (await program.get("/v1/state", headers=bearer("s3cret"))).status_code == 200
            assert (await program.get("/health", headers=bearer("another"))).status_code == 200  # it wants none
            assert (await program.get("/v1/state")).status_code == 401  # nothing was guessed
            assert (await program.get("/v1/state", headers={"authorization": "Basic eDp5"})).status_code == 401
            # Nor does a program with an old token keep people from signing in.
            assert (await signed(program, "")).status_code == 200
            assert (await program.get("/v1/state", headers=bearer("old"))).status_code == 200  # by the cookie

    play(scene, serve=TOKEN)


def test_guesses_of_programs_come_back_one_by_one() -> None:
    now = [0]
    sign_in = SignIn(admin_sessions.hashed("s3cret"), lambda: now[0])

    def waits(peer: str) -> bool:
        return sign_in.guessed(Request({"type": "http", "headers": [], "client": (peer, 1)})) is not None

    at_once = admin_sessions.PEER_TRIES
    assert [waits("a") for _ in range(at_once + 2)] == [False] * at_once + [True] * 2
    assert not waits("b")
    now[0] = 10 * SECOND
    assert [waits("a"), waits("a")] == [False, True]  # those that were refused cost no further wait
    answers = [waits(f"peer-{number}") for number in range(2 * admin_sessions.ALL_TRIES)]
    assert answers.count(False) < admin_sessions.ALL_TRIES


def test_guesses_that_come_all_at_once_are_no_more(play: Play) -> None:
    async def scene(stand: Any) -> None:
        many = admin_sessions.PEER_TRIES + 20
        limits = httpx.Limits(max_connections=many)
        async with httpx.AsyncClient(base_url=stand.service.admin_url, limits=limits) as browser:
            guesses = [browser.post("/login", json={"token": "no"}) for _ in range(many)]
            answers = [answer.status_code for answer in await asyncio.gather(*guesses)]
        assert sorted(answers) == [403] * admin_sessions.PEER_TRIES + [429] * 20

    play(scene, serve=TOKEN)


def test_without_a_token_there_is_nothing_to_sign_in_to(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as browser:
            assert (await browser.get("/login")).status_code == 404
            assert (await browser.get("/api/pages")).json()["session"] is False

    play(scene)


def test_a_session_is_over_after_a_working_day_and_there_are_only_so_many() -> None:
    now = [0]
    sessions = Sessions(lambda: now[0])
    first = sessions.begin()
    assert sessions.holds(first)
    assert not sessions.holds(first + "x")
    now[0] = LONGEST_NS - 1
    assert sessions.holds(first)
    now[0] = LONGEST_NS
    assert not sessions.holds(first)
    many = [sessions.begin() for _ in range(MOST_SESSIONS + 1)]
    assert [sessions.holds(one) for one in many] == [False] + [True] * MOST_SESSIONS
    sessions.end(many[1])
    sessions.end(many[1])
    assert not sessions.holds(many[1])


def test_tries_come_back_one_by_one_for_each_address_and_for_all() -> None:
    now = [0]
    tries = Tries(lambda: now[0])
    for number in range(admin_sessions.PEER_TRIES):
        assert tries.wait_ns("a") == 0, number
        tries.was_wrong("a")
    assert tries.wait_ns("a") == 10 * SECOND
    assert tries.wait_ns("b") == 0
    now[0] = 10 * SECOND
    assert tries.wait_ns("a") == 0
    tries.was_wrong("a")
    assert tries.wait_ns("a") == 10 * SECOND
    for number in range(2000):
        tries.was_wrong(f"peer-{number}")
    assert tries.wait_ns("somebody else") > 0
    assert len(tries._peers) == 1024


def test_who_may_try_is_decided_before_the_token_is_read() -> None:
    """The comparison itself takes the same time whatever was given: digests of one length, by hmac."""
    assert not SignIn(b"x" * 32, lambda: 0).is_token("\udcff")
    scope = {"type": "http", "headers": [(b"origin", b"http://h:1"), (b"host", b"h:1")]}
    assert from_own_page(Request(scope))
    scope["headers"] = [(b"host", b"")]
    assert not from_own_page(Request(scope))
