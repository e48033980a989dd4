"""Decides what Envoy calls each instance: its address as `ip:port`, and which of them a subset hint allows."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable

from kvbudget.edge.http.address import address_of, host_port
from kvbudget.errors import BadValueError

log = logging.getLogger("kvbudget.extproc")

_FIX = "Envoy connects to it, by IP address and port: write http://HOST:PORT"
_REMEMBERED = 256  # subsets; a data plane says the same few again and again
_RESOLVE_S = 5.0


class Endpoints:
    """The endpoint of every instance. Names of hosts are looked up by `resolve`, again and again."""

    def __init__(self) -> None:
        self._found: dict[str, str | None] = {}
        self._hosts: dict[str, tuple[str, int]] = {}  # those that have to be looked up
        self._avoided: dict[frozenset[str], frozenset[str] | None] = {}
        self.is_up: Callable[[str], bool] = lambda name: True  # of an instance, by its name

    def add(self, name: str, url: str) -> None:
        """An instance, by its name and URL. Raises BadValueError for one that Envoy cannot be sent to."""
        address = address_of(url)
        if address.socket_path is not None or address.prefix:
            raise BadValueError(f"backend {url[:100]!r}: a socket, or a path, is no endpoint for Envoy", fix=_FIX)
        self.remove(name)
        try:
            self._found[name] = host_port(str(ipaddress.ip_address(address.host)), address.port)
        except ValueError:
            self._found[name] = None
            self._hosts[name] = (address.host, address.port)

    def remove(self, name: str) -> None:
        """It is gone; nothing happens if it was never there."""
        self._avoided.clear()
        self._found.pop(name, None)
        self._hosts.pop(name, None)

    def of(self, name: str) -> str | None:
        """`ip:port` of an instance; None while its host's name has no address."""
        return self._found.get(name)

    def any_but(self, avoided: frozenset[str]) -> str | None:
        """Of the first instance that is not one of these: one that is up, if there is any."""
        there = [(name, found) for name, found in self._found.items() if found is not None and name not in avoided]
        return next((found for name, found in there if self.is_up(name)), there[0][1] if there else None)

    def avoided(self, subset: frozenset[str]) -> frozenset[str] | None:
        """The instances that are not in a subset of endpoints; None where none is in it."""
        if subset not in self._avoided:
            avoided = frozenset(name for name, endpoint in self._found.items() if endpoint not in subset)
            if len(self._avoided) >= _REMEMBERED:
                self._avoided.clear()
            self._avoided[subset] = None if len(avoided) == len(self._found) else avoided
        return self._avoided[subset]

    async def resolve(self) -> None:
        """Look the names up. An address that is still one of a host's stays; a look-up that fails changes nothing."""
        for name, place in list(self._hosts.items()):
            host, port = place
            try:
                async with asyncio.timeout(_RESOLVE_S):
                    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, TimeoutError) as error:
                log.warning("the name of instance %s has no address: %s", name, error)
                continue
            if self._hosts.get(name) != place:  # not `is`: compiled, a tuple of known length is another one each time
                continue  # it has gone meanwhile, or is elsewhere
            found = [host_port(str(info[4][0]), port) for info in infos]
            if found and self._found[name] not in found:
                log.info("instance %s is at %s", name, found[0])
                self._found[name] = found[0]
                self._avoided.clear()
