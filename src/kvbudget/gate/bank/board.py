"""Decides what is kept of short notes that gates leave for each other beside the bank: the last one of each life.

A note is text that the board does not read. Who leaves his own gets those of others that he has not read yet, the
oldest first, and reads on while there may be more (`again`): a note that is left anew goes to the end, so that a gate
that read once for each of its own would hear of some busy gates only. Everything may be lost or come twice: a note says
all that its gate has to say, and is left again.

This is the reference. `edge.bank` does the same inside of Valkey or Redis, and one suite of tests goes over both.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

MOST_NOTES: Final = 64
LONGEST_NOTE: Final = 16 * 1024  # characters, of ASCII
MOST_READ: Final = 8  # notes in one answer
MOST_READS: Final = -(-MOST_NOTES // MOST_READ)  # by one gate for each time that it leaves a note: then it had them all
KEEP_MS: Final = 3_600_000  # after it was last said that a note still holds


class Put(NamedTuple):
    """What a gate leaves. `life`: one life of one gate. `number`: of its notes; none is heeded that is not newer.
    `seen`: of the notes that it has read, the last one's place. `text`: empty, if what it left still holds."""

    life: str
    number: int
    seen: int
    text: str


class Notes(NamedTuple):
    """What it gets. `seen`: to say the next time. `known`: its own note is there. `notes`: (life, text)."""

    seen: int
    known: bool
    notes: tuple[tuple[str, str], ...]


def again(put: Put, got: Notes) -> Put | None:
    """What to say to read on, without leaving anything; None: there was no more to read."""
    return Put(put.life, put.number, got.seen, "") if len(got.notes) >= MOST_READ else None


@dataclass(slots=True)
class _Note:
    number: int
    place: int
    put_ms: int
    text: str


@dataclass(slots=True)
class Board:
    """The notes of all gates."""

    _place: int = 0  # of the last note
    _notes: dict[str, _Note] = field(default_factory=dict)  # whose note was put longest ago is the first

    def exchange(self, put: Put, now_ms: int) -> Notes:
        """Take in a note, and give those of others."""
        self._notes = {life: note for life, note in self._notes.items() if now_ms - note.put_ms < KEEP_MS}
        own = self._notes.get(put.life)
        if own is None or put.number > own.number:
            if put.text:
                self._place += 1
                self._notes.pop(put.life, None)
                self._notes[put.life] = _Note(put.number, self._place, now_ms, put.text)
            elif own is not None:
                own.number, own.put_ms = put.number, now_ms
        if len(self._notes) > MOST_NOTES:
            del self._notes[next(iter(self._notes))]
        seen = put.seen if put.seen <= self._place else 0  # the board has lost its memory since
        new = [(note.place, life, note.text) for life, note in self._notes.items() if note.place > seen]
        others = [one for one in sorted(new) if one[1] != put.life]
        if len(others) > MOST_READ:
            others = others[:MOST_READ]
            seen = others[-1][0]
        else:
            seen = self._place
        return Notes(seen, put.life in self._notes, tuple([(life, text) for _, life, text in others]))
