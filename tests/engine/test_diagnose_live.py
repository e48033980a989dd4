"""`kvbudget diagnose` asked about a real engine, while it is driven into what it should tell."""

import asyncio
import contextlib
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

WINDOW_S = 3
REACHED_WITHIN_S = 60.0
ASKED_WITHIN_S = 60.0
MAX_INSIDE = 8  # waiting and running, then vLLM answers 503
MAX_NUM_SEQS = 4


class Engine(Protocol):
    url: str

    def metric(self, name: str) -> float: ...

    def requests_inside(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Load:
    """Clients that ask again as soon as they were answered, or `pause_s` later; lengths in tokens. `families`: of
    prefixes. The state is there once vLLM's `until` has grown by `by` since the load began."""

    clients: int
    prompt: int
    output: int
    until: str
    by: float
    shared: int = 0
    families: int = 1
    pause_s: float = 0.0


@pytest.fixture(scope="module")
def limited(start_engine: Callable[..., Any]) -> Iterator[Engine]:
    """2,048 tokens of pool, a prefix cache, and 503 from eight requests on."""
    with start_engine("diagnosed", f"--max-num-queued-reqs={MAX_INSIDE}") as engine:
        yield engine


@pytest.fixture(scope="module")
def narrow(start_engine: Callable[..., Any]) -> Iterator[Engine]:
    """Four times that pool, four sequences at once, no prefix cache."""
    flags = (f"--max-num-seqs={MAX_NUM_SEQS}", "--no-enable-prefix-caching", "--num-gpu-blocks-override=257")
    with start_engine("diagnosed-narrow", *flags) as engine:
        yield engine


@pytest.fixture(scope="module")
def diagnosed(kvbudget: Path, figures: list[str]) -> Callable[[Engine, Load | None], dict[str, Any]]:
    """What the command says of an engine under that load, or under none; nobody is left inside afterwards."""

    async def under(engine: Engine, load: Load | None) -> tuple[int | None, bytes, bytes]:
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=engine.url, timeout=60, limits=unlimited) as client:
            tasks: list[asyncio.Task[None]] = []
            if load:
                before = await _metric(client, load.until)
                tasks += [asyncio.create_task(_one(client, load, number)) for number in range(load.clients)]
                async with asyncio.timeout(REACHED_WITHIN_S):
                    while await _metric(client, load.until) < before + load.by:
                        await asyncio.sleep(0.2)
            command = ("diagnose", f"{engine.url}/metrics", "--window", str(WINDOW_S), "--json")
            pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
            asked = await asyncio.create_subprocess_exec(kvbudget, *command, **pipes)  # type: ignore[arg-type]
            try:
                out, errors = await asyncio.wait_for(asked.communicate(), ASKED_WITHIN_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    asked.kill()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return asked.returncode, out, errors

    def ask(engine: Engine, load: Load | None) -> dict[str, Any]:
        code, out, errors = asyncio.run(under(engine, load))
        assert code in (0, 1), errors.decode()
        told: dict[str, Any] = json.loads(out)
        assert (code == 0) == (told["verdict"] == "healthy")
        figures.append(f"diagnose, {load}: {told['verdict']} {[finding['code'] for finding in told['findings']]}")
        return told

    return ask


async def _metric(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).raise_for_status().text
    return sum(map(float, re.findall(rf"^vllm:{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))


async def _one(client: httpx.AsyncClient, load: Load, number: int) -> None:
    chance = random.Random(f"client {number}")
    for _ in itertools.count():
        family = random.Random(f"family {chance.randrange(load.families)}")
        prompt = [family.randrange(100, 4000) for _ in range(load.shared)]
        prompt += [chance.randrange(100, 4000) for _ in range(load.prompt - load.shared)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": load.output, "ignore_eos": True, "temperature": 0}
        with contextlib.suppress(httpx.HTTPError):
            await client.post("/v1/completions", json=body)
        await asyncio.sleep(load.pause_s)


@pytest.fixture
def emptied(eventually: Callable[..., float]) -> Callable[[Engine], None]:
    """Wait until what clients left behind is gone."""

    def wait(engine: Engine) -> None:
        eventually(lambda: engine.requests_inside() == 0, "the engine is empty", 30.0)

    return wait


def test_a_pool_that_is_too_small_for_its_load_and_then_idle_with_old_preemptions_in_its_counters(
    limited: Engine,
    diagnosed: Callable[[Engine, Load | None], dict[str, Any]],
    emptied: Callable[[Engine], None],
) -> None:
    storm = diagnosed(limited, Load(8, prompt=96, output=900, shared=64, until="num_preemptions_total", by=10))
    assert storm["verdict"] == "pool_full", storm
    emptied(limited)
    assert limited.metric("num_preemptions_total") > 0
    assert diagnosed(limited, None)["verdict"] == "healthy"
    quiet = diagnosed(limited, Load(2, prompt=192, output=150, shared=160, until="prompt_tokens_total", by=1500))
    assert quiet["verdict"] == "healthy", quiet
    emptied(limited)


def test_a_prefix_cache_that_holds_two_fifths_of_what_is_shared(
    limited: Engine,
    diagnosed: Callable[[Engine, Load | None], dict[str, Any]],
    emptied: Callable[[Engine], None],
) -> None:
    told = diagnosed(
        limited, Load(3, prompt=416, output=16, shared=384, families=14, until="prompt_tokens_total", by=25_000)
    )
    assert told["verdict"] == "prefix_cache_too_small", told
    emptied(limited)


def test_an_engine_that_refuses(
    limited: Engine,
    diagnosed: Callable[[Engine, Load | None], dict[str, Any]],
    emptied: Callable[[Engine], None],
) -> None:
    told = diagnosed(
        limited, Load(20, prompt=40, output=150, shared=32, pause_s=0.2, until="admission_rejections_total", by=30)
    )
    assert told["verdict"] == "engine_rejecting", told
    emptied(limited)


def test_sequences_run_out_before_the_pool(
    narrow: Engine,
    diagnosed: Callable[[Engine, Load | None], dict[str, Any]],
    emptied: Callable[[Engine], None],
) -> None:
    told = diagnosed(narrow, Load(16, prompt=64, output=900, until="num_requests_waiting", by=8))
    assert told["verdict"] == "seqs_full", told
    emptied(narrow)


def test_a_prefix_cache_that_is_off_while_prompts_share(
    narrow: Engine,
    diagnosed: Callable[[Engine, Load | None], dict[str, Any]],
    emptied: Callable[[Engine], None],
) -> None:
    told = diagnosed(narrow, Load(2, prompt=400, output=60, shared=352, until="prompt_tokens_total", by=3000))
    assert told["verdict"] == "prefix_cache_off", told
    emptied(narrow)
