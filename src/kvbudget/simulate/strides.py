"""Decides in which steps the gate is to hear of whose tokens: of each stream once in `PROGRESS_STRIDE` of them."""

from collections.abc import Iterable
from typing import Final

from kvbudget.gate.config import PROGRESS_STRIDE
from kvbudget.simulate.jump_engine import Stream

_OUT_OF_ORDER: Final = 1 << 61
_NOBODY: Final[list[Stream]] = []


class Strides:
    """Who decodes, by the step, modulo the stride, in which it is to be told of."""

    def __init__(self) -> None:
        self._due: list[dict[int, Stream]] = [{} for _ in range(PROGRESS_STRIDE)]
        self._newest = [0] * PROGRESS_STRIDE  # serial of the last one, if they are in order; else more than any

    def begin(self, streams: Iterable[Stream]) -> None:
        """These, and nobody else."""
        for due in self._due:
            due.clear()
        self._newest = [0] * PROGRESS_STRIDE
        for stream in streams:
            self.add(stream)

    def add(self, stream: Stream) -> None:
        """It decodes, and was told of, or begins to decode."""
        place, serial = (stream.reported - stream.base) % PROGRESS_STRIDE, stream.serial
        due = self._due[place]
        if serial >= self._newest[place]:
            self._newest[place] = serial
        elif serial not in due:
            self._newest[place] = _OUT_OF_ORDER
        due[serial] = stream

    def discard(self, stream: Stream) -> None:
        """It does not decode any more."""
        self._due[(stream.reported - stream.base) % PROGRESS_STRIDE].pop(stream.serial, None)

    def due_in(self, step: int) -> list[Stream]:
        """Whom this step may bring a stride further, in the order of the batch."""
        place = step % PROGRESS_STRIDE
        due = self._due[place]
        if not due:
            return _NOBODY
        if self._newest[place] == _OUT_OF_ORDER:
            self._due[place] = due = dict(sorted(due.items()))
            self._newest[place] = next(reversed(due))
        return list(due.values())

    def steps_ahead(self, step: int) -> int:
        """Steps from `step` on to the next in which somebody is to be told of."""
        for ahead in range(1, PROGRESS_STRIDE):
            if self._due[(step + ahead) % PROGRESS_STRIDE]:
                return ahead
        return PROGRESS_STRIDE
