"""Several scripted engines behind one gate: who gets what, who stands in, and what happens when one dies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvloop

from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import GateService, ServiceSettings, start_service
from kvbudget.gate.fleet.options import FleetConfig
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy

Engine = Any  # the class lives in conftest.py, which cannot be imported


class Stand:
    """A gate before engines that are called by their names."""

    def __init__(self, engines: dict[str, Engine], service: GateService, client: httpx.AsyncClient) -> None:
        self.engines, self.service, self.client = engines, service, client

    async def chat(self, model: str = "m", **body: object) -> httpx.Response:
        ask = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, **body}
        return await self.client.post("/v1/chat/completions", json=ask)

    async def admin(self, method: str, path: str, **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.service.admin_url) as client:
            return await client.request(method, path, **more)

    def asked(self) -> dict[str, int]:
        return {name: len(engine.requests) for name, engine in self.engines.items()}

    def outcomes(self) -> dict[str, int]:
        return {name: count for name, count in self.service.gateway.metrics.outcomes.items() if count}

    async def until(self, what: Callable[[], bool], within_s: float = 20.0) -> None:
        async with asyncio.timeout(within_s):
            while not what():
                await asyncio.sleep(0.005)

    def promised(self) -> int:
        return sum(one.member.gate.promised_blocks() for one in self.service.instances)


@asynccontextmanager
async def _stand(
    engines: dict[str, Engine], told: dict[str, dict[str, Any]], config: dict[str, Any]
) -> AsyncIterator[Stand]:
    gate = GateConfig(**{"policy": Policy.WORST_CASE, "abort_tail_ns": 0, **config})
    instances = [InstanceSettings(await engine.start(), name, **told.get(name, {})) for name, engine in engines.items()]
    settings = ServiceSettings(
        "", tuple(instances), FleetConfig(failures=3, ramp_ns=0), port=0, admin_port=0, gate=gate,
        default_max_tokens=64, upstream_limits=UpstreamLimits(response_s=5.0),
    )  # fmt: skip
    service = await start_service(settings)
    try:
        async with httpx.AsyncClient(base_url=service.url, timeout=20) as client:
            yield Stand(engines, service, client)
        assert service.gateway.metrics.ledger_errors == 0
    finally:
        await service.close()
        for engine in engines.values():
            await engine.stop()
    assert sum(one.member.gate.promised_blocks() for one in service.instances) == 0


Scene = Callable[[Stand], Awaitable[None]]


@pytest.fixture
def play(make_engine: Callable[..., Engine]) -> Callable[..., None]:
    """`play(scene, {"a": {...}, "b": {...}})`: engines by name; `told`: their settings; the rest is the gate's."""

    def run(
        scene: Scene,
        engines: dict[str, dict[str, object]],
        told: dict[str, dict[str, Any]] | None = None,
        **config: Any,
    ) -> None:
        async def all_of_it() -> None:
            made = {name: make_engine(**settings) for name, settings in engines.items()}
            async with _stand(made, told or {}, config) as stand, asyncio.timeout(30):
                await scene(stand)

        uvloop.run(all_of_it())

    return run


Play = Callable[..., None]


def test_two_share_the_work(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answers = await asyncio.gather(*[stand.chat() for _ in range(8)])
        assert {answer.status_code for answer in answers} == {200}
        assert stand.asked() == {"a": 4, "b": 4}
        assert stand.outcomes() == {"finished": 8}

    play(scene, {"a": {"count": 100}, "b": {"count": 100}})


def test_long_requests_go_where_they_fit_and_short_ones_there_only_when_the_short_one_is_full(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        assert (await stand.chat(max_tokens=300)).status_code == 200
        assert stand.asked() == {"short": 0, "long": 1}
        held = [asyncio.create_task(stand.chat(max_tokens=28)) for _ in range(3)]
        await stand.until(lambda: sum(stand.asked().values()) == 4)
        assert stand.asked() == {"short": 2, "long": 2}
        for engine in stand.engines.values():
            engine.release.set()
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
        refused = await stand.chat(max_tokens=16, messages=[{"role": "user", "content": "x" * 9}])
        assert refused.status_code == 200

    short = {"count": 100, "max_model_len": 128, "num_blocks": 17, "hold": True}
    play(scene, {"short": short, "long": {"count": 100, "max_model_len": 512, "num_blocks": 65}})


def test_models_by_name_by_alias_and_unknown_ones(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        assert (await stand.chat("m-a")).status_code == 200
        assert (await stand.chat("chat")).status_code == 200
        assert stand.asked() == {"a": 1, "b": 1}
        assert stand.engines["b"].requests[0]["model"] == "m", "the engine's own name"
        unknown = await stand.chat("nobody's")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert unknown.json()["error"]["param"] == "model"
        assert unknown.headers["x-should-retry"] == "false"
        listed = (await stand.client.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == ["chat", "m", "m-a"]
        passed = await stand.client.post("/v1/embeddings", json={"model": "m-a", "input": "x"})
        assert passed.json()["path"] == "/v1/embeddings"

    told = {"a": {"models": ("m-a",)}, "b": {"aliases": {"chat": "m"}}}
    play(scene, {"a": {"count": 10, "models": ["m-a"]}, "b": {"count": 10}}, told)


def test_a_stand_in_takes_over_under_its_own_name(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.engines["big"].healthy = False
        await stand.until(lambda: not stand.service.instances[0].member.gate.backend_up)
        assert (await stand.chat("big")).status_code == 200
        assert [ask["model"] for ask in stand.engines["small"].requests] == ["small"]

    told = {"small": {"fallback": ("big",), "fallback_share": 0.5}}
    play(scene, {"big": {"count": 10, "models": ["big"]}, "small": {"count": 10, "models": ["small"]}}, told)


def test_who_waits_goes_to_whichever_has_room_first(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        tasks = [asyncio.create_task(stand.chat(max_tokens=400)) for _ in range(3)]
        await stand.until(lambda: stand.service.fleet.waiting == 1)
        assert stand.asked() == {"a": 1, "b": 1}
        stand.engines["b"].hold = False
        stand.engines["b"].release.set()
        await stand.until(lambda: stand.asked() == {"a": 1, "b": 2})
        stand.engines["a"].release.set()
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}

    engine = {"count": 100, "hold": True}
    play(scene, {"a": dict(engine), "b": dict(engine)})


def test_one_that_dies_in_mid_load_leaves_nobody_hanging_and_the_traffic_moves(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        tasks = [asyncio.create_task(stand.chat(max_tokens=100)) for _ in range(6)]
        await stand.until(lambda: sum(stand.asked().values()) == 4 and stand.service.fleet.waiting == 2)
        await stand.engines["a"].stop()
        stand.engines["b"].hold = False
        stand.engines["b"].release.set()
        answers = await asyncio.gather(*tasks)
        assert [answer.status_code for answer in answers] == [200] * 6, "nothing was sent yet, so they were tried again"
        assert stand.asked() == {"a": 2, "b": 6}
        assert (stand.outcomes(), stand.promised()) == ({"finished": 6}, 0)
        assert stand.service.gateway.metrics.retries == 2
        assert (await stand.chat()).status_code == 200

    engine = {"count": 100, "hold": True, "num_blocks": 29}
    play(scene, {"a": dict(engine), "b": dict(engine)})


def test_a_stream_that_has_begun_is_not_tried_again(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.engines["a"].die = stand.engines["b"].die = "midway"
        try:
            ended = (await stand.chat(stream=True)).content
        except httpx.RemoteProtocolError:  # cut short
            ended = b"error"
        assert b"error" in ended
        assert sum(stand.asked().values()) == 1

    play(scene, {"a": {"count": 10}, "b": {"count": 10}})


def test_a_request_at_which_engines_break_off_is_tried_twice_at_most(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat()
        assert answer.status_code == 502
        # A connection that was used before is tried anew, which may ask the same engine twice.
        assert sum(count > 0 for count in stand.asked().values()) == 2
        assert stand.outcomes() == {"upstream_failed": 1}

    play(scene, {name: {"count": 10, "die": "before head"} for name in "abc"})


def test_a_request_that_kills_engines_does_not_go_from_one_to_the_next(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat()  # on connections that were kept: each is lost, and then there is none to be had
        assert answer.status_code == 503
        assert sorted(stand.asked().values()) == [0, 0, 1, 1]

    play(scene, {name: {"count": 10, "die": "for good"} for name in "abcd"})


def test_failures_in_a_row_take_one_out(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        for _ in range(12):
            await stand.chat()
        assert stand.engines["a"].requests
        assert len(stand.engines["a"].requests) <= 4
        assert stand.service.instances[0].member.circuit.is_open
        told = (await stand.admin("GET", "/metrics")).text
        assert 'kvbudget_instance_ejected{instance="a"} 1.0' in told

    play(scene, {"a": {"count": 10, "refuse_with": 500}, "b": {"count": 10}})


def test_an_engine_that_says_it_is_overloaded_is_spared_and_the_other_asked(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        answers = await asyncio.gather(*[stand.chat() for _ in range(4)])
        assert {answer.status_code for answer in answers} == {200}
        assert len(stand.engines["b"].requests) == 4
        assert stand.outcomes() == {"finished": 4}

    play(scene, {"a": {"count": 10, "refuse_with": 503}, "b": {"count": 10}})


def test_one_is_taken_out_and_put_back_by_the_admin_api(play: Play) -> None:
    json = {"headers": {"content-type": "application/json"}}

    async def scene(stand: Stand) -> None:
        assert (await stand.admin("POST", "/v1/instances/a/drain")).status_code == 403
        assert (await stand.admin("POST", "/v1/instances/z/drain", **json)).status_code == 404
        assert (await stand.admin("GET", "/v1/instances/a/drain")).status_code == 405
        assert (await stand.admin("POST", "/v1/instances/a/drain", **json)).json()["draining"] is True
        await asyncio.gather(*[stand.chat() for _ in range(3)])
        assert stand.asked() == {"a": 0, "b": 3}
        assert (await stand.admin("POST", "/v1/instances/b/drain", **json)).status_code == 200
        assert (await stand.chat()).status_code == 503
        ready = await stand.admin("GET", "/ready")
        assert (ready.status_code, ready.json()["problem"]) == (503, "a: drained; b: drained")
        await stand.admin("POST", "/v1/instances/a/resume", **json)
        assert (await stand.chat()).status_code == 200
        told = (await stand.admin("GET", "/v1/instances")).json()["instances"]
        assert [(one["name"], one["draining"], one["up"]) for one in told] == [("a", False, True), ("b", True, True)]
        assert {"held_blocks", "promised_blocks", "elsewhere_blocks"} <= told[0].keys()
        state = (await stand.admin("GET", "/v1/state")).json()
        assert [one["name"] for one in state["instances"]] == ["a", "b"]

    play(scene, {"a": {"count": 10}, "b": {"count": 10}})


def test_gauges_are_told_by_instance(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        await stand.chat()
        text = (await stand.admin("GET", "/metrics")).text
        for name in ("a", "b"):
            assert f'kvbudget_pool_blocks{{instance="{name}"}} 32.0' in text
            assert f'kvbudget_held_blocks{{instance="{name}"}} 16.0' in text
            assert f'kvbudget_reserved_blocks{{instance="{name}",tenant="default"}} 0.0' in text
        assert "kvbudget_queue_requests 0.0" in text

    play(scene, {"a": {"count": 10}, "b": {"count": 10}})


def test_a_shadow_that_a_fleet_would_refuse_ends_and_is_forgotten(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.service.gateway.set_shadow(True)
        assert (await stand.chat()).status_code == 200  # refused by its length, and forwarded
        stand.engines["a"].die = stand.engines["b"].die = "before head"
        broken = await stand.chat()
        assert (broken.status_code, broken.json()["error"]["code"]) == (502, "upstream_failed")
        assert list(stand.service.gateway.flows) == []
        assert stand.outcomes() == {"finished": 1, "upstream_failed": 1}

    play(scene, {"a": {"count": 600}, "b": {"count": 600}})


def test_what_the_kill_switch_freed_before_a_fleet_ends_without_a_place_there(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        gateway, fleet = stand.service.gateway, stand.service.fleet
        tasks = [asyncio.create_task(stand.chat(max_tokens=400)) for _ in range(6)]
        await stand.until(lambda: fleet.waiting == 4)
        gateway.set_shadow(True)
        await stand.until(lambda: sum(stand.asked().values()) == 6)
        gateway.set_shadow(False)
        await stand.until(lambda: fleet.waiting == 0)  # the queue's deadline: refused there, and under way all the same
        for engine in stand.engines.values():
            engine.release.set()
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
        assert (list(gateway.flows), stand.outcomes(), stand.promised()) == ([], {"finished": 6}, 0)

    engine = {"count": 100, "hold": True}
    play(scene, {"a": dict(engine), "b": dict(engine)}, queue_ns=200_000_000)


def test_how_a_shadow_ended_is_heard_of_the_engine_that_it_was_sent_to(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        gateway, fleet = stand.service.gateway, stand.service.fleet
        first = [asyncio.create_task(stand.chat(max_tokens=400)) for _ in range(2)]
        await stand.until(lambda: sum(stand.asked().values()) == 2)
        gateway.set_shadow(True)
        stand.engines["a"].die = "before head"
        for _ in range(3):  # they wait in one queue or the other, and are all sent to the first
            assert (await stand.chat(max_tokens=400)).status_code == 502
        gateway.set_shadow(False)
        assert {member.name: member.circuit.is_open for member in fleet.members} == {"a": True, "b": False}
        stand.engines["a"].die = ""
        for engine in stand.engines.values():
            engine.release.set()
        await asyncio.gather(*first)

    engine = {"count": 100, "hold": True}
    play(scene, {"a": dict(engine), "b": dict(engine)}, {"b": {"weight": 8.0}})


def test_an_engine_that_was_overloaded_for_a_moment_is_asked_again_from_our_queue(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        engine = stand.engines["a"]
        task = asyncio.create_task(stand.chat())
        await stand.until(lambda: len(engine.requests) == 1)
        engine.refuse_with = 0
        answer = await task
        assert (answer.status_code, len(engine.requests)) == (200, 2)
        assert int(answer.headers["x-kvbudget-queue-ms"]) >= 200
        assert (stand.outcomes(), stand.promised()) == ({"finished": 1}, 0)

    play(scene, {"a": {"count": 10, "refuse_with": 503}})


def test_a_client_that_leaves_between_two_tries_is_forgotten(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        task = asyncio.create_task(stand.chat())
        await stand.until(lambda: stand.service.fleet.waiting == 1)
        task.cancel()
        await stand.until(lambda: stand.outcomes() == {"withdrawn": 1})
        assert len(stand.engines["a"].requests) == 1

    play(scene, {"a": {"count": 10, "refuse_with": 503}})


def test_a_stuck_engine_loses_whoever_got_nothing_yet(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        tasks = [asyncio.create_task(stand.chat()) for _ in range(2)]
        await stand.until(lambda: stand.asked() == {"a": 1, "b": 1})
        stuck = stand.service.instances[0].member
        stand.engines["b"].release.set()
        stand.service.gateway.recalls.engine_stuck(stuck)
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
        assert stand.asked() == {"a": 1, "b": 2}

    engine = {"count": 10, "hold": True}
    play(scene, {"a": dict(engine), "b": dict(engine)})


def test_what_a_restarted_engine_had_is_lost_and_said_so(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        task = asyncio.create_task(stand.chat())
        await stand.until(lambda: stand.asked() == {"a": 1})
        (instance,) = stand.service.instances
        stand.service.gateway.recalls.engine_lost(instance.member)
        assert not task.done(), "it may have been sent to the new one"
        instance.backend.last_looked_ns = 1 << 62
        stand.service.gateway.recalls.engine_lost(instance.member)
        answer = await task
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
        assert (stand.outcomes(), stand.promised()) == ({"engine_lost": 1}, 0)

    play(scene, {"a": {"count": 10, "hold": True}}, abort_tail_ns=10**12)


@pytest.mark.parametrize(("message", "status"), [("Context size has been exceeded.", 429), ("a bug", 500)])
def test_a_500_of_llamacpp_for_want_of_room_is_an_overload_and_any_other_is_passed_on(
    play: Play, message: str, status: int
) -> None:
    async def scene(stand: Stand) -> None:
        (instance,) = stand.service.instances
        assert instance.backend.facts.engine == "llamacpp"
        stand.engines["a"].refuse_message = message
        answer = await stand.chat()
        assert answer.status_code == status
        if status == 500:
            assert answer.json()["error"]["message"] == message

    metrics = b"llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
    play(scene, {"a": {"count": 10, "refuse_with": 500, "metrics": metrics}}, {"a": {"pool_blocks": 30}})


def test_the_first_of_two_that_was_never_up_does_not_keep_the_other_from_work(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        assert (await stand.chat()).status_code == 200
        assert stand.asked() == {"a": 0, "b": 1}
        hopeless = await stand.chat(messages=[{"role": "user", "content": "x"}], max_tokens=10**6)
        assert hopeless.status_code == 200, "clamped to what b has"

    play(scene, {"a": {"count": 10, "healthy": False}, "b": {"count": 10}})


def test_who_waits_at_any_instance_is_told_with_its_own_gates_word(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        asked = [asyncio.create_task(stand.chat(max_tokens=400)) for _ in range(5)]
        await stand.until(lambda: stand.service.fleet.waiting == 3)
        told = (await stand.admin("GET", "/api/live")).json()
        waiting = told["queue"]["next"]
        assert told["queue"]["requests"] == len(waiting) == 3
        assert {one["instance"] for one in waiting} <= {"a", "b"}
        firsts = {one["instance"]: one["why"] for one in reversed(waiting)}
        assert set(firsts.values()) == {"pool"}
        assert [one["waited_ms"] for one in waiting] == sorted([one["waited_ms"] for one in waiting], reverse=True)
        for engine in stand.engines.values():
            engine.hold = False
            engine.release.set()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 5

    play(scene, {"a": {"hold": True}, "b": {"hold": True}})
