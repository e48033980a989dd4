"""Following the EndpointSlices of a service, before an API server that speaks the real protocol."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from fake_api_server import FakeApiServer, endpoint, slice_of
from kvbudget.edge.discovery.kubernetes import EndpointWatch
from kvbudget.edge.discovery.roster import Found
from kvbudget.edge.discovery.sources import KubernetesAccess, KubernetesService
from kvbudget.edge.http.upstream import UpstreamError
from kvbudget.errors import BadConfigError

SERVICE = KubernetesService("llm", "vllm", "")


class Followed:
    """A watch that is followed again and again, as the discovery does, and what it told."""

    def __init__(self, api: FakeApiServer, watch: EndpointWatch) -> None:
        self.api, self.watch = api, watch
        self.told: list[list[str]] = []
        self.errors: list[Exception] = []

    def heard(self, found: list[Found]) -> None:
        self.told.append([f"{one.url.rpartition('/')[2]} {one.standing.value}" for one in found])

    async def follow(self) -> None:
        while True:
            try:
                await self.watch.follow(self.heard)
            except (UpstreamError, BadConfigError, OSError) as error:
                self.errors.append(error)
                await asyncio.sleep(0.01)

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0.005)

    async def until_watching(self) -> None:
        await self.until(lambda: self.api.watched_by == 1)


Scene = Callable[[Followed], Awaitable[None]]


def play(scene: Scene, api: FakeApiServer | None = None, tls: Any = None, **access: Any) -> None:
    async def all_of_it() -> None:
        server = api or FakeApiServer()
        url = await server.start(tls)
        watch = EndpointWatch(KubernetesAccess(url, **access), SERVICE, silent_s=5.0)
        followed = Followed(server, watch)
        task = asyncio.create_task(followed.follow())
        try:
            async with asyncio.timeout(30):
                await scene(followed)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            watch.upstream.close()
            await server.stop()

    asyncio.run(all_of_it())


def api_with(*hosts: str) -> FakeApiServer:
    api = FakeApiServer()
    api.put(slice_of("vllm-a", 8000, *[endpoint(host) for host in hosts]))
    return api


def test_a_list_and_then_changes_as_they_happen() -> None:
    async def scene(followed: Followed) -> None:
        api = followed.api
        await followed.until_watching()
        assert followed.told == [["10.0.0.1:8000 ready"]]
        api.put(slice_of("vllm-b", 8000, endpoint("10.0.0.2"), endpoint("10.0.0.3", ready=False)))
        await followed.until(lambda: len(followed.told) == 2)
        assert followed.told[-1] == ["10.0.0.1:8000 ready", "10.0.0.2:8000 ready", "10.0.0.3:8000 unready"]
        api.put(slice_of("vllm-a", 8000, endpoint("10.0.0.1", ready=False, terminating=True)))
        await followed.until(lambda: followed.told[-1][0] == "10.0.0.1:8000 going")
        api.delete("vllm-a")
        await followed.until(lambda: followed.told[-1] == ["10.0.0.2:8000 ready", "10.0.0.3:8000 unready"])
        assert (api.lists, api.watches) == (1, ["101"]), "one list, and one watch from its version on"
        assert followed.errors == []
        assert "labelSelector=kubernetes.io%2Fservice-name%3Dvllm" in api.targets[0]

    play(scene, api_with("10.0.0.1"))


def test_slices_of_other_services_are_not_ours() -> None:
    async def scene(followed: Followed) -> None:
        await followed.until_watching()
        assert followed.told == [["10.0.0.1:8000 ready"]]

    api = api_with("10.0.0.1")
    api.put(slice_of("other", 8000, endpoint("10.9.9.9"), service="other"))
    play(scene, api)


def test_a_watch_that_ends_or_breaks_goes_on_where_it_stood() -> None:
    async def scene(followed: Followed) -> None:
        api = followed.api
        await followed.until_watching()
        api.bookmark()
        await followed.until(lambda: len(followed.told) == 2)
        api.end_watches()
        await followed.until(lambda: len(api.watches) == 2)
        await followed.until_watching()
        api.cut()
        api.put(slice_of("vllm-b", 8000, endpoint("10.0.0.2")))  # while nobody watches
        await followed.until(lambda: followed.told[-1] == ["10.0.0.1:8000 ready", "10.0.0.2:8000 ready"])
        assert api.lists == 1, "nothing is listed anew"
        assert api.watches == ["101", "102", "102"], "and the bookmark has moved the place"
        assert [type(error) for error in followed.errors] == [UpstreamError]

    play(scene, api_with("10.0.0.1"))


def test_410_as_a_status_reads_the_list_anew() -> None:
    async def scene(followed: Followed) -> None:
        api = followed.api
        await followed.until_watching()
        api.delete("vllm-a")
        api.put(slice_of("vllm-b", 8000, endpoint("10.0.0.2")))
        api.forget()
        api.cut()
        await followed.until(lambda: api.lists == 2)
        await followed.until_watching()
        assert followed.told[-1] == ["10.0.0.2:8000 ready"]
        assert followed.watch._version == str(api.version)

    play(scene, api_with("10.0.0.1"))


def test_410_as_an_event_reads_the_list_anew() -> None:
    async def scene(followed: Followed) -> None:
        api = followed.api
        await followed.until_watching()
        api.say({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}})
        await followed.until(lambda: api.lists == 2)
        await followed.until_watching()
        assert followed.errors == []

    play(scene, api_with("10.0.0.1"))


@pytest.mark.parametrize(
    "event",
    [
        {"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}},
        {"type": "ADDED"},
        {"type": "ADDED", "object": {"metadata": {}}},
        ["no event"],
    ],
)
def test_an_event_that_is_not_understood_is_an_error_and_the_list_is_read_anew(event: Any) -> None:
    async def scene(followed: Followed) -> None:
        api = followed.api
        await followed.until_watching()
        api.say(event)
        await followed.until(lambda: api.lists == 2)
        await followed.until_watching()
        assert [type(error) for error in followed.errors] == [BadConfigError]
        assert followed.told[-1] == ["10.0.0.1:8000 ready"]

    play(scene, api_with("10.0.0.1"))


def test_an_event_without_an_end_is_not_gathered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbudget.edge.discovery.kubernetes._LONGEST_LINE", 1000)

    async def scene(followed: Followed) -> None:
        await followed.until_watching()
        followed.api._send(b"x" * 3000)
        await followed.until(lambda: bool(followed.errors))
        assert "more than 1,000 bytes" in str(followed.errors[0])

    play(scene, api_with("10.0.0.1"))


def test_the_token_is_read_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    api = api_with("10.0.0.1")
    api.token = "first"

    async def scene(followed: Followed) -> None:
        await followed.until_watching()
        api.token = "second"
        api.end_watches()
        await followed.until(lambda: bool(followed.errors))
        assert "answered 401: Unauthorized" in str(followed.errors[0])
        token.write_text("second")
        await followed.until_watching()
        token.unlink()
        api.end_watches()
        await followed.until(lambda: isinstance(followed.errors[-1], FileNotFoundError))

    play(scene, api, token_path=str(token))


@pytest.mark.parametrize("what", ["list", "watch"])
def test_a_role_that_is_missing_is_told_with_what_it_needs(what: str) -> None:
    api = api_with("10.0.0.1")
    api.forbidden = {what}

    async def scene(followed: Followed) -> None:
        await followed.until(lambda: bool(followed.errors))
        error = followed.errors[0]
        assert isinstance(error, BadConfigError)
        assert "answered 403: endpointslices.discovery.k8s.io is forbidden" in str(error)
        assert "get, list and watch of endpointslices" in str(error.fix)

    play(scene, api)


@pytest.mark.parametrize("garbage", [b"<html>", b"[]", b'{"items": []}', b'{"items": {}, "metadata": {}}', b"{}"])
def test_a_list_that_cannot_be_read_is_an_error(garbage: bytes) -> None:
    api = api_with()
    api.garbage = garbage

    async def scene(followed: Followed) -> None:
        await followed.until(lambda: bool(followed.errors))
        assert "list cannot be read" in str(followed.errors[0])
        api.garbage = None
        await followed.until_watching()

    play(scene, api)


def test_a_connection_on_which_nothing_comes_is_given_up() -> None:
    async def scene(followed: Followed) -> None:
        await followed.until_watching()
        followed.watch.upstream._origin.read_stall_s = 0.05
        followed.api.bookmark()
        await followed.until(lambda: len(followed.api.watches) > 1)
        assert "nothing came" in str(followed.errors[0])

    play(scene, api_with("10.0.0.1"))


def test_the_servers_certificate_is_checked_by_the_accounts_authority(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    good, bad = tmp_path / "ca.crt", tmp_path / "other.crt"
    authority.cert_pem.write_to_path(good)
    other.cert_pem.write_to_path(bad)

    async def trusted(followed: Followed) -> None:
        await followed.until_watching()

    async def not_trusted(followed: Followed) -> None:
        await followed.until(lambda: bool(followed.errors))
        assert isinstance(followed.errors[0], UpstreamError)

    play(trusted, api_with("10.0.0.1"), context, ca_path=str(good))
    play(not_trusted, api_with("10.0.0.1"), context, ca_path=str(bad))
