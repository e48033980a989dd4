"""Shadow mode decides and counts and lets everything pass; the switch works while requests wait and run."""

import asyncio
import hashlib
from typing import Any

import pytest

from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.request.keys import ApiKey

Stand = Any  # the class lives in conftest.py, which cannot be imported


def shadowed(stand: Stand) -> dict[str, int]:
    return {name: count for name, count in stand.service.gateway.metrics.shadow_refusals.items() if count}


def test_what_would_be_refused_passes_unchanged_and_is_counted(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(max_tokens=10_000)
        assert answer.status_code == 200
        assert stand.engine.requests[0]["max_tokens"] == 10_000  # not clamped
        assert shadowed(stand) == {"context_exceeded": 1}
        assert stand.refusals() == {}
        assert stand.outcomes() == {"finished": 1}

    play(scene, {"count": 600}, serve={"shadow": True})


def test_what_would_wait_goes_at_once_and_its_promise_is_made_when_its_turn_comes(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        second = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 2)
        assert len(stand.service.gate.queue) == 1
        assert stand.promised() == 32
        stand.engine.release.set()
        assert (await first).status_code == (await second).status_code == 200
        assert stand.promised() == 0
        assert len(stand.service.gate.queue) == 0
        assert stand.outcomes() == {"finished": 2}

    play(scene, {"count": 100, "hold": True}, serve={"shadow": True})


def test_a_client_that_leaves_a_shadow_leaves_nothing_behind(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        held = [await stand.open_chat(max_tokens=400) for _ in range(3)]
        await stand.until(lambda: len(stand.engine.requests) == 3)
        for _, writer in held:
            writer.close()
        await stand.until(lambda: stand.engine.closed == 3)
        await stand.until(lambda: not list(stand.service.gateway.flows))
        assert stand.promised() == 0
        assert len(stand.service.gate.queue) == 0

    play(scene, {"count": 100, "hold": True}, serve={"shadow": True})


def test_the_kill_switch_frees_who_waits_and_switched_back_rules_hold_again(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        second = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        admin = f"{stand.service.admin_url}/v1/mode"
        assert (await stand.client.post(admin, json={"shadow": True})).json() == {"shadow": True}
        await stand.until(lambda: len(stand.engine.requests) == 2)
        assert (await stand.client.post(admin, json={"shadow": False})).json() == {"shadow": False}
        refused = await stand.chat(max_tokens=400, headers={"x-kvbudget-deadline-ms": "30"})
        assert refused.status_code == 429
        stand.engine.release.set()
        assert (await first).status_code == (await second).status_code == 200

    play(scene, {"count": 100, "hold": True})


def test_an_engine_that_is_away_is_503_in_shadow_too(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        assert (await stand.chat()).status_code == 503
        assert shadowed(stand) == {}

    play(scene, {"healthy": False}, look_for_s=0.2, serve={"shadow": True})


def test_a_stream_that_the_gate_would_let_wait_reports_its_progress_once_it_would_not(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        second = asyncio.create_task(stand.chat(max_tokens=400, stream=True))
        await stand.until(lambda: len(stand.engine.requests) == 2)
        stand.engine.release.set()
        assert (await first).status_code == (await second).status_code == 200
        assert stand.outcomes() == {"finished": 2}

    play(scene, {"count": 100, "hold": True, "chunks": 40}, serve={"shadow": True})


def test_a_changed_mode_needs_a_plain_answer_in_json(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        admin = f"{stand.service.admin_url}/v1/mode"
        wrong: tuple[object, ...] = ({}, [], {"shadow": "yes"}, {"shadow": 1})
        for body in wrong:
            assert (await stand.client.post(admin, json=body)).status_code == 400
        text = {"content-type": "text/plain"}
        assert (await stand.client.post(admin, content=b'{"shadow": true}', headers=text)).status_code == 403
        assert (
            await stand.client.post(admin, json={"shadow": True}, headers={"host": "evil.example"})
        ).status_code == 403
        assert not stand.service.gateway.shadow

    play(scene)


def test_with_a_token_only_probes_come_without_it(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        url = stand.service.admin_url
        for path, status in (("/health", 200), ("/ready", 200), ("/metrics", 401), ("/v1/state", 401), ("/", 401)):
            assert (await stand.client.get(url + path)).status_code == status
        assert (await stand.client.post(f"{url}/v1/mode", json={"shadow": True})).status_code == 401
        right = {"authorization": "Bearer s3cret"}
        assert (await stand.client.get(f"{url}/metrics", headers=right)).status_code == 200
        assert (await stand.client.post(f"{url}/v1/mode", json={"shadow": True}, headers=right)).status_code == 200
        wrong = {"authorization": "Bearer s3cre"}
        assert (await stand.client.get(f"{url}/metrics", headers=wrong)).status_code == 401
        assert "s3cret" not in repr(stand.service.settings)

    play(scene, serve={"admin_token": "s3cret"})


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": "12"},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}]},
        {"prompt_logprobs": 1},
        {"messages": []},
        {"model": ["m"]},
        {"n": 10**9},
    ],
)
def test_what_could_not_even_be_counted_passes_as_it_came_without_a_charge(play: Any, body: dict[str, Any]) -> None:
    async def scene(stand: Stand) -> None:
        refused = await stand.chat(**body)
        assert refused.status_code == 400
        stand.service.gateway.set_shadow(True)
        answer = await stand.chat(headers={"x-request-id": "mine"}, **body)
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
        assert {name: stand.engine.requests[0][name] for name in body} == body
        assert shadowed(stand) == {"bad_request": 1}
        assert stand.refusals() == {"bad_request": 1}
        assert stand.outcomes() == {"refused": 1, "finished": 1}
        assert not stand.service.reception.passing

    play(scene, {"count": 10})


def test_what_the_counter_refuses_passes_in_shadow_and_so_does_what_it_fails_on(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        reception = stand.service.reception

        class Broken:
            name = "broken"

            def __init__(self, error: Exception) -> None:
                self.error = error

            async def count(self, ask: object) -> Any:
                raise self.error

        for error in (BadRequestError("too long", None, "prompt_too_large"), RuntimeError("a bug")):
            reception.counter = Broken(error)
            assert (await stand.chat()).status_code == 200
        assert shadowed(stand) == {"bad_request": 1, "count_failed": 1}
        assert (stand.promised(), list(stand.service.gateway.flows), reception.counting) == (0, [], {})

    play(scene, {"count": 10}, serve={"shadow": True})


def test_keys_are_asked_for_in_shadow_too_and_a_compressed_body_is_the_engines_matter(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        assert (await stand.chat()).status_code == 401
        key = {"authorization": "Bearer secret"}
        assert (await stand.chat(headers=key | {"content-encoding": "br"})).status_code == 200
        assert (await stand.chat(headers=key | {"x-kvbudget-priority": "x"})).status_code == 200
        assert shadowed(stand) == {"bad_request": 2}

    keys = {"team": ApiKey("team", hashlib.sha256(b"secret").hexdigest(), "team")}
    play(scene, {"count": 10}, serve={"shadow": True, "keys": keys})


def test_of_an_engine_that_is_away_a_client_hears_in_shadow_whatever_it_asked(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        await stand.engine.stop()
        answer = await stand.chat(max_tokens="12")
        assert answer.status_code == 503
        assert stand.outcomes() == {"upstream_failed": 1}

    play(scene, {"count": 10}, serve={"shadow": True})


def test_counts_of_tokens_are_the_engines_in_shadow(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        answer = await stand.client.post("/v1/messages/count_tokens", json=asked)
        assert answer.json()["path"] == "/v1/messages/count_tokens"

    play(scene, {"count": 10}, serve={"shadow": True})
