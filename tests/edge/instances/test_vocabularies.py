"""Engines of different models behind one gate: each request is counted, and charged, by the model that it runs on."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from tokenizers import Tokenizer

from kvbudget.edge.budget.reload import take_over
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import GateService, ServiceSettings, start_service
from kvbudget.edge.tokens.by_model import CounterByModel
from kvbudget.edge.tokens.counting import CountingSettings
from kvbudget.edge.tokens.tokenizer import TokenizerCounter
from kvbudget.gate.fleet.options import FleetConfig
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy
from vocabularies import vocabulary

Engine = Any  # the class lives in conftest.py, which cannot be imported
TEXT = "L'inégalité des Привет tokens 你好，世界 — déjà vu; 12345678 " * 4
QWEN, LLAMA = "qwen3", "llama3"


def folder(name: str) -> str:
    return str(vocabulary(name))


@lru_cache
def tokens(name: str) -> int:
    """By a reader that is not ours."""
    return len(Tokenizer.from_file(str(vocabulary(name) / "tokenizer.json")).encode(TEXT).ids)


@lru_cache
def loaded(folder: str, chat_template: str | None) -> TokenizerCounter:
    return LOAD(Path(folder), chat_template=chat_template)


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds, and what it keeps besides (takeovers) is not in here."""
    monkeypatch.setattr(TokenizerCounter, "load", lambda folder, **more: loaded(str(folder), more["chat_template"]))


LOAD = TokenizerCounter.load


class Stand:
    """A gate before engines that are called by their names."""

    def __init__(self, engines: dict[str, Engine], service: GateService, client: httpx.AsyncClient) -> None:
        self.engines, self.service, self.client = engines, service, client

    async def complete(self, model: str | None, **body: object) -> httpx.Response:
        ask = {"prompt": TEXT, "max_tokens": 16, **({} if model is None else {"model": model}), **body}
        return await self.client.post("/v1/completions", json=ask)

    async def counted(self, model: str | None, **body: object) -> int:
        answer = await self.complete(model, **body)
        assert answer.status_code == 200, answer.text
        return int(answer.headers["x-kvbudget-prompt-tokens"])

    def asked(self) -> dict[str, int]:
        return {name: len(engine.requests) for name, engine in self.engines.items()}

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0.005)

    def up(self, name: str) -> bool:
        member = self.service.fleet.named(name)
        return member is not None and member.in_service


Scene = Callable[[Stand], Awaitable[None]]
Play = Callable[..., None]


@pytest.fixture
def play(make_engine: Callable[..., Engine]) -> Play:
    """`play(scene, a=(engine, instance settings), ...)`."""

    async def stand(scene: Scene, told: dict[str, tuple[dict[str, Any], dict[str, Any]]], more: dict[str, Any]) -> None:
        engines = {name: make_engine(**engine) for name, (engine, _) in told.items()}
        instances = [InstanceSettings(await engines[name].start(), name, **own) for name, (_, own) in told.items()]
        settings = ServiceSettings(
            "", tuple(instances), FleetConfig(failures=3, ramp_ns=0), port=0, admin_port=0,
            gate=GateConfig(policy=Policy.WORST_CASE, abort_tail_ns=0), upstream_limits=UpstreamLimits(response_s=5.0),
            **more,
        )  # fmt: skip
        service = await start_service(settings)
        try:
            async with httpx.AsyncClient(base_url=service.url, timeout=20) as client, asyncio.timeout(60):
                await scene(Stand(engines, service, client))
            assert service.gateway.metrics.ledger_errors == 0
        finally:
            await service.close()
            for engine in engines.values():
                await engine.stop()
        assert sum(one.member.gate.promised_blocks() for one in service.instances) == 0

    def run(scene: Scene, more: dict[str, Any] | None = None, **told: tuple[dict[str, Any], dict[str, Any]]) -> None:
        uvloop.run(stand(scene, told, more or {}))

    return run


def blocks(prompt_tokens: int) -> int:
    return -(-(prompt_tokens + 16) // 16)


def test_the_vocabularies_differ_so_that_these_tests_can_fail() -> None:
    assert tokens(QWEN) != tokens(LLAMA)


def test_every_model_is_counted_by_its_own_vocabulary_by_name_alias_and_adapter(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        assert await stand.counted("q") == tokens(QWEN)
        assert await stand.counted("q-lora") == tokens(QWEN)
        assert await stand.counted("chat") == tokens(LLAMA)
        answer = await stand.complete("l")
        assert int(answer.headers["x-kvbudget-reserved-blocks"]) == blocks(tokens(LLAMA))
        assert stand.asked() == {"a": 1, "b": 2, "c": 1}
        counter = stand.service.reception.counter
        assert isinstance(counter, CounterByModel)
        assert counter.counters["a"] is counter.counters["c"]  # one model at two instances
        assert counter.counters["a"] is not counter.counters["b"]
        state = (await stand.client.get(f"{stand.service.admin_url}/v1/state")).json()["counting"]
        assert set(state["instances"]) == {"a", "b", "c"}
        assert state["instances"]["b"]["engine_took_over"] is False
        assert all("/tokenize" not in engine.last_heads for engine in stand.engines.values())

    qwen = {"models": ["q", "q-lora"], "num_blocks": 65}
    play(
        scene,
        a=(qwen, {"tokenizer": folder(QWEN)}),
        b=({"models": ["l"], "num_blocks": 65}, {"tokenizer": folder(LLAMA), "aliases": {"chat": "l"}}),
        c=(qwen, {"tokenizer": folder(QWEN)}),
    )


def test_a_stand_in_is_charged_by_its_own_vocabulary_also_of_who_comes_to_it_late(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        own, other = stand.engines["a"], stand.engines["b"]
        other.usage_prompt_tokens = tokens(LLAMA)
        own.die = "before head"  # nothing was sent: it is tried at the other one
        answer = await stand.complete("q")
        assert answer.status_code == 200
        assert int(answer.headers["x-kvbudget-prompt-tokens"]) == tokens(LLAMA)
        assert int(answer.headers["x-kvbudget-reserved-blocks"]) == blocks(tokens(LLAMA))
        assert stand.asked()["b"] == 1
        assert stand.service.gateway.metrics.token_drift == 0
        own.healthy = False
        await stand.until(lambda: not stand.up("a"))
        assert await stand.counted("q") == tokens(LLAMA)
        assert await stand.counted("l") == tokens(LLAMA)
        assert stand.service.gateway.metrics.token_drift == 0

    play(
        scene,
        a=({"models": ["q"], "num_blocks": 65}, {"tokenizer": folder(QWEN)}),
        b=({"models": ["l"], "num_blocks": 65}, {"tokenizer": folder(LLAMA), "fallback": ("q",)}),
    )


def test_who_waits_at_one_and_goes_to_the_other_is_charged_there_by_the_other_vocabulary(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        own, other = stand.engines["a"], stand.engines["b"]
        own.hold = other.hold = True
        held = [
            asyncio.create_task(stand.complete("q", max_tokens=300)),
            asyncio.create_task(stand.complete("l", max_tokens=300)),
        ]
        await stand.until(lambda: sum(stand.asked().values()) == 2)
        waits = asyncio.create_task(stand.complete("q", max_tokens=300))
        gate = stand.service.instances[0].member.gate
        await stand.until(lambda: len(gate.queue) == 1)
        own.healthy = False
        await stand.until(lambda: not stand.up("a"))
        other.release.set()
        answer = await waits
        assert answer.status_code == 200
        assert int(answer.headers["x-kvbudget-prompt-tokens"]) == tokens(LLAMA)
        own.release.set()
        await asyncio.gather(*held)

    play(
        scene,
        a=({"models": ["q"], "num_blocks": 41, "max_model_len": 640}, {"tokenizer": folder(QWEN)}),
        b=({"models": ["l"], "num_blocks": 41, "max_model_len": 640}, {"tokenizer": folder(LLAMA), "fallback": ("q",)}),
    )


def test_a_request_that_names_no_model_is_charged_by_whoever_gets_it(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        counted = await stand.counted(None)
        (got,) = [name for name, asked in stand.asked().items() if asked]
        stand.engines[got].healthy = False
        await stand.until(lambda: not stand.up(got))
        assert {counted, await stand.counted(None)} == {tokens(QWEN), tokens(LLAMA)}
        assert stand.asked() == {"a": 1, "b": 1}
        assert stand.service.gateway.metrics.token_drift == 0

    play(
        scene,
        a=({"models": ["q"], "usage_prompt_tokens": tokens(QWEN)}, {"tokenizer": folder(QWEN)}),
        b=({"models": ["l"], "usage_prompt_tokens": tokens(LLAMA)}, {"tokenizer": folder(LLAMA)}),
    )


def test_a_tokenizer_that_is_not_the_engine_s_gives_way_for_its_model_alone(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        wrong = stand.engines["b"]
        wrong.usage_prompt_tokens = wrong.count = 77
        for _ in range(3):
            await stand.counted("l")
        assert await stand.counted("l") == 77  # by its /tokenize
        assert await stand.counted("q") == tokens(QWEN)
        counter = stand.service.reception.counter
        assert isinstance(counter, CounterByModel)
        assert counter.name == f"{counter.counters['a'].name} (a), engine (b)"
        assert "/tokenize" not in stand.engines["a"].last_heads

    own = {"models": ["q"], "usage_prompt_tokens": tokens(QWEN)}
    play(scene, a=(own, {"tokenizer": folder(QWEN)}), b=({"models": ["l"]}, {"tokenizer": folder(LLAMA)}))


def test_engines_that_count_for_themselves_are_asked_each_for_what_it_may_get(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        assert await stand.counted("q") == 100
        assert await stand.counted("l") == 40
        stand.engines["a"].die = "before head"
        assert await stand.counted("q") == 40
        stand.engines["b"].count = -1  # its /tokenize fails: the bound holds there, and only there
        stand.engines["a"].die = ""
        assert await stand.counted("q") == 100
        assert await stand.counted("l") == len(TEXT.encode()) + 4

    more = {"num_blocks": 129, "max_model_len": 2048}
    play(
        scene,
        a=({"models": ["q"], "count": 100, **more}, {}),
        b=({"models": ["l"], "count": 40, **more}, {"fallback": ("q",)}),
    )


def test_replicas_of_one_model_are_asked_once(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        assert await stand.counted("m") == 100
        asked = ["/tokenize" in engine.last_heads for engine in stand.engines.values()]
        assert asked == [True, False]

    play(scene, a=({"count": 100}, {}), b=({"count": 100}, {"fallback": ("m",)}))


def test_a_model_that_cannot_have_the_prompt_gets_none_of_it(play: Play) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"

    async def scene(stand: Stand) -> None:
        body = {"model": "q", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}
        assert (await stand.client.post("/v1/chat/completions", json=body)).status_code == 200
        stand.engines["a"].healthy = False
        await stand.until(lambda: not stand.up("a"))
        answer = await stand.client.post("/v1/chat/completions", json=body)
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert stand.asked() == {"a": 1, "b": 0}
        refused = await stand.client.post("/v1/chat/completions", json={**body, "model": "l"})
        assert (refused.status_code, "template" in refused.text) == (400, True)

    play(
        scene,
        a=({"models": ["q"]}, {"tokenizer": folder(QWEN), "chat_template": template}),
        b=({"models": ["l"]}, {"tokenizer": folder(LLAMA), "fallback": ("q",)}),  # it has no chat template
    )


def test_token_ids_of_one_vocabulary_never_reach_an_engine_of_another(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        own = stand.engines["a"]
        for _ in range(21):
            await stand.counted("q")
        sent = [type(ask["prompt"]) for ask in own.requests[-4:]]
        await stand.counted("q")
        assert list in [*sent, type(own.requests[-1]["prompt"])]  # it goes as ids by now
        own.die = "before head"
        for _ in range(3):
            await stand.complete("q")
        assert {type(ask["prompt"]) for ask in stand.engines["b"].requests} == {str}

    play(
        scene,
        {"counting": CountingSettings(forward_token_ids=True)},
        a=({"models": ["q"], "usage_prompt_tokens": tokens(QWEN)}, {"tokenizer": folder(QWEN)}),
        b=({"models": ["l"]}, {"tokenizer": folder(LLAMA), "fallback": ("q",)}),
    )


def test_one_tokenizer_for_all_stays_one_counter_and_an_own_one_stands_before_it(play: Play) -> None:
    async def same(stand: Stand) -> None:
        assert not isinstance(stand.service.reception.counter, CounterByModel)
        assert await stand.counted("q") == tokens(QWEN)

    async def other(stand: Stand) -> None:
        assert (await stand.counted("q"), await stand.counted("l")) == (tokens(QWEN), tokens(LLAMA))

    both: dict[str, Any] = {"a": ({"models": ["q"]}, {}), "b": ({"models": ["q"]}, {})}
    play(same, {"tokenizer": folder(QWEN)}, **both)
    play(
        other,
        {"tokenizer": folder(QWEN)},
        a=({"models": ["q"]}, {}),
        b=({"models": ["l"]}, {"tokenizer": folder(LLAMA)}),
    )


def test_a_shadow_counts_for_whom_it_goes_to(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.service.gateway.set_shadow(True)
        for model in ("q", "l", "q"):
            assert (await stand.complete(model)).status_code == 200
        assert stand.service.gateway.metrics.token_drift == 0

    play(
        scene,
        a=({"models": ["q"], "usage_prompt_tokens": tokens(QWEN)}, {"tokenizer": folder(QWEN)}),
        b=({"models": ["l"], "usage_prompt_tokens": tokens(LLAMA)}, {"tokenizer": folder(LLAMA), "fallback": ("q",)}),
    )


def test_another_tokenizer_needs_a_restart_and_the_rest_of_the_table_does_not(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        settings = stand.service.settings
        one, two = settings.instances
        wanted = replace(settings, instances=(replace(one, tokenizer=folder(LLAMA), weight=2.0), two))
        assert take_over(stand.service, wanted) == (["instances"], ["backend.tokenizer"])
        assert stand.service.instances[0].member.options.weight == 2.0
        assert await stand.counted("q") == tokens(QWEN)

    play(scene, a=({"models": ["q"]}, {"tokenizer": folder(QWEN)}), b=({"models": ["l"]}, {"tokenizer": "bound"}))
