"""Engines that are found, behind Envoy: one that has gone is sent nobody, and nothing of it is kept."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from extproc_peer import destination, headers_set, plane, request_headers
from kvbudget.edge.discovery.sources import Sought, source_of
from kvbudget.edge.extproc.service import ExtProcService, Timeouts, start_extproc
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import ServiceSettings


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIST_EVERY_S", "_FIRST_PAUSE_S", "_LOOK_S"):
        monkeypatch.setattr(f"kvbudget.edge.discovery.discovery.{name}", 0.02)


class Targets:
    """A list of them, over HTTP."""

    def __init__(self, *targets: str) -> None:
        self.targets = list(targets)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps([{"targets": self.targets, "labels": {}}]).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.005)


def play(make_engine: Callable[..., Any], scene: Any) -> None:
    """`scene(service, listed, places)`: before two engines that are listed."""

    async def all_of_it() -> None:
        engines = [make_engine() for _ in range(2)]
        places = [(await engine.start()).removeprefix("http://") for engine in engines]
        listed = Targets(*places)
        server = await asyncio.start_server(listed.serve, "127.0.0.1", 0)
        url = f"http-sd+http://127.0.0.1:{server.sockets[0].getsockname()[1]}/targets"
        settings = ServiceSettings(
            "", sources=(Sought(source_of(url), InstanceSettings(url)),), port=0, admin_port=0, tokenizer="bound"
        )
        service = await start_extproc(settings, Timeouts())
        try:
            async with asyncio.timeout(30):
                await scene(service, listed, places)
        finally:
            await service.close()
            for engine in engines:
                await engine.stop()
            server.close()

    uvloop.run(all_of_it())


def test_who_has_gone_is_no_endpoint_any_more(make_engine: Callable[..., Any]) -> None:
    async def scene(service: ExtProcService, listed: Targets, places: list[str]) -> None:
        await until(lambda: sum(one.member.gate.backend_up for one in service.instances) == 2)
        assert [service.endpoints.of(place) for place in places] == places
        listed.targets.remove(places[0])
        await until(lambda: len(service.instances) == 1)
        assert service.endpoints.of(places[0]) is None
        assert service.endpoints.any_but(frozenset()) == places[1]
        async with plane(service.url) as connection:
            for subset, picked in ((places[:1], False), (places, True)):  # one of those that have gone is none
                peer = connection.stream()
                await peer.say(request_headers("/v1/models/m", "GET", ends=True, subset=subset))
                answer = await peer.hear()
                if picked:
                    assert headers_set(answer)["x-gateway-destination-endpoint"] == destination(answer)[0] == places[1]
                else:
                    assert answer.immediate_response.status.code == 503
                await peer.hang_up()
        listed.targets.append(places[0])
        await until(lambda: service.endpoints.of(places[0]) == places[0])

    play(make_engine, scene)
