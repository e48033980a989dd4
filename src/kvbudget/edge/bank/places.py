"""Decides which server keeps a pool: the one named, the primary that Sentinels name, or a node of a cluster."""

from typing import Protocol

from kvbudget.edge.bank.client import Connection, Pushed
from kvbudget.edge.bank.link import Access, Link, Place, Server, ask, dial, run_id_in
from kvbudget.edge.bank.store import LedgerError
from kvbudget.edge.bank.urls import LedgerAddress, Login


class Servers(Protocol):
    """Links to servers, by pool."""

    publish: bytes
    subscribe: bytes

    def link(self, pool: str) -> Link:
        """Where to send what is of this pool."""
        ...

    def moved(self, pool: str, place: Place, *, for_good: bool) -> Link | None:
        """The server says that another one keeps it; None: that makes no sense here."""
        ...

    def failed(self, pool: str) -> None:
        """Nothing came of it: look anew next time."""
        ...

    async def start(self) -> None:
        """One try to connect. Raises LedgerError."""
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...


def servers_of(address: LedgerAddress, timeout_s: float, script: bytes, pushed: Pushed) -> Servers:
    """By the kind of address."""
    opener = _Opener(address, timeout_s, script, pushed)
    return Cluster(opener) if address.kind == "cluster" else Primary(opener)


class _Opener:
    """Opens connections that are ready for the script."""

    def __init__(self, address: LedgerAddress, timeout_s: float, script: bytes, pushed: Pushed) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.places = [Place(host, port) for host, port in address.hosts] or [Place("", 0, address.socket_path)]
        self._script = script
        self._pushed = pushed

    async def open(self, place: Place) -> Server:
        connection = await dial(place, self._access(self.address.login, self.address.database), self._pushed)
        _, info = await ask(connection, [b"SCRIPT", b"LOAD", self._script], [b"INFO", b"server"])
        return Server(connection, run_id_in(info))

    async def open_one(self) -> Server:
        return await self.open(self.places[0])

    async def open_primary(self) -> Server:
        """Of the first Sentinel that knows it."""
        why: LedgerError | None = None
        for place in self.places:
            try:
                return await self.open(await self._primary_by(place))
            except LedgerError as error:
                why = error
        raise LedgerError(
            f"ledger: no Sentinel leads to the primary {self.address.primary!r}; the last: {why}",
            fix="SENTINEL GET-MASTER-ADDR-BY-NAME says what they know",
        )

    async def _primary_by(self, sentinel: Place) -> Place:
        connection = await dial(sentinel, self._access(self.address.sentinel_login, 0), _ignored)
        (named,) = await ask(connection, [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.address.primary.encode()])
        connection.close(LedgerError("ledger: done with the Sentinel"))
        match named:
            case [bytes(host), bytes(port)] if port.isdigit():
                return Place(host.decode(errors="replace"), int(port))
        raise LedgerError(f"ledger: Sentinel {sentinel} knows no primary {self.address.primary!r}")

    def _access(self, login: Login, database: int) -> Access:
        return Access(login, database, self.address.tls, self.address.tls_name, self.timeout_s)


class Primary:
    """One server for all pools."""

    publish = b"PUBLISH"
    subscribe = b"SUBSCRIBE"

    def __init__(self, opener: _Opener) -> None:
        opened = opener.open_primary if opener.address.kind == "sentinel" else opener.open_one
        self._link = Link(opened, opener.timeout_s)

    def link(self, pool: str) -> Link:
        """The same for all."""
        return self._link

    def moved(self, pool: str, place: Place, *, for_good: bool) -> Link | None:
        """There is no other one."""
        return None

    def failed(self, pool: str) -> None:
        """The link looks anew by itself."""

    async def start(self) -> None:
        """One try to connect. Raises LedgerError."""
        await self._link.first()

    async def close(self) -> None:
        """Ends the connection."""
        await self._link.close()


class Cluster:
    """A link to each node that keeps a pool. Where that is, a wrong node tells; so any node that lives is a way in."""

    publish = b"SPUBLISH"
    subscribe = b"SSUBSCRIBE"

    def __init__(self, opener: _Opener) -> None:
        self._opener = opener
        self._links: dict[Place, Link] = {}
        self._kept_by: dict[str, Place] = {}
        self._entries = list(opener.places)  # the first is tried first

    def link(self, pool: str) -> Link:
        """To the node that kept it the last time, or to one that knows."""
        return self._link_to(self._kept_by.get(pool) or self._entries[0])

    def moved(self, pool: str, place: Place, *, for_good: bool) -> Link | None:
        """To the node that was named."""
        if for_good:
            self._kept_by[pool] = place
            if place not in self._entries:
                self._entries.append(place)
        return self._link_to(place)

    def failed(self, pool: str) -> None:
        """Ask another node next time."""
        place = self._kept_by.pop(pool, self._entries[0])
        if place in self._entries:
            self._entries.remove(place)
            self._entries.append(place)

    async def start(self) -> None:
        """One try at every node that was named. Raises LedgerError if none can be reached."""
        for _ in self._entries:
            try:
                return await self._link_to(self._entries[0]).first()
            except LedgerError:
                self.failed("")
                if self._entries[0] == self._opener.places[0]:
                    raise
        return None

    async def close(self) -> None:
        """Ends all connections."""
        for link in self._links.values():
            await link.close()

    def _link_to(self, place: Place) -> Link:
        link = self._links.get(place)
        if link is None:
            link = self._links[place] = Link(lambda: self._opener.open(place), self._opener.timeout_s)
        return link


def _ignored(_connection: Connection, _pushed: list[object]) -> None:
    """A Sentinel says nothing that was not asked for."""
