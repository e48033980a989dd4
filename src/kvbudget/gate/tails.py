"""Remembers who was cut off and may still be held by the engine, which takes a while to notice, and until when."""

from bisect import insort
from collections import deque


class Tails:
    """Promises that only live on until the engine has noticed that nobody wants them any more."""

    __slots__ = ("_names", "due")

    def __init__(self) -> None:
        self.due: deque[tuple[int, str]] = deque()  # (give back at ns, reservation), the first one first: to be read
        self._names: set[str] = set()

    @property
    def first_ns(self) -> int | None:
        """When the first one is to be given back."""
        return self.due[0][0] if self.due else None

    def add(self, reservation_id: str, until_ns: int) -> None:
        """It is given back then. Nearly always that is after all others; not if the time was set shorter meanwhile."""
        self._names.add(reservation_id)
        if self.due and until_ns < self.due[-1][0]:
            insort(self.due, (until_ns, reservation_id))
        else:
            self.due.append((until_ns, reservation_id))

    def take_due(self, now_ns: int) -> str | None:
        """One that is to be given back by now, which is then forgotten; None if there is none (left)."""
        if not self.due or self.due[0][0] > now_ns:
            return None
        _, reservation_id = self.due.popleft()
        self._names.discard(reservation_id)
        return reservation_id

    def end_all(self, now_ns: int) -> None:
        """All of them are to be given back now."""
        self.due = deque((now_ns, reservation_id) for _, reservation_id in self.due)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._names
