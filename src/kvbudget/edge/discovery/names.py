"""Decides which engines are behind a DNS name: one for each of its addresses, of one family only.

A pod of a dual-stack service has an A and an AAAA record: taken for two engines, its pool would be promised twice. So
IPv6 counts only where no IPv4 address has ever been found, also when a resolver fails to tell those once.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from kvbudget.edge.discovery.roster import Found
from kvbudget.edge.discovery.sources import DnsName

EVERY_S: Final = 5.0
MISSES: Final = 3
"""Answers in a row that lack an address until it leaves: resolvers cut long answers, and turn them round."""

AddressInfo = tuple[Any, Any, Any, Any, tuple[Any, ...]]  # as getaddrinfo gives them
Resolve = Callable[[str, int], Awaitable[Sequence[AddressInfo]]]


async def resolve(host: str, port: int) -> Sequence[AddressInfo]:
    """By the system's resolver, never in the loop's own thread. Raises OSError."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class NameLookup:
    """Asks for one name again and again."""

    def __init__(self, name: DnsName, resolve: Resolve = resolve) -> None:
        self._name = name
        self._resolve = resolve
        self._has_ipv4 = False

    async def ask(self) -> list[Found]:
        """Who is behind it now. Raises OSError."""
        name = self._name
        found = await self._resolve(name.host, name.port)
        four = {entry[4][0] for entry in found if entry[0] == socket.AF_INET}
        six = {entry[4][0] for entry in found if entry[0] == socket.AF_INET6}
        self._has_ipv4 = self._has_ipv4 or bool(four)
        hosts = four if self._has_ipv4 else {f"[{address}]" for address in six}
        return [Found(f"http://{host}:{name.port}") for host in sorted(hosts)]
