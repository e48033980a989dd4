"""Decides when the gates of a ledger tell each other whom they have told to come back: twice a second, beside all else.

A client comes back to any gate. With that it is known there, and goes into the room that is kept for it; what is lost
costs only that it comes as one of whom nothing is known (`edge.sharing.notes`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from kvbudget.edge.bank.returns_note import packed, unpacked
from kvbudget.edge.bank.store import BankStore
from kvbudget.edge.sharing.lending import Lending
from kvbudget.edge.sharing.notes import SharedNotes
from kvbudget.gate.bank.appointments import Word

log = logging.getLogger("kvbudget.ledger")

EVERY_S: Final = 0.5
TOPIC: Final = " returns"  # no instance has such a name


class SharedReturns:
    """One gate's part, of all its pools, made before it runs."""

    def __init__(
        self,
        store: BankStore,
        life: str,
        lendings: list[Lending],
        now_ns: Callable[[], int],
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        every_s: float = EVERY_S,
    ) -> None:
        """`lendings`: those of now. `now_ns`: the clock of their gates; `wall_ns`: one that all gates have."""
        self._lendings = lendings
        self._now_ns, self._wall_ns = now_ns, wall_ns
        self._every_s = every_s
        self.notes = SharedNotes(
            store, TOPIC, life, self._write, self._read, every_s=every_s, log=log,
            alone="who comes back is known only to the gate that told it", refused="told its clients",
        )  # fmt: skip

    async def _write(self) -> str:
        # With more gates than are read at once each says less often: what all of them read goes by their square.
        await asyncio.sleep(max(0, self.notes.reads - 1) * self._every_s)
        now_ns = self._now_ns()
        words = {one.pool: one.appointments.word(now_ns) for one in self._lendings}
        return await asyncio.to_thread(
            packed, {pool: word for pool, word in words.items() if word != Word()}, self._wall_ns() - now_ns
        )

    async def _read(self, notes: Sequence[tuple[str, str]]) -> None:
        ahead_ns = self._wall_ns() - self._now_ns()
        async for life, words in self.notes.readable(notes, lambda note: unpacked(note, ahead_ns)):
            for lending in self._lendings:
                lending.appointments.hear(life, words.get(lending.pool, Word()), self._now_ns())
