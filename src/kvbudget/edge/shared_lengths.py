"""Decides when the gates of a ledger tell each other how long answers get: once in a few seconds, beside all else.

However many gates there are, each hears all: while an answer was full it reads on, after a pause that spreads the work.
Nothing waits for it: packing and reading notes (some 5 ms each for the largest) is done by a thread. A ledger that is
lost, or what another gate has left and cannot be read, costs only that lengths are learned from fewer answers: it is
said once, and tried again the next time.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kvbudget.edge.bank.lengths_note import packed, unpacked
from kvbudget.edge.bank.store import BankStore, LedgerError
from kvbudget.edge.repeated import Repeated
from kvbudget.errors import BadValueError, printable
from kvbudget.gate.bank.board import MOST_READS, Notes, Put, again
from kvbudget.gate.bank.experience import MOST_LIVES, Experience, Told
from kvbudget.gate.lengths import Lengths

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
        self._store = store
        self._life = life
        self._lengths = lengths
        self._experience = Experience()
        self._number = 0
        self._seen = 0
        self._left = ""  # the text that lies there
        self._refused: set[str] = set()  # lives whose notes cannot be read
        self._fails = False
        self._pause_s = every_s / MOST_READS
        self._sharing = Repeated(
            "shared lengths", self._share, every_s, "what was learned could not be shared", at_once=False
        )

    def start(self) -> None:
        """Go on until `close`."""
        self._sharing.start()

    async def close(self) -> None:
        """End it; may be called in any state. What was told last stays for those who come."""
        await self._sharing.close()

    async def exchange(self) -> None:
        """Leave what was seen here, and take in what others have seen. Raises LedgerError."""
        statement: list[Told] = []
        for told in self._experience.told(self._lengths()):
            statement.append(told)
            if len(statement) % _STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        text = await asyncio.to_thread(packed, statement)
        self._number += 1
        put: Put | None = Put(self._life, self._number, self._seen, "" if text == self._left else text)
        for read in range(MOST_READS):
            if put is None:
                break
            if read:
                await asyncio.sleep(self._pause_s)
            answer = await self._store.exchange(TOPIC, put)
            self._left = text if answer.known else ""
            self._seen = answer.seen
            await self._take(answer)
            put = again(put, answer)

    async def _take(self, answer: Notes) -> None:
        statements: dict[str, list[Told]] = {}
        for life, note in answer.notes:
            try:
                statements[life] = await asyncio.to_thread(unpacked, note)
            except BadValueError as error:
                self._say_refused(life, error)
        before = self.taken
        for step, answers in enumerate(self._experience.take(self._lengths(), statements)):
            self.taken += answers
            if step % _STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if self.taken and not before:
            log.info("lengths of answers are learned together with the other gates of the ledger")

    def _say_refused(self, life: str, error: BadValueError) -> None:
        if life not in self._refused:
            if len(self._refused) >= MOST_LIVES:
                self._refused.clear()
            self._refused.add(life)
            log.warning("what gate %s has learned is left alone: %s", printable(" ".join(life.split()), 80), error)

    async def _share(self) -> None:
        try:
            await self.exchange()
        except LedgerError as error:
            self._say_failed(error)
        else:
            self._fails = False

    def _say_failed(self, error: LedgerError) -> None:
        if not self._fails:
            self._fails = True
            log.warning("lengths of answers are learned by this gate alone for now: %s", error)
