"""Decides whether prefix credit is given: not for some time after a guess of what prompts share was wrong.

A guess is wrong when the engine reused less than was credited, or took blocks away again although by our reckoning all
fitted. Then nobody is credited until so many requests in a row have ended without another one, and twice as many after
each further one; a long time without any forgets that. Guesses are still made meanwhile, and told right or wrong by
what the engine reports.
"""

from typing import Final

FIRST: Final = 16  # requests
MOST: Final = 4096


class Trust:
    """Trust in what one engine is believed to share."""

    __slots__ = ("_calm", "_penalty", "doubt")

    def __init__(self) -> None:
        self.doubt = 0  # requests that must end without a wrong guess
        self._penalty = 0  # what the last wrong guess cost
        self._calm = 0  # requests that ended since doubt did

    @property
    def given(self) -> bool:
        """Whether credit is given."""
        return not self.doubt

    def wrong(self) -> None:
        """A guess was wrong; several at once are one mistake."""
        if self.doubt and self.doubt == self._penalty:
            return
        self._penalty = self.doubt = min(MOST, max(FIRST, 2 * self._penalty))
        self._calm = 0

    def ended(self) -> None:
        """A request ended."""
        if self.doubt:
            self.doubt -= 1
        elif self._penalty:
            self._calm += 1
            if self._calm >= MOST:
                self._penalty = 0
