"""What the gateway does with counts beside charging for them: comparing them, and sending ids in place of text."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.tokens.count import Count

Play = Callable[..., None]
IDS = [7, 8, 9]


def test_exact_counts_are_told_beside_what_the_engine_says(play: Play) -> None:
    told: list[tuple[int, int]] = []

    async def scene(stand: Any) -> None:
        stand.service.gateway.compared = lambda counted, engine, name: told.append((counted, engine))
        await stand.chat()
        await stand.chat(stream=True)

    play(scene, {"count": 10, "usage_prompt_tokens": 15})
    assert told == [(10, 15), (10, 15)]


def test_a_prompt_that_went_as_ids_is_not_compared_and_everything_else_of_it_stays(play: Play) -> None:
    told: list[tuple[int, int]] = []
    bodies: list[dict[str, Any]] = []

    def ids_of(ask: Ask, count: Count) -> list[int] | None:
        assert count.exact
        return IDS if ask.body.get("prompt") == "as ids" else None

    async def scene(stand: Any) -> None:
        gateway = stand.service.gateway
        gateway.ids_to_forward = ids_of
        gateway.compared = lambda counted, engine, name: told.append((counted, engine))
        for prompt in ("as ids", "as text"):
            body = {"model": "m", "prompt": prompt, "max_tokens": 5, "temperature": 0.5}
            answer = await stand.client.post("/v1/completions", json=body)
            assert answer.status_code == 200
        bodies.extend(stand.engine.requests)

    play(scene, {"count": 3, "usage_prompt_tokens": 4})
    assert [body["prompt"] for body in bodies] == [IDS, "as text"]
    assert [body["temperature"] for body in bodies] == [0.5, 0.5]
    assert told == [(3, 4)]


def test_the_state_page_tells_who_counts(play: Play) -> None:
    states: list[dict[str, Any]] = []

    async def scene(stand: Any) -> None:
        get: Awaitable[Any] = stand.client.get(f"{stand.service.admin_url}/v1/state")
        states.append(json.loads((await get).text))

    play(scene)
    assert states[0]["counting"] == {"counts": "engine"}
