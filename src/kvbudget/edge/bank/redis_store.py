"""Decides how the bank is called inside of a Valkey or Redis: one atomic script for each call, and a push to be woken.

Everything of a pool is in one key, `kvbudget:{LEDGER/POOL}:bank`, of which the part in braces decides the node of a
cluster. The script (`bank.lua`) follows `gate.bank.bank` rule by rule. Three things are the server's own:

Clock. The server's wall clock (TIME) may be set, and another server's differs. The bank's clock goes by it, but never
back, and from one call to the next by half a lease at most: while anybody lives he calls several times in a lease, so a
wider gap is a clock that was set, or nobody lives, and then the old leases only last somewhat longer.

No memory. There is no state: this is the first call ever, or it expired (an hour after the last call, at least), or it
was lost (FLUSHALL, eviction, an empty server after a crash). No look at the server tells these apart: how long it has
been up says nothing about FLUSHALL or about a replica that took over before it had the key. So the bank settles for one
lease: nothing is granted but what branches say that they keep, as far as there is room. That costs the very first gate
of a pool one lease.

Old memory. A server that crashed may have lost its last second (appendfsync everysec), and a replica that took over
what had not reached it. The state names the life of the server that wrote it (`run_id`); when a call comes to another
one, the bank settles for one lease as well: what was granted and forgotten is claimed again before anybody else gets
it, and who does not claim has lost his lease.

What remains: two servers that both take themselves for the primary (a partition) lend the same blocks twice, as long as
both take writes. `min-replicas-to-write 1` with `min-replicas-max-lag` not above Sentinel's `down-after-milliseconds`
ends the old one first. So does `cluster-node-timeout` in a cluster, whose primaries stop in a minority. And a failover
to another server and back, with a loss at the first and no call between, looks as if nothing had happened.

The replication id would tell that, but it also changes when a first replica attaches: then gates with older connections
and newer ones would each take the other's for another server, and the bank would settle for ever.

A wake-up is a hint, and may be lost: who asks calls again by himself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import hiredis

from kvbudget.edge.bank.client import Connection, Reply
from kvbudget.edge.bank.link import Link, Place, Server
from kvbudget.edge.bank.places import servers_of
from kvbudget.edge.bank.refusals import refusal
from kvbudget.edge.bank.script import (
    BOARD_SCRIPT,
    BOARD_SHA,
    SCRIPT,
    SHA,
    Keys,
    answer_of,
    arguments,
    board_arguments,
    board_key,
    keys_of,
    names_in,
    notes_of,
)
from kvbudget.edge.bank.store import LedgerError, Woken, not_heeded
from kvbudget.edge.bank.urls import LedgerAddress
from kvbudget.errors import BadValueError
from kvbudget.gate.bank.board import Notes, Put
from kvbudget.gate.bank.terms import Answer, Call

_MOST_HOPS: Final = 5  # of a pool that is being moved


class RedisStore:
    """Banks in a server that several processes share."""

    def __init__(self, address: LedgerAddress, *, timeout_s: float, woken: Woken = not_heeded) -> None:
        """`timeout_s`: how long an answer, and a connection, is waited for."""
        self.woken = woken
        self._address = address
        self._servers = servers_of(address, timeout_s, SCRIPT, self._pushed)
        self._keys: dict[str, Keys] = {}
        self._pools: dict[bytes, str] = {}  # by channel
        self._own: set[tuple[str, str]] = set()  # (pool, branch): of those that call here

    @property
    def address(self) -> str:
        """As it was given, without a password."""
        return self._address.shown

    async def start(self) -> None:
        """One try to connect. Raises LedgerError when it fails; then it goes on trying by itself."""
        await self._servers.start()

    async def close(self) -> None:
        """Ends all connections; calls that wait get a LedgerError."""
        await self._servers.close()

    async def call(self, pool: str, call: Call) -> Answer | None:
        """The bank's answer; None: the call was out of date. Raises LedgerError: after one time-out where it is
        connected, after two where it has to connect first."""
        keys = self._keys.get(pool) or self._new_pool(pool)
        self._note(pool, call)
        reply, connection = await self._reached(
            pool, lambda server, asking: self._ask(server, keys, call, asking=asking)
        )
        return _checked(call, reply, connection)

    async def exchange(self, topic: str, put: Put) -> Notes:
        """The notes of others; a topic is where a pool of its name would be. Raises LedgerError, as `call` does."""
        parts = board_arguments(board_key(self._address.name, topic), put)
        reply, _ = await self._reached(
            topic,
            lambda server, asking: self._run(server.connection, BOARD_SHA, BOARD_SCRIPT, parts, asking=asking),
        )
        return notes_of(reply)

    async def _reached(self, pool: str, ask: Callable[[Server, bool], Awaitable[Reply]]) -> tuple[Reply, Connection]:
        """The reply of the server that keeps a pool. `ask`: is told the server, and whether with ASKING."""
        link = self._servers.link(pool)
        asking = False
        try:
            for _ in range(_MOST_HOPS):
                server = link.now() or await link.ready()
                reply = await ask(server, asking)
                if not isinstance(reply, hiredis.ReplyError):
                    return reply, server.connection
                link, asking = self._redirected(pool, str(reply), server.connection)
        except LedgerError:
            self._servers.failed(pool)
            raise
        raise LedgerError(f"ledger {self.address}: pool {pool!r} is moved about", fix="the gate tries again by itself")

    async def _ask(self, server: Server, keys: Keys, call: Call, *, asking: bool) -> Reply:
        connection = server.connection
        parts = arguments(keys, self._servers.publish, server.run_id, call)
        if keys.channel not in connection.channels:
            subscribed = await connection.send(self._servers.subscribe, keys.channel)
            if not isinstance(subscribed, hiredis.ReplyError):
                connection.channels.add(keys.channel)
            elif not asking:
                return subscribed  # MOVED, or not allowed
        return await self._run(connection, SHA, SCRIPT, parts, asking=asking)

    async def _run(
        self, connection: Connection, sha: bytes, script: bytes, parts: list[bytes | int | str], *, asking: bool
    ) -> Reply:
        """By its hash, or whole where the server does not know that."""
        reply: Reply = None
        for command, which in ((b"EVALSHA", sha), (b"EVAL", script)):
            if asking:
                connection.send(b"ASKING").add_done_callback(_let_go)
            reply = await connection.send(command, which, *parts)
            if not (isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")):
                break
        return reply

    def _redirected(self, pool: str, text: str, connection: Connection) -> tuple[Link, bool]:
        """After an error of the script: the link to ask next, and whether with ASKING."""
        code, _, rest = text.partition(" ")
        if code in ("MOVED", "ASK"):
            host, _, port = rest.rpartition(" ")[2].rpartition(":")
            if port.isdecimal():
                host = host or connection.place.rpartition(":")[0].strip("[]")
                link = self._servers.moved(pool, Place(host, int(port)), for_good=code == "MOVED")
                if link is not None:
                    return link, code == "ASK"
        error, leave = refusal(connection.place, text)
        if leave:
            connection.close(error)
        raise error

    def _new_pool(self, pool: str) -> Keys:
        keys = self._keys[pool] = keys_of(self._address.name, pool)
        self._pools[keys.channel] = pool
        return keys

    def _note(self, pool: str, call: Call) -> None:
        if call.leaves:
            self._own.discard((pool, call.branch))
        elif (pool, call.branch) not in self._own:
            if not call.branch or not call.branch.isprintable():
                raise BadValueError(f"branch {call.branch!r}", fix="give it a name that can be printed")
            self._own.add((pool, call.branch))

    def _pushed(self, connection: Connection, pushed: list[object]) -> None:
        match pushed:
            case [b"message" | b"smessage", bytes(channel), bytes(names)] if channel in self._pools:
                pool = self._pools[channel]
                for name in names_in(names):
                    if (pool, name) in self._own:
                        self.woken(pool, name)
            case [b"sunsubscribe", bytes(channel), *_]:  # its slot has moved to another node
                connection.channels.discard(channel)
            case _:
                pass


def _checked(call: Call, reply: Reply, connection: Connection) -> Answer | None:
    try:
        return answer_of(call, reply)
    except LedgerError as error:
        connection.close(error)  # whatever else waits there may get somebody else's answer as well
        raise


def _let_go(future: asyncio.Future[Reply]) -> None:
    """An outcome that nobody waits for is fetched, so that the loop does not complain."""
    if not future.cancelled():
        future.exception()
