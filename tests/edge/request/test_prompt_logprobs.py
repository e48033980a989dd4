import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.request.prompt_logprobs import PromptLogprobs
from kvbudget.units import Tokens

Play = Callable[..., None]
Stand = Any  # the class lives in conftest.py, which cannot be imported
# Each names the logprobs of its prompt in another way.
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 20}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "echo": True}),
    ("/v1/completions", {"prompt": "hi", "echo": True, "logprobs": 1, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "hi", "prompt_logprobs": 0}),
    ("/generate", {"inputs": "hi", "parameters": {"decoder_input_details": True}}),
]


def test_tokens_are_limited_together_and_come_back() -> None:
    logprobs = PromptLogprobs(Tokens(10))
    assert logprobs.take(Tokens(6))
    assert not logprobs.take(Tokens(5))
    assert logprobs.take(Tokens(4))
    logprobs.give_back(Tokens(6))
    assert logprobs.take(Tokens(5))
    assert logprobs.in_use == 9


def test_a_prompt_that_is_longer_than_may_ever_be_is_told_the_limit_and_what_to_do() -> None:
    with pytest.raises(BadRequestError, match="300 prompt tokens are more than the 256") as caught:
        PromptLogprobs(Tokens(256)).check(Tokens(300))
    assert caught.value.code == "prompt_logprobs_refused"
    assert "shorter prompt" in caught.value.message
    PromptLogprobs(Tokens(256)).check(Tokens(256))


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_by_default_none_are_let_through(play: Play, path: str, body: dict[str, Any]) -> None:
    """Case G26: a prompt of 300 tokens with echo and logprobs ran an engine out of memory."""

    async def scene(stand: Stand) -> None:
        answer = await stand.client.post(path, json=body)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
        assert "--max-prompt-logprobs-tokens" in answer.text
        assert stand.engine.requests == []
        assert stand.refusals() == {"bad_request": 1}

    play(scene, {"count": 300})


def test_echo_without_logprobs_costs_nothing_beside_the_pool(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        echo = {"prompt": "hi", "echo": True, "max_tokens": 1}
        assert (await stand.client.post("/v1/completions", json=echo)).status_code == 200

    play(scene, {"count": 300})


def test_what_fits_alone_waits_for_what_is_being_computed(play: Play) -> None:
    """Case G25: four lawful requests of 1,024 tokens each killed an engine; together they are over the limit."""

    async def scene(stand: Stand) -> None:
        logprobs = stand.service.reception.logprobs
        logprobs.limit = Tokens(200)
        body = {"prompt": "hi", "prompt_logprobs": 20, "max_tokens": 1}
        first = asyncio.ensure_future(stand.client.post("/v1/completions", json=body))
        await stand.until(lambda: bool(stand.engine.requests))
        assert logprobs.in_use == 128
        second = await stand.client.post("/v1/completions", json=body)
        assert (second.status_code, second.headers["x-should-retry"]) == (429, "true")
        assert "of at most 200" in second.json()["error"]["message"]
        other = asyncio.ensure_future(stand.chat())  # nothing of that hinders others
        await stand.until(lambda: len(stand.engine.requests) == 2)
        stand.engine.release.set()
        assert (await first).status_code == (await other).status_code == 200
        assert logprobs.in_use == 0
        assert (await stand.client.post("/v1/completions", json=body)).status_code == 200
        assert stand.refusals() == {"logprobs_full": 1}
        assert stand.outcomes() == {"finished": 3, "refused": 1}

    play(scene, {"count": 128, "hold": True})


@pytest.mark.parametrize("end", ["too long", "refused", "client gone", "no room", "engine dies"])
def test_however_a_request_ends_its_tokens_come_back(play: Play, end: str) -> None:
    async def scene(stand: Stand) -> None:
        logprobs = stand.service.reception.logprobs
        logprobs.limit = Tokens(100) if end == "too long" else Tokens(2000)
        body = {"prompt": "hi", "prompt_logprobs": 0, "max_tokens": 1}
        if end == "no room":
            holder = asyncio.ensure_future(stand.chat(max_tokens=300))
            await stand.until(lambda: bool(stand.engine.requests))
        asking = asyncio.ensure_future(stand.client.post("/v1/completions", json=body))
        if end == "client gone":
            await stand.until(lambda: bool(stand.engine.requests))
            asking.cancel()
            await stand.until(lambda: stand.engine.closed == 1)
        else:
            answer = await asking
            statuses = {"too long": 400, "refused": 400, "no room": 429, "engine dies": 502}
            assert answer.status_code == statuses[end]
        if end == "no room":
            stand.engine.release.set()
            await holder
        await stand.until(lambda: logprobs.in_use == 0)

    engine: dict[str, Any] = {"count": 600 if end == "refused" else 200}
    engine |= {"hold": True} if end in ("client gone", "no room") else {}
    engine |= {"die": "before head"} if end == "engine dies" else {}
    play(scene, engine, queue_requests=0)
