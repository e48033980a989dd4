"""Decides how the gates of a ledger leave each other notes of one topic: again and again, beside all else.

However many gates there are, each hears all: while an answer was full it reads on, after a pause that spreads the work.
Nothing waits for it: packing and reading is done by a thread. A ledger that is lost, or a note that cannot be read,
costs only what the topic is for: it is said once, and tried again the next time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from kvbudget.edge.bank.store import BankStore, LedgerError
from kvbudget.edge.repeated import Repeated
from kvbudget.errors import BadValueError, printable
from kvbudget.gate.bank.board import MOST_READS, Put, again

_MOST_REFUSED: Final = 128  # lives of which it is remembered that it was said

Unpacked = TypeVar("Unpacked")
Read = Callable[[Sequence[tuple[str, str]]], Awaitable[None]]


class SharedNotes:
    """One gate's part in one topic, made before it runs."""

    def __init__(
        self,
        store: BankStore,
        topic: str,
        life: str,
        write: Callable[[], Awaitable[str]],
        read: Read,
        *,
        every_s: float,
        log: logging.Logger,
        alone: str,
        refused: str,
    ) -> None:
        """`topic`: no instance has such a name. `life`: a name that is never used again. `write` gives what there is to
        say, `read` takes (life, text) of others. `alone`: what is said when the ledger is lost; `refused`: of what."""
        self.reads = 0  # answers that the last round took
        self.refused_lives: set[str] = set()  # whose notes cannot be read
        self._store, self._topic, self._life = store, topic, life
        self._write, self._read = write, read
        self._log, self._alone, self._refused = log, alone, refused
        self._number = 0
        self._seen = 0
        self._left = ""  # the text that lies there
        self._fails = False
        self._pause_s = every_s / MOST_READS
        self._sharing = Repeated(f"notes of{topic}", self._share, every_s, f"no notes of{topic}", at_once=False)

    def start(self) -> None:
        """Go on until `close`."""
        self._sharing.start()

    async def close(self) -> None:
        """End it; may be called in any state. What was said last stays for those who come."""
        await self._sharing.close()

    async def exchange(self) -> None:
        """Say what there is, and take in what others have said. Raises LedgerError."""
        text = await self._write()
        self._number += 1
        put: Put | None = Put(self._life, self._number, self._seen, "" if text == self._left else text)
        self.reads = 0
        while put is not None and self.reads < MOST_READS:
            if self.reads:
                await asyncio.sleep(self._pause_s)
            self.reads += 1
            answer = await self._store.exchange(self._topic, put)
            self._left = text if answer.known else ""
            self._seen = answer.seen
            await self._read(answer.notes)
            put = again(put, answer)

    async def readable(
        self, notes: Sequence[tuple[str, str]], unpacked: Callable[[str], Unpacked]
    ) -> AsyncIterator[tuple[str, Unpacked]]:
        """(life, what its note says), one after the other; a note that cannot be read is left alone. `unpacked` raises
        BadValueError for such a one, and runs in a thread."""
        for life, note in notes:
            try:
                told = await asyncio.to_thread(unpacked, note)
            except BadValueError as error:
                self._say_refused(life, error)
            else:
                yield life, told

    def _say_refused(self, life: str, error: BadValueError) -> None:
        """Once for each life."""
        if life not in self.refused_lives:
            if len(self.refused_lives) >= _MOST_REFUSED:
                self.refused_lives.clear()
            self.refused_lives.add(life)
            self._log.warning(
                "what gate %s has %s is left alone: %s",
                printable(" ".join(life.split()), 80),
                self._refused,
                printable(" ".join(str(error).split()), 300),
            )

    async def _share(self) -> None:
        try:
            await self.exchange()
        except LedgerError as error:
            if not self._fails:
                self._fails = True
                self._log.warning("%s for now: %s", self._alone, error)
        else:
            self._fails = False
