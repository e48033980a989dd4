"""What Envoy calls an instance, and what a subset leaves of them."""

import asyncio
import socket
from typing import Any

import pytest

from kvbudget.edge.extproc.endpoints import Endpoints
from kvbudget.errors import BadValueError


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://10.0.0.7:8000", "10.0.0.7:8000"),
        ("http://10.0.0.7", "10.0.0.7:80"),
        ("https://10.0.0.7", "10.0.0.7:443"),
        ("http://[fd00::7]:8000", "[fd00::7]:8000"),
    ],
)
def test_an_address_is_told_as_it_is(url: str, endpoint: str) -> None:
    endpoints = Endpoints()
    endpoints.add("one", url)
    assert endpoints.of("one") == endpoint
    assert endpoints.of("another") is None


@pytest.mark.parametrize("url", ["unix:/run/vllm.sock", "http://10.0.0.7:8000/prefix", "10.0.0.7"])
def test_what_envoy_cannot_connect_to_is_refused(url: str) -> None:
    with pytest.raises(BadValueError):
        Endpoints().add("one", url)


class Names:
    """A loop's name service."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[str, list[str]] = {}
        self.asked = 0
        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", self.getaddrinfo)

    async def getaddrinfo(self, host: str, port: int, **_: object) -> list[Any]:
        self.asked += 1
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(0, 0, 0, "", (address, port)) for address in self.known[host]]


def test_a_name_is_looked_up_and_what_it_was_stays_while_it_is_one_of_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        names, endpoints = Names(monkeypatch), Endpoints()
        endpoints.add("one", "http://engine:8000")
        assert endpoints.of("one") is None
        seen = []
        for known in ([], ["10.0.0.1"], ["10.0.0.2", "10.0.0.1"], [], ["10.0.0.2", "::1"], ["::1"]):
            names.known = {"engine": known} if known else {}
            await endpoints.resolve()
            seen.append(endpoints.of("one"))
        assert seen == [None, "10.0.0.1:8000", "10.0.0.1:8000", "10.0.0.1:8000", "10.0.0.2:8000", "[::1]:8000"]

    asyncio.run(scene())


def test_addresses_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        names, endpoints = Names(monkeypatch), Endpoints()
        endpoints.add("one", "http://10.0.0.1:8000")
        await endpoints.resolve()
        assert names.asked == 0

    asyncio.run(scene())


def test_an_instance_that_has_gone_is_forgotten_even_while_its_name_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        names, endpoints = Names(monkeypatch), Endpoints()
        names.known = {"engine": ["10.0.0.2"]}
        endpoints.add("a", "http://10.0.0.1:8000")
        endpoints.add("b", "http://engine:8000")
        assert endpoints.avoided(frozenset({"10.0.0.1:8000"})) == frozenset({"b"})
        looking = asyncio.create_task(endpoints.resolve())
        await asyncio.sleep(0)
        endpoints.remove("a")
        endpoints.remove("b")
        await looking
        assert (endpoints.of("a"), endpoints.of("b"), endpoints.any_but(frozenset())) == (None, None, None)
        assert endpoints.avoided(frozenset({"10.0.0.1:8000"})) is None
        await endpoints.resolve()
        assert names.asked == 1
        endpoints.remove("never there")

    asyncio.run(scene())


def test_who_comes_back_by_another_address_is_there_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        names, endpoints = Names(monkeypatch), Endpoints()
        names.known = {"engine": ["10.0.0.2"]}
        endpoints.add("a", "http://engine:8000")
        endpoints.add("a", "http://10.0.0.1:8000")
        await endpoints.resolve()
        assert endpoints.of("a") == "10.0.0.1:8000"

    asyncio.run(scene())


def test_a_subset_leaves_what_is_in_it_and_follows_a_name_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        names, endpoints = Names(monkeypatch), Endpoints()
        endpoints.add("a", "http://10.0.0.1:8000")
        endpoints.add("b", "http://engine:8000")
        subset = frozenset({"10.0.0.2:8000", "10.0.0.3:8000"})
        assert endpoints.avoided(subset) is None
        names.known = {"engine": ["10.0.0.2"]}
        await endpoints.resolve()
        assert endpoints.avoided(subset) == frozenset({"a"})
        assert endpoints.any_but(frozenset({"a"})) == "10.0.0.2:8000"
        assert endpoints.any_but(frozenset({"a", "b"})) is None
        endpoints.add("c", "http://10.0.0.3:8000")
        assert endpoints.avoided(subset) == frozenset({"a"})
        assert endpoints.avoided(frozenset()) is None
        for number in range(1000):  # a data plane that invents subsets fills no memory
            endpoints.avoided(frozenset({f"10.1.1.1:{number}"}))
        assert len(endpoints._avoided) <= 256

    asyncio.run(scene())


def test_what_may_go_anywhere_goes_to_one_that_is_up() -> None:
    endpoints = Endpoints()
    for number, name in enumerate("abc"):
        endpoints.add(name, f"http://10.0.0.{number}:8000")
    endpoints.is_up = lambda name: name == "c"
    assert endpoints.any_but(frozenset({"a"})) == "10.0.0.2:8000"
    assert endpoints.any_but(frozenset({"c"})) == "10.0.0.0:8000"  # nobody is: let Envoy try
