"""Engines behind a DNS name, by answers of a resolver."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from kvbudget.edge.discovery.names import AddressInfo, NameLookup, resolve
from kvbudget.edge.discovery.sources import DnsName


def entry(address: str) -> AddressInfo:
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 8000, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 8000)


def asked(*answers: list[str] | OSError) -> list[Any]:
    """What a lookup makes of these answers, one after another."""
    left = list(answers)

    async def told(host: str, port: int) -> Sequence[AddressInfo]:
        assert (host, port) == ("engines", 8000)
        answer = left.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return [entry(address) for address in answer]

    async def all_of_them() -> list[Any]:
        lookup = NameLookup(DnsName("engines", 8000), told)
        made: list[Any] = []
        for _ in answers:
            try:
                made.append([one.url for one in await lookup.ask()])
            except OSError as error:
                made.append(error)
        return made

    return asyncio.run(all_of_them())


def test_each_address_is_an_engine_whatever_the_order() -> None:
    two = ["http://10.0.0.7:8000", "http://10.0.0.8:8000"]
    assert asked(["10.0.0.8", "10.0.0.7", "10.0.0.7"], ["10.0.0.7", "10.0.0.8"]) == [two, two]


def test_ipv6_alone_is_in_brackets() -> None:
    assert asked(["fd00::7"]) == [["http://[fd00::7]:8000"]]


def test_an_engine_with_both_addresses_is_one() -> None:
    assert asked(["10.0.0.7", "fd00::7"]) == [["http://10.0.0.7:8000"]]


def test_once_ipv4_was_seen_ipv6_alone_is_nobody() -> None:
    assert asked(["10.0.0.7"], ["fd00::7"], ["10.0.0.7", "fd00::7"]) == [
        ["http://10.0.0.7:8000"], [], ["http://10.0.0.7:8000"],
    ]  # fmt: skip


def test_a_resolver_that_fails_is_told_as_it_fails() -> None:
    failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert asked(failure, ["10.0.0.7"]) == [failure, ["http://10.0.0.7:8000"]]


def test_the_systems_resolver_is_asked() -> None:
    async def both() -> None:
        assert {one[4][0] for one in await resolve("127.0.0.1", 8000)} == {"127.0.0.1"}
        with pytest.raises(OSError, match=r"\w"):
            await resolve("name.invalid", 8000)

    asyncio.run(both())
