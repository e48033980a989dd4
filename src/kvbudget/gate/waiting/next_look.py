"""Decides when those who wait are looked at again although nobody comes or goes, and when all of them wait for prompts.

Some time after a report of tokens, as progress may have made room; when the engine is busy no more; and while the
engine has more prompts to read than it is given (`gate.waiting.parking`), once a first token is seen, or the time has
passed that they are thought to take. Where time alone makes room, for what is kept for others fades and who is not
watched goes on, also while nothing is reported.
"""

from typing import Final

from kvbudget.gate.promises import RECHECK_NS
from kvbudget.gate.waiting.overtaking import Overtaking
from kvbudget.gate.waiting.parking import Parking
from kvbudget.gate.waiting.queue import Queue
from kvbudget.gate.waiting.why import Why

_FOR_EVER_NS: Final = 1 << 61


class NextLook:
    """The next look at the queue of one gate that nothing else causes."""

    def __init__(self, queue: Queue, parking: Parking, overtaking: Overtaking) -> None:
        self.due_ns: int | None = None  # None: none is due
        self.at_latest_ns = _FOR_EVER_NS  # if somebody waits; a report may cause one before
        self.for_prompts = False  # whether those who wait do so for prompts that the engine has not read
        self._queue = queue
        self._parking = parking
        self._overtaking = overtaking

    def by(self, when_ns: int) -> None:
        """Look then whether somebody who waits may go, or sooner."""
        if self.due_ns is None or when_ns < self.due_ns:
            self.due_ns = when_ns

    def not_later_than(self, when_ns: int) -> None:
        """Look by then at the latest, however quiet it is; a report of tokens causes one before all the same."""
        self.at_latest_ns = min(self.at_latest_ns, when_ns)

    def begins(self, now_ns: int) -> bool:
        """Whether it is due by now; then no more."""
        begins = self.at_latest_ns <= now_ns
        if begins:
            self.at_latest_ns = _FOR_EVER_NS
        if self.due_ns is not None and self.due_ns <= now_ns:
            self.due_ns = None
            begins = True
        return begins

    def looks(self) -> None:
        """A look is made, which tells anew until when none has to be, and whether all wait for prompts. Else the time
        that those were thought to take would stand before the next report of tokens, after which there may be room."""
        self.at_latest_ns = _FOR_EVER_NS
        if self.for_prompts:
            self.for_prompts = False
            self.due_ns = None

    def wait_for_prompts(self, now_ns: int) -> bool:
        """Whether all who wait do so until the engine has read more of the prompts that it has."""
        wait_ns = self._parking.prompts_wait_ns(now_ns)
        first = self._overtaking.first_waiting()
        if not wait_ns or first is None:
            return False
        self.for_prompts = True
        self._queue.whys[first.key] = Why.PROMPTS
        self.by(now_ns + max(wait_ns, RECHECK_NS))  # or when a first token is seen
        return True
