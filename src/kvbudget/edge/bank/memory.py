"""Decides how gates of one process share a pool: one bank for each pool, by the clock of this process."""

import time
from collections.abc import Callable

from kvbudget.edge.bank.store import Woken, not_heeded
from kvbudget.gate.bank.bank import Bank
from kvbudget.gate.bank.board import Board, Notes, Put
from kvbudget.gate.bank.terms import Answer, Call


class MemoryStore:
    """Banks that begin and end with this process: nobody can have a lease from before, so they need not settle."""

    def __init__(self, woken: Woken = not_heeded, *, now_ms: Callable[[], int] | None = None) -> None:
        self.woken = woken
        self.banks: dict[str, Bank] = {}
        self.boards: dict[str, Board] = {}
        self._now_ms = now_ms or _monotonic_ms

    @property
    def address(self) -> str:
        """As the flag says it."""
        return "memory"

    async def start(self) -> None:
        """There is nothing to reach."""

    async def call(self, pool: str, call: Call) -> Answer | None:
        """The bank's answer; None: the call was out of date."""
        bank = self.banks.get(pool)
        if bank is None:
            bank = self.banks[pool] = Bank()
        answer, woken = bank.call(call, self._now_ms())
        for branch in woken:
            self.woken(pool, branch)
        return answer

    async def exchange(self, topic: str, put: Put) -> Notes:
        """The notes of others."""
        return self.boards.setdefault(topic, Board()).exchange(put, self._now_ms())

    async def close(self) -> None:
        """There is nothing to end."""


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 10**6
