"""The ledger of the gates of one machine: banks in this process's memory, served over a Unix socket.

The folder of the socket is private, and only processes that were announced by `expect` are listened to: the kernel
tells who is at the other end. When one of them is dead, what it had is free at once (`ended`); no lease has to be
waited for.
"""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

from kvbudget.edge.bank.lines import LONGEST_LINE, WOKEN, Asked, Left, LineError, Told, asked_in, told_line
from kvbudget.gate.bank.bank import Bank
from kvbudget.gate.bank.board import Board
from kvbudget.gate.bank.terms import Call

log = logging.getLogger("kvbudget.ledger")

_MOST_POOLS: Final = 4096
_MOST_TOPICS: Final = 16
_MOST_WAITING_BYTES: Final = 1 << 20  # of answers that a gate does not read; then it is cut off
_LAST: Final = 1 << 62  # a call's number that none comes after
_PEER = struct.Struct("3i")  # pid, uid, gid


class BankServer:
    """Banks by pool, for the processes that are expected."""

    def __init__(self, path: str, now_ns: Callable[[], int]) -> None:
        """`path`: of the socket, in a folder that nobody else may enter."""
        self.path = path
        self.banks: dict[str, Bank] = {}
        self.boards: dict[str, Board] = {}
        self.calls = 0
        self._now_ns = now_ns
        self._expected: set[int] = set()
        self._links: dict[tuple[str, str], _Link] = {}  # by pool and branch
        self._pids: dict[tuple[str, str], int] = {}
        self._open: set[_Link] = set()
        self._listener: asyncio.Server | None = None
        self._closed = False

    async def start(self) -> None:
        """Listen. Raises OSError."""
        protocol = cast("Callable[[], asyncio.Protocol]", lambda: _Link(self))
        self._listener = await asyncio.get_running_loop().create_unix_server(protocol, self.path)
        os.chmod(self.path, 0o600)

    async def close(self) -> None:
        """End all connections; may be called in any state."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for link in list(self._open):
            link.cut()

    def expect(self, pid: int) -> None:
        """Listen to this process."""
        self._expected.add(pid)

    def ended(self, pid: int) -> None:
        """This process is no more: what it had is free for the others."""
        self._expected.discard(pid)
        for link in [one for one in self._open if one.pid == pid]:
            link.cut()
        for pool, branch in [key for key, owner in self._pids.items() if owner == pid]:
            self._call(pool, Call(branch, _LAST, 1, (), leaves=True))

    def is_expected(self, pid: int, uid: int) -> bool:
        """Whether the other end of a connection is a gate of ours."""
        return not self._closed and pid in self._expected and uid == os.geteuid()

    # For the connections

    def opened(self, link: "_Link") -> None:
        """Count it in."""
        self._open.add(link)

    def closed(self, link: "_Link") -> None:
        """It is no more. Its branches live on: the process may come again, until it is said to be dead."""
        self._open.discard(link)
        for key in [key for key, one in self._links.items() if one is link]:
            del self._links[key]

    def heard(self, link: "_Link", asked: Asked | Left) -> None:
        """Answer it, and wake whom the bank wants to hear. Raises LineError where it asks for more than may be."""
        if isinstance(asked, Left):
            if asked.topic not in self.boards and len(self.boards) >= _MOST_TOPICS:
                raise LineError(f"more than {_MOST_TOPICS} boards")
            board = self.boards.setdefault(asked.topic, Board())
            link.say(Told(asked.number, board.exchange(asked.put, self._now_ns() // 10**6)))
            return
        key = asked.pool, asked.call.branch
        if asked.pool not in self.banks and len(self.banks) >= _MOST_POOLS:
            raise LineError(f"more than {_MOST_POOLS} pools")
        if self._pids.get(key, link.pid) != link.pid:
            raise LineError("a branch of another process")
        self._links[key], self._pids[key] = link, link.pid
        self._call(asked.pool, asked.call, link, asked.number)

    def _call(self, pool: str, call: Call, link: "_Link | None" = None, number: int = 0) -> None:
        self.calls += 1
        bank = self.banks.setdefault(pool, Bank())
        answer, woken = bank.call(call, self._now_ns() // 10**6)
        if link is not None:
            link.say(Told(number, answer))
        if call.leaves:
            self._links.pop((pool, call.branch), None)
            self._pids.pop((pool, call.branch), None)
        for branch in woken:
            other = self._links.get((pool, branch))
            if other is not None:
                other.say(Told(WOKEN, None, pool, branch))


class _Link(asyncio.Protocol):
    """One connection of one gate."""

    def __init__(self, server: BankServer) -> None:
        self.pid = 0
        self._server = server
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        end = transport.get_extra_info("socket")
        self.pid, uid, _ = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        self._server.opened(self)
        if not self._server.is_expected(self.pid, uid):
            log.warning("process %d, which is no worker of this gate, wanted to speak to its ledger", self.pid)
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            if len(self._rest) > LONGEST_LINE:
                raise LineError(f"a line of more than {LONGEST_LINE} bytes")
            for line in lines:
                if self._transport is not None:
                    self._server.heard(self, asked_in(line))
        except LineError as error:
            log.error("worker process %d: %s", self.pid, error)
            self.cut()

    def say(self, told: Told) -> None:
        """Write it, unless the other end has not read for too long."""
        if self._transport is None:
            return
        self._transport.write(told_line(told))
        if self._transport.get_write_buffer_size() > _MOST_WAITING_BYTES:
            log.error("worker process %d does not read the answers of the ledger, and is cut off", self.pid)
            self.cut()

    def cut(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()
