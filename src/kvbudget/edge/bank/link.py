"""Decides how a connection to a server comes to stand, and that it does so again after it was lost."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import hiredis

from kvbudget.edge.bank.client import Connection, Pushed
from kvbudget.edge.bank.refusals import refusal
from kvbudget.edge.bank.store import LedgerError
from kvbudget.edge.bank.urls import Login

_LEAST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class Place(NamedTuple):
    """Where a server listens: a host and port, or a Unix socket."""

    host: str
    port: int
    socket_path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.socket_path or f"{host}:{self.port}"


class Access(NamedTuple):
    """How one gets in."""

    login: Login = Login()
    database: int = 0
    tls: ssl.SSLContext | None = None
    tls_name: str = ""  # what its certificate must be of; empty: the host
    timeout_s: float = 1.0


class Server(NamedTuple):
    """An open connection, and which life of which server it goes to (`run_id`)."""

    connection: Connection
    run_id: bytes


async def dial(place: Place, access: Access, pushed: Pushed) -> Connection:
    """A connection with which one is logged in. Raises LedgerError."""
    loop = asyncio.get_running_loop()
    password = await _password(access.login)
    made = Connection(str(place), access.timeout_s, pushed)
    tls_name = (access.tls_name or place.host or "localhost") if access.tls is not None else None
    try:
        async with asyncio.timeout(access.timeout_s):
            if place.socket_path:
                await loop.create_unix_connection(
                    lambda: made, place.socket_path, ssl=access.tls, server_hostname=tls_name
                )
            else:
                await loop.create_connection(
                    lambda: made, place.host, place.port, ssl=access.tls, server_hostname=tls_name
                )
    except TimeoutError:
        made.close(_unreachable(place, f"no connection within {access.timeout_s * 1000:.0f} ms"))
    except (OSError, ValueError) as error:  # ssl.SSLError is of the first, a host that is no name of the other
        made.close(_unreachable(place, getattr(error, "strerror", None) or str(error)))
    login: list[bytes | int] = [b"HELLO", 3]
    if password:
        login += [b"AUTH", (access.login.user or "default").encode(), password.encode()]
    commands: list[list[bytes | int]] = [[*login, b"SETNAME", b"kvbudget"]]
    if access.database:
        commands.append([b"SELECT", access.database])
    await ask(made, *commands)
    return made


async def ask(connection: Connection, *commands: list[bytes | int]) -> list[object]:
    """The replies to all of them; the connection is closed unless all are good. Raises LedgerError."""
    sent = [connection.send(*command) for command in commands]
    try:
        replies = await asyncio.gather(*sent, return_exceptions=True)
    except asyncio.CancelledError:
        connection.close(LedgerError(f"ledger {connection.place}: nobody waits for it any more"))
        raise
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            error, _ = refusal(connection.place, str(reply))
            connection.close(error)
            raise error
        if isinstance(reply, BaseException):
            connection.close(LedgerError(f"ledger {connection.place}: {reply}"))
            raise reply
    return replies


def run_id_in(info: object) -> bytes:
    """Of the reply to INFO; empty where a server has none."""
    text = info if isinstance(info, bytes) else b""
    found = [line.partition(b":")[2] for line in text.split(b"\r\n") if line.startswith(b"run_id:")]
    return found[0] if found else b""


class Link:
    """One connection that is opened when it is needed, and again after it was lost, with pauses that grow."""

    def __init__(self, dialled: Callable[[], Awaitable[Server]], timeout_s: float) -> None:
        self._dialled = dialled
        self._timeout_s = timeout_s
        self._server: Server | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._why: LedgerError | None = None  # of the last failure
        self._closed = False

    def now(self) -> Server | None:
        """The server, if it is connected."""
        server = self._server
        return server if server is not None and server.connection.lost is None else None

    async def ready(self) -> Server:
        """The server; waits for it as long as for an answer. Raises LedgerError with why there is none."""
        if (server := self.now()) is not None:
            return server
        if self._closed:
            raise LedgerError("ledger: it was closed")
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
        await asyncio.wait({self._connecting}, timeout=self._timeout_s)
        if (server := self.now()) is not None:
            return server
        why = self._why or (self._server and self._server.connection.lost)
        if why is not None:
            raise why.anew()
        raise LedgerError("ledger: not connected yet", fix="the gate goes on trying by itself")

    async def first(self) -> None:
        """One try; raises LedgerError when it fails, and goes on trying."""
        try:
            await self._attempt()
        except LedgerError:
            self._connecting = asyncio.create_task(self._connect())
            raise

    async def close(self) -> None:
        """Ends the connection."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
        if self._server is not None:
            self._server.connection.close(LedgerError("ledger: it was closed"))

    async def _connect(self) -> None:
        pause_s = _LEAST_PAUSE_S
        while True:
            try:
                await self._attempt()
            except LedgerError:
                await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 so that not all gates come at once
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return

    async def _attempt(self) -> None:
        try:
            self._server = await self._dialled()
        except LedgerError as error:
            self._why = error
            raise
        self._why = None


async def _password(login: Login) -> str:
    if not login.password_file:
        return login.password
    try:
        return (await asyncio.to_thread(Path(login.password_file).read_text)).strip()
    except (OSError, ValueError) as error:
        raise LedgerError(
            f"ledger: the password file {login.password_file} cannot be read: {error.__class__.__name__}",
            fix="give a file that this user may read",
        ) from None


def _unreachable(place: Place, why: str) -> LedgerError:
    return LedgerError(f"ledger {place} cannot be reached: {why}", fix="look whether it runs, and at the address")
