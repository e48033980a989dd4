"""Decides in which steps the gate is to hear of whose tokens: of each stream once in `PROGRESS_STRIDE` of them."""

from collections.abc import Iterable

from kvbudget.gate.config import PROGRESS_STRIDE
from kvbudget.simulate.jump_engine import Stream, serial_of


class Strides:
    """Who decodes, by the step, modulo the stride, in which it is to be told of."""

    def __init__(self) -> None:
        self._due: list[dict[int, Stream]] = [{} for _ in range(PROGRESS_STRIDE)]

    def begin(self, streams: Iterable[Stream]) -> None:
        """These, and nobody else."""
        for due in self._due:
            due.clear()
        for stream in streams:
            self.add(stream)

    def add(self, stream: Stream) -> None:
        """It decodes, and was told of, or begins to decode."""
        self._due[(stream.reported - stream.base) % PROGRESS_STRIDE][stream.serial] = stream

    def discard(self, stream: Stream) -> None:
        """It does not decode any more."""
        self._due[(stream.reported - stream.base) % PROGRESS_STRIDE].pop(stream.serial, None)

    def due_in(self, step: int) -> list[Stream]:
        """Whom this step may bring a stride further, in the order of the batch."""
        due = self._due[step % PROGRESS_STRIDE]
        return sorted(due.values(), key=serial_of) if due else []

    def steps_ahead(self, step: int) -> int:
        """Steps from `step` on to the next in which somebody is to be told of."""
        for ahead in range(1, PROGRESS_STRIDE):
            if self._due[(step + ahead) % PROGRESS_STRIDE]:
                return ahead
        return PROGRESS_STRIDE
