"""What the live page is told: the same blocks as the ledger's, once as JSON, and by a stream that begins before now."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

Play = Callable[..., None]


async def _events(client: httpx.AsyncClient, count: int) -> list[tuple[str, Any]]:
    """The first events of the stream."""
    found: list[tuple[str, Any]] = []
    async with client.stream("GET", "/api/live/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                found.append((kind, json.loads(line[6:])))
                if len(found) == count:
                    break
    return found


def test_a_running_request_is_shown_with_its_blocks_and_what_is_left_of_it(play: Play) -> None:
    async def scene(stand: Any) -> None:
        _, writer = await stand.open_chat(stream=True)
        await stand.until(lambda: stand.promised() > 0)
        async with httpx.AsyncClient(base_url=stand.service.admin_url, timeout=10) as admin:
            told = (await admin.get("/api/live")).json()
        (instance,) = told["instances"]
        (request,) = instance["requests"]
        assert (told["schema"], told["policy"], told["problem"]) == ("kvbudget.live/1", "worst-case", "")
        assert instance["promised_blocks"] == request["blocks"] == stand.promised()
        assert instance["requests_in_all"] == 1
        assert request["max_new_tokens"] == 16
        assert request["left_ms"] >= 0
        assert [tenant["promised_blocks"] for tenant in told["tenants"]] == [stand.promised()]
        writer.close()
        await stand.until(lambda: stand.promised() == 0)

    play(scene, engine={"hold": True})


def test_who_waits_is_shown_with_its_deadline_and_leaves_the_page_when_it_is_let_in(play: Play) -> None:
    async def scene(stand: Any) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: stand.promised() > 0)
        second = asyncio.create_task(stand.chat(max_tokens=400, headers={"x-kvbudget-tenant": "late"}))
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        async with httpx.AsyncClient(base_url=stand.service.admin_url, timeout=10) as admin:
            told = (await admin.get("/api/live")).json()
            (waiting,) = told["queue"]["next"]
            assert told["queue"]["requests"] == told["instances"][0]["waiting"] == 1
            assert waiting["blocks"] > 0
            assert (waiting["why"], waiting["instance"]) == ("pool", told["instances"][0]["name"])
            assert waiting["left_ms"] > 0
            state = (await admin.get("/v1/state")).json()
            assert [one["why"] for one in state["queue"]["next"]] == ["pool"]
            assert waiting["deadline_in_ms"] > 0
            stand.engine.release.set()
            await asyncio.gather(first, second)
            told = (await admin.get("/api/live")).json()
        assert told["queue"] == {"requests": 0, "tokens": 0, "next": []}
        assert told["outcomes"] == {"finished": 2}

    play(scene, engine={"hold": True})


def test_a_stream_tells_the_past_first_and_then_how_it_is_now(play: Play) -> None:
    async def scene(stand: Any) -> None:
        past, now_ns = stand.service.past, [stand.service.gateway.now_ns()]
        past._now_ns = lambda: now_ns[0]
        for _ in range(3):  # nobody watches
            now_ns[0] += 5 * 10**9
            past.look()
        async with httpx.AsyncClient(base_url=stand.service.admin_url, timeout=10) as admin:
            first, second = await _events(admin, 2)
            now_ns[0] += 5 * 10**9
            past.look()
            again, _ = await _events(admin, 2)
        name = second[1]["instances"][0]["name"]
        assert (first[0], second[0]) == ("past", "now")
        assert first[1][name][-1][1] == second[1]["instances"][0]["usable_blocks"] == 32
        assert len(first[1][name]) >= 3, "a page that is opened now shows what was before"
        assert again[1][name][: len(first[1][name])] == first[1][name]
        assert len(again[1][name]) == len(first[1][name]) + 1, "who comes back gets what it missed"

    play(scene)


def test_watchers_are_bounded(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url, timeout=10) as admin:
            opened = [asyncio.create_task(_events(admin, 10**6)) for _ in range(16)]
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                while (answer := await _status(admin)) != 503:
                    assert answer == 200
            for one in opened:
                one.cancel()
            await asyncio.gather(*opened, return_exceptions=True)
            await stand.until(lambda: True)
            async with asyncio.timeout(10):
                while await _status(admin) != 200:
                    await asyncio.sleep(0.01)

    play(scene)


async def _status(client: httpx.AsyncClient) -> int:
    async with client.stream("GET", "/api/live/stream") as answer:
        return answer.status_code


def test_the_pages_are_on_the_admin_port_and_nothing_of_them_on_the_other(play: Play) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url, timeout=10) as admin:
            assert "Live gate" in (await admin.get("/live")).text
            assert (await admin.get("/", headers={"accept": "text/html"})).headers["location"] == "/live"
            assert "/live" in (await admin.get("/")).json()["paths"]
            assert (await admin.get("/api/plan")).json()["figures"]["needed"]["bytes"] == 16 * 1024**3
        assert (await stand.client.get("/live")).status_code == 404

    play(scene)


def test_why_nothing_is_taken_is_told_where_ready_tells_it(play: Play) -> None:
    async def scene(stand: Any) -> None:
        name = stand.service.backend.name
        async with httpx.AsyncClient(base_url=stand.service.admin_url, timeout=10) as admin:
            await admin.post(f"/v1/instances/{name}/drain", json={})
            assert (await admin.get("/api/live")).json()["problem"] == "drained"
            await admin.post(f"/v1/instances/{name}/resume", json={})
            assert (await admin.get("/api/live")).json()["problem"] == ""
            stand.engine.healthy = False
            await stand.until(lambda: not stand.service.gate.backend_up)
            told = [(await admin.get(path)).json()["problem"] for path in ("/api/live", "/ready")]
        assert told[0] == told[1] != ""

    play(scene)
