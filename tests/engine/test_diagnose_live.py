"""`kvbudget diagnose` asked about a real engine, while it is driven into what it should tell."""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

WINDOW_S = 3
SETTLE_S = 5.0
ASKED_WITHIN_S = 60.0
MAX_INSIDE = 12  # waiting and running, then vLLM answers 503
MAX_NUM_SEQS = 4


class Engine(Protocol):
    url: str

    def metric(self, name: str) -> float: ...

    def requests_inside(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Load:
    """Clients that ask again as soon as they were answered, or `pause_s` later; tokens. `families`: of prefixes."""

    clients: int
    prompt: int
    output: int
    shared: int = 0
    families: int = 1
    pause_s: float = 0.0


@pytest.fixture(scope="module")
def limited(start_engine: Callable[..., Any]) -> Iterator[Engine]:
    """2,048 tokens of pool, a prefix cache, and 503 from 12 requests on."""
    with start_engine("diagnosed", f"--max-num-queued-reqs={MAX_INSIDE}") as engine:
        yield engine


@pytest.fixture(scope="module")
def narrow(start_engine: Callable[..., Any]) -> Iterator[Engine]:
    """As large a pool, four sequences at once, no prefix cache."""
    flags = (f"--max-num-seqs={MAX_NUM_SEQS}", "--no-enable-prefix-caching")
    with start_engine("diagnosed-narrow", *flags) as engine:
        yield engine


@pytest.fixture(scope="module")
def diagnosed(kvbudget: Path, figures: list[str]) -> Callable[[Engine, Load | None], dict[str, Any]]:
    """What the command says of an engine under that load, or under none; nobody is left inside afterwards."""

    async def under(engine: Engine, load: Load | None) -> tuple[int | None, bytes, bytes]:
        unlimited = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=engine.url, timeout=60, limits=unlimited) as client:
            tasks = [asyncio.create_task(_one(client, load, number)) for number in range(load.clients if load else 0)]
            await asyncio.sleep(SETTLE_S if load else 0)
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
    storm = diagnosed(limited, Load(clients=11, prompt=96, output=600, shared=64))
    assert storm["verdict"] == "pool_full", storm
    emptied(limited)
    assert limited.metric("num_preemptions_total") > 0
    assert diagnosed(limited, None)["verdict"] == "healthy"
    quiet = diagnosed(limited, Load(clients=2, prompt=192, output=150, shared=160))
    assert quiet["verdict"] == "healthy", quiet
    emptied(limited)


def test_a_prefix_cache_that_holds_two_fifths_of_what_is_shared(
    limited: Engine,
    diagnosed: Callable[[Engine, Load | None], dict[str, Any]],
    emptied: Callable[[Engine], None],
) -> None:
    told = diagnosed(limited, Load(clients=3, prompt=416, output=16, shared=384, families=14))
    assert told["verdict"] == "prefix_cache_too_small", told
    emptied(limited)


def test_an_engine_that_refuses(
    limited: Engine,
    diagnosed: Callable[[Engine, Load | None], dict[str, Any]],
    emptied: Callable[[Engine], None],
) -> None:
    told = diagnosed(limited, Load(clients=24, prompt=40, output=48, shared=32, pause_s=0.1))
    assert told["verdict"] == "engine_rejecting", told
    emptied(limited)


def test_sequences_run_out_before_the_pool(
    narrow: Engine,
    diagnosed: Callable[[Engine, Load | None], dict[str, Any]],
    emptied: Callable[[Engine], None],
) -> None:
    told = diagnosed(narrow, Load(clients=16, prompt=64, output=100))
    assert told["verdict"] == "seqs_full", told
    emptied(narrow)


def test_a_prefix_cache_that_is_off_while_prompts_share(
    narrow: Engine,
    diagnosed: Callable[[Engine, Load | None], dict[str, Any]],
    emptied: Callable[[Engine], None],
) -> None:
    told = diagnosed(narrow, Load(clients=2, prompt=400, output=60, shared=352))
    assert told["verdict"] in ("prefix_cache_off", "healthy"), told  # it cannot know that they share
    assert "prefix_cache_off" in [finding["code"] for finding in told["findings"]], told
    emptied(narrow)
