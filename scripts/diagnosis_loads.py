"""Decides how engines are loaded for the labelled corpus: clients in a closed loop, with prompts of token ids.

A load is a context: requests flow while it is open, and all of its clients hang up when it ends.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

Load = Callable[[httpx.AsyncClient], AbstractAsyncContextManager[None]]
Body = Callable[[int], dict[str, Any]]

FIRST_TOKEN, LAST_TOKEN = 100, 4000  # ids of the tiny model without its special ones


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids, the first `shared` of which come from one of `families` prefixes."""

    tokens: int
    shared: int = 0
    families: int = 1

    def next(self, chance: random.Random) -> list[int]:
        """The next prompt."""
        family = random.Random(f"family {chance.randrange(self.families)} of {self.shared}")
        ids = [family.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(self.shared)]
        return ids + [chance.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(self.tokens - self.shared)]


def load(count: int, tokens: int, output: int, shared: int = 0, families: int = 1, **more: Any) -> Load:
    """`count` clients with prompts of `tokens` and answers of `output` tokens; `more` as `clients` takes it."""
    return partial(clients, count=count, prompts=Prompts(tokens, shared, families), output=output, **more)


@asynccontextmanager
async def nobody(_: httpx.AsyncClient) -> AsyncIterator[None]:
    """No load at all."""
    yield


@asynccontextmanager
async def clients(
    client: httpx.AsyncClient,
    count: int,
    prompts: Prompts,
    output: int,
    patience_s: float | None = None,
    pause_s: float = 0.0,
    apart_s: float = 0.0,
    body: Body | None = None,
) -> AsyncIterator[None]:
    """They start `apart_s` after one another and ask again as soon as they were answered, or `pause_s` later. Answers
    run to `output` tokens unless `body` says otherwise. `patience_s`: they hang up after so long, and ask again."""

    async def one(number: int) -> None:
        chance = random.Random(f"client {number} of {count}")
        await asyncio.sleep(number * apart_s)
        for turn in itertools.count():
            asked = {
                "model": "tiny", "prompt": prompts.next(chance), "max_tokens": output, "ignore_eos": True,
                "temperature": 0, "stream": patience_s is not None,
            } | (body(number + turn * count) if body else {})  # fmt: skip
            with contextlib.suppress(TimeoutError, httpx.HTTPError):
                async with (
                    asyncio.timeout(patience_s),
                    client.stream("POST", "/v1/completions", json=asked) as response,
                ):
                    await response.aread()
            await asyncio.sleep(pause_s)

    tasks = [asyncio.create_task(one(number)) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def together(*loads: Load) -> Load:
    """Several loads at the same time."""

    @asynccontextmanager
    async def all_of_them(client: httpx.AsyncClient) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for one in loads:
                await stack.enter_async_context(one(client))
            yield

    return all_of_them


def of_adapter(name: str) -> Body:
    """Requests to a LoRA adapter of that name."""
    return lambda _: {"model": name}


def ends_by_itself(_: int) -> dict[str, Any]:
    """Answers that end where the engine ends them, long before `max_tokens`."""
    return {"ignore_eos": False}
