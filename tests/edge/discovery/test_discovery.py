"""A whole gate before engines that are found: they join, leave and come again while requests run."""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
import uvloop

from fake_api_server import FakeApiServer, endpoint, slice_of
from kvbudget.edge.budget.reload import take_over
from kvbudget.edge.discovery.names import AddressInfo
from kvbudget.edge.discovery.sources import KubernetesAccess, Sought, source_of
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import GateService, ServiceSettings, start_service
from kvbudget.errors import BadValueError
from kvbudget.gate.fleet.options import FleetConfig
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy

Engine = Any  # the class lives in conftest.py, which cannot be imported
Make = Callable[..., Engine]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMES_EVERY_S", "LIST_EVERY_S", "_FIRST_PAUSE_S", "_LOOK_S"):
        monkeypatch.setattr(f"kvbudget.edge.discovery.discovery.{name}", 0.02)


class TargetServer:
    """A list of targets; `refuse`: answers 500."""

    def __init__(self) -> None:
        self.targets: list[str] = []
        self.refuse = False
        self.asked = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http-sd+http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/targets"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        body = json.dumps([{"targets": self.targets, "labels": {}}]).encode()
        status = b"500" if self.refuse else b"200"
        writer.write(b"HTTP/1.1 %b X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()


class Stand:
    """Engines by name, started or not, and the gate before the source."""

    def __init__(self, make_engine: Make) -> None:
        self.make_engine = make_engine
        self.engines: dict[str, Engine] = {}
        self.places: dict[str, str] = {}
        self.listed = TargetServer()
        self.api = FakeApiServer()
        self.service: GateService
        self.client: httpx.AsyncClient

    async def engine(self, name: str, host: str = "127.0.0.1", port: int = 0, **settings: object) -> str:
        """Start one; its host and port, which is its name at the gate."""
        engine = self.engines[name] = self.make_engine(**{"count": 16, **settings})
        self.places[name] = str(await engine.start(host, port)).removeprefix("http://")
        return self.places[name]

    async def begin(self, *sought: str, **settings: Any) -> None:
        """Start the gate before these sources (or engines)."""
        named = [InstanceSettings(url) for url in sought if url.startswith("http://")]
        sources = [Sought(source_of(url), InstanceSettings(url)) for url in sought if not url.startswith("http://")]
        told: dict[str, Any] = {"instances": tuple(named), "sources": tuple(sources), **settings}
        gate = GateConfig(policy=Policy.WORST_CASE, abort_tail_ns=0)
        self.service = await start_service(
            ServiceSettings(
                named[0].url if named else "", fleet=FleetConfig(ramp_ns=0), port=0, admin_port=0, gate=gate,
                default_max_tokens=64, upstream_limits=UpstreamLimits(response_s=5.0), **told,
            ),
            look_for_s=settings.pop("look_for_s", 5.0),
        )  # fmt: skip
        self.client = httpx.AsyncClient(base_url=self.service.url, timeout=20)

    async def close(self) -> None:
        await self.client.aclose()
        await self.service.close()
        for engine in self.engines.values():
            await engine.stop()
        await self.listed.stop()
        await self.api.stop()
        assert self.service.gateway.metrics.ledger_errors == 0
        assert sum(one.member.gate.promised_blocks() for one in self.service.instances) == 0

    async def chat(self, model: str = "m", **body: object) -> httpx.Response:
        ask = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, **body}
        return await self.client.post("/v1/chat/completions", json=ask)

    async def admin(self, path: str, method: str = "GET") -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.service.admin_url) as client:
            return await client.request(method, path)

    def there(self) -> dict[str, str]:
        """Each instance by its name: up, away or leaving."""
        return {
            member.name: "leaving" if member.leaving else "up" if member.gate.backend_up else "away"
            for member in self.service.fleet.members
        }

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0.005)

    async def until_there(self, *names: str) -> None:
        await self.until(lambda: self.there() == {self.places[name]: "up" for name in names})


Scene = Callable[[Stand], Awaitable[None]]
Play = Callable[[Scene], None]


@pytest.fixture
def play(make_engine: Make) -> Play:
    def run(scene: Scene) -> None:
        async def all_of_it() -> None:
            stand = Stand(make_engine)
            async with asyncio.timeout(60):
                try:
                    await scene(stand)
                finally:
                    await stand.close()

        uvloop.run(all_of_it())

    return run


# By a list


def test_an_engine_that_is_listed_joins_and_one_that_is_not_any_more_goes_when_its_streams_have_ended(
    play: Play,
) -> None:
    async def scene(stand: Stand) -> None:
        stand.listed.targets = [await stand.engine("a", hold=True)]
        await stand.begin(await stand.listed.start())
        await stand.until_there("a")
        held = asyncio.create_task(stand.chat(max_tokens=400))  # nearly all of its 512 tokens
        await stand.until(lambda: len(stand.engines["a"].requests) == 1)
        waiting = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: stand.service.fleet.waiting == 1)
        stand.listed.targets.append(await stand.engine("b"))
        assert (await waiting).status_code == 200, "who waits goes to the one that joins"
        assert len(stand.engines["b"].requests) == 1
        stand.listed.targets.remove(stand.places["a"])
        await stand.until(lambda: stand.there()[stand.places["a"]] == "leaving")
        assert (await stand.chat()).status_code == 200
        assert [len(stand.engines[name].requests) for name in "ab"] == [1, 2], "nobody new comes to it"
        told = {one["name"]: one for one in (await stand.admin("/v1/instances")).json()["instances"]}
        assert (told[stand.places["a"]]["leaving"], told[stand.places["b"]]["leaving"]) == (True, False)
        metrics = (await stand.admin("/metrics")).text
        assert f'kvbudget_instance_draining{{instance="{stand.places["a"]}"}} 1.0' in metrics
        stand.engines["a"].release.set()
        assert (await held).status_code == 200, "its stream ends as it should"
        await stand.until_there("b")
        assert stand.service.gateway.backends.keys() == {stand.places["b"]}
        assert stand.places["a"] not in (await stand.admin("/metrics")).text

    play(scene)


def test_before_anything_is_found_the_gate_answers_that_there_is_nobody_and_why(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        source = await stand.listed.start()
        await stand.begin(source)
        refused = await stand.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_is_overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        ready = await stand.admin("/ready")
        assert (ready.status_code, ready.json()["problem"]) == (503, f"no engine has been found by {source}")
        assert (await stand.client.get("/v1/models")).json()["data"] == []
        assert (await stand.client.post("/v1/files", content=b"x")).status_code == 503
        for path in ("/metrics", "/v1/state", "/v1/instances", "/v1/findings", "/v1/forecast", "/api/live"):
            assert (await stand.admin(path)).status_code == 200, path
        state = (await stand.admin("/v1/state")).json()
        assert (state["instances"], state["backend"]["up"], state["pool"]["usable_blocks"]) == ([], False, 0)
        stand.listed.targets = [await stand.engine("a")]
        await stand.until_there("a")
        assert (await stand.chat()).status_code == 200
        assert (await stand.admin("/ready")).status_code == 200
        assert (await stand.admin("/v1/state")).json()["pool"]["instance"] == stand.places["a"]
        await stand.admin("/metrics")
        assert (await stand.admin("/v1/findings")).json()["instances"][0]["instance"] == stand.places["a"]

    play(scene)


def test_a_source_that_fails_or_is_empty_sends_nobody_away_and_says_so(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvbudget.discovery")

    async def scene(stand: Stand) -> None:
        stand.listed.targets = [await stand.engine("a")]
        source = await stand.listed.start()
        await stand.begin(source)
        await stand.until_there("a")
        stand.listed.refuse = True
        asked = stand.listed.asked
        await stand.until(lambda: stand.listed.asked > asked + 1)
        stand.listed.refuse, stand.listed.targets = False, []
        asked = stand.listed.asked
        await stand.until(lambda: stand.listed.asked > asked + 3)
        assert (await stand.chat()).status_code == 200
        assert stand.there() == {stand.places["a"]: "up"}
        metrics = (await stand.admin("/metrics")).text
        assert f'kvbudget_discovery_instances{{source="{source}"}} 1.0' in metrics
        assert f'kvbudget_discovery_age_seconds{{source="{source}"}} ' in metrics
        (failures,) = [line for line in metrics.splitlines() if line.startswith("kvbudget_discovery_failures_total{")]
        assert float(failures.split()[-1]) >= 4
        stand.listed.targets = [stand.places["a"]]
        await stand.until(lambda: any("tells again" in record.message for record in caplog.records))

    play(scene)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2, "once for each kind of trouble"
    assert "answered 500" in warned[0]
    assert "it names nobody; the 1 that are known stay" in warned[1]


def test_one_that_was_leaving_is_had_again_when_it_is_listed_again(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.listed.targets = [await stand.engine("a", hold=True)]
        await stand.begin(await stand.listed.start())
        await stand.until_there("a")
        member = stand.service.fleet.named(stand.places["a"])
        held = asyncio.create_task(stand.chat())
        await stand.until(lambda: len(stand.engines["a"].requests) == 1)
        stand.listed.targets = [await stand.engine("b")]
        await stand.until(lambda: stand.there()[stand.places["a"]] == "leaving")
        stand.listed.targets = [stand.places["a"], stand.places["b"]]
        await stand.until_there("a", "b")
        assert stand.service.fleet.named(stand.places["a"]) is member
        stand.engines["a"].release.set()
        assert (await held).status_code == 200

    play(scene)


def test_named_and_found_engines_stand_side_by_side_and_one_that_is_both_is_one(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        named = await stand.engine("a")
        stand.listed.targets = [named, await stand.engine("b")]
        await stand.begin(f"http://{named}", await stand.listed.start())
        await stand.until_there("a", "b")
        assert len(stand.service.instances) == 2
        stand.listed.targets = [stand.places["b"]]
        asked = stand.listed.asked
        await stand.until(lambda: stand.listed.asked > asked + 2)
        assert stand.there() == {named: "up", stand.places["b"]: "up"}, "who is named stays"

    play(scene)


def test_one_that_two_sources_tell_of_goes_when_neither_does(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        other = TargetServer()
        place, more = await stand.engine("a"), await stand.engine("b")
        stand.listed.targets, other.targets = [place, more], [place, more]
        await stand.begin(await stand.listed.start(), await other.start())
        await stand.until_there("a", "b")
        stand.listed.targets = [more]
        asked = stand.listed.asked
        await stand.until(lambda: stand.listed.asked > asked + 2)
        assert stand.there() == {place: "up", more: "up"}
        other.targets = [more]
        await stand.until_there("b")
        await other.stop()

    play(scene)


def test_a_reload_reaches_who_was_found_and_a_new_source_needs_a_restart(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.listed.targets = [await stand.engine("a")]
        source = await stand.listed.start()
        await stand.begin(source)
        await stand.until_there("a")
        settings = stand.service.settings
        other = replace(settings.sources[0].template, weight=2.0, max_num_seqs=3)
        wanted = replace(settings, sources=(replace(settings.sources[0], template=other),))
        assert take_over(stand.service, wanted) == (["sources"], [])
        (instance,) = stand.service.instances
        assert (instance.member.options.weight, instance.member.gate.config.max_num_seqs) == (2.0, 3)
        stand.listed.targets.append(await stand.engine("b"))
        await stand.until_there("a", "b")
        assert stand.service.instances[1].member.options.weight == 2.0
        wanted = replace(stand.service.settings, sources=(), gate=replace(settings.gate, margin_blocks=4))
        assert take_over(stand.service, wanted) == (["margin_blocks"], ["sources"])
        assert [one.member.gate.ledger.margin_blocks for one in stand.service.instances] == [4, 4]

    play(scene)


def test_a_gate_that_drains_lets_nobody_in_who_is_found(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.listed.targets = [await stand.engine("a", hold=True)]
        await stand.begin(await stand.listed.start())
        await stand.until_there("a")
        held = asyncio.create_task(stand.chat())
        await stand.until(lambda: len(stand.engines["a"].requests) == 1)
        draining = asyncio.create_task(stand.service.drain(10.0))
        stand.listed.targets.append(await stand.engine("b"))
        await stand.until_there("a", "b")
        assert (await stand.chat()).status_code == 503
        ready = await stand.admin("/ready")
        assert (ready.status_code, ready.json()["problem"]) == (503, "draining")
        stand.engines["a"].release.set()
        assert (await held).status_code == 200
        assert await draining, "nothing was cut off"

    play(scene)


# By a name


def test_addresses_behind_a_name_are_engines_and_one_that_is_missing_thrice_goes(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[list[str] | OSError] = []
    asked = 0

    async def resolve(host: str, port: int) -> Sequence[AddressInfo]:
        nonlocal asked
        asked += 1
        answer = answers[0] if len(answers) == 1 else answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr("kvbudget.edge.discovery.discovery.resolve", resolve)

    async def scene(stand: Stand) -> None:
        place = await stand.engine("a")
        port = int(place.rpartition(":")[2])
        await stand.engine("b", "127.0.0.2", port)
        await stand.listed.start()
        answers[:] = [["127.0.0.1", "127.0.0.2"]]
        await stand.begin(f"dns://engines:{port}")
        await stand.until_there("a", "b")
        blink = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        answers[:] = [blink, ["127.0.0.1"], [], ["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]]
        before = asked
        await stand.until(lambda: asked > before + 6)
        assert set(stand.there().values()) == {"up"}, "a blink, and two answers without it, send nobody away"
        answers[:] = [["127.0.0.1"]]
        await stand.until_there("a")

    play(scene)


def test_a_real_name_is_resolved(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        port = (await stand.engine("a")).rpartition(":")[2]
        await stand.listed.start()
        await stand.begin(f"dns://localhost:{port}")
        await stand.until_there("a")
        assert (await stand.chat()).status_code == 200

    play(scene)


# By a service of Kubernetes


def test_pods_of_a_service_come_and_go_without_one_failed_request(play: Play) -> None:
    """A rollout: the new pod is ready, the old one is told to stop, finishes what it has, and is gone."""

    async def scene(stand: Stand) -> None:
        port = int((await stand.engine("old", hold=True)).rpartition(":")[2])
        stand.api.put(slice_of("vllm-1", port, endpoint("127.0.0.1")))
        access = KubernetesAccess(await stand.api.start())
        await stand.listed.start()
        await stand.begin("k8s://llm/vllm", kubernetes=access)
        await stand.until_there("old")
        held = asyncio.create_task(stand.chat())
        await stand.until(lambda: len(stand.engines["old"].requests) == 1)
        new_port = int((await stand.engine("new")).rpartition(":")[2])
        stand.api.put(slice_of("vllm-2", new_port, endpoint("127.0.0.1", ready=False)))
        stand.api.bookmark()
        stand.api.put(slice_of("vllm-2", new_port, endpoint("127.0.0.1")))
        await stand.until_there("old", "new")
        stand.api.put(slice_of("vllm-1", port, endpoint("127.0.0.1", ready=False, terminating=True)))
        await stand.until(lambda: stand.there()[stand.places["old"]] == "leaving")
        assert {(await stand.chat()).status_code for _ in range(4)} == {200}
        assert len(stand.engines["old"].requests) == 1
        stand.engines["old"].release.set()
        assert (await held).status_code == 200
        stand.api.delete("vllm-1")
        await stand.until_there("new")
        assert stand.api.lists == 1

    play(scene)


def test_an_api_server_that_goes_away_sends_nobody_away_and_is_heard_again(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        port = int((await stand.engine("a")).rpartition(":")[2])
        stand.api.put(slice_of("vllm-1", port, endpoint("127.0.0.1")))
        url = await stand.api.start()
        await stand.listed.start()
        await stand.begin("k8s://llm/vllm", kubernetes=KubernetesAccess(url))
        await stand.until_there("a")
        await stand.until(lambda: stand.api.watched_by == 1)
        discovery = stand.service.discovery
        assert discovery is not None
        await stand.api.stop()
        await stand.until(lambda: discovery._followed[0].failures > 2)
        assert (await stand.chat()).status_code == 200
        stand.api.put(slice_of("vllm-2", int((await stand.engine("b")).rpartition(":")[2]), endpoint("127.0.0.1")))
        stand.api.forget()
        await stand.api.start(port=int(url.rpartition(":")[2]))
        await stand.until_there("a", "b")

    play(scene)


def test_outside_of_a_cluster_a_service_cannot_be_followed(play: Play) -> None:
    async def scene() -> None:
        source = Sought(source_of("k8s://llm/vllm"), InstanceSettings("k8s://llm/vllm"))
        with pytest.raises(BadValueError, match="no pod of a Kubernetes cluster"):
            await start_service(ServiceSettings("", sources=(source,), port=0, admin_port=0))

    asyncio.run(scene())
