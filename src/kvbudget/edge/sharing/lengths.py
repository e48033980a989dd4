"""Decides when the gates of a ledger tell each other how long answers get: once in a few seconds, beside all else.

Packing and reading notes (some 5 ms each for the largest) is done by a thread. What is lost costs only that lengths are
learned from fewer answers (`edge.sharing.notes`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from kvbudget.edge.bank.lengths_note import packed, unpacked
from kvbudget.edge.bank.store import BankStore
from kvbudget.edge.sharing.notes import SharedNotes
from kvbudget.gate.bank.experience import Experience, Told
from kvbudget.gate.learning.lengths import Lengths

log = logging.getLogger("kvbudget.learned")

EVERY_S: Final = 3.0
TOPIC: Final = " lengths"  # no instance has such a name
_STEPS_AT_ONCE: Final = 4  # some 0.1 ms each, between which the gate does what else there is


class SharedLengths:
    """One gate's part, made before it runs."""

    def __init__(
        self, store: BankStore, life: str, lengths: Callable[[], Lengths], *, every_s: float = EVERY_S
    ) -> None:
        """`life`: a name that is never used again. `lengths`: those that are learned now; a state that is read from a
        file brings others."""
        self.taken = 0.0  # answers that other gates have seen
        self._lengths = lengths
        self._experience = Experience()
        self.notes = SharedNotes(
            store, TOPIC, life, self._write, self._read, every_s=every_s, log=log,
            alone="lengths of answers are learned by this gate alone", refused="learned",
        )  # fmt: skip

    async def _write(self) -> str:
        statement: list[Told] = []
        for told in self._experience.told(self._lengths()):
            statement.append(told)
            if len(statement) % _STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return await asyncio.to_thread(packed, statement)

    async def _read(self, notes: Sequence[tuple[str, str]]) -> None:
        statements = {life: told async for life, told in self.notes.readable(notes, unpacked)}
        before = self.taken
        for step, answers in enumerate(self._experience.take(self._lengths(), statements)):
            self.taken += answers
            if step % _STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if self.taken and not before:
            log.info("lengths of answers are learned together with the other gates of the ledger")
